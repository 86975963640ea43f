//! A document while it is read: what it says, and what is found wrong with it.
//!
//! Reading does not stop at a fault. The fault is recorded with its line, the key takes its default, and checks
//! that depend on it are skipped: `Source::is_sound(path)` is false if there is a fault at the path, below it or in
//! a section that contains it, and `Reader::require` reports only if all keys that the check reads are sound. So
//! independent faults are reported at once, a line each, and none causes further lines. A key that is missing
//! because its name was misspelt is reported as misspelt only. The first 20 lines are printed, with the number of
//! the others.
//!
//! Two kinds of faults depend on what the file is read for. A *data fault* only keeps data from being loaded, such
//! as a loader that is not built: a fault of `RunConfig::load`, a remark beside the plan of
//! `RunConfig::outline`, which needs no data. Something *unsupported* can be planned for and not be trained yet, such
//! as Muon on parts of matrices: a fault of a run, a remark beside an outline.

use super::document::Document;
use super::faults::{Fault, Faults};
use super::names::{Names, words};
use super::node::Node;
use super::node::{is_below, join, parent_and_key};
use super::setting::Setting;
use super::table::{Table, TableId};
use std::cell::RefCell;

/// A document and everything said about it. Reading never stops at a fault: the fault is noted, the key takes its
/// default, and checks that depend on a faulty key are left out ([`Source::is_sound`]).
pub(crate) struct Source {
    /// The file with the overrides laid over it.
    pub document: Document,
    /// Other names of keys.
    pub names: &'static Names,
    /// The rows of every section.
    pub tables: &'static [(TableId, Table)],
    /// Settings that a file repeats, to be compared with the settings themselves once these are decided.
    pub claims: Vec<Claim>,
    faults: RefCell<Faults>,
}

/// A key by which another program's file repeats a setting.
pub(crate) struct Claim {
    /// The path at which the key is written.
    pub path: String,
    /// The value of the key.
    pub claimed: Node,
    /// The setting that must say the same.
    pub native: &'static str,
    /// The value that the key must have if there is no such setting; `None`: any.
    pub absent: Option<Node>,
}

impl Source {
    /// A source with no faults, and with the notices of the document itself.
    pub fn new(document: Document, names: &'static Names, tables: &'static [(TableId, Table)]) -> Self {
        let source = Self { document, names, tables, claims: Vec::new(), faults: RefCell::default() };
        source.document.notices().for_each(|notice| source.note(notice));
        source
    }

    /// The value at `path`, unless it is "none".
    pub fn node(&self, path: &str) -> Option<&Node> {
        self.document.get(path).filter(|node| !node.is_none())
    }

    /// The value at `path` as a `T`, if it is one.
    pub fn value<T: Setting>(&self, path: &str) -> Option<T> {
        self.node(path).and_then(T::from_node)
    }

    /// The keys and values of the section at `path`; none if there is no section.
    pub fn entries(&self, path: &str) -> &[(String, Node)] {
        match self.node(path) {
            Some(Node::Map(entries)) => entries,
            _ => &[],
        }
    }

    /// The paths of the items of the list at `path`; none if there is no list.
    pub fn items(&self, path: &str) -> Vec<String> {
        let count = if let Some(Node::List(items)) = self.node(path) { items.len() } else { 0 };
        (0..count).map(|index| join(path, &index.to_string())).collect()
    }

    /// Gives `path` a value that follows from what was written for `origin`, unless it has one.
    pub fn put_default(&mut self, path: &str, value: impl Into<Node>, origin: &str) {
        if self.node(path).is_none() {
            self.document.put(path, value.into(), origin);
        }
    }

