//! Parts of a store as one stream.

use std::sync::Arc;

use super::{MOST_TOKENS, PREDICTS, SampleStore};
use crate::data::batch::NO_LABEL;

/// Runs of words of a store, one after the other.
#[derive(Debug, Default)]
pub(in crate::data) struct Runs {
    /// The first word of each.
    starts: Vec<u64>,
    /// The end of each, in words of all runs.
    pub ends: Arc<Vec<u64>>,
}

impl Runs {
    /// Runs of these first words and lengths.
    pub fn new(runs: impl Iterator<Item = (u64, usize)>) -> Self {
        let mut end = 0;
        let (starts, ends) = runs
            .map(|(start, length)| {
                end += length as u64;
                (start, end)
            })
            .unzip();
        Self { starts, ends: Arc::new(ends) }
    }

    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }
}

/// The tokens of runs of a store, or what is predicted from each.
#[derive(Clone, Debug)]
pub struct StoredTokens {
    store: Arc<SampleStore>,
    runs: Arc<Runs>,
    is_labels: bool,
}

impl StoredTokens {
    /// The tokens of these runs, and their labels.
    pub(in crate::data) fn of(store: Arc<SampleStore>, runs: Runs) -> [Self; 2] {
        let runs = Arc::new(runs);
        [false, true].map(|is_labels| Self { store: store.clone(), runs: runs.clone(), is_labels })
    }

    pub(in crate::data) fn len(&self) -> usize {
        self.runs.len() as usize
    }

    pub(in crate::data) fn is_in_memory(&self) -> bool {
        self.store.is_in_memory()
    }

    pub(in crate::data) fn read(&self, start: usize, out: &mut [u32]) {
        let (mut at, mut out) = (start as u64, out);
        let mut run = self.runs.ends.partition_point(|end| *end <= at);
        while !out.is_empty() {
            let end = self.runs.ends[run];
            let before = if run == 0 { 0 } else { self.runs.ends[run - 1] };
            let count = out.len().min((end - at) as usize);
            let (head, rest) = out.split_at_mut(count);
            self.read_words((self.runs.starts[run] + at - before) as usize, head);
            (at, out, run) = (at + count as u64, rest, run + 1);
        }
    }

    fn read_words(&self, first: usize, out: &mut [u32]) {
        if !self.is_labels {
            let words = self.store.words(first, out.len());
            out.iter_mut().zip(words).for_each(|(out, word)| *out = word & (MOST_TOKENS - 1));
            return;
        }
        // The last word of all predicts nothing.
        let last = first + out.len() == self.store.words;
        let next = self.store.words(first + 1, out.len() - usize::from(last)).chain([0]);
        let words = self.store.words(first, out.len()).zip(next);
        for (out, (word, next)) in out.iter_mut().zip(words) {
            *out = if word & PREDICTS != 0 { next & (MOST_TOKENS - 1) } else { NO_LABEL };
        }
    }
}
