//! What is not read of records, or not written, and in how many of them.

use std::collections::{BTreeMap, BTreeSet};

use super::plural::plural;
use crate::error::shown;

/// Notes, and the number of records that each is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes(BTreeMap<String, u64>);

impl Notes {
    /// Counts those of a record.
    pub(super) fn add(&mut self, notes: BTreeSet<String>) {
        notes.into_iter().for_each(|note| *self.0.entry(note).or_default() += 1);
    }

    /// A sentence for each.
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(note, count)| format!("{} ({})", shown(note), plural(*count, "record"))).collect()
    }
}
