//! The memory plan: which transient buffers share a pool buffer.

mod occupancy;

use super::recording::{Recording, Transient};
use occupancy::{Occupancy, Set};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The sizes of the pool buffers, and the assignment of transients to them.
///
/// Recordings never run concurrently, so all share one pool. Only transients that a recording [keeps](Recording::keeps)
/// between its two halves, while others are replayed, have buffers of their own. Within a recording, transients with
/// disjoint lifetimes may share a pool buffer. A live transient has a whole buffer to itself: WebGPU tracks usage per
/// buffer, so one dispatch could not read one range of a buffer and write another.
#[derive(Clone, Debug, Default)]
pub struct MemoryPlan {
    /// Size of each pool buffer in bytes.
    pub buffers: Vec<u64>,
    /// `assignments[recording][transient]` is the index of its pool buffer; `None` if no dispatch uses it.
    pub assignments: Vec<Vec<Option<usize>>>,
}

/// How many of the largest buffers a report or an error names.
pub const LARGEST: usize = 5;

/// One entry of a memory report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Path and name of the buffer.
    pub label: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// The state of the pool while the transients of one recording are assigned.
struct Pool<'a> {
    sizes: &'a mut Vec<u64>,
    /// The buffers of each size.
    by_size: BTreeMap<u64, Set>,
    occupancy: Occupancy,
    /// The last dispatch and the buffer of each transient assigned so far.
    last_uses: BTreeSet<(usize, Reverse<usize>)>,
}

impl<'a> Pool<'a> {
    /// A pool of `sizes` that a recording of `dispatches` dispatches does not use yet.
    fn new(sizes: &'a mut Vec<u64>, dispatches: usize) -> Self {
        let mut by_size: BTreeMap<u64, Set> = BTreeMap::new();
        sizes.iter().enumerate().for_each(|(id, &bytes)| by_size.entry(bytes).or_default().insert(id));
        Self { sizes, by_size, occupancy: Occupancy::new(dispatches), last_uses: BTreeSet::new() }
    }

    /// The buffer for `transient`, a new one if none is free.
    fn place(&mut self, transient: &Transient) -> usize {
        let Transient { bytes, first, last, .. } = *transient;
        let buffer = self.best_fit(bytes, first, last).unwrap_or_else(|| {
            let buffer = self.sizes.len();
            self.sizes.push(bytes);
            self.by_size.entry(bytes).or_default().insert(buffer);
            buffer
        });
        self.occupancy.occupy(buffer, first, last);
        self.last_uses.insert((last, Reverse(buffer)));
        buffer
    }

    /// The smallest free buffer that is large enough, so that a small tensor does not occupy a buffer that a later
    /// recording needs for a large one. Of several such buffers the one freed most recently, which keeps the idle gaps
    /// of the others contiguous.
    fn best_fit(&self, bytes: u64, first: usize, last: usize) -> Option<usize> {
        let busy = self.occupancy.busy(first, last);
        let free = self.by_size.range(bytes..).map(|(_, buffers)| buffers.without(&busy));
        let free = free.into_iter().find(|buffers| !buffers.is_empty())?;
        let mut freed =
            self.last_uses.range(..(first, Reverse(usize::MAX))).rev().map(|(_, Reverse(id))| *id);
        freed.find(|&buffer| free.contains(buffer)).or_else(|| free.first())
    }
}

