//! A record as a conversation: its messages, under the names that chat templates know, and notes on the parts that
//! nothing reads.
//!
//! A field is either used or named: every key of a record and of its messages becomes a part of the conversation, or a
//! note says that it is not read. `loss`, `weight` (OpenAI), `train` and `training` (axolotl) say whether a message is
//! learned. `system` and `history` (LLaMA-Factory) become messages. Tools, calls and arguments that are JSON in a text
//! are decoded, as in TRL. Reasoning is found under each of the names that transformers takes.

use std::collections::BTreeSet;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::form::ChatForm;
use super::message::{self, Message};
use super::python;
use crate::data::records::Record;
use crate::error::Result;

/// A conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The messages, each with `role` and `content`.
    pub messages: Vec<Message>,
    /// The tools that the assistant may call.
    pub tools: Option<Value>,
    /// More variables for the template, from `chat_template_kwargs`.
    pub variables: Vec<(String, Value)>,
    /// Notes on the parts that are not read.
    pub notes: BTreeSet<String>,
    /// Keys of messages that only a template may read.
    pub keys: BTreeSet<String>,
}

/// Keys that hold a conversation.
const LISTS: [&str; 2] = ["messages", "conversations"];

/// Known roles, none of which is another name of the assistant.
const ROLES: [&str; 10] = [
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
    "observation",
    "function_call",
    "ipython",
    "environment",
];

/// The key that holds more variables for the template.
pub(super) const KWARGS: &str = "chat_template_kwargs";
/// Variables that every conversation sets itself, so that `chat_template_kwargs` may not have them.
const OF_CONVERSATION: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

impl Conversation {
    /// Whether a record has a list of messages, or must have one.
    pub fn has_list(form: &ChatForm, record: &Record) -> bool {
        form.messages.is_some() || LISTS.iter().any(|key| record.fields.contains_key(*key))
    }

    /// The conversation of a record. It has a list of messages, or `prompt` and `completion`, or `instruction`, `input`
    /// and `output`, which become turns of the user and the assistant.
    ///
    /// # Errors
    /// If there are no messages, a message has no role or no text, or no message is the assistant's.
    pub fn read(form: &ChatForm, record: &Record) -> Result<Self> {
        let has = |key: &str| record.fields.contains_key(key);
        record.refuse_preferences()?;
        let mut reader =
            Reader { form, record, root: root(record), read: BTreeSet::new(), done: Self::default() };
        match () {
            () if Self::has_list(form, record) => reader.list()?,
            () if has("prompt") && has("completion") => reader.pair()?,
            () if has("instruction") && has("output") => reader.instruction()?,
            () => return Err(record.missing(LISTS[0])),
        }
        reader.finish()
    }
}

/// Why nothing is learned from a record with these messages: most often the assistant has another name in it.
fn nothing_learned(messages: &[Message]) -> String {
    if messages.iter().any(|message| message.role == "assistant") {
        return "leaves all turns of the assistant out of the loss, so nothing is to be learned; change that, or remove the record"
            .to_string();
    }
    let others = messages.iter().map(|message| message.role.as_str());
    let others: BTreeSet<&str> = others.filter(|role| !ROLES.contains(role)).collect();
    if others.is_empty() {
        return "has no turn of the assistant, so nothing is to be learned; complete or remove the record"
            .to_string();
    }
    let listed = |names: &mut dyn Iterator<Item = &&str>| {
        names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    format!(
        "has no turn of the assistant, so nothing is to be learned: the role is called {} there, and none of {}; rename it",
        listed(&mut others.iter()),
        listed(&mut message::ASSISTANTS.iter())
    )
}

/// The values of a record. Its keys are in order if its text is known.
pub(in crate::data::sample_formats) fn root(record: &Record) -> Value {
    let of_fields = || serde_json::to_string(&record.fields).and_then(|text| python::parse(&text));
    python::parse(&record.text).or_else(|_| of_fields()).unwrap_or_default()
}

struct Reader<'a> {
    form: &'a ChatForm,
    record: &'a Record,
    root: Value,
    /// Keys of the record that were read.
    read: BTreeSet<String>,
    done: Conversation,
}

