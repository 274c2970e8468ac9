//! Token ids to text, piece by piece.

use super::model::SPECIAL;
use super::Tokenizer;

/// Incremental decoding: gives only whole characters, in order, each exactly once.
pub struct Stream {
    pending: Vec<u8>,
    at_start: bool,
    skip_special: bool,
}

impl Stream {
    pub fn new(t: &Tokenizer, skip_special: bool) -> Stream {
        Stream { pending: Vec::new(), at_start: t.drop_first_space, skip_special }
    }

    /// Takes what came before as already shown: the text that follows then begins as the middle of a
    /// sequence does, and a character that `ids` leaves unfinished comes whole with the next token.
    pub fn seed(&mut self, t: &Tokenizer, ids: &[u32]) {
        // An unfinished character has at most three bytes, and a character's first byte can not be
        // taken for a later one: the last four bytes give the same state as all of them.
        const ENOUGH: usize = 4;
        let mut first = ids.len();
        let mut seen = 0;
        while first > 0 && seen < ENOUGH {
            first -= 1;
            if !(self.skip_special && t.core.is(ids[first], SPECIAL)) {
                seen += t.token_bytes(ids[first]).unwrap_or(b"").len();
            }
        }
        if seen >= ENOUGH {
            self.at_start = false;
        }
        let mut shown = String::new();
        for id in &ids[first..] {
            self.push(t, *id, &mut shown);
        }
    }

    pub fn push(&mut self, t: &Tokenizer, id: u32, out: &mut String) {
        if self.skip_special && t.core.is(id, SPECIAL) {
            return; // does not count as the start, nor breaks a character in two
        }
        let mut bytes = t.token_bytes(id).unwrap_or(b"");
        if self.at_start && !bytes.is_empty() {
            if !t.is_control(id) && bytes[0] == b' ' {
                bytes = &bytes[1..];
            }
            self.at_start = false;
        }
        self.pending.extend_from_slice(bytes);
        self.drain(false, out);
    }

    pub fn flush(&mut self, out: &mut String) {
        self.drain(true, out);
    }

    fn drain(&mut self, all: bool, out: &mut String) {
        let mut used = 0;
        loop {
            match std::str::from_utf8(&self.pending[used..]) {
                Ok(s) => {
                    out.push_str(s);
                    used = self.pending.len();
                    break;
                }
                Err(e) => {
                    let good = used + e.valid_up_to();
                    out.push_str(std::str::from_utf8(&self.pending[used..good]).unwrap_or(""));
                    used = good;
                    match e.error_len() {
                        Some(n) => {
                            out.push('\u{FFFD}');
                            used += n;
                        }
                        None if all => {
                            out.push('\u{FFFD}');
                            used = self.pending.len();
                            break;
                        }
                        None => break, // an unfinished character: wait for the next token
                    }
                }
            }
        }
        self.pending.drain(..used);
    }
}
