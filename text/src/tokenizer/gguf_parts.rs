//! A tokenizer from what a GGUF file's metadata says of it (`tokenizer.ggml.*`).

use super::spelling::{base64, unspellable, Spelling, SPACE_MARK};
use super::{bos_eos_processor, from_value, Blueprint, Tokenizer};
use crate::{pretokenizer, Result};
use serde_json::{json, Value};
use tokenizers::models::bpe::BpeBuilder;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::AddedToken;

/// What a GGUF file's metadata says of its tokenizer.
#[derive(Default)]
pub struct Parts {
    pub kind: String, // "gpt2", "llama", "t5"
    pub pre: String,  // "smollm", "llama-bpe", ...; used by "gpt2" only
    pub tokens: Vec<String>,
    pub types: Vec<i32>, // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
    pub scores: Vec<f32>,
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
    pub add_space_prefix: bool,
    pub remove_extra_whitespaces: bool, // "t5" only
    pub charsmap: Vec<u8>, // SentencePiece normalizer tables, may be empty
}

type Vocab = ahash::AHashMap<String, u32>;

// Token types of the format.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// What a token type means: which tokens are matched as whole strings, which the model owns.
#[derive(Default)]
struct Sorted {
    added: Vec<(u32, AddedToken)>, // matched as whole strings, outside the model
    controls: Vec<u32>,            // never made from typed text
    vocab: Vocab,
}

struct Pipeline {
    model: ModelWrapper,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    spelling: Spelling,
}

impl Parts {
    fn type_of(&self, i: usize) -> i32 {
        self.types.get(i).copied().unwrap_or(NORMAL)
    }

    fn token(&self, id: Option<u32>) -> Option<(u32, &str)> {
        let id = id?;
        Some((id, self.tokens.get(id as usize)?))
    }

    fn check(&self) -> Result<()> {
        if self.tokens.is_empty() {
            return Err("the vocabulary is empty".into());
        }
        if !self.types.is_empty() && self.types.len() != self.tokens.len() {
            return Err(format!("{} tokens but {} token types", self.tokens.len(), self.types.len()));
        }
        if matches!(self.kind.as_str(), "llama" | "t5") && self.scores.len() != self.tokens.len() {
            return Err(format!("a '{}' vocabulary needs one score per token", self.kind));
        }
        // A trie of 32-bit units behind its size in bytes, then strings; its reader trusts the size.
        if let Some(size) = self.charsmap.first_chunk::<4>().map(|b| u32::from_le_bytes(*b) as usize) {
            if size % 4 != 0 || size > self.charsmap.len() - 4 {
                return Err("precompiled_charsmap: its size does not fit its bytes".into());
            }
        } else if !self.charsmap.is_empty() {
            return Err("precompiled_charsmap: too short".into());
        }
        Ok(())
    }

    fn sorted(&self) -> Sorted {
        let mut s = Sorted::default();
        for (i, t) in self.tokens.iter().enumerate() {
            let id = i as u32;
            match self.type_of(i) {
                UNKNOWN | CONTROL => {
                    s.controls.push(id);
                    s.added.push((id, AddedToken::from(t.clone(), true)));
                }
                USER_DEFINED => {
                    let text = if self.kind == "gpt2" { t.clone() } else { t.replace(SPACE_MARK, " ") };
                    s.added.push((id, AddedToken::from(text, false).normalized(false)));
                }
                UNUSED => s.controls.push(id),
                _ => {
                    s.vocab.insert(t.clone(), id);
                }
            }
        }
        s
    }

    /// BPE over bytes, with a named pre-tokenizer.
    fn byte_level_bpe(&self, vocab: Vocab) -> Result<Pipeline> {
        let spec = pretokenizer::lookup(&self.pre)?;
        let mut merges = Vec::with_capacity(self.merges.len());
        for m in &self.merges {
            merges.push(split_merge(m).ok_or_else(|| format!("bad merge '{m}'"))?);
        }
        let model = BpeBuilder::new()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(spec.ignore_merges)
            .build()
            .map_err(|e| format!("BPE model: {e}"))?;
        Ok(Pipeline {
            model: ModelWrapper::BPE(model),
            normalizer: from_value(spec.normalizer)?,
            pre_tokenizer: from_value(spec.pre_tokenizer)?,
            spelling: Spelling::ByteLevel,
        })
    }

    /// SentencePiece BPE: scores stand for the order of the merges.
    fn sentencepiece_bpe(&self, mut vocab: Vocab) -> Result<Pipeline> {
        let merges = merges_from_scores(&vocab, &self.scores, &self.types);
        let unk = self.token(self.unk);
        if let Some((id, text)) = unk {
            vocab.insert(text.into(), id);
        }
        let mut b = BpeBuilder::new().vocab_and_merges(vocab, merges).fuse_unk(true).byte_fallback(true);
        if let Some((_, text)) = unk {
            b = b.unk_token(text.into());
        }
        let model = b.build().map_err(|e| format!("BPE model: {e}"))?;
        Ok(Pipeline {
            model: ModelWrapper::BPE(model),
            normalizer: from_value(json!({"type": "Sequence", "normalizers": self.space_marks()}))?,
            pre_tokenizer: None,
            spelling: Spelling::SentencePiece,
        })
    }

