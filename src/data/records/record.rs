//! A record, and its place in the file.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A JSON object of a file.
#[derive(Clone, Debug)]
pub(in crate::data) struct Record {
    /// The values of the object by key.
    pub fields: Map<String, Value>,
    /// The object as it is written, with its keys in order; empty if the file does not hold it as text.
    pub text: String,
    pub path: Arc<Path>,
    /// The start of the record in the file, such as `line 3`.
    pub place: String,
}

impl Record {
    /// An error about this record.
    pub fn error(&self, message: impl Display) -> Error {
        Error::file(&self.path, format!("{}: {message}", self.place))
    }

    /// The text under `key`, which must not be blank.
    ///
    /// # Errors
    /// If there is no value, or the value is not text or is blank.
    pub fn text(&self, key: &str) -> Result<&str> {
        let text = match self.fields.get(key) {
            Some(Value::String(text)) => text,
            Some(other) => {
                return Err(self.error(format!("expected text under `{key}`, found {}", kind(other))));
            }
            None => return Err(self.missing(key)),
        };
        match text.trim().is_empty() {
            true => Err(self.error(format!("`{key}` is empty; fill it in, or remove the record"))),
            false => Ok(text),
        }
    }

    /// The text under `key`; `None` if it is absent, null or empty.
    ///
    /// # Errors
    /// If the value is not text.
    pub fn optional_text(&self, key: &str) -> Result<Option<&str>> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(other) => Err(self.error(format!("expected text under `{key}`, found {}", kind(other)))),
        }
    }

    /// The list under `key`.
    ///
    /// # Errors
    /// If there is no value, or it is not a list.
    pub fn list(&self, key: &str) -> Result<&[Value]> {
        match self.fields.get(key) {
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(self.error(format!("expected a list under `{key}`, found {}", kind(other)))),
            None => Err(self.missing(key)),
        }
    }

    /// Refuses pairs of answers of which one is preferred, and answers that are judged good or bad, where answers are to
    /// be learned.
    ///
    /// # Errors
    /// If the record is such a pair or answer.
    pub fn refuse_preferences(&self) -> Result<()> {
        let has = |key: &&str| self.fields.contains_key(*key);
        if ["chosen", "rejected"].iter().all(has) {
            return Err(self.error(
                "has `chosen` and `rejected`: pairs of answers are learned by finetune --preference, and evaluated by its --eval; elsewhere write one answer as `messages`, or as `prompt` and `completion`",
            ));
        }
        if has(&"completion") && self.fields.get("label").is_some_and(Value::is_boolean) {
            return Err(self.error(
                "has a `label` of true or false, by which KTO learns from bad answers, too, and KTO is not built: keep the records of good answers, without `label`",
            ));
        }
        Ok(())
    }

    /// Messages on the fields that are not among those that were `read`.
    pub fn unread(&self, read: &[&str]) -> BTreeSet<String> {
        let unread =
            self.fields.iter().filter(|(key, value)| !value.is_null() && !read.contains(&key.as_str()));
        unread.map(|(key, _)| format!("`{key}` is not read")).collect()
    }

    /// The error about a key that is missing.
    pub fn missing(&self, key: &str) -> Error {
        let known: Vec<String> = self.fields.keys().map(|key| format!("`{key}`")).collect();
        let has = if known.is_empty() { "nothing".to_string() } else { known.join(", ") };
        self.error(format!("has no key `{key}`, only {has}; correct the record, or the names of its columns"))
    }
}

/// The kind of a value, for messages.
pub(in crate::data) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
