//! What templates expect of Python: how values print, methods of strings, `strftime`.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Python's `str(x)`, which is what jinja2 prints.
pub fn py_str(v: &Value) -> String {
    match v.as_str() {
        Some(s) => s.to_string(),
        None => py_repr(v),
    }
}

fn py_repr(v: &Value) -> String {
    match v.kind() {
        ValueKind::Number if !v.is_integer() => match f64::try_from(v.clone()) {
            Ok(f) => py_float(f),
            Err(_) => v.to_string(),
        },
        ValueKind::Seq if v.as_object().is_some() => {
            let items: Vec<String> =
                v.try_iter().map(|i| i.map(|x| py_repr(&x)).collect()).unwrap_or_default();
            if v.is_tuple() {
                let comma = if items.len() == 1 { "," } else { "" };
                format!("({}{comma})", items.join(", "))
            } else {
                format!("[{}]", items.join(", "))
            }
        }
        ValueKind::Map if !v.is_kwargs() => {
            let mut items = Vec::new();
            if let Ok(keys) = v.try_iter() {
                for k in keys {
                    let x = v.get_item(&k).unwrap_or_default();
                    items.push(format!("{}: {}", py_repr(&k), py_repr(&x)));
                }
            }
            format!("{{{}}}", items.join(", "))
        }
        ValueKind::String => format!("{v:?}"),
        _ => v.to_string(),
    }
}

/// Python's `repr` of a float: shortest digits; an exponent below 1e-4 and from 1e16 on.
pub fn py_float(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let sci = format!("{f:e}");
    let (digits, exp) = sci.split_once('e').unwrap_or((&sci, "0"));
    let exp: i32 = exp.parse().unwrap_or(0);
    if f != 0.0 && !(-4..16).contains(&exp) {
        let sign = if exp < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exp.abs());
    }
    let plain = format!("{f}");
    if plain.contains('.') {
        plain
    } else {
        format!("{plain}.0")
    }
}

/// Python methods, with the few that minijinja-contrib lacks or does differently.
pub fn python_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> std::result::Result<Value, Error> {
    if let Some(s) = value.as_str() {
        let arg = args.first().and_then(Value::as_str);
        match (method, args.len(), arg) {
            ("removeprefix", 1, Some(p)) => return Ok(Value::from(s.strip_prefix(p).unwrap_or(s))),
            ("removesuffix", 1, Some(p)) => return Ok(Value::from(s.strip_suffix(p).unwrap_or(s))),
            ("partition", 1, Some(p)) => {
                return Ok(match s.split_once(p) {
                    Some((a, b)) => Value::from((a.to_string(), p.to_string(), b.to_string())),
                    None => Value::from((s.to_string(), "", "")),
                })
            }
            ("rpartition", 1, Some(p)) => {
                return Ok(match s.rsplit_once(p) {
                    Some((a, b)) => Value::from((a.to_string(), p.to_string(), b.to_string())),
                    None => Value::from(("", "", s.to_string())),
                })
            }
            ("rsplit", 1 | 2, Some(p)) => {
                let n = args.get(1).and_then(Value::as_i64).unwrap_or(-1);
                let mut parts: Vec<&str> =
                    if n < 0 { s.rsplit(p).collect() } else { s.rsplitn(n as usize + 1, p).collect() };
                parts.reverse();
                return Ok(parts.iter().map(|x| Value::from(*x)).collect());
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// `datetime.now().strftime(format)`: the same C function that Python calls.
pub fn strftime(format: &str, now: i64) -> std::result::Result<String, Error> {
    let bad = || Error::new(ErrorKind::InvalidOperation, "strftime_now: bad format");
    if format.is_empty() {
        return Ok(String::new());
    }
    let c_format = std::ffi::CString::new(format).map_err(|_| bad())?;
    let mut buf = vec![0u8; 256 + format.len() * 8];
    let n = unsafe {
        let t: libc::time_t = if now < 0 { libc::time(std::ptr::null_mut()) } else { now };
        let mut tm: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&t, &mut tm).is_null() {
            return Err(bad());
        }
        libc::strftime(buf.as_mut_ptr().cast(), buf.len(), c_format.as_ptr(), &tm)
    };
    buf.truncate(n);
    String::from_utf8(buf).map_err(|_| bad())
}
