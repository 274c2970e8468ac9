//! The model that all views of a tokenizer share, and the adapters that let them share it.

use std::collections::HashMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::tokenizer::PreTokenizedString;
use tokenizers::{Model, NormalizedString, Normalizer, PreTokenizer, Token};

/// Shares a component among the views.
pub struct Shared<T>(pub Arc<T>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

impl Normalizer for Shared<NormalizerWrapper> {
    fn normalize(&self, s: &mut NormalizedString) -> tokenizers::Result<()> {
        self.0.normalize(s)
    }
}

impl PreTokenizer for Shared<PreTokenizerWrapper> {
    fn pre_tokenize(&self, s: &mut PreTokenizedString) -> tokenizers::Result<()> {
        self.0.pre_tokenize(s)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// What the views share of the model, and what they need to know besides.
pub struct Core {
    pub model: ModelWrapper,
    /// Ids of the added tokens as the file states them (the model may not know them at all).
    pub added_ids: HashMap<String, u32>,
    pub attrs: Vec<u8>,
    pub unk: Option<(u32, String)>,
}

pub const CONTROL: u8 = 1; // must never come from typed text
pub const SPECIAL: u8 = 2; // hidden when decoding with skip_special

#[derive(Clone)]
pub struct SharedModel {
    pub core: Arc<Core>,
    pub typed_text: bool,
}

impl Model for SharedModel {
    type Trainer = BpeTrainer; // never used: training is not part of this product

    fn tokenize(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        let tokens = self.core.model.tokenize(text)?;
        if self.typed_text && tokens.iter().any(|t| self.core.is_spelled_control(t, text)) {
            // The model itself knows the control token (ignore_merges). Cut the text into
            // characters: none of those can spell it.
            let mut out = Vec::new();
            for (at, c) in text.char_indices() {
                let end = at + c.len_utf8();
                for mut t in self.core.model.tokenize(&text[at..end])? {
                    t.offsets = (at, end);
                    out.push(t);
                }
            }
            return Ok(out);
        }
        Ok(tokens)
    }
    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.core.added_ids.get(token).copied().or_else(|| self.core.model.token_to_id(token))
    }
    fn id_to_token(&self, id: u32) -> Option<String> {
        self.core.model.id_to_token(id)
    }
    fn get_vocab(&self) -> HashMap<String, u32> {
        self.core.model.get_vocab()
    }
    fn get_vocab_size(&self) -> usize {
        self.core.model.get_vocab_size()
    }
    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("not supported".into())
    }
    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}

impl Core {
    /// Whether a control token came out because the text spells it. The unknown token stands for
    /// what the vocabulary lacks, and may come out of any text but its own name.
    fn is_spelled_control(&self, t: &Token, text: &str) -> bool {
        let is_unknown = self.unk.as_ref().is_some_and(|(id, name)| {
            *id == t.id && text.get(t.offsets.0..t.offsets.1) != Some(name.as_str())
        });
        self.is(t.id, CONTROL) && !is_unknown
    }

    pub fn is(&self, id: u32, attr: u8) -> bool {
        self.attrs.get(id as usize).is_some_and(|a| a & attr != 0)
    }
}
