//! Text <-> token ids.
//!
//! One `Tokenizer` holds up to three *views* over one shared model:
//!   * `markup`    recognises every added token: for text that the server itself wrote
//!   * `text`      recognises no control token: for text that somebody typed
//!   * `text_tail` as `text`, for a fragment that does not start a sequence (no space prefix)
//! The views share model, normalizer and pre-tokenizer, so they cost little memory.

mod gguf_parts;
mod json_file;
mod model;
mod space_prefix;
mod spelling;
mod stream;

pub use gguf_parts::Parts;
pub use json_file::HfConfig;
pub use stream::Stream;

use crate::Result;
use model::{Core, Shared, SharedModel, CONTROL, SPECIAL};
use serde_json::{json, Value};
use space_prefix::{has_prepend, without_space_prefix};
use spelling::{looks_like_markup, token_bytes, Spelling};
use std::sync::Arc;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::tokenizer::{OffsetReferential, OffsetType};
use tokenizers::{AddedToken, DecoderWrapper, PostProcessorWrapper, TokenizerImpl};

/// Stands inside a control token's text in a rendered prompt where that text came from a user: it
/// keeps the text from being read as the token, and is removed before the text is tokenized.
/// A Unicode noncharacter, so no real text contains it (`template/guard.rs` replaces it if one does).
pub const GUARD: char = '\u{10FFFE}';

type View = TokenizerImpl<
    SharedModel,
    Shared<NormalizerWrapper>,
    Shared<PreTokenizerWrapper>,
    PostProcessorWrapper,
    DecoderWrapper,
>;

pub struct Tokenizer {
    core: Arc<Core>,
    markup: View,
    text: View,
    text_tail: Option<View>,
    /// The bytes of token i are `bytes[starts[i]..starts[i + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    /// The first space of a decoded sequence is an artefact of the encoder.
    drop_first_space: bool,
    control_texts: Vec<String>,
    bos: Option<u32>,
    eos: Option<u32>,
}

/// All that a tokenizer is made of, whatever file it came from.
struct Blueprint {
    model: ModelWrapper,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    vocab: Vec<(u32, String)>,
    added: Vec<(u32, AddedToken)>,
    /// Controls that are not added tokens: unused and reserved pieces.
    more_controls: Vec<u32>,
    spelling: Spelling,
    drop_first_space: bool,
    bos: Option<u32>,
    eos: Option<u32>,
    /// What stands for the unknown, and the text that the model reads as it.
    unk: Option<(u32, String)>,
}

const MAX_TOKENS: usize = 4_000_000;

impl Blueprint {
    fn vocab_size(&self) -> Result<usize> {
        let size = self.vocab.iter().map(|v| v.0).chain(self.added.iter().map(|a| a.0)).max();
        let size = size.ok_or("the vocabulary is empty")? as usize + 1;
        if size > MAX_TOKENS {
            return Err(format!("token id {} is out of range", size - 1));
        }
        Ok(size)
    }

    fn attributes(&self, size: usize) -> Vec<u8> {
        let mut attrs = vec![0u8; size];
        for (id, t) in &self.added {
            if is_control_token(t) {
                attrs[*id as usize] |= CONTROL;
            }
            if t.special {
                attrs[*id as usize] |= SPECIAL;
            }
        }
        for id in &self.more_controls {
            attrs[*id as usize] |= CONTROL | SPECIAL;
        }
        attrs
    }

    /// Token bytes: the one truth for decoding, streaming and constraints.
    fn spelled(&self, attrs: &[u8]) -> (Vec<u8>, Vec<u32>) {
        let mut spelled: Vec<Option<Vec<u8>>> = vec![None; attrs.len()];
        let byte_of = spelling::byte_level_chars();
        for (id, t) in &self.vocab {
            spelled[*id as usize] = Some(token_bytes(self.spelling, t, &byte_of));
        }
        for (id, t) in &self.added {
            spelled[*id as usize] = Some(match self.spelling {
                // Gemma adds runs of `▁` as tokens; they decode to spaces like any other piece.
                Spelling::SentencePiece if attrs[*id as usize] & CONTROL == 0 => {
                    token_bytes(self.spelling, &t.content, &byte_of)
                }
                _ => t.content.clone().into_bytes(),
            });
        }
        let mut bytes = Vec::new();
        let mut starts = Vec::with_capacity(attrs.len() + 1);
        for s in &spelled {
            starts.push(bytes.len() as u32);
            bytes.extend_from_slice(s.as_deref().unwrap_or(b""));
        }
        starts.push(bytes.len() as u32);
        (bytes, starts)
    }

    fn build(self) -> Result<Tokenizer> {
        let size = self.vocab_size()?;
        let attrs = self.attributes(size);
        let (bytes, starts) = self.spelled(&attrs);
        let control_texts =
            self.added.iter().filter(|a| is_control_token(&a.1)).map(|a| a.1.content.clone()).collect();
        let added_ids = self.added.iter().map(|(id, t)| (t.content.clone(), *id)).collect();
        let core = Arc::new(Core { model: self.model, added_ids, attrs, unk: self.unk });

        let all: Vec<AddedToken> = self.added.iter().map(|a| a.1.clone()).collect();
        let harmless: Vec<AddedToken> =
            self.added.iter().filter(|a| !core.is(a.0, CONTROL)).map(|a| a.1.clone()).collect();
        let normalizer = self.normalizer.map(|n| Shared(Arc::new(n)));
        let pre = self.pre_tokenizer.map(|p| Shared(Arc::new(p)));
        let post = self.post_processor;
        let view = |typed_text: bool, n: Option<Shared<NormalizerWrapper>>,
                    p: Option<Shared<PreTokenizerWrapper>>, added: &[AddedToken]| -> Result<View> {
            let mut v = View::new(SharedModel { core: core.clone(), typed_text });
            v.with_normalizer(n).map_err(|e| e.to_string())?;
            v.with_pre_tokenizer(p);
            v.with_post_processor(post.clone());
            v.add_tokens(added.iter().cloned()).map_err(|e| format!("added tokens: {e}"))?;
            Ok(v)
        };
        Ok(Tokenizer {
            markup: view(false, normalizer.clone(), pre.clone(), &all)?,
            text: view(true, normalizer.clone(), pre.clone(), &harmless)?,
            text_tail: match without_space_prefix(normalizer.as_deref(), pre.as_deref())? {
                None => None,
                Some((n, p)) => Some(view(true, n, p, &harmless)?),
            },
            core: core.clone(),
            bytes,
            starts,
            drop_first_space: self.drop_first_space,
            control_texts,
            bos: self.bos,
            eos: self.eos,
        })
    }
}

