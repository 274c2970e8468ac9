//! A tokenizer from a Hugging Face `tokenizer.json` and `tokenizer_config.json`.

use super::spelling::{unspellable, Spelling};
use super::{bos_eos_processor, is_control_token, Blueprint, Tokenizer};
use crate::Result;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::Value;
use tokenizers::models::bpe::BpeBuilder;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{AddedToken, DecoderWrapper, Model, PostProcessorWrapper};

#[derive(Deserialize)]
struct AddedEntry {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

#[derive(Deserialize)]
struct JsonFile<'a> {
    #[serde(default)]
    added_tokens: Vec<AddedEntry>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    decoder: Option<DecoderWrapper>,
    #[serde(borrow)]
    model: &'a RawValue,
}

/// The BPE model of a tokenizer.json. The library's own reader goes through a tree of JSON values,
/// which takes twice as long; vocabularies of 200k tokens make that a visible part of a start.
#[derive(Deserialize)]
struct BpeFile {
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: ahash::AHashMap<String, u32>,
    merges: Vec<Merge>,
}

/// `"a b"` in older files, `["a", "b"]` in newer ones.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> serde::de::Visitor<'de> for V {
            type Value = Merge;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a merge")
            }
            fn visit_str<E: serde::de::Error>(self, s: &str) -> std::result::Result<Merge, E> {
                let (a, b) = s.split_once(' ').ok_or_else(|| E::custom("bad merge"))?;
                Ok(Merge(a.into(), b.into()))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> std::result::Result<Merge, A::Error> {
                let bad = || serde::de::Error::custom("bad merge");
                let a = seq.next_element()?.ok_or_else(bad)?;
                Ok(Merge(a, seq.next_element()?.ok_or_else(bad)?))
            }
        }
        d.deserialize_any(V)
    }
}

/// The model, and what it takes for unknown text: id and name.
type ModelAndUnknown = (ModelWrapper, Option<(u32, String)>);

#[derive(Deserialize)]
struct UnigramFile {
    unk_id: Option<usize>,
    vocab: Vec<(String, f64)>,
    #[serde(default)]
    byte_fallback: bool,
}

/// Unigram would match a control piece in typed text. Its definition (SentencePiece) never does, so
/// those pieces and the unknown one get a name that no text has.
fn read_unigram(json: &str, controls: &[u32]) -> Result<ModelAndUnknown> {
    let f: UnigramFile = serde_json::from_str(json).map_err(|e| e.to_string())?;
    let mut vocab = f.vocab;
    for i in controls.iter().map(|id| *id as usize).chain(f.unk_id) {
        if let Some(piece) = vocab.get_mut(i) {
            piece.0 = unspellable(i);
        }
    }
    let model = Unigram::from(vocab, f.unk_id, f.byte_fallback).map_err(|e| e.to_string())?;
    Ok((ModelWrapper::Unigram(model), f.unk_id.map(|i| (i as u32, unspellable(i)))))
}

fn read_model(json: &str, controls: &[u32]) -> Result<ModelAndUnknown> {
    #[derive(Deserialize)]
    struct Kind {
        #[serde(rename = "type")]
        kind: Option<String>,
    }
    let fail = |e: &dyn std::fmt::Display| format!("tokenizer.json: model: {e}");
    let kind: Kind = serde_json::from_str(json).map_err(|e| fail(&e))?;
    match kind.kind.as_deref() {
        Some("BPE") => {}
        Some("Unigram") => return read_unigram(json, controls).map_err(|e| fail(&e)),
        other => return Err(fail(&format!("kind {other:?} is not supported"))),
    }
    let f: BpeFile = serde_json::from_str(json).map_err(|e| fail(&e))?;
    let mut b = BpeBuilder::new()
        .vocab_and_merges(f.vocab, f.merges.into_iter().map(|m| (m.0, m.1)).collect())
        .fuse_unk(f.fuse_unk)
        .byte_fallback(f.byte_fallback)
        .ignore_merges(f.ignore_merges);
    if let Some(u) = &f.unk_token {
        b = b.unk_token(u.clone());
    }
    if let Some(p) = f.continuing_subword_prefix {
        b = b.continuing_subword_prefix(p);
    }
    if let Some(s) = f.end_of_word_suffix {
        b = b.end_of_word_suffix(s);
    }
    let model = b.build().map_err(|e| fail(&e))?;
    let unk = f.unk_token.and_then(|u| Some((model.token_to_id(&u)?, u)));
    Ok((ModelWrapper::BPE(model), unk))
}

