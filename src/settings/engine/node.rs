//! The values of a configuration, free of the parser that read them.

use std::fmt;

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

    /// Whether this says "none": nothing, or the text `None` that files of the original write.
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

    /// The text, if this is text.
    pub fn word(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// As a message shows it.
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

impl From<bool> for Node {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<u64> for Node {
    fn from(number: u64) -> Self {
        Self::Int(number.into())
    }
}

impl From<usize> for Node {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

impl From<f64> for Node {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Self::Text(text.to_string())
    }
}

impl From<String> for Node {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
