//! One row: everything there is to know of a key beside its name, its type and its documentation.

use super::range::Range;
use super::reader::Reader;
use super::setting::Setting;

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

/// The row of a key whose values are of type `T`.
#[derive(Clone, Copy)]
pub(crate) struct Row<T> {
    /// What the key decides.
    pub decides: Decides,
    /// Its value where none is written.
    pub default: T,
    /// Whether it must be written; the default then only stands in for it after that fault was reported.
    pub is_required: bool,
    /// Its other names, between spaces.
    pub names: &'static str,
    /// What numbers it takes.
    pub range: Option<Range>,
    /// The types (`type` of the section, between spaces) that read it; empty: all.
    pub types: &'static str,
    /// Reads a key of several shapes; `None` after a fault was reported.
    pub reader: Option<fn(&Reader<'_>, &'static str) -> Option<T>>,
    /// A value other than the default, in YAML: for documentation, and for the tests over all rows.
    pub example: &'static str,
}

impl Decides {
    /// A key with a default.
    pub fn default<T>(self, default: T) -> Row<T> {
        let (names, types, example) = ("", "", "");
        Row { decides: self, default, is_required: false, names, range: None, types, reader: None, example }
    }

    /// A key without a default of its own: absent, or decided by other keys when the section is filled.
    pub fn optional<T: Default>(self) -> Row<T> {
        self.default(T::default())
    }

    /// A key that must be written.
    pub fn required<T: Default>(self) -> Row<T> {
        Row { is_required: true, ..self.default(T::default()) }
    }

    /// What the documentation calls it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Shape => "shape",
            Self::Numbers => "numbers",
            Self::Host => "host",
        }
    }
}

impl<T: Setting> Row<T> {
    /// Other names, between spaces: those of Megatron, Hugging Face and older files.
    pub fn also(self, names: &'static str) -> Self {
        Self { names, ..self }
    }

    /// The numbers that are accepted.
    pub fn within(self, range: Range) -> Self {
        Self { range: Some(range), ..self }
    }

    /// Read by these types of the section only, between spaces.
    pub fn of(self, types: &'static str) -> Self {
        Self { types, ..self }
    }

    /// Read by `reader` instead of the type's own rule.
    pub fn read_by(self, reader: fn(&Reader<'_>, &'static str) -> Option<T>) -> Self {
        Self { reader: Some(reader), ..self }
    }

    /// An accepted value that is not the default, in YAML.
    pub fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }
}
