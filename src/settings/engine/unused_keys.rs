//! Rows of keys that are known but not used: without meaning here, computed differently, or not built.

use super::names::{has_word, words};
use super::node::Node;
use super::setting::{Setting, ValueKind};

/// Keys that are answered in the same way, and the sentence that says why.
#[derive(Clone, Debug)]
pub(crate) struct UnusedKeys {
    /// The keys, between spaces.
    pub keys: &'static str,
    /// How they are answered.
    pub handling: Handling,
    /// The kind that their values must be of although nothing depends on them, where one is known: a switch, a number,
    /// or text that is no number.
    pub kind: Option<ValueKind>,
    /// Why, or what to write instead.
    pub sentence: &'static str,
}

/// How a key that is not used is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handling {
    /// Listed in one notice if its value asks for something; a switch is listed whatever its value.
    Ignored,
    /// A notice, unless the value passes; a switch that passes is listed with the ignored keys.
    Differs(AllowedValues),
    /// An error, unless the value passes.
    Refused(AllowedValues),
    /// A section that has a table of its own.
    Section,
}

/// Values that pass without a notice or an error.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AllowedValues {
    /// None, False, 0, an empty text, lists of such.
    Off,
    /// `Off`, or 1.
    UpToOne,
    /// True.
    On,
    /// One of these words.
    Words(&'static str),
    /// No value.
    Never,
}

/// Keys that hold a section with a table of its own.
pub(crate) const fn sections(keys: &'static str) -> UnusedKeys {
    UnusedKeys { keys, handling: Handling::Section, kind: None, sentence: "a section of its own" }
}

impl UnusedKeys {
    /// Whether `key` is one of these keys.
    pub fn covers(&self, key: &str) -> bool {
        has_word(self.keys, key)
    }

    /// Whether `node` is of the kind that the values must be of.
    pub fn fits(&self, node: &Node) -> bool {
        match self.kind {
            Some(ValueKind::Switch) => bool::from_node(node).is_some(),
            Some(ValueKind::Number) => f64::from_node(node).is_some(),
            Some(ValueKind::Text) => matches!(node, Node::Text(_)) && f64::from_node(node).is_none(),
            _ => true,
        }
    }
}

impl AllowedValues {
    /// Whether `node` passes.
    pub fn allows(&self, node: &Node) -> bool {
        match self {
            Self::Off => node.is_off() || bool::from_node(node) == Some(false),
            Self::UpToOne => node.is_off() || matches!(node, Node::Int(1)) || *node == Node::Float(1.0),
            Self::On => bool::from_node(node) == Some(true),
            Self::Words(known) => node.word().is_some_and(|word| has_word(known, word)),
            Self::Never => false,
        }
    }

    /// The values that pass, for documentation.
    pub fn describe(&self) -> String {
        match self {
            Self::Off => "`False`, 0 or nothing".to_string(),
            Self::UpToOne => "`False`, 0 or 1".to_string(),
            Self::On => "`True`".to_string(),
            Self::Words(known) => format!("`{}`", words(known).collect::<Vec<_>>().join("` or `")),
            Self::Never => "no value".to_string(),
        }
    }
}
