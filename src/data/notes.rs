//! Notes on the parts of records that are not read or not written, with the number of records for each; and counts as
//! messages write them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::shown;

/// Notes, with the number of records that each note is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes(BTreeMap<String, u64>);

impl Notes {
    /// Counts the notes of a record.
    pub(super) fn add(&mut self, notes: BTreeSet<String>) {
        notes.into_iter().for_each(|note| *self.0.entry(note).or_default() += 1);
    }

    /// Adds the notes of `others`.
    pub(super) fn extend(&mut self, others: &Self) {
        others.0.iter().for_each(|(note, count)| *self.0.entry(note.clone()).or_default() += count);
    }

    /// One sentence for each note.
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(note, count)| format!("{} ({})", shown(note), plural(*count, "record"))).collect()
    }
}

/// `1 file`, `2 files`.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `1 binary file and 2 empty documents skipped`; empty if nothing was skipped.
pub(super) fn skipped(binary_files: u64, empty_documents: u64) -> String {
    let counts = [(binary_files, "binary file"), (empty_documents, "empty document")];
    let counts: Vec<String> =
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, noun)| plural(count, noun)).collect();
    if counts.is_empty() { String::new() } else { format!("{} skipped", counts.join(" and ")) }
}
