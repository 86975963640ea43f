//! The values of a configuration, free of the parser that read them, and the dotted paths of its keys. The path of the
//! whole document is empty.

use serde::{Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// A value of a YAML document.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// Nothing was written.
    Null,
    /// `True` or `False`.
    Bool(bool),
    /// A whole number; wide enough for every u64 and i64.
    Int(i128),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values in the order they were written.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// The value of `key`, if this is a section that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match self {
            Self::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            Self::List(items) => key.parse::<usize>().ok().and_then(|index| items.get(index)),
            _ => None,
        }
    }

    /// The value at a dotted path; items of lists are numbered from 0.
    pub fn at(&self, path: &str) -> Option<&Self> {
        path.split('.').filter(|key| !key.is_empty()).try_fold(self, |node, key| node.get(key))
    }

    /// The value of `key`, to be changed.
    pub(in crate::settings) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        match self {
            Self::Map(entries) => entries.iter_mut().find(|(name, _)| name == key).map(|(_, node)| node),
            Self::List(items) => key.parse::<usize>().ok().and_then(|index| items.get_mut(index)),
            _ => None,
        }
    }

    /// The value of `key` in a section's `entries`, made if there is none.
    pub(super) fn entry<'a>(entries: &'a mut Vec<(String, Self)>, key: &str) -> &'a mut Self {
        let index = entries.iter().position(|(name, _)| name == key).unwrap_or_else(|| {
            entries.push((key.to_string(), Self::Null));
            entries.len() - 1
        });
        &mut entries[index].1
    }

    /// Whether this says "none": nothing, or the text `None`, which is Python's.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::Null) || self.word().is_some_and(|text| text == "None")
    }

    /// Whether this leaves a feature off: none, False, 0, nothing, or a list of such.
    pub fn is_off(&self) -> bool {
        match self {
            Self::Null | Self::Bool(false) | Self::Int(0) => true,
            Self::Float(number) => *number == 0.0,
            Self::Text(text) => text.is_empty() || text == "None",
            Self::List(items) => items.iter().all(Self::is_off),
            Self::Map(entries) => entries.iter().all(|(_, node)| node.is_off()),
            Self::Bool(true) | Self::Int(_) => false,
        }
    }

    /// The number, or the numbers of a list.
    pub fn numbers(&self) -> Vec<f64> {
        match self {
            Self::Int(number) => vec![*number as f64],
            Self::Float(number) => vec![*number],
            Self::List(items) => items.iter().flat_map(Self::numbers).collect(),
            _ => Vec::new(),
        }
    }

    /// The text, if this is text.
    pub fn word(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// The value as a message shows it.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("nothing"),
            Self::Bool(true) => f.write_str("`True`"),
            Self::Bool(false) => f.write_str("`False`"),
            Self::Int(number) => write!(f, "`{number}`"),
            Self::Float(number) => write!(f, "`{number:?}`"),
            // A message is one line, whatever was written.
            Self::Text(text) => write!(f, "`{}`", text.escape_debug()),
            Self::List(_) => f.write_str("a list"),
            Self::Map(_) => f.write_str("a section"),
        }
    }
}

/// The value as YAML and JSON write it. A number beyond 64 bits becomes text.
impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(number) => match (u64::try_from(*number), i64::try_from(*number)) {
                (Ok(number), _) => serializer.serialize_u64(number),
                (_, Ok(number)) => serializer.serialize_i64(number),
                _ => serializer.collect_str(number),
            },
            Self::Float(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Map(entries) => serializer.collect_map(entries.iter().map(|(key, node)| (key, node))),
        }
    }
}

macro_rules! from {
    ($($type:ty: |$value:ident| $node:expr;)*) => {
        $(impl From<$type> for Node {
            fn from($value: $type) -> Self {
                $node
            }
        })*
    };
}

from! {
    bool: |value| Self::Bool(value);
    u64: |number| Self::Int(number.into());
    i64: |number| Self::Int(number.into());
    usize: |number| Self::Int(number as i128);
    f64: |number| Self::Float(number);
    &str: |text| Self::Text(text.to_string());
    String: |text| Self::Text(text);
    PathBuf: |path| Self::Text(path.display().to_string());
}

/// The path of `key` in the section at `path`.
pub(crate) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}

/// The section that holds `path`, and its key there.
pub(super) fn parent_and_key(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// Whether `path` is `ancestor` or something in it. Everything is in the whole document, whose path is empty.
pub(super) fn is_below(path: &str, ancestor: &str) -> bool {
    let rest = path.strip_prefix(ancestor);
    ancestor.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
