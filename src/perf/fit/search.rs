//! The search over micro-batches and recomputation, independent of how their memory is measured.

use super::recomputation::Recomputation;
use std::collections::BTreeMap;

/// A division of a step, and the memory that it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Windows in a micro-batch.
    pub batch_size: usize,
    /// Micro-batches in a step.
    pub gradient_accumulation_steps: usize,
    /// The layers that are computed again.
    pub recomputation: Recomputation,
    /// Peak device memory in bytes; `None` if a tensor is too large for the adapter.
    pub bytes: Option<u64>,
}

/// The memory of a run in bytes, given the windows of a micro-batch and the recomputed layers; `None` if a tensor is
/// too large for the adapter.
type Measure<'a> = dyn FnMut(usize, &[usize]) -> Option<u64> + 'a;

pub(super) struct Search<'a> {
    /// Windows in a step.
    windows: usize,
    seq_length: usize,
    /// From nothing to everything; each choice takes more work than the previous one, and no more memory.
    choices: &'a [Recomputation],
    budget: u64,
    measure: &'a mut Measure<'a>,
    /// The measured memory, by windows of a micro-batch and index of the choice.
    measured: BTreeMap<(usize, usize), Option<u64>>,
}

impl<'a> Search<'a> {
    pub fn new(
        windows: usize,
        seq_length: usize,
        choices: &'a [Recomputation],
        budget: u64,
        measure: &'a mut Measure<'a>,
    ) -> Self {
        Self { windows, seq_length, choices, budget, measure, measured: BTreeMap::new() }
    }

    /// The candidate with the least work among those that fit.
    pub fn best(&mut self) -> Option<Candidate> {
        let sizes = divisors(self.windows);
        let kept = sizes.partition_point(|&size| self.fits(size, 0));
        let mut best = kept.checked_sub(1).map(|last| (sizes[last], 0));
        // No choice before this index fits the sizes that follow.
        let mut refused = 0;
        for &size in &sizes[kept..] {
            let limit = best.map_or(f64::INFINITY, |(size, choice)| self.work(size, choice));
            // Only a choice with less work than the best so far is worth measuring.
            let cheaper =
                (0..self.choices.len()).take_while(|&choice| self.work(size, choice) < limit).count();
            if cheaper <= refused + 1 {
                continue;
            }
            if !self.fits(size, cheaper - 1) {
                refused = cheaper - 1;
                continue;
            }
            let between: Vec<usize> = (refused + 1..cheaper - 1).collect();
            let choice = refused + 1 + between.partition_point(|&choice| !self.fits(size, choice));
            refused = choice - 1;
            best = Some((size, choice));
        }
        best.map(|(size, choice)| self.candidate(size, choice))
    }

    /// All measured candidates, the smallest micro-batch first.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.measured.keys().map(|&(size, choice)| self.candidate(size, choice)).collect()
    }

    fn fits(&mut self, size: usize, choice: usize) -> bool {
        let (choices, measure) = (self.choices, &mut *self.measure);
        let bytes =
            self.measured.entry((size, choice)).or_insert_with(|| measure(size, &choices[choice].layers));
        bytes.is_some_and(|bytes| bytes <= self.budget)
    }

    /// The work of a step, in units of the work of the model alone.
    fn work(&self, size: usize, choice: usize) -> f64 {
        let tokens = size as f64 * self.seq_length as f64;
        let margin = if choice == 0 { 1.0 } else { MARGIN };
        margin * (1.0 + self.choices[choice].work) * (1.0 + MICRO_BATCH_TOKENS / tokens)
    }

    fn candidate(&self, size: usize, choice: usize) -> Candidate {
        Candidate {
            batch_size: size,
            gradient_accumulation_steps: self.windows / size,
            recomputation: self.choices[choice].clone(),
            bytes: self.measured.get(&(size, choice)).copied().flatten(),
        }
    }
}

/// The cost of a micro-batch of any size, in tokens; the formula is derived in the module [`fit`](super).
const MICRO_BATCH_TOKENS: f64 = 256.0;

/// By how much recomputation must be ahead, since the formula is rough and keeping everything is simpler.
const MARGIN: f64 = 1.05;

