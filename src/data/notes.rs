//! What is not read of records, or not written, and in how many of them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::plural::plural;
use crate::error::shown;

/// Notes, and the number of records that each is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes(BTreeMap<String, u64>);

impl Notes {
    /// Counts those of a record.
    pub(super) fn add(&mut self, notes: BTreeSet<String>) {
        notes.into_iter().for_each(|note| *self.0.entry(note).or_default() += 1);
    }

    /// Adds those of others.
    pub(super) fn extend(&mut self, others: &Self) {
        others.0.iter().for_each(|(note, count)| *self.0.entry(note.clone()).or_default() += count);
    }

    /// A sentence for each.
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(note, count)| format!("{} ({})", shown(note), plural(*count, "record"))).collect()
    }
}
