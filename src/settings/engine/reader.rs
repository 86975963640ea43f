//! Reads the rows of one section.

use super::names::Names;
use super::node::Node;
use super::other::{Fate, words};
use super::path::join;
use super::setting::{Kind, Setting, Words};
use super::source::{Source, unknown_type};
use super::table::{RowText, Table};

/// A section of the document, or two that hold the same keys, opened to be read row by row.
pub(crate) struct Reader<'a> {
    /// The document.
    pub source: &'a Source<'a>,
    /// Where its keys may be; the first place that has a key is read.
    places: Vec<Place<'a>>,
    /// The types whose rows are read: the `type` of the section and those whose rows it shares. Empty: all.
    kinds: Vec<&'static str>,
}

struct Place<'a> {
    path: String,
    entries: &'a [(String, Node)],
}

impl<'a> Place<'a> {
    /// What was written for `key`, under whichever of its names.
    fn entry(&self, names: &Names, key: &str) -> Option<&'a (String, Node)> {
        self.entries.iter().find(|(name, _)| names.same(name, key))
    }
}

impl<'a> Reader<'a> {
    /// Opens the section at `path`, whose keys are those of `tables`; an absent section is empty. Reports keys that are
    /// unknown, not built yet, or given under two names.
    pub fn open(source: &'a Source<'a>, path: &str, tables: &[&Table]) -> Self {
        let mut reader = Self::empty(source, path);
        let entries: &[_] = match source.node(path) {
            Some(Node::Map(entries)) => entries,
            Some(node) => {
                source.fault(path, format!("expected a section (keys and values), found {node}"));
                &[]
            }
            None => &[],
        };
        reader.places[0].entries = entries;
        for (index, (key, node)) in entries.iter().enumerate() {
            reader.check(&entries[..index], key, node, tables);
        }
        reader
    }

    /// A section of which nothing is read.
    pub fn empty(source: &'a Source<'a>, path: &str) -> Self {
        Self { source, places: vec![Place { path: path.to_string(), entries: &[] }], kinds: Vec::new() }
    }

    /// Reads only rows of sections of type `kind`.
    pub fn of_type(self, kind: &'static str) -> Self {
        self.of_types(&[kind])
    }

