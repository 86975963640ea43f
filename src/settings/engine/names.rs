//! Several names of one key: MindFormers' own and those of Megatron and Hugging Face.

use super::table::Table;

/// Every key that has several names, from the rows of all sections.
#[derive(Debug)]
pub(crate) struct Names(Vec<Vec<&'static str>>);

impl Names {
    /// Gathers the names from `tables`; the first of each key is the one we use.
    ///
    /// # Panics
    /// If a name belongs to two keys.
    pub fn gather<'a>(tables: impl Iterator<Item = &'a Table>) -> Self {
        let mut sets: Vec<Vec<&'static str>> = Vec::new();
        for set in tables.flat_map(Table::name_sets).filter(|set| set.len() > 1) {
            match sets.iter().find(|known| known.iter().any(|name| set.contains(name))) {
                Some(known) => assert_eq!(*known, set, "{set:?} and {known:?} share a name"),
                None => sets.push(set),
            }
        }
        Self(sets)
    }

    /// All names of `key`, the one we use first; empty for a key with one name.
    pub fn of(&self, key: &str) -> &[&'static str] {
        self.0.iter().find(|names| names.contains(&key)).map_or(&[], Vec::as_slice)
    }

    /// The name we use for `key`.
    pub fn canonical<'a>(&self, key: &'a str) -> &'a str
    where
        'static: 'a,
    {
        self.of(key).first().copied().unwrap_or(key)
    }

    /// Whether two names mean one key.
    pub fn same(&self, one: &str, other: &str) -> bool {
        self.canonical(one) == self.canonical(other)
    }
}