fn is_control_token(t: &AddedToken) -> bool {
    t.special || looks_like_markup(&t.content)
}

impl Tokenizer {
    pub fn vocab_size(&self) -> usize {
        self.starts.len() - 1
    }

    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let i = id as usize;
        let (a, b) = (*self.starts.get(i)?, *self.starts.get(i + 1)?);
        Some(&self.bytes[a as usize..b as usize])
    }

    pub fn is_control(&self, id: u32) -> bool {
        self.core.is(id, CONTROL)
    }

    /// Whether a control token's text is marked special, not merely looks like markup.
    pub fn is_special_text(&self, text: &str) -> bool {
        self.token_id(text).is_some_and(|id| self.core.is(id, SPECIAL))
    }

    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.markup.token_to_id(text)
    }

    pub fn control_texts(&self) -> &[String] {
        &self.control_texts
    }

    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// `parse_control` only for text that the server wrote itself, or whose writer may do all that
    /// the server may.
    pub fn encode(&self, text: &str, add_special: bool, parse_control: bool) -> Result<Vec<u32>> {
        let view = if parse_control { &self.markup } else { &self.text };
        let e = view.encode_fast(text, add_special).map_err(|e| format!("encode: {e}"))?;
        let ids = e.get_ids();
        // A text that begins with BOS already shall not get a second one: it costs accuracy.
        let twice = add_special && ids.len() >= 2 && self.bos == Some(ids[0]) && ids[0] == ids[1];
        Ok(ids[usize::from(twice)..].to_vec())
    }

    /// Encodes a fragment in the middle of a sequence; control tokens are not recognised.
    pub fn encode_tail(&self, text: &str) -> Result<Vec<u32>> {
        let view = self.text_tail.as_ref().unwrap_or(&self.text);
        let e = view.encode_fast(text, false).map_err(|e| format!("encode: {e}"))?;
        Ok(e.get_ids().to_vec())
    }

    /// Encodes a rendered prompt in which `GUARD` marks what users typed.
    pub fn encode_guarded(&self, prompt: &str) -> Result<Vec<u32>> {
        if !prompt.contains(GUARD) {
            return self.encode(prompt, false, true);
        }
        let cut = self
            .markup
            .get_added_vocabulary()
            .extract_and_normalize(None::<&Shared<NormalizerWrapper>>, prompt);
        let mut ids = Vec::new();
        let mut first = true;
        for (piece, _, tokens) in cut.get_splits(OffsetReferential::Original, OffsetType::None) {
            match tokens {
                Some(tokens) => ids.extend(tokens.iter().map(|t| t.id)),
                None => {
                    let plain: String = piece.chars().filter(|c| *c != GUARD).collect();
                    let view = if first { &self.text } else { self.tail_view() };
                    let e = view.encode_fast(plain, false).map_err(|e| format!("encode: {e}"))?;
                    ids.extend_from_slice(e.get_ids());
                }
            }
            first = false;
        }
        Ok(ids)
    }

    /// A `Prepend` normalizer acts on every fragment (as the HF library does, and the models were
    /// trained so); a Metaspace with scheme "first" acts on the first fragment only.
    fn tail_view(&self) -> &View {
        match &self.text_tail {
            Some(v) if self.text.get_normalizer().is_none_or(|n| !has_prepend(&n.0)) => v,
            _ => &self.text,
        }
    }

    /// Whole-sequence decoding; the same bytes that `Stream` gives piece by piece.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut s = Stream::new(self, skip_special);
        let mut out = String::new();
        for id in ids {
            s.push(self, *id, &mut out);
        }
        s.flush(&mut out);
        out
    }
}

fn from_value<T: serde::de::DeserializeOwned>(v: Value) -> Result<Option<T>> {
    if v.is_null() {
        return Ok(None);
    }
    serde_json::from_value(v).map(Some).map_err(|e| format!("tokenizer component: {e}"))
}

/// A post-processor that puts BOS before and EOS behind a text, or none where both are absent.
/// Each is given as id and text.
fn bos_eos_processor(
    bos: Option<(u32, &str)>,
    eos: Option<(u32, &str)>,
) -> Result<Option<PostProcessorWrapper>> {
    if bos.is_none() && eos.is_none() {
        return Ok(None);
    }
    let mut specials = serde_json::Map::new();
    let mut special = |(id, text): (u32, &str)| -> Value {
        specials.insert(text.into(), json!({"id": text, "ids": [id], "tokens": [text]}));
        json!({"SpecialToken": {"id": text, "type_id": 0}})
    };
    let sequence = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
    let mut single: Vec<Value> = bos.map(&mut special).into_iter().collect();
    single.push(sequence("A", 0));
    single.extend(eos.map(&mut special));
    from_value(json!({"type": "TemplateProcessing", "single": single,
        "pair": [sequence("A", 0), sequence("B", 1)], "special_tokens": specials}))
}
