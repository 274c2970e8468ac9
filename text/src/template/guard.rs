//! Keeps what clients wrote from becoming control tokens.

use crate::tokenizer::{Tokenizer, GUARD};
use crate::Result;
use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value as Json;

/// Marks what a client wrote so that it cannot spell a control token.
pub struct Guard {
    all: Option<AhoCorasick>,
    /// Without the tokens that belong into an assistant's own text, such as `<think>`: templates
    /// search for those.
    special: Option<AhoCorasick>,
}

impl Guard {
    pub fn new(t: &Tokenizer) -> Result<Guard> {
        let build = |texts: Vec<&String>| -> Result<Option<AhoCorasick>> {
            if texts.is_empty() {
                return Ok(None);
            }
            AhoCorasick::builder()
                .match_kind(MatchKind::Standard) // for overlapping matches
                .build(texts)
                .map(Some)
                .map_err(|e| e.to_string())
        };
        let texts = t.control_texts();
        Ok(Guard {
            all: build(texts.iter().collect())?,
            special: build(texts.iter().filter(|s| t.is_special_text(s)).collect())?,
        })
    }

    pub fn apply(&self, v: &mut Json, role: &str) {
        match v {
            Json::String(s) => {
                if s.contains(GUARD) {
                    *s = s.replace(GUARD, "\u{FFFD}");
                }
                let finder = if role == "assistant" { &self.special } else { &self.all };
                let Some(finder) = finder else { return };
                let mut cuts: Vec<usize> = finder
                    .find_overlapping_iter(s.as_str())
                    .map(|m| m.start() + s[m.start()..].chars().next().map_or(1, char::len_utf8))
                    .collect();
                if cuts.is_empty() {
                    return;
                }
                cuts.sort_unstable();
                cuts.dedup();
                let mut out = String::with_capacity(s.len() + cuts.len() * 4);
                let mut last = 0;
                for at in cuts {
                    out.push_str(&s[last..at]);
                    out.push(GUARD);
                    last = at;
                }
                out.push_str(&s[last..]);
                *s = out;
            }
            Json::Array(a) => a.iter_mut().for_each(|x| self.apply(x, role)),
            Json::Object(o) => {
                let role = o.get("role").and_then(Json::as_str).unwrap_or(role).to_string();
                // Keys are guarded too: a tool's argument names come from the client.
                let old = std::mem::take(o);
                for (k, mut x) in old {
                    let mut key = Json::String(k);
                    self.apply(&mut key, &role);
                    self.apply(&mut x, &role);
                    if let Json::String(k) = key {
                        o.insert(k, x);
                    }
                }
            }
            _ => {}
        }
    }
}
