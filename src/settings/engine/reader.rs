//! Reads the rows of one section.

use super::node::Node;
use super::node::join;
use super::section::Section;
use super::setting::{Setting, ValueKind, Words};
use super::source::{Source, unknown_type};
use super::table::{Table, TableId};
use super::unused_keys::Handling;

/// A section of the document, opened to be read row by row.
pub(crate) struct Reader<'a> {
    /// The document.
    pub source: &'a Source,
    /// Where the section is.
    section: String,
    entries: &'a [(String, Node)],
    /// The types whose rows are read: the `type` of the section and those whose rows it shares. Empty: all.
    kinds: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    /// Opens the section at `path`, whose keys are those of `tables` and their other forms; an absent section is
    /// empty. Reports keys that are unknown or not built yet.
    pub fn open(source: &'a Source, path: &str, tables: &[TableId]) -> Self {
        let own = tables.iter().map(|id| source.table(*id).expect("every section is in the list of tables"));
        let forms = tables.iter().filter_map(|id| source.table(id.forms()));
        let tables: Vec<&Table> = own.chain(forms).collect();
        let reader = Self::unchecked(source, path);
        if let Some(node) = source.node(path).filter(|node| !matches!(node, Node::Map(_))) {
            source.fault(path, format!("expected a section (keys and values), found {node}"));
        }
        reader.entries.iter().for_each(|(key, node)| reader.check(key, node, &tables));
        reader
    }

    /// Opens the section at `path` without checking its keys, to read some that other readers of the section do not
    /// know.
    pub fn unchecked(source: &'a Source, path: &str) -> Self {
        Self { source, section: path.to_string(), entries: source.entries(path), kinds: Vec::new() }
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

    /// The keys of `S` that were written although sections of this type do not read them, each with the types that do.
    pub fn foreign<S: Section>(&self) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
        let table = self.source.table(S::ID);
        let keys = table.into_iter().flat_map(Table::keys);
        let with_types = move |key| Some((key, table?.types_of(key)));
        keys.filter_map(with_types).filter(|(key, types)| self.has(key) && !self.reads(types))
    }

    /// Refuses `key`, which sections of `types` read, and this one does not.
    pub fn refuse(&self, key: &str, types: &[&str]) {
        let (types, own) = (types.join("` or `"), self.kinds.first().unwrap_or(&""));
        self.fault(key, format!("is a key of `type: {types}`, not of `{own}`; remove it"));
    }

    /// `node`, the value of `key`, as a `T`; reports what it is instead.
    pub fn convert<T: Setting>(&self, key: &str, node: &Node) -> Option<T> {
        let value = T::from_node(node);
        if value.is_none() {
            self.fault(key, format!("expected {}, found {node}", T::kind().expected()));
        }
        value
    }

    /// The value that `read` makes of `key`; an error of `read` says which part is wrong, and is reported as a fault.
    pub fn form<T: Setting>(&self, key: &str, read: impl Fn(&Node) -> Result<T, String>) -> Option<T> {
        let wrong = |found| self.fault(key, format!("expected {}, found {found}", T::kind().expected()));
        read(self.node(key)?).map_err(wrong).ok()
    }

    /// The word at `key`, a type of the section, whose table is that of `id`.
    pub fn kind<T: Words>(&self, key: &str, id: TableId) -> Option<T> {
        let node = self.node(key)?;
        let word = node.word().unwrap_or_default();
        let built = T::WORDS.iter().map(|(word, _)| *word);
        let found = T::named(word);
        if found.is_none() && self.source.plans(id, word) {
            let expected = ValueKind::Words(T::firsts().collect()).expected();
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
        self.entries.iter().find(|(name, _)| name == key).map(|(_, node)| node).filter(|node| !node.is_none())
    }

    /// Whether `key` was written.
    pub fn has(&self, key: &str) -> bool {
        self.node(key).is_some()
    }

    /// Whether `key` was written and asks for something.
    pub fn asks(&self, key: &str) -> bool {
        self.node(key).is_some_and(|node| !node.is_off())
    }

    /// Every key that was written, in its order.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.entries.iter().map(|(key, _)| key.as_str())
    }

    /// Whether anything was written in the section.
    pub fn is_written(&self) -> bool {
        !self.entries.is_empty()
    }

    /// The dotted path of `key`.
    pub fn path(&self, key: &str) -> String {
        join(&self.section, key)
    }

    /// Reports a fault of `key`.
    pub fn fault(&self, key: &str, message: impl std::fmt::Display) {
        self.source.fault(&self.path(key), message);
    }

    /// Reports that `key` is missing if it was not written at all, unless another fault explains why.
    pub fn missing(&self, key: &str, expected: impl std::fmt::Display) {
        let path = &self.section;
        if self.has(key) {
            return;
        }
        if self.source.explains_absence(path, key) {
            self.source.distrust(&join(path, key));
        } else {
            self.source.missing(path, key, format!("`{key}` is missing; give it {expected}"));
        }
    }

    /// Adds a notice about `key`.
    pub fn note(&self, key: &str, text: impl std::fmt::Display) {
        self.source.note(format!("{}: {text}", self.source.document.written(&self.path(key))));
    }

    /// Notes that `keys` have no meaning, if they were written and ask for something.
    pub fn ignore(&self, keys: &[&str]) {
        for key in keys.iter().filter(|key| self.asks(key)) {
            self.source.ignore(&self.path(key));
        }
    }

    /// Notes that `keys` have no meaning, if they were written at all.
    pub fn ignore_any(&self, keys: &[&str]) {
        for key in keys.iter().filter(|key| self.has(key)) {
            self.source.ignore(&self.path(key));
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
        self.source.is_sound(&self.path(key))
    }

    /// Whether none of `keys` has a fault.
    pub fn are_sound(&self, keys: &[&str]) -> bool {
        keys.iter().all(|key| self.is_sound(key))
    }

    /// Whether a section of this type reads rows of `types`; an empty list means all types.
    pub fn reads(&self, types: &[&str]) -> bool {
        types.is_empty() || self.kinds.is_empty() || self.kinds.iter().any(|kind| types.contains(kind))
    }

    fn check(&self, key: &str, node: &Node, tables: &[&Table]) {
        if tables.iter().any(|table| table.row(key).is_some()) {
            return;
        }
        let Some(other) = tables.iter().find_map(|table| table.unused.iter().find(|other| other.covers(key)))
        else {
            let message = format!("unknown key{}", self.source.suggestion(&self.section, key, node, tables));
            self.fault(key, message);
            return;
        };
        // An empty text leaves a key open, too.
        let is_open = node.is_none() || *node == Node::Text(String::new());
        let is_switch = other.kind == Some(ValueKind::Switch) && !is_open;
        if let Some(kind) = other.kind.as_ref().filter(|_| !is_open && !other.fits(node)) {
            return self.fault(key, format!("expected {}, found {node}", kind.expected()));
        }
        match other.handling {
            Handling::Section => {}
            Handling::Ignored if node.is_off() && !is_switch => {}
            Handling::Ignored => self.source.ignore(&self.path(key)),
            _ if node.is_none() => {}
            Handling::Differs(passes) if passes.allows(node) && is_switch => {
                self.source.ignore(&self.path(key))
            }
            Handling::Differs(passes) | Handling::Refused(passes) if passes.allows(node) => {}
            Handling::Differs(_) => self.note(key, other.sentence),
            Handling::Refused(_) => {
                self.fault(key, format!("not built yet (found {node}); {}", other.sentence))
            }
        }
    }
}