impl Reader<'_> {
    /// The value under a key of the record; `None` if it is null or absent.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.read.insert(key.to_string());
        self.root.get_attr(key).ok().filter(|value| !value.is_undefined() && !value.is_none())
    }

    /// The text under a key, if there is one.
    fn text(&mut self, key: &str) -> Result<Option<String>> {
        self.read.insert(key.to_string());
        Ok(self.record.optional_text(key)?.map(str::to_string))
    }

    /// Reads the list of messages.
    fn list(&mut self) -> Result<()> {
        let has = |key: &str| self.record.fields.contains_key(key);
        let key = message::first_key(&self.form.messages, &LISTS, has).to_string();
        let value = self.take(&key);
        // A column of a table holds the list as text.
        let decoded = value.as_ref().and_then(Value::as_str).and_then(|text| python::parse(text).ok());
        match decoded.filter(message::is_list) {
            Some(list) => self.messages(&key, &list, true),
            None => {
                self.record.list(&key)?;
                self.messages(&key, &value.unwrap_or_default(), true)
            }
        }
    }

    /// Adds the messages of a list; unless `learns`, none of them is learned.
    fn messages(&mut self, key: &str, list: &Value, learns: bool) -> Result<()> {
        for (number, value) in (1..).zip(list.try_iter().into_iter().flatten()) {
            let read = message::read(self.form, &value, learns, &mut self.done.notes, &mut self.done.keys);
            self.done.messages.extend(
                read.map_err(|fault| self.record.error(format!("message {number} of `{key}` {fault}")))?,
            );
        }
        Ok(())
    }

    /// Reads a prompt and a completion, each a text or a list of messages.
    fn pair(&mut self) -> Result<()> {
        self.done.notes.insert("a prompt and its completion are written by the chat template".to_string());
        for (key, role) in [("prompt", "user"), ("completion", "assistant")] {
            match self.take(key).filter(message::is_list) {
                Some(list) => self.messages(key, &list, role == "assistant")?,
                None => self.done.messages.push(Message::new(role, self.record.text(key)?)),
            }
        }
        Ok(())
    }

    /// Reads Alpaca's instruction, with the pairs of earlier turns that LLaMA-Factory has.
    fn instruction(&mut self) -> Result<()> {
        self.done.notes.insert("an instruction and its output are written by the chat template".to_string());
        let history = self.decoded("history")?;
        if history.as_ref().is_some_and(|history| !message::is_list(history)) {
            return Err(self.record.error("expected pairs of texts in `history`"));
        }
        for turn in history.iter().flat_map(|history| history.try_iter().into_iter().flatten()) {
            let pair: Vec<Value> = turn.try_iter().into_iter().flatten().collect();
            let [Some(asked), Some(answered)] = [0, 1].map(|at| pair.get(at).and_then(Value::as_str)) else {
                return Err(self.record.error("expected pairs of texts in `history`"));
            };
            let turn = [Message::new("user", asked), Message::new("assistant", answered)];
            self.done.messages.extend(turn);
        }
        let asked = [Some(self.record.text("instruction")?.to_string()), self.text("input")?];
        let asked: Vec<String> = asked.into_iter().flatten().collect();
        let answer = self.record.text("output")?;
        self.read.extend(["instruction", "output"].map(String::from));
        self.done.messages.push(Message::new("user", &asked.join("\n")));
        self.done.messages.push(Message::new("assistant", answer));
        Ok(())
    }

    /// Reads the fields beside the messages.
    fn finish(mut self) -> Result<Conversation> {
        if let Some(system) = self.text("system")? {
            if self.done.messages.first().is_some_and(|first| first.role == "system") {
                self.note("`system` beside a message of that role");
            } else {
                self.done.messages.insert(0, Message::new("system", &system));
            }
        }
        self.done.tools = self.tools()?;
        self.done.variables = self.variables()?;
        let unread =
            self.record.fields.iter().filter(|(key, value)| !value.is_null() && !self.read.contains(*key));
        let unread: Vec<String> = unread.map(|(key, _)| format!("`{key}`")).collect();
        unread.iter().for_each(|key| self.note(key));
        let Self { record, done, .. } = self;
        if !done.messages.iter().any(|message| message.is_learned) {
            return Err(record.error(nothing_learned(&done.messages)));
        }
        Ok(done)
    }

    fn note(&mut self, what: &str) {
        self.done.notes.insert(format!("{what} is not read"));
    }

    /// The value under a key, unless it is empty. A column of a table holds it as JSON in a text, which is decoded.
    fn decoded(&mut self, key: &str) -> Result<Option<Value>> {
        let Some(value) = self.take(key).filter(Value::is_true) else { return Ok(None) };
        let decoded = match value.as_str().map(python::parse) {
            None => value,
            Some(Ok(decoded)) => decoded,
            Some(Err(error)) => {
                return Err(self
                    .record
                    .error(format!("`{key}` is text that is not JSON ({error}); correct it")));
            }
        };
        Ok(Some(decoded).filter(Value::is_true))
    }

    /// Reads more variables for the template. As in `transformers`, they may not be variables that a conversation sets
    /// itself.
    fn variables(&mut self) -> Result<Vec<(String, Value)>> {
        let Some(map) = self.decoded(KWARGS)? else { return Ok(Vec::new()) };
        if map.kind() != ValueKind::Map {
            return Err(self.record.error(format!("expected an object under `{KWARGS}`")));
        }
        let pair = |key: Value| {
            let value = map.get_item(&key).unwrap_or_default();
            (key.as_str().map_or_else(|| key.to_string(), str::to_string), value)
        };
        let variables: Vec<_> = map.try_iter().into_iter().flatten().map(pair).collect();
        match variables.iter().find(|(name, _)| OF_CONVERSATION.contains(&name.as_str())) {
            Some((name, _)) => Err(self.record.error(format!(
                "has `{name}` under `{KWARGS}`, which the conversation itself says; take it out"
            ))),
            None => Ok(variables),
        }
    }

    /// Reads the tools.
    fn tools(&mut self) -> Result<Option<Value>> {
        let Some(tools) = self.decoded("tools")? else { return Ok(None) };
        match tools {
            list if message::is_list(&list) => Ok(Some(list).filter(Value::is_true)),
            one if one.kind() == ValueKind::Map => Ok(Some(vec![one].into())),
            _ => Err(self.record.error("expected a list of tools under `tools`")),
        }
    }
}
