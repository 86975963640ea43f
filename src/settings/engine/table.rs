//! The rows of a section as data: for known keys, suggestions and documentation.

use super::node::Node;
use super::other::{Fate, Other, words};
use super::range::Range;
use super::setting::ValueKind;

/// The rows of a section as data: for known keys, suggestions and documentation.
#[derive(Debug)]
pub(crate) struct Table {
    /// What the section is about.
    pub about: String,
    /// Keys that are used.
    pub rows: Vec<RowText>,
    /// Keys that are not.
    pub others: Vec<Other>,
}

/// One row as data.
#[derive(Debug)]
pub(crate) struct RowText {
    /// The key.
    pub key: &'static str,
    /// Its other names.
    pub names: Vec<&'static str>,
    /// Its documentation.
    pub about: String,
    /// What it decides.
    pub decides: Decides,
    /// Whether it must be written.
    pub is_required: bool,
    /// Its default, if it has one of its own.
    pub default: Option<Node>,
    /// What kind of value it takes.
    pub kind: ValueKind,
    /// What numbers it takes.
    pub range: Option<Range>,
    /// The types of the section that read it; empty: all.
    pub types: Vec<&'static str>,
    /// An accepted value that is not the default, in YAML.
    pub example: &'static str,
}

/// What a key decides. Every row starts with it: there is no other way to make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decides {
    /// The shapes of tensors: another value makes another model.
    Shape,
    /// The numbers a run computes: another value makes another run of the same model.
    Numbers,
    /// Where and how the host works; the weights come out the same.
    Host,
}

impl Table {
    /// A section none of whose keys is used.
    pub fn unused(about: &str, others: impl Into<Vec<Other>>) -> Self {
        Self { about: about.to_string(), rows: Vec::new(), others: others.into() }
    }

    /// The row of `key`, by the name we use.
    pub fn row(&self, key: &str) -> Option<&RowText> {
        self.rows.iter().find(|row| row.key == key)
    }

    /// The keys that are not used, but for sections with a table of their own.
    pub fn unused_keys(&self) -> impl Iterator<Item = &Other> {
        self.others.iter().filter(|other| !matches!(other.fate, Fate::Section))
    }

    /// Every known name.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let used = self.rows.iter().flat_map(|row| std::iter::once(row.key).chain(row.names.iter().copied()));
        used.chain(self.others.iter().flat_map(|other| words(other.keys)))
    }
}

impl Decides {
    /// What the documentation calls it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Shape => "shape",
            Self::Numbers => "numbers",
            Self::Host => "host",
        }
    }
}

/// Lines of documentation as one paragraph.
pub(crate) fn paragraph(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}