/// The divisors of `number`, in ascending order.
fn divisors(number: usize) -> Vec<usize> {
    let small = (1..=number.isqrt()).filter(|divisor| number.is_multiple_of(*divisor));
    let mut all: Vec<usize> = small.flat_map(|divisor| [divisor, number / divisor]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: usize = 12;

    /// Twelve layers; recomputing each takes 2.5 % of the step.
    fn choices() -> Vec<Recomputation> {
        (0..=LAYERS)
            .map(|count| Recomputation { layers: (0..count).collect(), work: 0.025 * count as f64 })
            .collect()
    }

    /// 100 bytes, 10 for each window, and for each window and layer 10 if the layer is kept and 1 if it is not.
    fn bytes(size: usize, recomputed: &[usize]) -> u64 {
        (100 + size * (10 + 10 * (LAYERS - recomputed.len()) + recomputed.len())) as u64
    }

    struct Found {
        best: Option<(usize, usize)>,
        measured: usize,
    }

    fn search(windows: usize, seq_length: usize, budget: u64) -> Found {
        let (choices, mut measured) = (choices(), 0);
        let mut measure = |size: usize, recomputed: &[usize]| {
            measured += 1;
            (size <= 64).then(|| bytes(size, recomputed)) // larger tensors fit no binding
        };
        let mut search = Search::new(windows, seq_length, &choices, budget, &mut measure);
        let best = search.best();
        if let Some(best) = &best {
            assert_eq!(best.batch_size * best.gradient_accumulation_steps, windows);
            assert!(best.bytes.is_some_and(|bytes| bytes <= budget));
            assert!(search.candidates().contains(best));
        }
        let best = best.map(|best| (best.batch_size, best.recomputation.layers.len()));
        Found { best, measured }
    }

    /// The best of all combinations, each of them measured.
    fn by_force(windows: usize, seq_length: usize, budget: u64) -> Option<(usize, usize)> {
        let all = divisors(windows).into_iter().filter(|size| *size <= 64);
        let all = all.flat_map(|size| (0..=LAYERS).map(move |count| (size, count)));
        let fitting = all.filter(|&(size, count)| bytes(size, &vec![0; count]) <= budget);
        let work = |&(size, count): &(usize, usize)| {
            let margin = if count > 0 { 1.05 } else { 1.0 };
            margin * (1.0 + 0.025 * count as f64) * (1.0 + 256.0 / (size * seq_length) as f64)
        };
        fitting.min_by(|one, other| work(one).total_cmp(&work(other)))
    }

    #[test]
    fn the_search_finds_the_best_of_all_with_few_measurements() {
        for windows in [1, 7, 32, 480] {
            for seq_length in [16, 128, 1024] {
                for budget in (50..9000).step_by(37) {
                    let found = search(windows, seq_length, budget);
                    let best = by_force(windows, seq_length, budget);
                    assert_eq!(found.best, best, "{windows} windows of {seq_length} in {budget} bytes");
                    assert!(found.measured <= 40, "{} measurements of {windows} windows", found.measured);
                }
            }
        }
    }

    #[test]
    fn recomputation_pays_only_for_small_micro_batches() {
        // A window takes 130 bytes if everything is kept, 22 if nothing is.
        assert_eq!(search(32, 1024, 100 + 8 * 130).best, Some((8, 0)), "many tokens: nothing is recomputed");
        assert_eq!(search(2, 1024, 100 + 2 * 121).best, Some((2, 1)), "a window more for 2.5 %");
        assert_eq!(search(2, 1024, 100 + 2 * 94).best, Some((1, 0)), "not for 10 %");
        assert_eq!(search(32, 16, 100 + 130).best, Some((4, 11)), "16 tokens waste the device");
        assert_eq!(search(32, 1024, 100 + 129).best, Some((1, 1)), "one layer makes room for one window");
        assert_eq!(search(32, 1024, 121).best, None);
        assert_eq!(search(480, 1024, u64::MAX).best, Some((60, 0)), "the largest that the adapter can bind");
    }

    #[test]
    fn divisors_of_a_product() {
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
        assert_eq!(divisors(480).len(), 24);
    }
}