    /// The table `id`, if there is one.
    pub fn table(&self, id: TableId) -> Option<&'static Table> {
        self.tables.iter().find(|(known, _)| *known == id).map(|(_, table)| table)
    }

    /// Whether `word` is a type of the sections of `id` that is known and not built.
    pub fn plans(&self, id: TableId, word: &str) -> bool {
        self.table(id).is_some_and(|table| words(table.planned).any(|planned| planned == word))
    }

    /// The text at `path`, if there is one that is not "none".
    pub fn word(&self, path: &str) -> Option<&str> {
        self.node(path).and_then(Node::word)
    }

    /// Reports a fault of the value at `path`.
    pub fn fault(&self, path: &str, message: impl std::fmt::Display) {
        self.add(self.fault_at(path, message));
    }

    /// Reports a fault of what was written for `origin`, where the value is read at `path`.
    pub fn fault_of(&self, path: &str, origin: &str, message: impl std::fmt::Display) {
        let fault = Fault { path: path.to_string(), ..self.fault_at(origin, message) };
        self.faults.borrow_mut().list.push(fault);
    }

    /// Reports that `key` is missing in the section at `path`.
    pub fn missing(&self, path: &str, key: &str, message: impl std::fmt::Display) {
        let key = join(path, key);
        self.add(Fault { line: self.document.line(&key), path: key, ..self.fault_at(path, message) });
    }

    /// Reports a data fault at `path`: it keeps the data from being loaded, but everything else of the run can be
    /// decided.
    pub fn data_fault(&self, path: &str, message: impl std::fmt::Display) {
        let fault = self.fault_at(path, message);
        self.faults.borrow_mut().data_faults.push(fault);
    }

    /// Reports a setting at `path` that can be planned for but not trained yet.
    pub fn unsupported(&self, path: &str, message: impl std::fmt::Display) {
        let fault = self.fault_at(path, message);
        self.faults.borrow_mut().unsupported.push(fault);
    }

    /// Says that `path` has no value to rely on, though the fault that explains it is reported elsewhere.
    pub fn distrust(&self, path: &str) {
        self.faults.borrow_mut().distrusted.push(path.to_string());
    }

    /// Whether no fault was found at `path`, in it, or in a section that holds it.
    pub fn is_sound(&self, path: &str) -> bool {
        let faults = self.faults.borrow();
        let mut faulty = faults.list.iter().map(|fault| &fault.path).chain(&faults.distrusted);
        !faulty.any(|faulty| is_below(faulty, path) || is_below(path, faulty))
    }

    /// Whether a fault that was found explains why `key` is absent in the section at `path`: a fault of the section
    /// itself, or of a name that is much like the key's, or like the name of a section on the way to it.
    pub fn explains_absence(&self, path: &str, key: &str) -> bool {
        let is_misspelt = |section: &str, key: &str| {
            let names = [key].into_iter().chain(self.names.of(section, key));
            self.entries(section).iter().any(|(name, _)| {
                name != key && !self.is_sound(&join(section, name)) && closest(name, names.clone()).is_some()
            })
        };
        let faults = self.faults.borrow();
        let is_faulty = faults.list.iter().any(|fault| is_below(path, &fault.path) && !fault.path.is_empty());
        drop(faults);
        let mut steps = vec![(path, key)];
        while let Some((section, key)) = steps.last().and_then(|(path, _)| path.rsplit_once('.')) {
            steps.push((section, key));
        }
        let top = steps.last().map_or("", |(path, _)| *path);
        is_faulty || steps.iter().any(|(section, key)| is_misspelt(section, key)) || is_misspelt("", top)
    }

    /// Whether no fault was found anywhere.
    pub fn is_faultless(&self) -> bool {
        self.faults.borrow().list.is_empty()
    }

    /// Adds a notice that the user should read once.
    pub fn note(&self, text: impl Into<String>) {
        self.faults.borrow_mut().note(text.into());
    }

    /// Notes that the key written for `path` has no meaning here.
    pub fn ignore(&self, path: &str) {
        let line = self.document.line(path);
        let path = self.document.written(path);
        let (section, key) = parent_and_key(&path);
        self.faults.borrow_mut().ignore(line, section, key);
    }

    /// Notes that what `word` names in the section at `path` has no meaning here.
    pub fn ignore_word(&self, path: &str, word: &str) {
        let line = self.document.line(path);
        self.faults.borrow_mut().ignore(line, &self.document.written(path), word);
    }

    /// All faults and notices.
    pub fn into_faults(self) -> Faults {
        self.faults.into_inner()
    }

    /// The likeliest remedy for `key` with the value `node`, unknown in `section`, whose tables are `known`.
    pub fn suggestion(&self, section: &str, key: &str, node: &Node, known: &[&Table]) -> String {
        let holds = |id: &TableId| {
            let (parent, own) = parent_and_key(id.section);
            (own == key && !parent.is_empty()).then_some(parent)
        };
        if let Some(parent) = self.tables.iter().find_map(|(id, _)| holds(id)) {
            return format!("; it belongs in `{parent}`");
        }
        let keys = known.iter().flat_map(|table| table.names());
        let names = keys.flat_map(|key| std::iter::once(key).chain(self.names.of(section, key)));
        if let Some(name) = closest(key, names) {
            return format!("; did you mean `{name}`?");
        }
        let homes = |is_known: &dyn Fn(&Table) -> bool| {
            self.tables.iter().filter(|(_, table)| is_known(table)).map(|(id, _)| *id).collect::<Vec<_>>()
        };
        let mut found =
            homes(&|table| table.rows.iter().any(|row| row.key == key || row.names.contains(&key)));
        if found.is_empty() {
            found = homes(&|table| table.names().any(|known| known == key));
        }
        // Many sections have a `type`: the ones that take this word as theirs are meant.
        let takers = homes(&|table| table.takes(key, node));
        if !takers.is_empty() {
            found = takers;
        } else if key == "type" {
            return "; it is a key of many sections: indent it below its own".to_string();
        }
        let types: Vec<&str> = found.iter().filter_map(|id| id.type_word()).collect();
        if !types.is_empty() {
            return format!("; it is a key of `type: {}`", types.join("` or `"));
        }
        match found.first() {
            Some(TableId { section: "", .. }) => return "; it belongs at the top level".to_string(),
            Some(TableId { section, .. }) => return format!("; it belongs in `{section}`"),
            None => {}
        }
        let near = |(id, table): &(TableId, Table)| Some((id.section, closest(key, table.names())?));
        match self.tables.iter().find_map(near) {
            Some(("", name)) => format!("; did you mean `{name}` at the top level?"),
            Some((section, name)) => format!("; did you mean `{section}.{name}`?"),
            None => "; remove it or correct its name".to_string(),
        }
    }

    fn add(&self, fault: Fault) {
        let Faults { list, .. } = &mut *self.faults.borrow_mut();
        if list.iter().all(|known| known.error.to_string() != fault.error.to_string()) {
            list.push(fault);
        }
    }

    fn fault_at(&self, path: &str, message: impl std::fmt::Display) -> Fault {
        Fault {
            path: path.to_string(),
            line: self.document.line(path),
            written: self.document.written_in_file(path),
            error: self.document.error(path, message),
        }
    }
}

/// The candidate most like `word`, if any is much like it.
pub(crate) fn closest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // 0.75 lets one letter in four be wrong: `hiden_size`, `epoch`, `leraning_rate`, but not `depth` for `seed`.
    const ALIKE: f64 = 0.75;
    candidates
        .map(|name| (strsim::normalized_damerau_levenshtein(word, name), name))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// The message for an unknown type.
pub(crate) fn unknown_type<'a>(kind: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    match closest(kind, known.clone()) {
        Some(name) => format!("unknown type `{kind}`; did you mean `{name}`?"),
        None => format!("unknown type `{kind}`; known are {}", known.collect::<Vec<_>>().join(", ")),
    }
}
