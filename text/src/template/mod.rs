//! Chat templates, rendered as the HF library renders them: jinja2's sandbox with trim_blocks,
//! lstrip_blocks, loop controls, `tojson`, `raise_exception`, `strftime_now`.

mod guard;
mod python;
mod to_json;

use crate::tokenizer::Tokenizer;
use crate::Result;
use guard::Guard;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use python::{py_str, python_method, strftime};
use to_json::tojson;
use serde_json::Value as Json;

const NAME: &str = "chat_template";
/// Bounds one render: a template is data from a model file, and its input comes from a client. One
/// unit is one instruction or 64 bytes made, so this is also about 256 MB. A prompt of a million
/// tokens takes a small part of it.
const FUEL: u64 = 4_000_000;
/// A template can nest a list once per few instructions, and the engine frees nested lists
/// recursively, about 130 bytes of stack a level: a render gets a stack that FUEL can not exhaust.
/// Only touched pages take memory.
const STACK_BYTES: usize = 512 << 20;

pub struct Template {
    env: Environment<'static>,
}

impl Template {
    pub fn compile(source: &str) -> Result<Template> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| e.to_string())?);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_fuel(Some(FUEL));
        env.set_debug(true); // errors then show the line of the template
        env.set_unknown_method_callback(python_method);
        env.set_formatter(|out, _, value| {
            if value.is_undefined() {
                return Ok(());
            }
            match value.as_str() {
                Some(text) => out.write_str(text),
                None => out.write_str(&py_str(value)?),
            }
            .map_err(Error::from)
        });
        // minijinja counts none as iterable; templates ask `tools is iterable` of a missing list.
        env.add_test("iterable", |v: &Value| {
            !v.is_none() && (v.is_undefined() || v.as_str().is_some() || v.try_iter().is_ok())
        });
        env.add_filter("tojson", tojson);
        env.add_filter("string", |v: &Value| py_str(v).map(Value::from));
        env.add_function("raise_exception", |message: String| -> std::result::Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
        });
        env.add_template_owned(NAME, without_generation_tags(source))
            .map_err(|e| describe(&e))?;
        Ok(Template { env })
    }

    /// `context` is a JSON object: messages, tools, add_generation_prompt, bos_token, and any
    /// further variable. `now` is in Unix seconds; a negative one means the clock.
    pub fn render(&self, context: &str, now: i64) -> Result<String> {
        self.render_value(parse_context(context)?, now)
    }

    /// Renders and tokenizes, such that nothing inside `messages`, `tools` or `documents` can
    /// become a control token.
    pub fn encode(&self, t: &Tokenizer, context: &str, now: i64) -> Result<Vec<u32>> {
        let mut context = parse_context(context)?;
        let guard = Guard::new(t)?;
        for key in ["messages", "tools", "documents"] {
            if let Some(v) = context.get_mut(key) {
                guard.apply(v, "");
            }
        }
        t.encode_guarded(&self.render_value(context, now)?)
    }

    fn render_value(&self, context: serde_json::Map<String, Json>, now: i64) -> Result<String> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, || self.render_here(&context, now))
                .map_err(|e| format!("chat template: no thread to render on: {e}"))?;
            // A panic goes on to where all panics stop.
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn render_here(&self, context: &serde_json::Map<String, Json>, now: i64) -> Result<String> {
        let template = self.env.get_template(NAME).map_err(|e| e.to_string())?;
        let mut vars: Vec<(String, Value)> =
            context.iter().map(|(k, v)| (k.clone(), to_value(v))).collect();
        vars.push((
            "strftime_now".into(),
            Value::from_function(move |format: String| strftime(&format, now)),
        ));
        template.render(Value::from_pairs(vars)).map_err(|e| describe(&e))
    }
}

fn to_value(v: &Json) -> Value {
    match v {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (_, Some(u)) => Value::from(u),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(a) => a.iter().map(to_value).collect(),
        Json::Object(o) => Value::from_pairs(o.iter().map(|(k, v)| (k.clone(), to_value(v)))),
    }
}

fn parse_context(context: &str) -> Result<serde_json::Map<String, Json>> {
    let v: Json = serde_json::from_str(context).map_err(|e| format!("chat context: {e}"))?;
    let Json::Object(mut map) = v else {
        return Err("chat context: not a JSON object".into());
    };
    if !map.get("messages").is_some_and(Json::is_array) {
        return Err("chat context: 'messages' is missing or not an array".into());
    }
    // The HF library always passes these; `tools is defined` is true there even without tools.
    for key in ["tools", "documents"] {
        map.entry(key).or_insert(Json::Null);
    }
    map.entry("add_generation_prompt").or_insert(Json::Bool(false));
    Ok(map)
}

const RAISED: &str = "\u{1}raised\u{1}";

/// The template's own message alone if it raised one, else the error with its line.
fn describe(e: &Error) -> String {
    if let Some(message) = e.detail().and_then(|d| d.strip_prefix(RAISED)) {
        return message.to_string();
    }
    let mut text = format!("chat template: {e}");
    if let Some(line) = e.template_source().zip(e.line()).and_then(|(s, n)| s.lines().nth(n - 1)) {
        let short: String = line.trim().chars().take(120).collect();
        text.push_str(&format!(": {short}"));
    }
    let mut cause = std::error::Error::source(e);
    while let Some(c) = cause {
        text.push_str(&format!("; caused by: {c}"));
        cause = c.source();
    }
    text.replace(RAISED, "")
}

/// `{% generation %}` marks the assistant's text for training; an `if true` has the same whitespace.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(len) = rest[at..].find("%}") else { break };
        let tag = &rest[at..at + len + 2];
        out.push_str(&rest[..at]);
        let word = tag[2..tag.len() - 2].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[at + len + 2..];
    }
    out.push_str(rest);
    out
}
