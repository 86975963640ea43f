//! Several names of one key: other programs write other names, and each section has its own.

use std::collections::{BTreeSet, HashMap};

/// A key: the name by which it is read, the sections that have it, and its other names; sections and names stand
/// between spaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub sections: &'static str,
    pub key: &'static str,
    pub names: &'static str,
}

/// Every key that has several names.
#[derive(Debug)]
pub(crate) struct Names {
    by_key: HashMap<&'static str, Vec<Named>>,
    by_other_name: HashMap<&'static str, Vec<Named>>,
}

impl Names {
    pub fn new(all: impl Iterator<Item = Named>) -> Self {
        let mut names = Self { by_key: HashMap::new(), by_other_name: HashMap::new() };
        for named in all {
            names.by_key.entry(named.key).or_default().push(named);
            words(named.names).for_each(|name| names.by_other_name.entry(name).or_default().push(named));
        }
        names
    }

    /// The sections with keys that have several names.
    pub fn sections(&self) -> BTreeSet<&'static str> {
        self.by_key.values().flatten().flat_map(|named| words(named.sections)).collect()
    }

    /// The other names of `key` in `section`.
    pub fn of<'n>(&self, section: &str, key: &str) -> impl Iterator<Item = &'n str> + Clone + use<'n> {
        let found = self.by_key.get(key).and_then(|all| all.iter().find(|named| named.is_in(section)));
        words(found.map_or("", |named| named.names)).map(|name| -> &'n str { name })
    }

    /// The key of `section` that `name` means: `name` itself, unless it is another name of a key.
    pub fn key<'n>(&self, section: &str, name: &'n str) -> &'n str {
        let meant =
            self.by_other_name.get(name).and_then(|all| all.iter().find(|named| named.is_in(section)));
        meant.map_or(name, |named| named.key)
    }
}

impl Named {
    fn is_in(&self, section: &str) -> bool {
        // The top level has no name, so it is never one of several sections.
        self.sections == section || has_word(self.sections, section)
    }
}

/// The words of `text`.
pub(crate) fn words(text: &'static str) -> impl Iterator<Item = &'static str> + Clone {
    text.split_ascii_whitespace()
}

/// Whether `word` is one of the words of `text`.
pub(crate) fn has_word(text: &'static str, word: &str) -> bool {
    // Most texts do not contain it at all, which is found faster than their words are.
    text.contains(word) && words(text).any(|one| one == word)
}
