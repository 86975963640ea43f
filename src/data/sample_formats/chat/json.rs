//! JSON as Python's `json.dumps` writes it: the filter `tojson` of chat templates.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::python::{is_view, number_text};

/// `json.dumps` with the arguments that `transformers` passes on. `ensure_ascii` is false by default.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators = match options.get::<Option<Vec<String>>>("separators")? {
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(String::from),
        Some(two) => two.try_into().map_err(|_| {
            Error::new(ErrorKind::InvalidOperation, "`separators` of tojson are not two texts")
        })?,
    };
    let is_set = |name| options.get::<Option<bool>>(name).map(|value| value.unwrap_or(false));
    let style = Style { indent, separators, sorts: is_set("sort_keys")?, escapes: is_set("ensure_ascii")? };
    options.assert_all_used()?;
    style.text(value, 0).map(Value::from_safe_string)
}

struct Style {
    /// Spaces of a level, if each item is on a line of its own.
    indent: Option<usize>,
    /// The separator between items, and the one after a key.
    separators: [String; 2],
    /// Whether keys are sorted.
    sorts: bool,
    /// Whether characters other than ASCII are escaped.
    escapes: bool,
}

impl Style {
    fn text(&self, value: &Value, depth: usize) -> Result<String, Error> {
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable if !is_view(value) => {
                let items = value.try_iter()?.map(|item| self.text(&item, depth + 1));
                Ok(self.enclosed("[", "]", &items.collect::<Result<Vec<_>, _>>()?, depth))
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorts {
                    keys.sort();
                }
                let item = |key: &Value| {
                    let (name, value) = (self.key(key)?, self.text(&value.get_item(key)?, depth + 1)?);
                    Ok(name + &self.separators[1] + &value)
                };
                let items = keys.iter().map(item).collect::<Result<Vec<_>, Error>>()?;
                Ok(self.enclosed("{", "}", &items, depth))
            }
            _ => self.scalar(value),
        }
    }

    fn enclosed(&self, open: &str, close: &str, items: &[String], depth: usize) -> String {
        if items.is_empty() {
            return format!("{open}{close}");
        }
        let line =
            |depth: usize| self.indent.map_or(String::new(), |indent| format!("\n{:1$}", "", indent * depth));
        let inner = line(depth + 1);
        let items = items.join(&format!("{}{inner}", self.separators[0]));
        format!("{open}{inner}{items}{}{close}", line(depth))
    }

    /// A key is always written as text: `1` becomes `"1"`, and `true` becomes JSON's word in quotes.
    fn key(&self, key: &Value) -> Result<String, Error> {
        let text = if key.as_str().is_some() { key.to_string() } else { self.scalar(key)? };
        self.scalar(&Value::from(text))
    }

    fn scalar(&self, value: &Value) -> Result<String, Error> {
        if let Some(number) = number_text(value) {
            return Ok(number);
        }
        if is_view(value)
            || matches!(value.kind(), ValueKind::Undefined | ValueKind::Plain | ValueKind::Invalid)
        {
            // As in Python, an undefined value and the result of `keys` cannot be written as JSON.
            return Err(Error::new(ErrorKind::BadSerialization, format!("{} is no JSON", value.kind())));
        }
        let text = serde_json::to_string(value)
            .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
        let escaped = |letter: char| -> String {
            letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        };
        let written = |letter: char| if letter.is_ascii() { letter.to_string() } else { escaped(letter) };
        Ok(if self.escapes { text.chars().map(written).collect() } else { text })
    }
}