impl Consumer {
    /// A list of consumers for an error message: `weights 0 12.5 MiB, layers.0.attention.wo.y 3.1 MiB`.
    pub fn list(consumers: &[Self]) -> String {
        let one =
            |consumer: &Self| format!("{} {:.1} MiB", consumer.label, consumer.bytes as f64 / 1048576.0);
        consumers.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

impl MemoryPlan {
    /// Assigns the transients of each recording, largest first, to the smallest pool buffer that fits and is free
    /// during their lifetime, or to a new one ("greedy by size": Pisarchyk and Lee, "Efficient Memory Management for
    /// Deep Neural Net Inference", 2020, section 4.3).
    pub fn new(recordings: &[&Recording]) -> Self {
        let mut plan = Self::default();
        for recording in recordings {
            let assignment = plan.assign(recording);
            plan.assignments.push(assignment);
        }
        // Buffers of their own lie behind the pool, where no recording looks for one.
        for (recording, assignment) in recordings.iter().zip(&mut plan.assignments) {
            for (transient, buffer) in recording.transients.iter().zip(assignment) {
                if recording.keeps(transient) {
                    *buffer = Some(plan.buffers.len());
                    plan.buffers.push(transient.bytes);
                }
            }
        }
        plan
    }

    /// The pool buffers for the transients of one recording.
    fn assign(&mut self, recording: &Recording) -> Vec<Option<usize>> {
        let transients = &recording.transients;
        let is_used = |&id: &usize| transients[id].first != usize::MAX && !recording.keeps(&transients[id]);
        let mut by_size: Vec<usize> = (0..transients.len()).filter(is_used).collect();
        by_size.sort_by_key(|&id| Reverse(transients[id].bytes));
        // A transient that is kept to the end has no last dispatch.
        let lives_to = |&id: &usize| {
            if transients[id].last == usize::MAX { transients[id].first } else { transients[id].last }
        };
        let dispatches = by_size.iter().map(lives_to).max().map_or(0, |last| last + 1);
        let mut pool = Pool::new(&mut self.buffers, dispatches);
        let mut assignment = vec![None; transients.len()];
        for id in by_size {
            assignment[id] = Some(pool.place(&transients[id]));
        }
        assignment
    }

    /// Total bytes of the pool.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().sum()
    }

    /// The `count` largest transients of `recordings`, largest first, for out-of-memory reports.
    pub fn largest(recordings: &[&Recording], count: usize) -> Vec<Consumer> {
        let transients = recordings.iter().flat_map(|recording| &recording.transients);
        let mut all: Vec<Consumer> =
            transients.map(|t| Consumer { label: t.label.clone(), bytes: t.bytes }).collect();
        all.sort_by_key(|consumer| std::cmp::Reverse(consumer.bytes));
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(transients: &[(u64, usize, usize)]) -> Recording {
        let transients = transients
            .iter()
            .map(|&(bytes, first, last)| Transient { label: String::new(), bytes, first, last })
            .collect();
        Recording { name: "test", dispatches: Vec::new(), exchanges: Vec::new(), transients, cut: None }
    }

    #[test]
    fn overlapping_lifetimes_never_share() {
        let r = recording(&[(100, 0, 2), (100, 2, 4), (80, 3, 5), (100, 5, usize::MAX), (10, 0, 9)]);
        let plan = MemoryPlan::new(&[&r]);
        for (i, a) in r.transients.iter().enumerate() {
            for (j, b) in r.transients.iter().enumerate().skip(i + 1) {
                let apart = a.last < b.first || b.last < a.first;
                assert!(apart || plan.assignments[0][i] != plan.assignments[0][j], "{i} and {j} share");
            }
        }
        assert_eq!(plan.bytes(), 210, "two buffers of 100, reused, and the small one");
    }

    #[test]
    fn what_is_kept_between_halves_is_shared_with_nothing() {
        let cut = |transients| Recording { cut: Some(2), ..recording(transients) };
        // Kept; of the first half; of the second; sent or received at the cut.
        let halves = [(100, 0, 3), (80, 0, 1), (80, 2, 4), (60, 1, 1), (60, 2, 2)];
        let (slots, other) = ([cut(&halves), cut(&halves)], recording(&[(100, 0, 5)]));
        let plan = MemoryPlan::new(&[&slots[0], &slots[1], &other]);
        let kept = [0, 1].map(|slot| plan.assignments[slot][0].unwrap());
        let others = plan.assignments.iter().flat_map(|of| of.iter().flatten());
        assert!(kept.iter().all(|kept| others.clone().filter(|other| *other == kept).count() == 1));
        assert_eq!(plan.bytes(), 100 + 80 + 60 + 2 * 100, "{:?}", plan.buffers);
    }

    #[test]
    fn recordings_share_one_pool() {
        let (a, b) = (recording(&[(64, 0, 1), (32, 0, 1)]), recording(&[(50, 0, 1)]));
        assert_eq!(MemoryPlan::new(&[&a, &b]).bytes(), 96);
    }
}
