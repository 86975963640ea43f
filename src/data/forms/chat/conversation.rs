//! The messages of a record, under the names that chat templates know.

use minijinja::Value;

use super::ChatForm;
use crate::data::records::Record;
use crate::error::Result;

/// A conversation.
#[derive(Debug)]
pub(super) struct Conversation {
    /// Its messages, each with `role` and `content`.
    pub messages: Vec<Message>,
    /// The tools that the assistant may call.
    pub tools: Option<Value>,
}

/// One message.
#[derive(Debug)]
pub(super) struct Message {
    /// The message as a template sees it.
    pub value: Value,
    /// Whether the assistant wrote it and it is to be learned.
    pub is_learned: bool,
    /// What its text starts with: its content, or the name of the tool that it calls.
    pub start: Option<String>,
}

impl Conversation {
    /// The conversation of a record.
    ///
    /// # Errors
    /// If there are no messages, one of them has no role or no text, or none is the assistant's.
    pub fn read(form: &ChatForm, record: &Record) -> Result<Self> {
        let key =
            first_key(&form.messages, &["messages", "conversations"], |key| record.fields.contains_key(key));
        record.list(key)?;
        // Templates write out tools as JSON, so the order of keys counts, which only the text keeps.
        let root: Value =
            serde_json::from_str(&record.text).unwrap_or_else(|_| Value::from_serialize(&record.fields));
        let list = root.get_attr(key).unwrap_or_default();
        let mut messages = Vec::new();
        for (number, value) in list.try_iter().into_iter().flatten().enumerate() {
            messages.extend(
                read_message(form, &value).map_err(|message| {
                    record.error(format!("message {} of `{key}` {message}", number + 1))
                })?,
            );
        }
        if !messages.iter().any(|message: &Message| message.is_learned) {
            let message =
                "has no turn of the assistant, so nothing is to be learned; complete or remove the record";
            return Err(record.error(message));
        }
        let tools = root.get_attr("tools").ok().filter(|tools| tools.is_true());
        Ok(Self { messages, tools })
    }
}

/// The message, or the two that a turn of a tool becomes: the assistant's call, and what the tool answered.
fn read_message(form: &ChatForm, value: &Value) -> std::result::Result<Vec<Message>, String> {
    let has = |key: &str| value.get_attr(key).is_ok_and(|value| !value.is_undefined());
    let role_key = first_key(&form.role, &["role", "from"], has);
    let content_key = first_key(&form.content, &["content", "value"], has);
    let Some(role) = text(value, role_key) else { return Err(format!("has no text under `{role_key}`")) };
    let is = |wanted: &Option<String>, known: &[&str]| match wanted {
        Some(wanted) => role == *wanted,
        None => known.contains(&role.as_str()),
    };
    let is_wanted = is_on(value, "loss");
    if role == "tool" && has("observation") {
        return tool_turn(value, is_wanted);
    }
    let is_assistant = is(&form.assistant, &["assistant", "gpt"]);
    let role = match (is_assistant, is(&form.user, &["user", "human"])) {
        (true, _) => "assistant".to_string(),
        (_, true) => "user".to_string(),
        _ => role,
    };
    let content = text(value, content_key);
    let calls_tools = value.get_attr("tool_calls").is_ok_and(|calls| calls.is_true());
    if is_assistant && !calls_tools && content.as_ref().is_none_or(|content| content.trim().is_empty()) {
        return Err(format!(
            "is the assistant's and has no text under `{content_key}`; fill it in, or remove the record"
        ));
    }
    let content_value = value.get_attr(content_key).unwrap_or_default();
    let others = value
        .try_iter()
        .into_iter()
        .flatten()
        .filter(|key| ![role_key, content_key, "loss"].contains(&key.as_str().unwrap_or_default()));
    let pairs = [(Value::from("role"), Value::from(role)), (Value::from("content"), content_value)];
    let others = others.map(|key| (key.clone(), value.get_item(&key).unwrap_or_default()));
    let value = Value::from_iter(pairs.into_iter().chain(others));
    Ok(vec![Message { value, is_learned: is_assistant && is_wanted, start: content }])
}

/// A turn of ToolAlpaca: `name`, `parameters` and `observation`, which become the assistant's call and the observation.
fn tool_turn(value: &Value, is_learned: bool) -> std::result::Result<Vec<Message>, String> {
    let Some(name) = text(value, "name") else {
        return Err("is a tool's and has no text under `name`".to_string());
    };
    let parameters = value.get_attr("parameters").unwrap_or_default();
    let argument = |key: Value| {
        let argument = parameters.get_item(&key).unwrap_or_default();
        format!("{key}={argument:?}").replace('"', "'")
    };
    let arguments: Vec<String> = parameters.try_iter().into_iter().flatten().map(argument).collect();
    let call = format!("```python\ntool_call({})\n```", arguments.join(", "));
    let observation = value.get_attr("observation").unwrap_or_default();
    let message = |pairs: &[(&str, Value)], is_learned, start| {
        let pairs = pairs.iter().map(|(key, value)| (Value::from(*key), value.clone()));
        Message { value: Value::from_iter(pairs), is_learned, start }
    };
    let spoken = [
        ("role", Value::from("assistant")),
        ("metadata", Value::from(name.clone())),
        ("content", Value::from(call)),
    ];
    let heard = [("role", Value::from("observation")), ("content", observation)];
    Ok(vec![message(&spoken, is_learned, Some(name)), message(&heard, false, None)])
}

/// The key that was named, or the first of `known` that is there.
fn first_key<'a>(named: &'a Option<String>, known: &[&'a str], has: impl Fn(&str) -> bool) -> &'a str {
    match named {
        Some(key) => key,
        None => known.iter().find(|key| has(key)).unwrap_or(&known[0]),
    }
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get_attr(key).ok()?.as_str().map(str::to_string)
}

/// Whether a switch is on; it is where it is not written.
fn is_on(value: &Value, key: &str) -> bool {
    value.get_attr(key).map_or(true, |value| value.is_undefined() || value.is_true())
}
