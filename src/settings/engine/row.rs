//! One row: everything about a key except its name, its type and its documentation.

use super::names::words;
use super::node::Node;
use super::range::Range;
use super::reader::Reader;
use super::section::Entry;
use super::setting::Setting;
use super::table::{ResumeImpact, RowText, paragraph};

/// The row of a key whose values are of type `T`.
#[derive(Clone, Copy)]
pub(crate) struct Row<T> {
    /// Whether another value makes another model or another run.
    pub decides: ResumeImpact,
    /// The value of the key where none is written.
    pub default: T,
    /// Some types of the section, named between spaces, and their default, if it differs.
    pub default_of: Option<(&'static str, T)>,
    /// Whether the key must be written. Its default then only stands in for the value after that fault was reported.
    pub is_required: bool,
    /// Whether the value of an absent key follows from the section's type or from other keys.
    pub is_derived: bool,
    /// The range of the numbers that the key takes.
    pub range: Option<Range>,
    /// The types (`type` of the section, between spaces) that read the key; empty: all.
    pub types: &'static str,
    /// Reads a key of several shapes; `None` after a fault was reported.
    pub reader: Option<fn(&Reader<'_>, &'static str) -> Option<T>>,
    /// The value of an absent key that other keys decide, for the documentation.
    pub filled: &'static str,
    /// A value other than the default, in YAML: for documentation, and for the tests over all rows.
    pub example: &'static str,
}

impl ResumeImpact {
    /// A key with a default.
    pub fn default<T>(self, default: T) -> Row<T> {
        Row {
            decides: self,
            default,
            default_of: None,
            is_required: false,
            is_derived: false,
            range: None,
            types: "",
            reader: None,
            filled: "",
            example: "",
        }
    }

    /// A key without a default of its own: absent, or decided by other keys when the section is filled.
    pub fn optional<T: Default>(self) -> Row<T> {
        self.default(T::default())
    }

    /// A key whose value, where none is written, follows from the section's type or from other keys.
    pub fn derived<T: Default>(self) -> Row<T> {
        Row { is_derived: true, ..self.default(T::default()) }
    }

    /// A key that must be written.
    pub fn required<T: Default>(self) -> Row<T> {
        Row { is_required: true, ..self.default(T::default()) }
    }
}

impl<T: Setting> Row<T> {
    /// Sets the range of the numbers that are accepted.
    pub fn within(self, range: Range) -> Self {
        Self { range: Some(range), ..self }
    }

    /// Lets only these types of the section, between spaces, read the key.
    pub fn of(self, types: &'static str) -> Self {
        Self { types, ..self }
    }

    /// Lets only these types read the key, unless its row already names the types that do.
    pub fn of_variant(self, types: &'static str) -> Self {
        if self.types.is_empty() { self.of(types) } else { self }
    }

    /// Sets the default in sections of these types, between spaces.
    pub fn default_of(self, types: &'static str, default: T) -> Self {
        Self { default_of: Some((types, default)), ..self }
    }

    /// Lets `reader` read the key instead of the type's own rule.
    pub fn read_by(self, reader: fn(&Reader<'_>, &'static str) -> Option<T>) -> Self {
        Self { reader: Some(reader), ..self }
    }

    /// Describes, in Markdown, the value of an absent key that other keys decide.
    pub fn filled(self, filled: &'static str) -> Self {
        Self { filled, ..self }
    }

    /// Gives an accepted value that is not the default, in YAML.
    pub fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    /// The value of `key` that `reader` finds; the default where there is none, or after a fault was reported.
    pub fn read(mut self, reader: &Reader<'_>, key: &'static str) -> T {
        if let Some((types, default)) = self.default_of.take()
            && words(types).any(|kind| reader.kind_is(kind))
        {
            self.default = default;
        }
        if !reader.reads(&words(self.types).collect::<Vec<_>>()) {
            return self.default;
        }
        let Some(node) = reader.node(key) else {
            if self.is_required {
                reader.missing(key, self.expected());
            }
            return self.default;
        };
        let value = match self.reader {
            Some(read) => read(reader, key),
            None => {
                let value = T::from_node(node);
                if value.is_none() {
                    reader.fault(key, format!("expected {}, found {node}", self.expected()));
                }
                value
            }
        };
        let Some(value) = value else { return self.default };
        let outside = self.range.and_then(|range| {
            let numbers = value.to_node().map_or_else(Vec::new, |node| node.numbers());
            let number = numbers.into_iter().find(|number| !(range.accepts)(*number));
            number.map(|number| format!("expected {}, found `{}`", range.words, short(number)))
        });
        match outside {
            Some(message) => {
                reader.fault(key, message);
                self.default
            }
            None => value,
        }
    }

    /// The accepted values in the words of a message.
    fn expected(&self) -> String {
        self.range.map_or_else(|| T::kind().expected(), |range| range.words.into())
    }

    /// The entry of `key` with `value`.
    pub fn entry(&self, key: &'static str, value: &T) -> Entry {
        Entry { key, decides: self.decides, written: self.written(value), decision: value.to_decision() }
    }

    /// `value` as it is written in a file; `None` if it is empty, and empty by default.
    pub fn written(&self, value: &T) -> Option<Node> {
        let is_empty = |node: &Node| match node {
            Node::Text(text) => text.is_empty(),
            Node::List(items) => items.is_empty(),
            _ => false,
        };
        value.to_node().filter(|node| !is_empty(node) || self.default.to_node().as_ref() != Some(node))
    }

    /// The row as data, for `key`, whose documentation is `about`.
    pub fn text(self, key: &'static str, about: &[&str]) -> RowText {
        RowText {
            key,
            names: Vec::new(),
            about: paragraph(about),
            decides: self.decides,
            is_required: self.is_required,
            default: self.default.to_node().filter(|_| !self.is_required && !self.is_derived),
            default_of: self
                .default_of
                .and_then(|(types, default)| Some((words(types).collect(), default.to_node()?))),
            kind: T::kind(),
            range: self.range,
            types: words(self.types).collect(),
            filled: self.filled,
            example: self.example,
        }
    }
}

/// A number as people write it: whole ones without a point, huge ones with an exponent.
fn short(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e15 { format!("{number}") } else { format!("{number:?}") }
}