    /// Reads only rows of sections of one of `kinds`: the type of the section, and those whose rows it shares.
    pub fn of_types(self, kinds: &[&'static str]) -> Self {
        Self { kinds: kinds.to_vec(), ..self }
    }

    /// Whether the section is of type `kind`, or shares its rows.
    pub fn kind_is(&self, kind: &str) -> bool {
        self.kinds.contains(&kind)
    }

    /// The rows of `table` that were written although sections of this type do not read them.
    pub fn foreign<'t>(&self, table: &'t Table) -> Vec<&'t RowText> {
        let is_foreign = |row: &&RowText| !self.reads(&row.types) && self.has(row.key);
        table.rows.iter().filter(is_foreign).collect()
    }

    /// Reads keys that are absent here from `other`. In both, a key must say the same, where `shares` says it is shared.
    pub fn or_from(mut self, other: Reader<'a>, shares: impl Fn(&str) -> bool) -> Self {
        let names = self.source.names();
        for place in &other.places {
            let shared = place.entries.iter().filter(|(key, _)| shares(names.canonical(key)));
            for (key, node) in shared {
                let first = &self.places[0];
                let twin = first.entry(names, key).filter(|(_, twin)| twin != node);
                let Some((name, twin)) = twin else { continue };
                if !node.is_none() && !twin.is_none() {
                    let message =
                        format!("differs from `{}`, {twin}; keep one of them", join(&first.path, name));
                    self.source.fault(&join(&place.path, key), message);
                }
            }
        }
        self.places.extend(other.places);
        self
    }

    /// `node`, the value of `key`, as a `T`; reports what it is instead.
    pub fn convert<T: Setting>(&self, key: &str, node: &Node) -> Option<T> {
        let value = T::from_node(node);
        if value.is_none() {
            self.fault(key, format!("expected {}, found {node}", T::kind().expected()));
        }
        value
    }

    /// The word at `key`, a type of the section; `planned` are types that are known and not built.
    pub fn kind<T: Words>(&self, key: &str, planned: &'static str) -> Option<T> {
        let node = self.node(key)?;
        let word = node.word().unwrap_or_default();
        let built = T::WORDS.iter().map(|(word, _)| *word);
        let found = T::named(word);
        if found.is_none() && words(planned).any(|planned| planned == word) {
            let expected = Kind::Words(T::firsts().collect()).expected();
            self.fault(key, format!("`{word}` is not built yet; write {expected}"));
        } else if found.is_none() && node.word().is_none() {
            self.fault(key, format!("expected {}, found {node}", T::kind().expected()));
        } else if found.is_none() {
            self.fault(key, unknown_type(word, built));
        }
        found
    }

    /// The value of `key` as it was written, unless it is "none".
    pub fn node(&self, key: &str) -> Option<&'a Node> {
        self.written(key).map(|(_, (_, node))| node)
    }

    /// Whether `key` was written.
    pub fn has(&self, key: &str) -> bool {
        self.node(key).is_some()
    }

    /// Whether `key` was written and asks for something.
    pub fn asks(&self, key: &str) -> bool {
        self.node(key).is_some_and(|node| !node.is_off())
    }

    /// Whether anything was written in the section.
    pub fn is_written(&self) -> bool {
        self.places.iter().any(|place| !place.entries.is_empty())
    }

    /// The dotted path of `key` under the name that was written, where it was written.
    pub fn path(&self, key: &str) -> String {
        match self.written(key) {
            Some((place, (name, _))) => join(&place.path, name),
            None => join(&self.places[0].path, key),
        }
    }

    /// Reports a fault of `key`.
    pub fn fault(&self, key: &str, message: impl std::fmt::Display) {
        self.source.fault(&self.path(key), message);
    }

    /// Reports that `key` is missing if it was not written at all, unless another fault explains why.
    pub fn missing(&self, key: &str, expected: impl std::fmt::Display) {
        let path = &self.places[0].path;
        if self.has(key) {
            return;
        }
        if self.source.explains_absence(path, key) {
            self.source.distrust(&join(path, key));
        } else {
            self.source.missing(path, key, format!("`{key}` is missing; give it {expected}"));
        }
    }

    /// Says something about `key`.
    pub fn note(&self, key: &str, text: impl std::fmt::Display) {
        self.source.note(format!("{}: {text}", self.path(key)));
    }

    /// Says that `keys` have no meaning, where they were written and ask for something.
    pub fn ignore(&self, keys: &[&str]) {
        for key in keys.iter().filter(|key| self.asks(key)) {
            let path = self.path(key);
            let (section, key) = path.rsplit_once('.').unwrap_or(("", &path));
            self.source.ignore(section, key);
        }
    }

    /// Reports the first of `keys` unless they fit together, or one of them is faulty already.
    pub fn require(&self, keys: &[&str], fits: bool, message: impl std::fmt::Display) {
        if !fits && self.are_sound(keys) {
            self.fault(keys[0], message);
        }
    }

    /// Whether `key` has no fault.
    pub fn is_sound(&self, key: &str) -> bool {
        self.places.iter().all(|place| self.source.is_sound(&join(&place.path, key)))
    }

    /// Whether none of `keys` has a fault.
    pub fn are_sound(&self, keys: &[&str]) -> bool {
        keys.iter().all(|key| self.is_sound(key))
    }

    /// Whether a section of this type reads rows of `types`; none means all.
    pub fn reads(&self, types: &[&str]) -> bool {
        types.is_empty() || self.kinds.is_empty() || self.kinds.iter().any(|kind| types.contains(kind))
    }

    /// Where `key` was written, its name there and its value, unless that is "none".
    fn written(&self, key: &str) -> Option<(&Place<'a>, &'a (String, Node))> {
        let names = self.source.names();
        let in_place = |place: &Place<'a>| place.entry(names, key).filter(|(_, node)| !node.is_none());
        self.places.iter().find_map(|place| Some((place, in_place(place)?)))
    }

    fn check(&self, before: &[(String, Node)], key: &str, node: &Node, tables: &[&Table]) {
        let names = self.source.names();
        if let Some((twin, _)) = before.iter().find(|(other, _)| names.same(other, key)) {
            let message = format!("another name of `{twin}`, which is given too; keep one of them");
            self.source.fault(&join(&self.places[0].path, key), message);
            return;
        }
        let name = names.canonical(key);
        if tables.iter().any(|table| table.row(key).or(table.row(name)).is_some()) {
            return;
        }
        let Some(other) = tables.iter().find_map(|table| table.others.iter().find(|other| other.covers(key)))
        else {
            let message = format!("unknown key{}", self.source.suggestion(key, tables));
            self.source.fault(&join(&self.places[0].path, key), message);
            return;
        };
        match other.fate {
            Fate::Section => {}
            Fate::Ignored if node.is_off() => {}
            Fate::Ignored => self.source.ignore(&self.places[0].path, key),
            _ if node.is_none() => {}
            Fate::Differs(passes) | Fate::Refused(passes) if passes.allows(node) => {}
            Fate::Differs(_) => self.note(key, other.sentence),
            Fate::Refused(_) => self.fault(key, format!("not built yet (found {node}); {}", other.sentence)),
        }
    }
}
