//! When a run evaluates, and on what.

use super::length::RunLength;
use crate::data::Batches;
use crate::settings::Run;

/// The evaluations of a run.
#[derive(Clone, Copy)]
pub(super) struct Evaluation<'a> {
    pub data: &'a Batches,
    /// Micro-batches of an evaluation on this rank; all evaluations use the same ones.
    pub batches: u64,
    due: DueSteps,
    /// Whether a new run evaluates before its first step.
    pub on_start: bool,
}

/// The steps after which a run evaluates.
#[derive(Clone, Copy)]
struct DueSteps {
    every_steps: Option<u64>,
    /// Steps of the epochs between two evaluations.
    every_epochs: Option<u64>,
    last_step: u64,
}

impl<'a> Evaluation<'a> {
    /// Evaluations on `data`, if `run` asks for any; the last one follows the last step.
    pub fn new(run: &Run, data: &'a Batches, length: &RunLength) -> Option<Self> {
        let every_epochs = run.eval_epochs().map(|epochs| epochs.saturating_mul(length.steps_per_epoch));
        let due = DueSteps { every_steps: run.eval_interval(), every_epochs, last_step: length.total_steps };
        let is_any = due.every_steps.is_some() || due.every_epochs.is_some();
        is_any.then(|| Self { data, batches: data.micro_steps_of_rank(), due, on_start: run.eval_on_start })
    }

    /// Whether an evaluation follows `step`.
    pub fn is_due_after(&self, step: u64) -> bool {
        self.due.has(step)
    }
}

impl DueSteps {
    fn has(&self, step: u64) -> bool {
        let intervals = [self.every_steps, self.every_epochs];
        step == self.last_step || intervals.into_iter().flatten().any(|every| step.is_multiple_of(every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_epochs_and_the_end_are_evaluated_once_each() {
        let steps = |every_steps, every_epochs| -> Vec<u64> {
            let due = DueSteps { every_steps, every_epochs, last_step: 25 };
            (1..=25).filter(|step| due.has(*step)).collect()
        };
        assert_eq!(steps(Some(10), None), [10, 20, 25]);
        assert_eq!(steps(None, Some(6)), [6, 12, 18, 24, 25]);
        assert_eq!(steps(Some(12), Some(8)), [8, 12, 16, 24, 25]);
    }
}
