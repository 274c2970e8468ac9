//! How a vocabulary writes the bytes of its tokens, and which of its tokens look like markup.

use std::collections::HashMap;

pub const SPACE_MARK: char = '▁'; // SentencePiece writes a space so

/// A name that no text has, for a piece that typed text must not match. Unigram numbers its pieces by
/// position, so a piece keeps its id under any name.
pub fn unspellable(id: usize) -> String {
    format!("\u{10FFFF}{id}")
}

/// How the vocabulary writes bytes.
#[derive(Clone, Copy, PartialEq)]
pub enum Spelling {
    /// GPT-2: each byte is one printable character.
    ByteLevel,
    /// SentencePiece: plain text, `▁` for a space, `<0xNN>` for a lone byte.
    SentencePiece,
}

/// Tokens such as `<tool_call>` are often not marked special although a chat format depends on
/// them. Anything that looks like markup counts as control, so typed text cannot make it.
pub fn looks_like_markup(text: &str) -> bool {
    let t = text.trim();
    t.len() >= 3
        && ((t.starts_with('<') && t.ends_with('>')) || (t.starts_with('[') && t.ends_with(']')))
        // HTML tags are ordinary words to some vocabularies (Gemma); typed HTML must stay cheap.
        && !is_html_tag(t)
}

fn is_html_tag(t: &str) -> bool {
    const TAGS: &[&str] = &[
        "table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td", "h1", "h2", "h3", "h4",
        "h5", "h6", "blockquote", "strong", "em", "b", "i", "u", "s", "sub", "sup", "code",
        "a", "html", "body", "img", "span", "bbox", "ul", "li", "div", "iframe", "footer",
    ];
    let inner = t.trim_start_matches('<').trim_start_matches('/').trim_end_matches('>');
    t.starts_with('<') && TAGS.contains(&inner)
}

pub fn byte_level_chars() -> HashMap<char, u8> {
    let mut map = HashMap::new();
    let mut next = 0x100u32;
    for b in 0..=255u8 {
        let printable = matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let c = if printable { b as u32 } else { next };
        if !printable {
            next += 1;
        }
        map.insert(char::from_u32(c).unwrap(), b);
    }
    map
}

fn byte_level_bytes(token: &str, byte_of: &HashMap<char, u8>) -> Vec<u8> {
    let mapped: Option<Vec<u8>> = token.chars().map(|c| byte_of.get(&c).copied()).collect();
    mapped.unwrap_or_else(|| token.as_bytes().to_vec())
}

fn sentencepiece_bytes(token: &str) -> Vec<u8> {
    if token.len() == 6 && token.starts_with("<0x") && token.ends_with('>') {
        if let Ok(b) = u8::from_str_radix(&token[3..5], 16) {
            return vec![b];
        }
    }
    token.replace(SPACE_MARK, " ").into_bytes()
}

pub fn token_bytes(spelling: Spelling, token: &str, byte_of: &HashMap<char, u8>) -> Vec<u8> {
    match spelling {
        Spelling::ByteLevel => byte_level_bytes(token, byte_of),
        Spelling::SentencePiece => sentencepiece_bytes(token),
    }
}

pub fn base64(data: &[u8]) -> String {
    const A: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(data.len().div_ceil(3) * 4);
    for c in data.chunks(3) {
        let n = (c[0] as u32) << 16 | (*c.get(1).unwrap_or(&0) as u32) << 8 | *c.get(2).unwrap_or(&0) as u32;
        for i in 0..4 {
            out.push(if i <= c.len() { A[(n >> (18 - 6 * i) & 63) as usize] as char } else { '=' });
        }
    }
    out
}
