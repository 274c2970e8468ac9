//! Constrained decoding.

use super::tokenizer::TtTokenizer;
use super::{boxed, free, guarded, null, put_ids, slice, TtIds, TtStr, TtText};
use crate::constraint::{Constraint, Engine};

pub struct TtEngine(Engine);
pub struct TtConstraint(Constraint);

const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    fn movable<T: Send>() {}
    shared::<TtEngine>();
    movable::<TtConstraint>();
};

#[no_mangle]
pub unsafe extern "C" fn tt_engine_new(
    t: *const TtTokenizer, logits_size: usize, stops: *const u32, n_stops: usize, error: *mut TtText,
) -> *mut TtEngine {
    guarded(error, std::ptr::null_mut(), || {
        let t = t.as_ref().ok_or_else(null)?;
        Ok(boxed(TtEngine(Engine::new(t.0.clone(), logits_size, slice(stops, n_stops))?)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_engine_free(e: *mut TtEngine) {
    free(e)
}

#[no_mangle]
pub unsafe extern "C" fn tt_mask_words(e: *const TtEngine) -> usize {
    e.as_ref().map_or(0, |e| e.0.vocab_size().div_ceil(32))
}

#[no_mangle]
pub unsafe extern "C" fn tt_constraint_compile(
    e: *const TtEngine, kind: TtStr, source: TtStr, error: *mut TtText,
) -> *mut TtConstraint {
    guarded(error, std::ptr::null_mut(), || {
        let e = e.as_ref().ok_or_else(null)?;
        Ok(boxed(TtConstraint(e.0.compile(&kind.text(), &source.text())?)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_constraint_clone(c: *const TtConstraint, error: *mut TtText) -> *mut TtConstraint {
    guarded(error, std::ptr::null_mut(), || {
        Ok(boxed(TtConstraint(c.as_ref().ok_or_else(null)?.0.deep_clone())))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_constraint_free(c: *mut TtConstraint) {
    free(c)
}

#[no_mangle]
pub unsafe extern "C" fn tt_constraint_mask(
    c: *mut TtConstraint, mask: *mut u32, words: usize, error: *mut TtText,
) -> bool {
    guarded(error, false, || {
        let c = c.as_mut().ok_or_else(null)?;
        if mask.is_null() {
            return Err("mask: null".into());
        }
        c.0.mask(std::slice::from_raw_parts_mut(mask, words))?;
        Ok(true)
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_constraint_commit(
    c: *mut TtConstraint, ids: *const u32, n: usize, error: *mut TtText,
) -> bool {
    guarded(error, false, || {
        c.as_mut().ok_or_else(null)?.0.commit(slice(ids, n))?;
        Ok(true)
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_constraint_validate(
    c: *mut TtConstraint, ids: *const u32, n: usize, error: *mut TtText,
) -> i64 {
    guarded(error, -1, || {
        Ok(c.as_mut().ok_or_else(null)?.0.validate(slice(ids, n))? as i64)
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_constraint_rollback(c: *mut TtConstraint, n: usize, error: *mut TtText) -> bool {
    guarded(error, false, || {
        c.as_mut().ok_or_else(null)?.0.rollback(n)?;
        Ok(true)
    })
}

#[no_mangle]
pub unsafe extern "C" fn tt_constraint_is_accepting(c: *mut TtConstraint) -> bool {
    guarded(std::ptr::null_mut(), false, || c.as_mut().ok_or_else(null)?.0.is_accepting())
}

#[no_mangle]
pub unsafe extern "C" fn tt_constraint_is_stopped(c: *const TtConstraint) -> bool {
    c.as_ref().is_none_or(|c| c.0.is_stopped())
}

#[no_mangle]
pub unsafe extern "C" fn tt_constraint_forced(c: *mut TtConstraint, out: *mut TtIds, error: *mut TtText) -> bool {
    guarded(error, false, || {
        put_ids(out, c.as_mut().ok_or_else(null)?.0.forced());
        Ok(true)
    })
}
