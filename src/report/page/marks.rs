//! The steps at which a flag was set, such as an overflow.

/// Most steps that are kept; if there are more, one in each stretch of equal length.
const MOST: usize = 1000;

/// The steps at which a flag was set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Marks {
    /// Number of all such steps.
    pub count: u64,
    /// The steps that are kept, in order.
    pub steps: Vec<u64>,
    /// One step is kept in each stretch of 2 to this power steps.
    doublings: u32,
}

impl Marks {
    /// Appends a step.
    pub fn push(&mut self, step: u64) {
        self.count += 1;
        if self.steps.last().is_some_and(|last| last >> self.doublings == step >> self.doublings) {
            return;
        }
        self.steps.push(step);
        while self.steps.len() > MOST {
            self.doublings += 1;
            self.steps.dedup_by_key(|step| *step >> self.doublings);
        }
    }

    /// Removes the steps from `step` on, which a resumed run repeats.
    pub fn rewind(&mut self, step: u64) {
        let kept = self.steps.partition_point(|marked| *marked < step);
        // Exact if every step is kept.
        self.count = self.count.saturating_sub((self.steps.len() - kept) as u64);
        self.steps.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_counted_and_thinned_out() {
        let mut marks = Marks::default();
        (1..=100_000).step_by(3).for_each(|step| marks.push(step));
        assert_eq!(marks.count, 33_334);
        assert!(marks.steps.len() <= MOST && marks.steps.len() > MOST / 3, "{}", marks.steps.len());
        assert!(marks.steps.is_sorted() && marks.steps[0] == 1);
    }

    #[test]
    fn a_resumed_run_repeats_some() {
        let mut marks = Marks::default();
        [2, 5, 9].into_iter().for_each(|step| marks.push(step));
        marks.rewind(5);
        assert_eq!((marks.count, marks.steps), (1, vec![2]));
    }
}
