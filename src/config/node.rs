//! The values of a configuration, free of the parser that read them.

use std::fmt;

/// A value of a YAML document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
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

/// A type that a key can have.
pub(crate) trait FromNode: Sized {
    /// What a message says was expected.
    const EXPECTED: &'static str;

    /// The value, if `node` has the right shape.
    fn from_node(node: &Node) -> Option<Self>;
}

impl FromNode for u64 {
    const EXPECTED: &'static str = "a whole number from 0";

    fn from_node(node: &Node) -> Option<Self> {
        if let Node::Int(number) = node { Self::try_from(*number).ok() } else { None }
    }
}

impl FromNode for usize {
    const EXPECTED: &'static str = u64::EXPECTED;

    fn from_node(node: &Node) -> Option<Self> {
        u64::from_node(node).and_then(|number| Self::try_from(number).ok())
    }
}

impl FromNode for i64 {
    const EXPECTED: &'static str = "a whole number";

    fn from_node(node: &Node) -> Option<Self> {
        if let Node::Int(number) = node { Self::try_from(*number).ok() } else { None }
    }
}

impl FromNode for f64 {
    const EXPECTED: &'static str = "a number";

    /// `1e-5` without a dot is text in YAML 1.1; real files write it and mean the number.
    fn from_node(node: &Node) -> Option<Self> {
        let number = match node {
            Node::Int(number) => *number as f64,
            Node::Float(number) => *number,
            Node::Text(text) => text.parse().ok()?,
            _ => return None,
        };
        number.is_finite().then_some(number)
    }
}

impl FromNode for bool {
    const EXPECTED: &'static str = "True or False";

    /// The words of YAML 1.1 included.
    fn from_node(node: &Node) -> Option<Self> {
        match node {
            Node::Bool(value) => Some(*value),
            Node::Text(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" => Some(true),
                "false" | "no" | "off" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }
}

impl FromNode for String {
    const EXPECTED: &'static str = "text";

    fn from_node(node: &Node) -> Option<Self> {
        match node {
            Node::Text(text) => Some(text.clone()),
            // `prefix: 7` names a file 7.
            Node::Int(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

impl<T: FromNode> FromNode for Vec<T> {
    const EXPECTED: &'static str = "a value or a list of values";

    fn from_node(node: &Node) -> Option<Self> {
        match node {
            Node::List(items) => items.iter().map(T::from_node).collect(),
            single => T::from_node(single).map(|value| vec![value]),
        }
    }
}
