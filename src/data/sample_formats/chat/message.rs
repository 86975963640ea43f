//! One message of a conversation, as a template sees it.

use std::collections::BTreeSet;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::form::ChatForm;
use super::python;

/// Keys of the reasoning that precedes a message of the assistant; the first is the one that templates read, as in
/// `transformers`.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Keys that say whether a message is learned.
const SWITCHES: [&str; 4] = ["loss", "weight", "train", "training"];
/// Names of the roles, in lower case: OpenAI's, ShareGPT's, and others whose meaning is beyond doubt.
const USERS: [&str; 2] = ["user", "human"];
pub(super) const ASSISTANTS: [&str; 6] = ["assistant", "gpt", "model", "bot", "chatgpt", "ai"];
const SYSTEM: &str = "system";
/// Role names of this program and of ShareGPT. If another name is taken for one of them, a note says so.
const WELL_KNOWN: [&str; 5] = ["user", "human", "assistant", "gpt", SYSTEM];

#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    /// The message as a template sees it.
    pub value: Value,
    pub role: String,
    /// Whether the assistant wrote it and it is to be learned.
    pub is_learned: bool,
    /// The text of the message, or the texts of its parts.
    pub texts: Vec<String>,
    /// The names of the tools that the message calls.
    pub calls: Vec<String>,
}

impl Message {
    pub fn new(role: &str, text: &str) -> Self {
        Self {
            value: python::dict(vec![("role".into(), role.into()), ("content".into(), text.into())]),
            role: role.to_string(),
            is_learned: role == "assistant",
            texts: vec![text.to_string()],
            ..Self::default()
        }
    }

    /// The value of the message with another text.
    pub fn with_content(&self, text: &str) -> Value {
        python::with_value(&self.value, "content", |_| Value::from(text))
    }
}

/// Reads a message. A turn of a tool becomes two messages: the assistant's call, and the tool's answer. Unless
/// `learns`, the message is not learned. Notes on the parts that are not read go to `notes`, and keys that only the
/// template may read go to `keys`.
pub(super) fn read(
    form: &ChatForm,
    value: &Value,
    learns: bool,
    notes: &mut BTreeSet<String>,
    keys: &mut BTreeSet<String>,
) -> Result<Vec<Message>, String> {
    let has = |key: &str| value.get_attr(key).is_ok_and(|value| !value.is_undefined());
    let role_key = first_key(&form.role, &["role", "from"], has);
    let content_key = first_key(&form.content, &["content", "value"], has);
    let Some(role) = text(value, role_key) else { return Err(format!("has no text under `{role_key}`")) };
    let is = |wanted: &Option<String>, known: &[&str]| match wanted {
        Some(wanted) => role == *wanted,
        None => known.contains(&role.to_lowercase().as_str()),
    };
    let is_wanted = switch(value)?;
    if role == "tool" && has("observation") {
        return tool_turn(value, learns && is_wanted != Some(false));
    }
    let is_assistant = is(&form.assistant, &ASSISTANTS);
    let known = match (is_assistant, is(&form.user, &USERS)) {
        (true, _) => "assistant",
        (_, true) => "user",
        _ if role.eq_ignore_ascii_case(SYSTEM) => SYSTEM,
        _ => &role,
    };
    let is_named = [&form.assistant, &form.user].into_iter().flatten().any(|name| *name == role);
    if *known != *role && !is_named && !WELL_KNOWN.contains(&role.as_str()) {
        notes.insert(format!("the role `{role}` is taken for `{known}`"));
    }
    let role = known.to_string();
    if !is_assistant && is_wanted == Some(true) {
        notes.insert(format!("the wish to learn messages of the role `{role}` is not followed"));
    }
    let mut message =
        Message { is_learned: is_assistant && learns && is_wanted != Some(false), ..Message::default() };
    let mut pairs = vec![(Value::from("role"), Value::from(role.clone()))];
    let content = value.get_attr(content_key).unwrap_or_default();
    message.texts = texts(&content, content_key)?;
    if !content.is_undefined() {
        pairs.push((Value::from("content"), content.clone()));
    }
    let calls = calls(value);
    message.calls = calls.iter().flat_map(names).collect();
    let reasoning = REASONING.iter().find_map(|key| present(value, key));
    let is_silent = message.texts.iter().all(|text| text.trim().is_empty());
    if message.is_learned && is_silent && message.calls.is_empty() && reasoning.is_none() {
        return Err(format!(
            "is the assistant's and has no text under `{content_key}`; fill it in, or remove the record"
        ));
    }
    if content.is_undefined() && message.calls.is_empty() && reasoning.is_none() {
        let keys =
            value.try_iter().into_iter().flatten().filter_map(|key| Some(format!("`{}`", key.as_str()?)));
        let keys = keys.filter(|key| *key != format!("`{role_key}`")).collect::<Vec<_>>().join(", ");
        let has = if keys.is_empty() { String::new() } else { format!(", but {keys}") };
        return Err(format!("has no `{content_key}`{has}; correct its name, or remove the record"));
    }
    let taken = [&[role_key, content_key][..], &SWITCHES].concat();
    for key in value.try_iter().into_iter().flatten() {
        let name = key.as_str().unwrap_or_default().to_string();
        if taken.contains(&name.as_str()) || (name == "function_call" && calls.is_some()) {
            continue;
        }
        let item = match (name.as_str(), &calls) {
            ("tool_calls", Some(calls)) => calls.clone(),
            ("reasoning_content", _) => reasoning.clone().unwrap_or_default(),
            _ => value.get_item(&key).unwrap_or_default(),
        };
        if !item.is_none() {
            keys.insert(name);
        }
        pairs.push((key, item));
    }
    let add = |pairs: &mut Vec<(Value, Value)>, key: &str, item: &Option<Value>| {
        let is_there = pairs.iter().any(|(name, _)| name.as_str() == Some(key));
        pairs.extend(item.clone().filter(|_| !is_there).map(|item| (Value::from(key), item)));
    };
    add(&mut pairs, "tool_calls", &calls);
    add(&mut pairs, "reasoning_content", &reasoning);
    add(&mut pairs, "thinking", &reasoning);
    message.value = python::dict(pairs);
    message.role = role;
    Ok(vec![message])
}

