//! Tokenizers, their configuration files, and streaming decoders.

use super::{boxed, free, guarded, null, put_ids, put_text, slice, TtIds, TtStr, TtText};
use crate::tokenizer::{HfConfig, Parts, Stream, Tokenizer};
use std::sync::Arc;

#[repr(C)]
pub struct TtParts {
    kind: TtStr,
    pre: TtStr,
    tokens: *const TtStr,
    n_tokens: usize,
    types: *const i32,
    scores: *const f32,
    merges: *const TtStr,
    n_merges: usize,
    bos: i64,
    eos: i64,
    unk: i64,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
    charsmap: TtStr,
}

pub struct TtConfig(HfConfig);
pub struct TtTokenizer(pub Arc<Tokenizer>);
pub struct TtStream {
    tokenizer: Arc<Tokenizer>,
    stream: Stream,
    out: String,
}

// What the header promises about threads, checked by the compiler.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    fn movable<T: Send>() {}
    shared::<TtConfig>();
    shared::<TtTokenizer>();
    movable::<TtStream>();
};

#[no_mangle]
pub unsafe extern "C" fn tt_config_parse(json: TtStr, error: *mut TtText) -> *mut TtConfig {
    guarded(error, std::ptr::null_mut(), || Ok(boxed(TtConfig(HfConfig::parse(json.bytes())?))))
}

#[no_mangle]
pub unsafe extern "C" fn tt_config_free(c: *mut TtConfig) {
    free(c)
}

#[no_mangle]
pub unsafe extern "C" fn tt_config_bos(c: *const TtConfig) -> TtStr {
    c.as_ref().map_or(TtStr::EMPTY, |c| TtStr::of(c.0.bos_token.as_bytes()))
}

#[no_mangle]
pub unsafe extern "C" fn tt_config_eos(c: *const TtConfig) -> TtStr {
    c.as_ref().map_or(TtStr::EMPTY, |c| TtStr::of(c.0.eos_token.as_bytes()))
}

#[no_mangle]
pub unsafe extern "C" fn tt_config_template(c: *const TtConfig, name: TtStr) -> TtStr {
    let Some(c) = c.as_ref() else { return TtStr::EMPTY };
    let found = c.0.templates.iter().find(|t| t.0.as_bytes() == name.bytes());
    found.map_or(TtStr::EMPTY, |t| TtStr::of(t.1.as_bytes()))
}

#[no_mangle]
pub unsafe extern "C" fn tt_tokenizer_from_json(
    json: TtStr, config: *const TtConfig, error: *mut TtText,
) -> *mut TtTokenizer {
    guarded(error, std::ptr::null_mut(), || {
        let none = HfConfig::default();
        let config = config.as_ref().map_or(&none, |c| &c.0);
        Ok(boxed(TtTokenizer(Arc::new(Tokenizer::from_json(json.bytes(), config)?))))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_tokenizer_from_parts(p: *const TtParts, error: *mut TtText) -> *mut TtTokenizer {
    guarded(error, std::ptr::null_mut(), || {
        let p = p.as_ref().ok_or_else(null)?;
        let n = p.n_tokens;
        let strings = |data: *const TtStr, n: usize| -> Vec<String> {
            slice(data, n).iter().map(|s| s.text().into_owned()).collect()
        };
        let id = |i: i64| u32::try_from(i).ok().filter(|i| (*i as usize) < n);
        let parts = Parts {
            kind: p.kind.text().into_owned(),
            pre: p.pre.text().into_owned(),
            tokens: strings(p.tokens, n),
            types: slice(p.types, n).to_vec(),
            scores: slice(p.scores, n).to_vec(),
            merges: strings(p.merges, p.n_merges),
            bos: id(p.bos),
            eos: id(p.eos),
            unk: id(p.unk),
            add_bos: p.add_bos,
            add_eos: p.add_eos,
            add_space_prefix: p.add_space_prefix,
            remove_extra_whitespaces: p.remove_extra_whitespaces,
            charsmap: p.charsmap.bytes().to_vec(),
        };
        Ok(boxed(TtTokenizer(Arc::new(Tokenizer::from_parts(parts)?))))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_tokenizer_free(t: *mut TtTokenizer) {
    free(t)
}

#[no_mangle]
pub unsafe extern "C" fn tt_vocab_size(t: *const TtTokenizer) -> usize {
    t.as_ref().map_or(0, |t| t.0.vocab_size())
}

#[no_mangle]
pub unsafe extern "C" fn tt_token_bytes(t: *const TtTokenizer, id: u32) -> TtStr {
    TtStr::of(t.as_ref().and_then(|t| t.0.token_bytes(id)).unwrap_or(b""))
}

#[no_mangle]
pub unsafe extern "C" fn tt_token_is_control(t: *const TtTokenizer, id: u32) -> bool {
    t.as_ref().is_some_and(|t| t.0.is_control(id))
}

#[no_mangle]
pub unsafe extern "C" fn tt_token_id(t: *const TtTokenizer, text: TtStr) -> i64 {
    guarded(std::ptr::null_mut(), -1, || {
        let t = t.as_ref().ok_or_else(null)?;
        Ok(t.0.token_id(&text.text()).map_or(-1, i64::from))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_tokenizer_bos(t: *const TtTokenizer) -> i64 {
    t.as_ref().and_then(|t| t.0.bos()).map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn tt_tokenizer_eos(t: *const TtTokenizer) -> i64 {
    t.as_ref().and_then(|t| t.0.eos()).map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn tt_encode(
    t: *const TtTokenizer, text: TtStr, add_special: bool, parse_control: bool,
    out: *mut TtIds, error: *mut TtText,
) -> bool {
    guarded(error, false, || {
        let t = t.as_ref().ok_or_else(null)?;
        put_ids(out, t.0.encode(&text.text(), add_special, parse_control)?);
        Ok(true)
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_decode(
    t: *const TtTokenizer, ids: *const u32, n: usize, skip_special: bool,
    out: *mut TtText, error: *mut TtText,
) -> bool {
    guarded(error, false, || {
        let t = t.as_ref().ok_or_else(null)?;
        put_text(out, t.0.decode(slice(ids, n), skip_special));
        Ok(true)
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_stream_new(t: *const TtTokenizer, skip_special: bool) -> *mut TtStream {
    guarded(std::ptr::null_mut(), std::ptr::null_mut(), || {
        let tokenizer = t.as_ref().ok_or_else(null)?.0.clone();
        let stream = Stream::new(&tokenizer, skip_special);
        Ok(boxed(TtStream { tokenizer, stream, out: String::new() }))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_stream_seed(s: *mut TtStream, ids: *const u32, n: usize) {
    if let Some(s) = s.as_mut() {
        s.stream.seed(&s.tokenizer, slice(ids, n));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tt_stream_push(s: *mut TtStream, id: u32) -> TtStr {
    let Some(s) = s.as_mut() else { return TtStr::EMPTY };
    s.out.clear();
    s.stream.push(&s.tokenizer, id, &mut s.out);
    TtStr::of(s.out.as_bytes())
}

#[no_mangle]
pub unsafe extern "C" fn tt_stream_finish(s: *mut TtStream) -> TtStr {
    let Some(s) = s.as_mut() else { return TtStr::EMPTY };
    s.out.clear();
    s.stream.flush(&mut s.out);
    TtStr::of(s.out.as_bytes())
}

#[no_mangle]
pub unsafe extern "C" fn tt_stream_free(s: *mut TtStream) {
    free(s)
}
