//! A record as its file holds it.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::record::{Record, kind};
use crate::error::{Error, Result};

/// The expected form of a JSON file, for messages.
pub(super) const EXPECTED: &str = "expected a JSON object on each line, or an array of objects";

/// A record that was read but not parsed yet.
pub(in crate::data) enum Unparsed {
    /// The text of an object.
    Json {
        path: Arc<Path>,
        /// The line in which the object starts.
        line: u64,
        /// Whether the object is an item of an array, and may have several lines.
        is_item: bool,
        text: String,
    },
    /// A record of a file that is not text.
    Parsed(Record),
    /// A record that cannot be read.
    Faulty(Error),
}

impl Unparsed {
    /// Approximate number of bytes of the record's text.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Json { text, .. } | Self::Parsed(Record { text, .. }) => text.len(),
            Self::Faulty(_) => 0,
        }
    }

    /// Parses the record.
    ///
    /// # Errors
    /// Text that is not an object; a record that cannot be read.
    pub fn parse(self) -> Result<Record> {
        let (path, line, is_item, text) = match self {
            Self::Json { path, line, is_item, text } => (path, line, is_item, text),
            Self::Parsed(record) => return Ok(record),
            Self::Faulty(error) => return Err(error),
        };
        let place = format!("line {line}");
        let fields: Map<String, Value> = match serde_json::from_str(&text) {
            Ok(Value::Object(fields)) => fields,
            Ok(other) => {
                return Err(Error::file(&*path, format!("{place}: {EXPECTED}, found {}", kind(&other))));
            }
            Err(error) => {
                return Err(broken(
                    &path,
                    if is_item { line - 1 + error.line() as u64 } else { line },
                    &error,
                ));
            }
        };
        Ok(Record { fields, text, path, place })
    }
}

/// The error about text that is not JSON.
pub(super) fn broken(path: &Path, line: u64, error: &serde_json::Error) -> Error {
    let message = error.to_string();
    let reason = message.split(" at line ").next().unwrap_or_default();
    Error::file(
        path,
        format!("line {line}: is not valid JSON ({reason} at column {}); {EXPECTED}", error.column()),
    )
}