/// The texts of a message's content: a single text, or the texts of a list of parts.
fn texts(content: &Value, key: &str) -> Result<Vec<String>, String> {
    if let Some(text) = content.as_str() {
        return Ok(vec![text.to_string()]);
    }
    let mut texts = Vec::new();
    let parts = Some(content).filter(|content| is_list(content));
    for part in parts.into_iter().flat_map(|parts| parts.try_iter().into_iter().flatten()) {
        match text(&part, "text").or_else(|| part.as_str().map(str::to_string)) {
            Some(text) => texts.push(text),
            None => {
                let kind = text(&part, "type").unwrap_or("unknown".to_string());
                return Err(format!("has a part of the type `{kind}` under `{key}`; only text is learned"));
            }
        }
    }
    Ok(texts)
}

/// The calls of tools in a message: `tool_calls`, or the older `function_call`. JSON in a text is decoded.
fn calls(message: &Value) -> Option<Value> {
    let decoded = |value: Value| match value.as_str().map(python::parse) {
        Some(Ok(json)) if matches!(json.kind(), ValueKind::Map | ValueKind::Seq) => json,
        _ => value,
    };
    let with_arguments = |call: Value| python::with_value(&call, "arguments", decoded);
    let call = |call: Value| match present(&call, "function") {
        Some(_) => python::with_value(&call, "function", with_arguments),
        None => with_arguments(call),
    };
    let calls = present(message, "tool_calls").map(decoded);
    if let Some(calls) = calls.filter(|calls| calls.is_true() && is_list(calls)) {
        return Some(calls.try_iter().into_iter().flatten().map(call).collect::<Vec<Value>>().into());
    }
    let function = with_arguments(present(message, "function_call").map(decoded)?);
    let pairs = [(Value::from("type"), Value::from("function")), (Value::from("function"), function)];
    Some(vec![python::dict(pairs.to_vec())].into())
}

/// The names of the tools that are called.
fn names(calls: &Value) -> Vec<String> {
    let name = |call: Value| {
        let function = present(&call, "function").unwrap_or(call);
        text(&function, "name")
    };
    calls.try_iter().into_iter().flatten().filter_map(name).collect()
}

/// Whether a message says that it is to be learned or not; `None` if it does not say.
fn switch(message: &Value) -> Result<Option<bool>, String> {
    let mut wanted = None;
    for key in SWITCHES {
        let Some(value) = present(message, key) else { continue };
        let is_on = match (value.kind(), f64::try_from(value.clone())) {
            (ValueKind::Bool, _) => value.is_true(),
            (ValueKind::Number, Ok(number)) if number == 0.0 || number == 1.0 => number == 1.0,
            _ => {
                return Err(format!(
                    "has `{key}` {value}; only 0 and 1, or true and false, say whether it is learned"
                ));
            }
        };
        wanted = Some(is_on && wanted != Some(false));
    }
    Ok(wanted)
}

/// Reads a turn of ToolAlpaca: `name` and `parameters` become the assistant's call, and `observation` the tool's
/// answer.
fn tool_turn(value: &Value, is_learned: bool) -> Result<Vec<Message>, String> {
    let Some(name) = text(value, "name") else {
        return Err("is a tool's and has no text under `name`".to_string());
    };
    let parameters = value.get_attr("parameters").unwrap_or_default();
    let argument = |key: Value| {
        let argument = parameters.get_item(&key).unwrap_or_default();
        match argument.as_str() {
            Some(text) => format!("{key}={:?}", text).replace('"', "'"),
            None => format!("{key}={argument}").replace('"', "'"),
        }
    };
    let arguments: Vec<String> = parameters.try_iter().into_iter().flatten().map(argument).collect();
    let call = format!("```python\ntool_call({})\n```", arguments.join(", "));
    let observation = value.get_attr("observation").unwrap_or_default();
    let message = |pairs: &[(&str, Value)], role: &str, is_learned, texts| {
        let pairs = pairs.iter().map(|(key, value)| (Value::from(*key), value.clone()));
        let value = python::dict(pairs.collect());
        Message { value, role: role.to_string(), is_learned, texts, calls: Vec::new() }
    };
    let spoken = [
        ("role", Value::from("assistant")),
        ("metadata", Value::from(name.clone())),
        ("content", Value::from(call)),
    ];
    let heard = [("role", Value::from("observation")), ("content", observation)];
    Ok(vec![
        message(&spoken, "assistant", is_learned, vec![name]),
        message(&heard, "observation", false, Vec::new()),
    ])
}

/// The key that was named, or else the first of `known` that exists.
pub(super) fn first_key<'a>(
    named: &'a Option<String>,
    known: &[&'a str],
    has: impl Fn(&str) -> bool,
) -> &'a str {
    match named {
        Some(key) => key,
        None => known.iter().find(|key| has(key)).unwrap_or(&known[0]),
    }
}

/// Whether a value is a list.
pub(in crate::data::sample_formats) fn is_list(value: &Value) -> bool {
    value.kind() == ValueKind::Seq
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get_attr(key).ok()?.as_str().map(str::to_string)
}

/// The value under a key, unless it is null.
fn present(value: &Value, key: &str) -> Option<Value> {
    value.get_attr(key).ok().filter(|value| !value.is_undefined() && !value.is_none())
}
