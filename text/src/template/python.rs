//! What templates expect of Python: how values print, methods of strings, `strftime`.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// The engine's fuel pays for a value once it is there; while we write one, these bound it. A value
/// may hold the same list many times over, so that little memory spells a text without end.
pub const MAX_TEXT_BYTES: usize = 64 << 20;
pub const MAX_DEPTH: usize = 200;

pub fn too_large() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a value is too large or nested too deeply to print")
}

/// Python's `str(x)`, which is what jinja2 prints.
pub fn py_str(v: &Value) -> Result<String, Error> {
    match v.as_str() {
        Some(s) => Ok(s.to_string()),
        None => {
            let mut out = String::new();
            py_repr(v, 0, &mut out)?;
            Ok(out)
        }
    }
}

fn py_repr(v: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH || out.len() > MAX_TEXT_BYTES {
        return Err(too_large());
    }
    match v.kind() {
        ValueKind::Number if !v.is_integer() => match f64::try_from(v.clone()) {
            Ok(f) => out.push_str(&py_float(f)),
            Err(_) => out.push_str(&v.to_string()),
        },
        ValueKind::Seq if v.as_object().is_some() => {
            let (open, close) = if v.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut n = 0;
            if let Ok(items) = v.try_iter() {
                for x in items {
                    if n > 0 {
                        out.push_str(", ");
                    }
                    py_repr(&x, depth + 1, out)?;
                    n += 1;
                }
            }
            if n == 1 && v.is_tuple() {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map if !v.is_kwargs() => {
            out.push('{');
            if let Ok(keys) = v.try_iter() {
                for (n, k) in keys.enumerate() {
                    if n > 0 {
                        out.push_str(", ");
                    }
                    py_repr(&k, depth + 1, out)?;
                    out.push_str(": ");
                    py_repr(&v.get_item(&k).unwrap_or_default(), depth + 1, out)?;
                }
            }
            out.push('}');
        }
        ValueKind::String => out.push_str(&format!("{v:?}")),
        _ => out.push_str(&v.to_string()),
    }
    Ok(())
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
) -> Result<Value, Error> {
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
pub fn strftime(format: &str, now: i64) -> Result<String, Error> {
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
