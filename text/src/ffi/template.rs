//! Chat templates.

use super::tokenizer::TtTokenizer;
use super::{boxed, free, guarded, null, put_ids, put_text, TtIds, TtStr, TtText};
use crate::template::Template;

pub struct TtTemplate(Template);

const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<TtTemplate>();
};

#[no_mangle]
pub unsafe extern "C" fn tt_template_compile(source: TtStr, error: *mut TtText) -> *mut TtTemplate {
    guarded(error, std::ptr::null_mut(), || {
        Ok(boxed(TtTemplate(Template::compile(&source.text())?)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_template_free(t: *mut TtTemplate) {
    free(t)
}

#[no_mangle]
pub unsafe extern "C" fn tt_template_render(
    t: *const TtTemplate, context: TtStr, now: i64, out: *mut TtText, error: *mut TtText,
) -> bool {
    guarded(error, false, || {
        let t = t.as_ref().ok_or_else(null)?;
        put_text(out, t.0.render(&context.text(), now)?);
        Ok(true)
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_chat_encode(
    t: *const TtTemplate, tokenizer: *const TtTokenizer, context: TtStr, now: i64,
    out: *mut TtIds, error: *mut TtText,
) -> bool {
    guarded(error, false, || {
        let t = t.as_ref().ok_or_else(null)?;
        let tokenizer = tokenizer.as_ref().ok_or_else(null)?;
        put_ids(out, t.0.encode(&tokenizer.0, &context.text(), now)?);
        Ok(true)
    })
}