/// What matters of a `tokenizer_config.json`. `clean_up_tokenization_spaces` does not: it would
/// make decoding lose text, and some models set it by mistake.
#[derive(Default)]
pub struct HfConfig {
    pub bos_token: String, // empty: none
    pub eos_token: String,
    /// Templates by name; the plain string form is called "default".
    pub templates: Vec<(String, String)>,
    /// Whether a text gets BOS and EOS, for the classes that decide it here and not in tokenizer.json.
    add_bos: Option<bool>,
    add_eos: Option<bool>,
}

impl HfConfig {
    pub fn parse(json: &[u8]) -> Result<HfConfig> {
        let v: Value = serde_json::from_slice(json).map_err(|e| format!("tokenizer_config.json: {e}"))?;
        if !v.is_object() {
            return Err("tokenizer_config.json: not an object".into());
        }
        // "<s>" or {"content": "<s>", ...}
        let token = |key: &str| -> String {
            let t = &v[key];
            t.as_str().or_else(|| t["content"].as_str()).unwrap_or("").to_string()
        };
        let templates = match &v["chat_template"] {
            Value::String(s) => vec![("default".to_string(), s.clone())],
            Value::Array(list) => list
                .iter()
                .filter_map(|x| Some((x["name"].as_str()?.to_string(), x["template"].as_str()?.to_string())))
                .collect(),
            _ => Vec::new(),
        };
        // These rebuild their post-processor from the two flags; for all others tokenizer.json rules.
        let class = v["tokenizer_class"].as_str().unwrap_or("");
        let decides = ["Llama", "CodeLlama", "Gemma", "Cohere"].iter().any(|c| class.starts_with(c));
        let flag = |key: &str| v[key].as_bool().filter(|_| decides);
        Ok(HfConfig {
            bos_token: token("bos_token"),
            eos_token: token("eos_token"),
            templates,
            add_bos: flag("add_bos_token"),
            add_eos: flag("add_eos_token"),
        })
    }
}

impl Tokenizer {
    pub fn from_json(json: &[u8], config: &HfConfig) -> Result<Tokenizer> {
        let file: JsonFile =
            serde_json::from_slice(json).map_err(|e| format!("tokenizer.json: {e}"))?;
        let decoder = serde_json::to_string(&file.decoder).unwrap_or_default();
        let spelling = if decoder.contains("\"ByteLevel\"") {
            Spelling::ByteLevel
        } else if decoder.contains("\"ByteFallback\"") || decoder.contains("\"Metaspace\"") {
            Spelling::SentencePiece
        } else {
            return Err(format!("tokenizer.json: unsupported decoder {decoder}"));
        };
        let drop_first_space = spelling == Spelling::SentencePiece
            && (decoder.contains("\"Strip\"")
                || (decoder.contains("\"Metaspace\"") && !decoder.contains("\"never\"")));
        let added: Vec<(u32, AddedToken)> = file.added_tokens.into_iter().map(|a| (a.id, a.token)).collect();
        let controls: Vec<u32> = added.iter().filter(|a| is_control_token(&a.1)).map(|a| a.0).collect();
        let (model, unk) = read_model(file.model.get(), &controls)?;
        let vocab: Vec<(u32, String)> = model.get_vocab().into_iter().map(|(t, id)| (id, t)).collect();

        let id_of = |text: &str| -> Option<(u32, String)> {
            let known = added.iter().find(|a| a.1.content == text).map(|a| a.0);
            Some((known.or_else(|| model.token_to_id(text))?, text.to_string()))
        };
        let bos = id_of(&config.bos_token);
        let eos = id_of(&config.eos_token);
        let post_processor = if config.add_bos.is_some() || config.add_eos.is_some() {
            let when = |flag: Option<bool>, otherwise: bool| flag.unwrap_or(otherwise);
            bos_eos_processor(
                bos.as_ref().filter(|_| when(config.add_bos, true)).map(|b| (b.0, b.1.as_str())),
                eos.as_ref().filter(|_| when(config.add_eos, false)).map(|e| (e.0, e.1.as_str())),
            )?
        } else {
            file.post_processor
        };
        Blueprint {
            model,
            normalizer: file.normalizer,
            pre_tokenizer: file.pre_tokenizer,
            post_processor,
            vocab,
            added,
            more_controls: Vec::new(),
            spelling,
            drop_first_space,
            bos: bos.map(|b| b.0),
            eos: eos.map(|e| e.0),
            unk,
        }
        .build()
    }
}
