//! A section: a struct whose fields are rows of a table.

use super::node::Node;
use super::reader::Reader;
use super::source::Source;
use super::table::{ResumeImpact, RowText, Table, TableId};

/// A struct made by [`rows!`].
pub(crate) trait Section: Sized + Clone {
    /// Identifies the section's table, and so the section under which it is documented.
    const ID: TableId;

    /// Reads every row; faults are reported to the reader, and the field then has its default.
    fn read(reader: &Reader<'_>) -> Self;

    /// The value of each row, so that it reads back as `self`.
    fn entries(&self) -> Vec<Entry>;

    /// The rows as data.
    fn table() -> Table;

    /// The table with its id.
    fn documented() -> (TableId, Table) {
        (Self::ID, Self::table())
    }

    /// Reads the section at `path`, which holds no keys but its own.
    fn read_at(source: &Source, path: &str) -> Self {
        Self::read(&Reader::open(source, path, &[Self::ID]))
    }

    /// The values as one node.
    fn written(&self) -> Node {
        let entries = self.entries().into_iter();
        Node::Map(entries.filter_map(|entry| Some((entry.key.to_string(), entry.written?))).collect())
    }

    /// The entries of the section, placed at the dotted `path`. They count when a run resumes.
    fn placed(&self, path: impl Into<String>) -> Placed {
        Placed { path: path.into(), decides: true, entries: self.entries() }
    }
}

/// The keys that only some types (`type`) of a section have: an enum made by [`rows!`], with one variant for all types
/// that share the same keys.
pub(crate) trait Variants: Sized + Default {
    /// Reads the rows of the reader's type; faults are reported to the reader.
    fn read(reader: &Reader<'_>) -> Self;

    /// The value of each row, so that it reads back as `self`.
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
    /// Whether another value makes another model or another run.
    pub decides: ResumeImpact,
    /// The value as it stands in a file; `None` if it is not written.
    pub written: Option<Node>,
    /// The part of the value that a resumed run must share, if any.
    pub decision: Option<Node>,
}

/// A section as a table of rows: `key: Type = what it decides . default . other names . range`, in a file that uses
/// all of `settings::engine`.
///
/// The key is the field's name; a key that is a word of Rust is given as text: `kind "type": ...`. A row starts with
/// `Shape`, `Numbers` or `Host` ([`ResumeImpact`]). `in` names the path of the section, and `forms` says that the
/// keys are other forms of that section's; after the rows come the keys that are read into another struct
/// (`with field: Struct = the defaults of a reader's type { rows }`), whose fields may be those of a struct in it
/// (`layer.rope_theta "theta": ...`), those that depend on the section's type (`by field: Enum`), and those that hold
/// sections. Such an enum has rows by type:
/// `Variant = "types between spaces" => { rows }`; the first is the default.
macro_rules! rows {
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident in $path:tt $($forms:ident)? {
            $(
                $(#[doc = $doc:literal])*
                $field:ident $($key:literal)?: $type:ty = $row:expr,
            )*
        }
        $(with $(#[doc = $with:literal])* $inner:ident: $outer:ident = $base:path {
            $(
                $(#[doc = $inner_doc:literal])*
                $($inner_field:ident).+ $($inner_key:literal)?: $inner_type:ty = $inner_row:expr,
            )*
        })*
        $(by $(#[doc = $by:literal])* $variants:ident: $enum:ident)?
        $(sections $sections:literal)?
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[doc = $with])* pub $inner: $outer,)*
            $(
                $(#[doc = $doc])*
                pub $field: $type,
            )*
            $($(#[doc = $by])* pub $variants: $enum,)?
        }

        impl Default for $name {
            /// The defaults of the rows; some follow from other keys.
            fn default() -> Self {
                Self {
                    $($inner: $base(None),)*
                    $($field: rows!(@row $type, $row).default,)*
                    $($variants: <$enum>::default(),)?
                }
            }
        }

        impl Section for $name {
            const ID: TableId = TableId::of($path)$(.$forms())?;

            fn read(reader: &Reader<'_>) -> Self {
                $(
                    let mut $inner = $base(Some(reader));
                    $($inner.$($inner_field).+ =
                        Row { default: $inner.$($inner_field).+, ..rows!(@row $inner_type, $inner_row) }
                            .read(reader, rows!(@key $($inner_field).+ $($inner_key)?));)*
                )*
                Self {
                    $($inner,)*
                    $($field: rows!(@row $type, $row).read(reader, rows!(@key $field $($key)?)),)*
                    $($variants: <$enum>::read(reader),)?
                }
            }

            fn entries(&self) -> Vec<Entry> {
                let own = vec![
                    $($(rows!(@row $inner_type, $inner_row)
                        .entry(rows!(@key $($inner_field).+ $($inner_key)?), &self.$inner.$($inner_field).+),)*)*
                    $(rows!(@row $type, $row).entry(rows!(@key $field $($key)?), &self.$field),)*
                ];
                [own, $(self.$variants.entries())?].concat()
            }

            fn table() -> Table {
                let mut rows = vec![
                    $($(rows!(@row $inner_type, $inner_row)
                        .text(rows!(@key $($inner_field).+ $($inner_key)?), &[$($inner_doc),*]),)*)*
                    $(rows!(@row $type, $row).text(rows!(@key $field $($key)?), &[$($doc),*]),)*
                ];
                $(rows.extend(<$enum>::rows());)?
                rows.sort_by_key(|row| row.key != "type"); // the others depend on it
                Table {
                    about: paragraph(&[$($about),*]),
                    rows,
                    unused: vec![$(sections($sections))?],
                    planned: "",
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
            /// The first variant with the defaults of its rows.
            fn default() -> Self {
                let [first, ..] = [$(Self::$variant {
                    $($field: rows!(@row $type, $row).default,)*
                },)*];
                first
            }
        }

        impl Variants for $name {
            fn read(reader: &Reader<'_>) -> Self {
                $(
                    if words($types).any(|kind| reader.kind_is(kind)) {
                        return Self::$variant {
                            $($field: rows!(@row $type, $row).read(reader, stringify!($field)),)*
                        };
                    }
                )*
                Self::default()
            }

            fn entries(&self) -> Vec<Entry> {
                match self {
                    $(Self::$variant { $($field,)* } => vec![
                        $(rows!(@row $type, $row).entry(stringify!($field), $field),)*
                    ],)*
                }
            }

            fn rows() -> Vec<RowText> {
                vec![$($(
                    rows!(@row $type, $row).of_variant($types).text(stringify!($field), &[$($doc),*]),
                )*)*]
            }
        }
    };
    (@row $type:ty, $row:expr) => {{
        let row: Row<$type> = $row;
        row
    }};
    (@key $field:ident) => { stringify!($field) };
    (@key $($field:ident).+ $key:literal) => { $key };
}
pub(crate) use rows;
