//! Parts of a store as one stream.

use std::sync::Arc;

use super::{MOST_TOKENS, PREDICTS, SampleStore};
use crate::data::batch::NO_LABEL;

/// Runs of words of a store, one after the other. There are as many runs as samples, so a run takes no more than 16
/// bytes.
#[derive(Debug, Default)]
pub(in crate::data) struct Runs {
    /// The first word of each run.
    starts: Vec<u64>,
    /// The end of each run, in words of all runs.
    ends: Vec<u64>,
}

impl Runs {
    /// No run, with room for `most` runs.
    pub fn with_capacity(most: usize) -> Self {
        Self { starts: Vec::with_capacity(most), ends: Vec::with_capacity(most) }
    }

    /// Appends the run of `length` words from `start`.
    pub fn push(&mut self, start: u64, length: u64) {
        let end = self.ends.last().copied().unwrap_or(0) + length;
        self.starts.push(start);
        self.ends.push(end);
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// The first word of run `number`, and its number of words.
    pub fn at(&self, number: usize) -> (u64, u64) {
        let before = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        (self.starts[number], self.ends[number] - before)
    }

    /// Moves the runs whose number `goes_last` behind the others, both in order, and returns the number of the others.
    pub fn move_last(&mut self, goes_last: impl Fn(u64) -> bool) -> usize {
        let (mut last, mut stay, mut before, mut end) = (Self::default(), 0, 0, 0);
        for number in 0..self.len() {
            let (start, length) = (self.starts[number], self.ends[number] - before);
            before = self.ends[number];
            if goes_last(number as u64) {
                last.push(start, length);
                continue;
            }
            end += length;
            (self.starts[stay], self.ends[stay]) = (start, end);
            stay += 1;
        }
        self.starts.truncate(stay);
        self.ends.truncate(stay);
        (0..last.len()).map(|number| last.at(number)).for_each(|(start, length)| self.push(start, length));
        stay
    }
}

/// The tokens of runs of a store, or the label of each of these tokens.
#[derive(Clone, Debug)]
pub struct StoredTokens {
    store: Arc<SampleStore>,
    starts: Arc<Vec<u64>>,
    /// The end of each run, in tokens from the start of the first run.
    pub(in crate::data) ends: Arc<Vec<u64>>,
    is_labels: bool,
}

impl StoredTokens {
    /// The tokens of these runs, and their labels.
    pub(in crate::data) fn of(store: Arc<SampleStore>, runs: Runs) -> [Self; 2] {
        let tokens =
            Self { store, starts: Arc::new(runs.starts), ends: Arc::new(runs.ends), is_labels: false };
        [tokens.clone(), Self { is_labels: true, ..tokens }]
    }

    pub(in crate::data) fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0) as usize
    }

    pub(in crate::data) fn is_in_memory(&self) -> bool {
        self.store.is_in_memory()
    }

    pub(in crate::data) fn read(&self, start: usize, out: &mut [u32]) {
        let (mut at, mut out) = (start as u64, out);
        let mut run = self.ends.partition_point(|end| *end <= at);
        while !out.is_empty() {
            let end = self.ends[run];
            let before = if run == 0 { 0 } else { self.ends[run - 1] };
            let count = out.len().min((end - at) as usize);
            let (head, rest) = out.split_at_mut(count);
            self.read_words((self.starts[run] + at - before) as usize, head);
            (at, out, run) = (at + count as u64, rest, run + 1);
        }
    }

    fn read_words(&self, first: usize, out: &mut [u32]) {
        if !self.is_labels {
            let words = self.store.words(first, out.len());
            out.iter_mut().zip(words).for_each(|(out, word)| *out = word & (MOST_TOKENS - 1));
            return;
        }
        // The last word of the store predicts nothing.
        let last = first + out.len() == self.store.words;
        let next = self.store.words(first + 1, out.len() - usize::from(last)).chain([0]);
        let words = self.store.words(first, out.len()).zip(next);
        for (out, (word, next)) in out.iter_mut().zip(words) {
            *out = if word & PREDICTS != 0 { next & (MOST_TOKENS - 1) } else { NO_LABEL };
        }
    }
}
