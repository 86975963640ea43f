//! The memory plan: which transient buffers share a pool buffer.

use super::recording::{Recording, Transient};

/// The sizes of the pool buffers, and the assignment of transients to them.
///
/// Recordings never run concurrently, so all share one pool. Within a recording, transients with disjoint lifetimes may
/// share a pool buffer. A live transient has a whole buffer to itself: WebGPU tracks usage per buffer, so one dispatch
/// could not read one range of a buffer and write another.
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
    /// Its size in bytes.
    pub bytes: u64,
}

impl Consumer {
    /// Consumers in the words of an error: `weights 0 12.5 MiB, layers.0.attention.wo.y 3.1 MiB`.
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
            let mut lifetimes: Vec<Vec<(usize, usize)>> = vec![Vec::new(); plan.buffers.len()];
            let mut assignment = vec![None; recording.transients.len()];
            let mut by_size: Vec<usize> = (0..recording.transients.len()).collect();
            by_size.sort_by_key(|&id| std::cmp::Reverse(recording.transients[id].bytes));
            for id in by_size {
                let transient = &recording.transients[id];
                if transient.first == usize::MAX {
                    continue; // no dispatch touches it
                }
                let slot = plan.slot_for(transient, &mut lifetimes);
                assignment[id] = Some(slot);
            }
            plan.assignments.push(assignment);
        }
        plan
    }

    fn slot_for(&mut self, transient: &Transient, lifetimes: &mut Vec<Vec<(usize, usize)>>) -> usize {
        let free = |&slot: &usize| {
            self.buffers[slot] >= transient.bytes
                && lifetimes[slot]
                    .iter()
                    .all(|&(first, last)| last < transient.first || transient.last < first)
        };
        // Best fit, so that a small tensor does not occupy a buffer that a later recording needs for a large one. Break
        // ties by most recently freed, which keeps the other slots' idle gaps contiguous.
        let idle = |slot: usize| {
            let before = lifetimes[slot].iter().filter(|(_, last)| *last < transient.first);
            before.map(|(_, last)| transient.first - last).min().unwrap_or(usize::MAX)
        };
        let found = (0..self.buffers.len()).filter(free).min_by_key(|&slot| (self.buffers[slot], idle(slot)));
        let slot = found.unwrap_or_else(|| {
            self.buffers.push(transient.bytes);
            lifetimes.push(Vec::new());
            self.buffers.len() - 1
        });
        lifetimes[slot].push((transient.first, transient.last));
        slot
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
        Recording { name: "test", dispatches: Vec::new(), transients }
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
    fn recordings_share_one_pool() {
        let (a, b) = (recording(&[(64, 0, 1), (32, 0, 1)]), recording(&[(50, 0, 1)]));
        assert_eq!(MemoryPlan::new(&[&a, &b]).bytes(), 96);
    }
}
