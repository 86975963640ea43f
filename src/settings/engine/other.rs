//! Rows of keys that are known but not used: without meaning here, computed differently, or not built.

use super::node::Node;
use super::setting::Setting;

/// Keys with one fate and the sentence that says why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Other {
    /// The keys, between spaces.
    pub keys: &'static str,
    /// What becomes of them.
    pub fate: Fate,
    /// Why, or what to write instead.
    pub sentence: &'static str,
}

/// What becomes of a key that is not used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// Listed in one notice where it asks for something.
    Ignored,
    /// A notice, unless the value passes.
    Differs(Passes),
    /// An error, unless the value passes.
    Refused(Passes),
    /// A section that has a table of its own.
    Section,
}

/// Values that pass without a word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Passes {
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

/// Keys, between spaces, that are known and not used.
pub(crate) const fn keys(keys: &'static str) -> Keys {
    Keys(keys)
}

/// Keys whose fate is still to be told.
#[derive(Clone, Copy)]
pub(crate) struct Keys(&'static str);

impl Keys {
    /// They have no meaning here, and why.
    pub const fn ignored(self, sentence: &'static str) -> Other {
        Other { keys: self.0, fate: Fate::Ignored, sentence }
    }

    /// They ask for something that is done differently here, and how.
    pub const fn differs(self, passes: Passes, sentence: &'static str) -> Other {
        Other { keys: self.0, fate: Fate::Differs(passes), sentence }
    }

    /// They ask for something that is not built, and what to write instead.
    pub const fn refused(self, passes: Passes, sentence: &'static str) -> Other {
        Other { keys: self.0, fate: Fate::Refused(passes), sentence }
    }
}

/// Keys that hold a section with a table of its own.
pub(crate) const fn sections(keys: &'static str) -> Other {
    Other { keys, fate: Fate::Section, sentence: "a section of its own" }
}

impl Other {
    /// Whether this is about `key`.
    pub fn covers(&self, key: &str) -> bool {
        words(self.keys).any(|one| one == key)
    }
}

impl Passes {
    /// Whether `node` passes.
    pub fn allows(&self, node: &Node) -> bool {
        match self {
            Self::Off => node.is_off() || bool::from_node(node) == Some(false),
            Self::UpToOne => node.is_off() || matches!(node, Node::Int(1)) || *node == Node::Float(1.0),
            Self::On => bool::from_node(node) == Some(true),
            Self::Words(known) => node.word().is_some_and(|word| words(known).any(|one| one == word)),
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

/// The words of `text`.
pub(crate) fn words(text: &'static str) -> impl Iterator<Item = &'static str> + Clone {
    text.split_ascii_whitespace()
}
