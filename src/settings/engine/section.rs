//! A section: a struct whose fields are rows of a table.

use super::names::words;
use super::node::Node;
use super::other::Other;
use super::range::Range;
use super::reader::Reader;
use super::row::{Decides, Row};
use super::setting::{Kind, Setting};

/// A struct made by [`rows!`].
pub(crate) trait Section: Sized + Clone {
    /// Reads every row; faults are reported to the reader, and the field then has its default.
    fn read(reader: &Reader<'_>) -> Self;

    /// What is to be written so that it reads back as `self`, row by row.
    fn entries(&self) -> Vec<Entry>;

    /// The rows as data.
    fn table() -> Table;
}

/// A section's entries and where they belong.
pub(crate) struct Placed {
    /// Dotted path of the section.
    pub path: String,
    /// Whether its rows count when a run resumes.
    pub decides: bool,
    /// The rows.
    pub entries: Vec<Entry>,
}

/// The value of one row.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The key.
    pub key: &'static str,
    /// What it decides.
    pub decides: Decides,
    /// What is written into a file, if anything.
    pub written: Option<Node>,
    /// What a resumed run must share.
    pub decision: Option<Node>,
}

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
    pub kind: Kind,
    /// What numbers it takes.
    pub range: Option<Range>,
    /// The types of the section that read it; empty: all.
    pub types: Vec<&'static str>,
    /// An accepted value that is not the default, in YAML.
    pub example: &'static str,
}

impl RowText {
    /// `row` of `key`, whose documentation is `about`.
    pub fn of<T: Setting>(key: &'static str, about: &[&str], row: Row<T>) -> Self {
        Self {
            key,
            names: words(row.names).collect(),
            about: paragraph(about),
            decides: row.decides,
            is_required: row.is_required,
            default: row.default.to_node().filter(|_| !row.is_required),
            kind: T::kind(),
            range: row.range,
            types: words(row.types).collect(),
            example: row.example,
        }
    }
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

    /// Every key with all its names, the one we use first.
    pub fn name_sets(&self) -> impl Iterator<Item = Vec<&'static str>> {
        let used = self.rows.iter().map(|row| std::iter::once(row.key).chain(row.names.clone()).collect());
        let others =
            self.others.iter().flat_map(|other| words(other.keys).map(|set| set.split('|').collect()));
        used.chain(others)
    }

    /// Every known name.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.name_sets().flatten()
    }
}

/// Lines of documentation as one paragraph.
pub(crate) fn paragraph(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// A section as a table of rows: `key: Type = what it decides . default . other names . range`.
///
/// The key is the field's name; a key that is a word of Rust is given as text: `kind "type": ...`. A row starts with
/// `Shape`, `Numbers` or `Host` ([`Decides`]). After the rows come the keys that are known but not used ([`Other`]).
macro_rules! rows {
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident $($key:literal)?: $type:ty = $row:expr,
            )*
        }
        others $others:expr
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $(
                $(#[doc = $doc])*
                pub $field: $type,
            )*
        }

        impl Default for $name {
            /// What an absent section says, but for what other keys decide.
            fn default() -> Self {
                Self {
                    $($field: {
                        let row: $crate::settings::engine::Row<$type> = $row;
                        row.default
                    },)*
                }
            }
        }

        impl $crate::settings::engine::Section for $name {
            fn read(reader: &$crate::settings::engine::Reader<'_>) -> Self {
                Self {
                    $($field: {
                        let row: $crate::settings::engine::Row<$type> = $row;
                        reader.read($crate::settings::engine::rows!(@key $field $($key)?), row)
                    },)*
                }
            }

            fn entries(&self) -> Vec<$crate::settings::engine::Entry> {
                use $crate::settings::engine::Setting;
                vec![$({
                    let row: $crate::settings::engine::Row<$type> = $row;
                    $crate::settings::engine::Entry {
                        key: $crate::settings::engine::rows!(@key $field $($key)?),
                        decides: row.decides,
                        written: self.$field.to_node(),
                        decision: self.$field.to_decision(),
                    }
                },)*]
            }

            fn table() -> $crate::settings::engine::Table {
                $crate::settings::engine::Table {
                    about: $crate::settings::engine::paragraph(&[$($about),*]),
                    rows: vec![$({
                        let row: $crate::settings::engine::Row<$type> = $row;
                        let key = $crate::settings::engine::rows!(@key $field $($key)?);
                        $crate::settings::engine::RowText::of(key, &[$($doc),*], row)
                    },)*],
                    others: Vec::from($others),
                }
            }
        }
    };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
}
pub(crate) use rows;
