//! The `tojson` filter.

use super::python::{py_float, py_str, too_large, MAX_DEPTH, MAX_TEXT_BYTES};
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// `json.dumps(x, ensure_ascii=False, ...)`, which HF substitutes for jinja2's HTML-safe filter.
pub fn tojson(value: &Value, kwargs: Kwargs) -> std::result::Result<Value, Error> {
    let indent: Option<Value> = kwargs.get("indent")?;
    let separators: Option<Value> = kwargs.get("separators")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    kwargs.assert_all_used()?;
    let indent = match &indent {
        Some(v) if v.as_usize().is_some() => Some(" ".repeat(v.as_usize().unwrap().min(64))),
        Some(v) if v.as_str().is_some() => v.as_str().map(str::to_string),
        _ => None,
    };
    let mut w = JsonWriter {
        out: String::new(),
        item: if indent.is_some() { ",".into() } else { ", ".into() },
        colon: ": ".into(),
        indent,
        sort_keys: sort_keys.unwrap_or(false),
        ascii: ascii.unwrap_or(false),
    };
    if let Some(pair) = separators.filter(|s| !s.is_none()) {
        w.item = pair.get_item_by_index(0)?.to_string();
        w.colon = pair.get_item_by_index(1)?.to_string();
    }
    w.write(value, 0)?;
    Ok(Value::from(w.out))
}

struct JsonWriter {
    out: String,
    item: String,
    colon: String,
    indent: Option<String>,
    sort_keys: bool,
    ascii: bool,
}

impl JsonWriter {
    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn write(&mut self, v: &Value, depth: usize) -> std::result::Result<(), Error> {
        if depth > MAX_DEPTH || self.out.len() > MAX_TEXT_BYTES {
            return Err(too_large());
        }
        match v.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if v.is_true() { "true" } else { "false" }),
            ValueKind::Number if v.is_integer() => self.out.push_str(&v.to_string()),
            ValueKind::Number => {
                let f = f64::try_from(v.clone())?;
                self.out.push_str(&match f {
                    f if f.is_nan() => "NaN".into(),
                    f if f.is_infinite() => if f > 0.0 { "Infinity" } else { "-Infinity" }.to_string(),
                    f => py_float(f),
                });
            }
            ValueKind::String => self.string(v.as_str().unwrap_or("")),
            ValueKind::Seq | ValueKind::Iterable => self.list(v, depth)?,
            ValueKind::Map => self.map(v, depth)?,
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: {kind} is not JSON serializable"),
                ))
            }
        }
        Ok(())
    }

    fn list(&mut self, v: &Value, depth: usize) -> std::result::Result<(), Error> {
        self.out.push('[');
        let mut is_first = true;
        for x in v.try_iter()? {
            self.before_item(is_first, depth);
            self.write(&x, depth + 1)?;
            is_first = false;
        }
        if !is_first {
            self.line(depth);
        }
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, v: &Value, depth: usize) -> std::result::Result<(), Error> {
        let mut keys: Vec<Value> = v.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        for (i, k) in keys.iter().enumerate() {
            self.before_item(i == 0, depth);
            match k.as_str() {
                Some(s) => self.string(s),
                None => {
                    let name = match k.kind() {
                        ValueKind::Bool if k.is_true() => "true".to_string(),
                        ValueKind::Bool => "false".to_string(),
                        ValueKind::None => "null".to_string(),
                        _ => py_str(k)?,
                    };
                    self.string(&name);
                }
            }
            self.out.push_str(&self.colon);
            self.write(&v.get_item(k)?, depth + 1)?;
        }
        if !keys.is_empty() {
            self.line(depth);
        }
        self.out.push('}');
        Ok(())
    }

    fn before_item(&mut self, is_first: bool, depth: usize) {
        if !is_first {
            self.out.push_str(&self.item);
        }
        self.line(depth + 1);
    }

    fn string(&mut self, s: &str) {
        self.out.push('"');
        for c in s.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 => self.out.push_str(&format!("\\u{:04x}", c as u32)),
                c if self.ascii && !(' '..='~').contains(&c) => {
                    let mut units = [0u16; 2];
                    for u in c.encode_utf16(&mut units) {
                        self.out.push_str(&format!("\\u{u:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
