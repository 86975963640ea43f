//! A section: a struct whose fields are rows of a table.

use super::node::Node;
use super::reader::Reader;
use super::source::Source;
use super::table::{Decides, Table, TableId};

/// A struct made by [`rows!`].
pub(crate) trait Section: Sized + Clone {
    /// Its table, and the section under which it is documented.
    const ID: TableId;

    /// Reads every row; faults are reported to the reader, and the field then has its default.
    fn read(reader: &Reader<'_>) -> Self;

    /// What is to be written so that it reads back as `self`, row by row.
    fn entries(&self) -> Vec<Entry>;

    /// The rows as data.
    fn table() -> Table;

    /// The table and what it is.
    fn documented() -> (TableId, Table) {
        (Self::ID, Self::table())
    }

    /// Reads the section at `path`, which holds no keys but its own.
    fn read_at(source: &Source, path: &str) -> Self {
        Self::read(&Reader::open(source, path, &[Self::ID]))
    }

    /// What is to be written, as one node.
    fn written(&self) -> Node {
        let entries = self.entries().into_iter();
        Node::Map(entries.filter_map(|entry| Some((entry.key.to_string(), entry.written?))).collect())
    }

    /// The section with its place, below the dotted `path`; it counts when a run resumes.
    fn placed(&self, path: impl Into<String>) -> Placed {
        Placed { path: path.into(), decides: true, entries: self.entries() }
    }
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

/// A section as a table of rows: `key: Type = what it decides . default . other names . range`.
///
/// The key is the field's name; a key that is a word of Rust is given as text: `kind "type": ...`. A row starts with
/// `Shape`, `Numbers` or `Host` ([`Decides`]). `in` names the path of the section, and `forms` says that the keys are
/// other forms of that section's; after the rows come the keys that hold sections.
macro_rules! rows {
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident in $path:tt $($forms:ident)? {
            $(
                $(#[doc = $doc:literal])*
                $field:ident $($key:literal)?: $type:ty = $row:expr,
            )*
        }
        $(sections $sections:literal)?
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
                        let row: $crate::settings::engine::row::Row<$type> = $row;
                        row.default
                    },)*
                }
            }
        }

        impl $crate::settings::engine::section::Section for $name {
            const ID: $crate::settings::engine::table::TableId =
                $crate::settings::engine::table::TableId::of($path)$(.$forms())?;

            fn read(reader: &$crate::settings::engine::reader::Reader<'_>) -> Self {
                Self {
                    $($field: {
                        let row: $crate::settings::engine::row::Row<$type> = $row;
                        row.read(reader, $crate::settings::engine::section::rows!(@key $field $($key)?))
                    },)*
                }
            }

            fn entries(&self) -> Vec<$crate::settings::engine::section::Entry> {
                use $crate::settings::engine::setting::Setting as _;
                vec![$({
                    let row: $crate::settings::engine::row::Row<$type> = $row;
                    $crate::settings::engine::section::Entry {
                        key: $crate::settings::engine::section::rows!(@key $field $($key)?),
                        decides: row.decides,
                        written: row.written(&self.$field),
                        decision: self.$field.to_decision(),
                    }
                },)*]
            }

            fn table() -> $crate::settings::engine::table::Table {
                $crate::settings::engine::table::Table {
                    about: $crate::settings::engine::table::paragraph(&[$($about),*]),
                    rows: vec![$({
                        let row: $crate::settings::engine::row::Row<$type> = $row;
                        let key = $crate::settings::engine::section::rows!(@key $field $($key)?);
                        row.text(key, &[$($doc),*])
                    },)*],
                    others: vec![$($crate::settings::engine::other::sections($sections))?],
                }
            }
        }
    };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
}
pub(crate) use rows;
