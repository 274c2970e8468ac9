//! Pipelines that put a space before a text, and how to get the same pipeline without it.

use super::from_value;
use super::model::Shared;
use crate::Result;
use serde_json::{json, Value};
use std::sync::Arc;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

pub fn has_prepend(n: &NormalizerWrapper) -> bool {
    match n {
        NormalizerWrapper::Prepend(_) => true,
        NormalizerWrapper::Sequence(s) => s.as_ref().iter().any(has_prepend),
        _ => false,
    }
}

pub type Pipeline = (Option<Shared<NormalizerWrapper>>, Option<Shared<PreTokenizerWrapper>>);

/// The pipeline without its space prefix, or `None` if it has none.
pub fn without_space_prefix(
    n: Option<&NormalizerWrapper>,
    p: Option<&PreTokenizerWrapper>,
) -> Result<Option<Pipeline>> {
    fn strip(v: &mut Value) -> bool {
        let mut changed = false;
        for key in ["normalizers", "pretokenizers"] {
            if let Some(list) = v.get_mut(key).and_then(Value::as_array_mut) {
                let before = list.len();
                list.retain(|x| x["type"] != "Prepend");
                changed |= list.len() != before;
                for x in list {
                    changed |= strip(x);
                }
            }
        }
        if v["type"] == "Metaspace" && v["prepend_scheme"] != "never" {
            v["prepend_scheme"] = json!("never");
            changed = true;
        }
        changed
    }
    let mut nv = serde_json::to_value(n).map_err(|e| e.to_string())?;
    let mut pv = serde_json::to_value(p).map_err(|e| e.to_string())?;
    let mut changed = strip(&mut nv);
    changed |= strip(&mut pv);
    if nv["type"] == "Prepend" {
        nv = Value::Null;
        changed = true;
    }
    if !changed {
        return Ok(None);
    }
    Ok(Some((
        from_value(nv)?.map(|x| Shared(Arc::new(x))),
        from_value(pv)?.map(|x| Shared(Arc::new(x))),
    )))
}
