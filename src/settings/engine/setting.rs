//! The types that keys have: how a value is read from a file, and written into one.

use super::node::Node;
use super::number;
use std::path::PathBuf;

/// The kind of value that a key takes, for messages and documentation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueKind {
    /// A whole number from 0.
    Whole,
    /// A whole number of either sign.
    Integer,
    /// Any finite number.
    Number,
    /// `True` or `False`.
    Switch,
    /// Text.
    Text,
    /// One of these words.
    Words(Vec<&'static str>),
    /// One or several of this kind.
    List(Box<ValueKind>),
    /// A value of several shapes, described in words.
    Form(&'static str),
}

impl ValueKind {
    /// The kind in the words of a message.
    pub fn expected(&self) -> String {
        match self {
            Self::Whole => "a whole number from 0".to_string(),
            Self::Integer => "a whole number".to_string(),
            Self::Number => "a number".to_string(),
            Self::Switch => "True or False".to_string(),
            Self::Text => "text".to_string(),
            Self::Words(words) => words.split_last().map_or_else(String::new, |(last, others)| {
                if others.is_empty() {
                    (*last).to_string()
                } else {
                    format!("{} or {last}", others.join(", "))
                }
            }),
            Self::List(kind) => match **kind {
                Self::Words(_) => format!("{}, or a list of these", kind.expected()),
                _ => "a value or a list of values".to_string(),
            },
            Self::Form(words) => (*words).to_string(),
        }
    }
}

/// A type that a key can have.
pub(crate) trait Setting: Clone {
    /// The kind of value.
    fn kind() -> ValueKind;

    /// The value, if `node` has the right shape; `None` for a type that only its row's own reader can read.
    fn from_node(_: &Node) -> Option<Self> {
        None
    }

    /// The node that reads back as this value; `None` where nothing is to be written.
    fn to_node(&self) -> Option<Node>;

    /// The part of the value that a resumed run must have, too; all of it, unless the type says otherwise.
    fn to_decision(&self) -> Option<Node> {
        self.to_node()
    }
}

/// A type whose values are words.
pub(crate) trait Words: Clone + PartialEq + 'static {
    /// Every word and its meaning; the first word of a meaning is the one that is written.
    const WORDS: &'static [(&'static str, Self)];

    /// The word that is written for this value.
    fn word(&self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| value == self).map_or("", |(word, _)| word)
    }

    /// The word that is written for each value.
    fn firsts() -> impl Iterator<Item = &'static str> {
        Self::WORDS.iter().filter(|(word, value)| value.word() == *word).map(|(word, _)| *word)
    }

    /// The value that `word` means.
    fn named(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, value)| value.clone())
    }
}

/// An enum whose values are words: `Variant = "word that is written" "other word"`.
macro_rules! words {
    (
        $(#[$about:meta])*
        pub enum $name:ident {
            $($(#[$doc:meta])* $variant:ident = $($word:literal)+,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $crate::settings::engine::setting::Words for $name {
            const WORDS: &'static [(&'static str, Self)] = &[$($(($word, Self::$variant),)+)*];
        }
    };
}
pub(crate) use words;

impl<T: Words> Setting for T {
    fn kind() -> ValueKind {
        ValueKind::Words(T::WORDS.iter().map(|(word, _)| *word).collect())
    }

    fn from_node(node: &Node) -> Option<Self> {
        T::named(node.word()?)
    }

    fn to_node(&self) -> Option<Node> {
        Some(self.word().into())
    }
}

macro_rules! scalars {
    ($($type:ty: $kind:expr, $read:expr;)*) => {
        $(impl Setting for $type {
            fn kind() -> ValueKind {
                $kind
            }

            fn from_node(node: &Node) -> Option<Self> {
                $read(node)
            }

            fn to_node(&self) -> Option<Node> {
                Some(self.clone().into())
            }
        })*
    };
}

scalars! {
    u64: ValueKind::Whole, whole;
    usize: ValueKind::Whole, whole;
    i64: ValueKind::Integer, whole;
    f64: ValueKind::Number, real;
    bool: ValueKind::Switch, switch;
    String: ValueKind::Text, text;
    PathBuf: ValueKind::Text, |node| text(node).map(Self::from);
    // A value that its section interprets.
    Node: ValueKind::Form("a number or a section"), |node: &Node| Some(node.clone());
}

/// Files write some whole numbers as `8.0`.
pub(super) fn whole<T: TryFrom<i128>>(node: &Node) -> Option<T> {
    match node {
        Node::Int(number) => T::try_from(*number).ok(),
        Node::Float(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
            T::try_from(*number as i128).ok()
        }
        Node::Text(text) => T::try_from(number::whole(text)?).ok(),
        _ => None,
    }
}

fn real(node: &Node) -> Option<f64> {
    let number = match node {
        Node::Int(number) => *number as f64,
        Node::Float(number) => *number,
        Node::Text(text) => number::whole(text).map(|number| number as f64).or_else(|| number::real(text))?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

/// The value of a switch, in the words of YAML 1.1 too.
fn switch(node: &Node) -> Option<bool> {
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

fn text(node: &Node) -> Option<String> {
    match node {
        Node::Text(text) => Some(text.clone()),
        // `prefix: 7` names a file 7.
        Node::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

impl<T: Setting> Setting for Option<T> {
    fn kind() -> ValueKind {
        T::kind()
    }

    fn from_node(node: &Node) -> Option<Self> {
        T::from_node(node).map(Some)
    }

    fn to_node(&self) -> Option<Node> {
        self.as_ref().and_then(T::to_node)
    }

    fn to_decision(&self) -> Option<Node> {
        self.as_ref().and_then(T::to_decision)
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn kind() -> ValueKind {
        ValueKind::List(Box::new(T::kind()))
    }

    fn from_node(node: &Node) -> Option<Self> {
        match node {
            Node::List(items) => items.iter().map(T::from_node).collect(),
            single => T::from_node(single).map(|value| vec![value]),
        }
    }

    fn to_node(&self) -> Option<Node> {
        Some(Node::List(self.iter().filter_map(T::to_node).collect()))
    }
}

/// A list of exactly `N` values.
impl<T: Setting, const N: usize> Setting for [T; N] {
    fn kind() -> ValueKind {
        Vec::<T>::kind()
    }

    fn to_node(&self) -> Option<Node> {
        self.to_vec().to_node()
    }
}