    fn unigram(&self) -> Result<Pipeline> {
        let pieces = self.tokens.iter().enumerate().map(|(i, t)| match self.type_of(i) {
            NORMAL | BYTE => (t.clone(), self.scores[i] as f64),
            _ => (unspellable(i), self.scores[i] as f64),
        });
        let model = Unigram::from(pieces.collect(), self.unk.map(|u| u as usize), self.types.contains(&BYTE))
            .map_err(|e| format!("Unigram model: {e}"))?;
        let mut steps = vec![];
        if !self.charsmap.is_empty() {
            steps.push(json!({"type": "Precompiled", "precompiled_charsmap": base64(&self.charsmap)}));
        }
        if self.remove_extra_whitespaces {
            steps.push(json!({"type": "Strip", "strip_left": true, "strip_right": true}));
            steps.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
        }
        steps.extend(self.space_marks());
        Ok(Pipeline {
            model: ModelWrapper::Unigram(model),
            normalizer: from_value(json!({"type": "Sequence", "normalizers": steps}))?,
            pre_tokenizer: None,
            spelling: Spelling::SentencePiece,
        })
    }

    /// A space prefix where the model wants one, and the mark for every space.
    fn space_marks(&self) -> Vec<Value> {
        let mut steps = vec![];
        if self.add_space_prefix {
            steps.push(json!({"type": "Prepend", "prepend": "▁"}));
        }
        steps.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}));
        steps
    }
}

impl Tokenizer {
    pub fn from_parts(p: Parts) -> Result<Tokenizer> {
        p.check()?;
        let sorted = p.sorted();
        let pipeline = match p.kind.as_str() {
            "gpt2" => p.byte_level_bpe(sorted.vocab)?,
            "llama" => p.sentencepiece_bpe(sorted.vocab)?,
            "t5" => p.unigram()?,
            other => return Err(format!("tokenizer kind '{other}' is not supported")),
        };
        let bos = p.token(p.bos).filter(|_| p.add_bos);
        let eos = p.token(p.eos).filter(|_| p.add_eos);
        let post_processor = bos_eos_processor(bos, eos)?;
        let unk = p.token(p.unk).map(|(id, text)| match p.kind.as_str() {
            "t5" => (id, unspellable(id as usize)),
            _ => (id, text.to_string()),
        });
        Blueprint {
            model: pipeline.model,
            normalizer: pipeline.normalizer,
            pre_tokenizer: pipeline.pre_tokenizer,
            post_processor,
            added: sorted.added,
            more_controls: sorted.controls,
            spelling: pipeline.spelling,
            drop_first_space: p.kind != "gpt2" && p.add_space_prefix,
            bos: p.bos,
            eos: p.eos,
            unk,
            vocab: p.tokens.into_iter().enumerate().map(|(i, t)| (i as u32, t)).collect(),
        }
        .build()
    }
}

/// GGUF writes a merge as "left right"; a space inside a piece is written as in the vocabulary, so
/// the only plain space that is not the first character separates the two.
fn split_merge(m: &str) -> Option<(String, String)> {
    let at = m.char_indices().skip(1).find(|(_, c)| *c == ' ')?.0;
    Some((m[..at].to_string(), m[at + 1..].to_string()))
}

/// SentencePiece BPE merges by the score of the merged piece; the HF model wants ranked pairs.
/// The order is that of HF's own converter.
fn merges_from_scores(
    vocab: &ahash::AHashMap<String, u32>,
    scores: &[f32],
    types: &[i32],
) -> Vec<(String, String)> {
    let mut all: Vec<(f32, usize, usize, u32, u32, &str)> = Vec::new();
    let mut pieces: Vec<(&String, u32)> = vocab
        .iter()
        .filter(|(_, id)| types.get(**id as usize).copied().unwrap_or(NORMAL) != BYTE)
        .map(|(t, id)| (t, *id))
        .collect();
    pieces.sort_by_key(|p| p.1);
    let is_piece = |s: &str| {
        vocab.get(s).copied().filter(|id| types.get(*id as usize).copied().unwrap_or(NORMAL) != BYTE)
    };
    for (piece, id) in pieces {
        for (at, _) in piece.char_indices().skip(1) {
            if let (Some(l), Some(r)) = (is_piece(&piece[..at]), is_piece(&piece[at..])) {
                let left = piece[..at].chars().count();
                let right = piece[at..].chars().count();
                all.push((scores[id as usize], left, right, l, r, piece));
            }
        }
    }
    all.sort_by(|a, b| {
        b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)).then(a.3.cmp(&b.3)).then(a.4.cmp(&b.4))
    });
    all.into_iter()
        .map(|(_, left, _, _, _, piece)| {
            let at = piece.char_indices().nth(left).map(|x| x.0).unwrap_or(piece.len());
            (piece[..at].to_string(), piece[at..].to_string())
        })
        .collect()
}
