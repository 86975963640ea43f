//! A section: a struct whose fields are rows of a table.

use super::node::Node;
use super::reader::Reader;
use super::source::Source;
use super::table::{Decides, RowText, Table, TableId};

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

/// The keys that each `type` of a section has alone: an enum made by [`rows!`], a variant for the types that share their keys.
pub(crate) trait Variants: Sized + Default {
    /// Reads the rows of the reader's type; faults are reported to the reader.
    fn read(reader: &Reader<'_>) -> Self;

    /// What is to be written so that it reads back as `self`, row by row.
    fn entries(&self) -> Vec<Entry>;

    /// The rows of all variants, as data.
    fn rows() -> Vec<RowText>;
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
/// other forms of that section's; after the rows come the keys that depend on the section's type (`by field: Enum`), and those that
/// hold sections. Such an enum has rows by type: `Variant = "types between spaces" => { rows }`; the first is the default.
macro_rules! rows {
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident in $path:tt $($forms:ident)? {
            $(
                $(#[doc = $doc:literal])*
                $field:ident $($key:literal)?: $type:ty = $row:expr,
            )*
        }
        $(by $(#[doc = $by:literal])* $variants:ident: $enum:ident)?
        $(sections $sections:literal)?
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $(
                $(#[doc = $doc])*
                pub $field: $type,
            )*
            $($(#[doc = $by])* pub $variants: $enum,)?
        }

        impl Default for $name {
            /// What an absent section says, but for what other keys decide.
            fn default() -> Self {
                Self {
                    $($field: {
                        let row: $crate::settings::engine::row::Row<$type> = $row;
                        row.default
                    },)*
                    $($variants: <$enum>::default(),)?
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
                    $($variants: <$enum as $crate::settings::engine::section::Variants>::read(reader),)?
                }
            }

            fn entries(&self) -> Vec<$crate::settings::engine::section::Entry> {
                let entries = vec![$({
                    let row: $crate::settings::engine::row::Row<$type> = $row;
                    row.entry($crate::settings::engine::section::rows!(@key $field $($key)?), &self.$field)
                },)*];
                $(let entries = [entries, $crate::settings::engine::section::Variants::entries(&self.$variants)].concat();)?
                entries
            }

            fn table() -> $crate::settings::engine::table::Table {
                let rows = vec![$({
                    let row: $crate::settings::engine::row::Row<$type> = $row;
                    let key = $crate::settings::engine::section::rows!(@key $field $($key)?);
                    row.text(key, &[$($doc),*])
                },)*];
                $(let rows = rows.into_iter().chain(<$enum as $crate::settings::engine::section::Variants>::rows()).collect();)?
                $crate::settings::engine::table::Table {
                    about: $crate::settings::engine::table::paragraph(&[$($about),*]),
                    rows,
                    others: vec![$($crate::settings::engine::other::sections($sections))?],
                }
            }
        }
    };
    (
        $(#[doc = $about:literal])*
        pub enum $name:ident {
            $(
                $(#[doc = $variant_about:literal])*
                $variant:ident = $types:expr => {
                    $(
                        $(#[doc = $doc:literal])*
                        $field:ident: $type:ty = $row:expr,
                    )*
                }
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name {
            $(
                $(#[doc = $variant_about])*
                $variant {
                    $(
                        $(#[doc = $doc])*
                        $field: $type,
                    )*
                },
            )*
        }

        impl Default for $name {
            /// What the first type says where nothing is written.
            fn default() -> Self {
                let [first, ..] = [$(Self::$variant {
                    $($field: {
                        let row: $crate::settings::engine::row::Row<$type> = $row;
                        row.default
                    },)*
                },)*];
                first
            }
        }

        impl $crate::settings::engine::section::Variants for $name {
            fn read(reader: &$crate::settings::engine::reader::Reader<'_>) -> Self {
                $(
                    if $crate::settings::engine::other::words($types).any(|kind| reader.kind_is(kind)) {
                        return Self::$variant {
                            $($field: {
                                let row: $crate::settings::engine::row::Row<$type> = $row;
                                row.read(reader, stringify!($field))
                            },)*
                        };
                    }
                )*
                Self::default()
            }

            fn entries(&self) -> Vec<$crate::settings::engine::section::Entry> {
                match self {
                    $(Self::$variant { $($field,)* } => vec![$({
                        let row: $crate::settings::engine::row::Row<$type> = $row;
                        row.entry(stringify!($field), $field)
                    },)*],)*
                }
            }

            fn rows() -> Vec<$crate::settings::engine::table::RowText> {
                vec![$($({
                    let row: $crate::settings::engine::row::Row<$type> = $row;
                    row.of_variant($types).text(stringify!($field), &[$($doc),*])
                },)*)*]
            }
        }
    };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
}
pub(crate) use rows;
