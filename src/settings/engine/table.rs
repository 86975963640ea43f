//! The rows of a section as data: for known keys, suggestions and documentation.

use super::names::words;
use super::node::Node;
use super::range::Range;
use super::setting::ValueKind;
use super::unused_keys::{AllowedValues, Handling, UnusedKeys};
use std::fmt;

/// Identifies a table by the keys that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableId {
    /// The dotted path of the section; the top level has none.
    pub section: &'static str,
    /// Which of the section's keys.
    pub keys: KeysOf,
}

/// Which of a section's keys a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeysOf {
    /// The keys that are read.
    Section,
    /// Keys of sections of this `type` alone.
    Type(&'static str),
    /// Other forms of its keys, which are translated before the section is read.
    Forms,
}

impl TableId {
    /// The keys that are read in `section`.
    pub const fn of(section: &'static str) -> Self {
        Self { section, keys: KeysOf::Section }
    }

    /// The keys of sections of type `word` alone.
    pub const fn of_type(self, word: &'static str) -> Self {
        Self { keys: KeysOf::Type(word), ..self }
    }

    /// The id of the table with other forms of these keys.
    pub const fn forms(self) -> Self {
        Self { keys: KeysOf::Forms, ..self }
    }

    /// The type whose sections alone have the keys, if there is one.
    pub fn type_word(&self) -> Option<&'static str> {
        if let KeysOf::Type(word) = self.keys { Some(word) } else { None }
    }

    /// Whether a user means the table by `name`: the end of its section's path, or its type.
    pub fn is_called(&self, name: &str) -> bool {
        match self.keys {
            KeysOf::Section => {
                self.section.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            KeysOf::Type(word) => word == name,
            KeysOf::Forms => self.to_string() == name,
        }
    }
}

/// The id as documentation and messages show it.
impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.section.is_empty() { "top level" } else { self.section })?;
        match self.keys {
            KeysOf::Section => Ok(()),
            KeysOf::Type(word) => write!(f, " ({word})"),
            KeysOf::Forms => f.write_str(" (other forms)"),
        }
    }
}

/// The rows of a section as data: for known keys, suggestions and documentation.
#[derive(Debug)]
pub(crate) struct Table {
    /// The documentation of the section.
    pub about: String,
    /// Keys that are used.
    pub rows: Vec<RowText>,
    /// Keys that are not.
    pub unused: Vec<UnusedKeys>,
    /// Types of the section that are known and not built, between spaces.
    pub planned: &'static str,
}

/// One row as data.
#[derive(Debug)]
pub(crate) struct RowText {
    /// The key.
    pub key: &'static str,
    /// The other names of the key.
    pub names: Vec<&'static str>,
    /// The documentation of the key.
    pub about: String,
    /// Whether another value makes another model or another run.
    pub decides: ResumeImpact,
    /// Whether the key must be written.
    pub is_required: bool,
    /// The default, if the key has one of its own.
    pub default: Option<Node>,
    /// Some types of the section and their default, if it differs.
    pub default_of: Option<(Vec<&'static str>, Node)>,
    /// The kind of value that the key takes.
    pub kind: ValueKind,
    /// The range of the numbers that the key takes.
    pub range: Option<Range>,
    /// The types of the section that read the key; empty: all.
    pub types: Vec<&'static str>,
    /// The value of an absent key that other keys decide, where a few words say it.
    pub filled: &'static str,
    /// An accepted value that is not the default, in YAML.
    pub example: &'static str,
}

/// Whether a run resumes with another value of a key. Every row starts with this: there is no other way to make a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumeImpact {
    /// The shapes of tensors: another value makes another model.
    Shape,
    /// The numbers a run computes: another value makes another run of the same model.
    Numbers,
    /// Where and how the host works; the weights come out the same.
    Host,
}

impl Table {
    /// A section none of whose keys is used.
    pub fn unused(about: &str, others: impl Into<Vec<UnusedKeys>>) -> Self {
        Self { about: about.to_string(), rows: Vec::new(), unused: others.into(), planned: "" }
    }

    /// The row of `key`, by the name we use.
    pub fn row(&self, key: &str) -> Option<&RowText> {
        self.rows.iter().find(|row| row.key == key)
    }

    /// The row of `key` in sections of type `kind`.
    pub fn row_of(&self, key: &str, kind: Option<&str>) -> Option<&RowText> {
        let is_read = |row: &&RowText| kind.is_some_and(|kind| row.types.contains(&kind));
        self.rows.iter().filter(|row| row.key == key).find(is_read).or_else(|| self.row(key))
    }

    /// Whether the values of `key` are words, and `node` is one of them.
    pub fn takes(&self, key: &str, node: &Node) -> bool {
        let Some(word) = node.word() else { return false };
        let of_row = self
            .row(key)
            .is_some_and(|row| matches!(&row.kind, ValueKind::Words(words) if words.contains(&word)));
        let passes = |other: &UnusedKeys| match other.handling {
            Handling::Refused(passes @ AllowedValues::Words(_)) => other.covers(key) && passes.allows(node),
            _ => false,
        };
        of_row || self.unused.iter().any(passes)
    }

    /// The keys that are used.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        let is_first =
            |(number, row): &(usize, &RowText)| self.rows[..*number].iter().all(|other| other.key != row.key);
        self.rows.iter().enumerate().filter(is_first).map(|(_, row)| row.key)
    }

    /// The types of the section that read `key`; empty: all.
    pub fn types_of(&self, key: &str) -> Vec<&'static str> {
        self.rows.iter().filter(|row| row.key == key).flat_map(|row| row.types.iter().copied()).collect()
    }

    /// The keys that are not used, except sections with a table of their own.
    pub fn unused_keys(&self) -> impl Iterator<Item = &UnusedKeys> {
        self.unused.iter().filter(|other| !matches!(other.handling, Handling::Section))
    }

    /// Every known name.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let others = |key| self.row(key).into_iter().flat_map(|row| row.names.iter().copied());
        let used = self.keys().flat_map(move |key| std::iter::once(key).chain(others(key)));
        used.chain(self.unused.iter().flat_map(|other| words(other.keys)))
    }
}

impl RowText {
    /// The key's default in sections of type `kind`.
    pub fn default_in(&self, kind: Option<&str>) -> Option<&Node> {
        let of_kind =
            self.default_of.as_ref().filter(|(kinds, _)| kind.is_some_and(|kind| kinds.contains(&kind)));
        of_kind.map(|(_, default)| default).or(self.default.as_ref())
    }
}

impl ResumeImpact {
    /// The word for it in the documentation.
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
