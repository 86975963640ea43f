//! What can become of a key. The keys themselves are in `known_keys.rs`.

use super::aliases;
use super::node::Node;

/// The keys of one kind of section. Lists are words between spaces; aliases stand under their first name.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Read by the code.
    pub used: &'static str,
    /// Without meaning on wgpu, on one device, or in training.
    pub ignored: &'static str,
    /// What depends on the value.
    pub rules: &'static [Rule],
}

/// Keys that pass silently with some values.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The keys this is about.
    pub keys: &'static str,
    /// The values that pass.
    pub passes: Passes,
    /// What becomes of any other value.
    pub outcome: Outcome,
}

/// Values that pass silently.
#[derive(Debug)]
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

/// What becomes of a value that does not pass.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// An error with this remedy.
    NotBuilt(&'static str),
    /// A notice.
    Differs(&'static str),
}

impl Keys {
    /// Whether the code reads `key`.
    pub fn uses(&self, key: &str) -> bool {
        has_word(self.used, key)
    }

    /// Whether `key` has no meaning here.
    pub fn ignores(&self, key: &str) -> bool {
        has_word(self.ignored, key)
    }

    /// Every known name, aliases included.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let lists = [self.used, self.ignored].into_iter().chain(self.rules.iter().map(|rule| rule.keys));
        lists.flat_map(str::split_whitespace).flat_map(|key| {
            let others = aliases::of(key).iter().copied();
            std::iter::once(key).chain(others)
        })
    }
}

impl Rule {
    /// Whether this is about `key`.
    pub fn covers(&self, key: &str) -> bool {
        has_word(self.keys, key)
    }
}

impl Passes {
    /// Whether `node` passes.
    pub fn allows(&self, node: &Node) -> bool {
        match self {
            Self::Off => node.is_off(),
            Self::UpToOne => node.is_off() || matches!(node, Node::Int(1)) || *node == Node::Float(1.0),
            Self::On => *node == Node::Bool(true),
            Self::Words(words) => node.word().is_some_and(|word| has_word(words, word)),
            Self::Never => false,
        }
    }
}

fn has_word(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|one| one == word)
}
