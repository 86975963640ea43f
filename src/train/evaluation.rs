//! When a run evaluates, and on what.

use crate::data::Batches;
use crate::settings::Run;

/// The evaluations of a run.
#[derive(Clone, Copy)]
pub(super) struct Evaluation<'a> {
    pub data: &'a Batches,
    /// Micro-batches of an evaluation on this rank, always the same ones.
    pub batches: u64,
    every_steps: u64,
    last_step: u64,
}

impl<'a> Evaluation<'a> {
    /// Evaluations on `data` as `run` asks for, if it does, the last one after `last_step`.
    pub fn new(run: &Run, data: &'a Batches, last_step: u64) -> Option<Self> {
        let batches = data.micro_steps_of_rank();
        run.eval_interval().map(|every_steps| Self { data, batches, every_steps, last_step })
    }

    /// Whether an evaluation follows `step`.
    pub fn is_due_after(&self, step: u64) -> bool {
        step == self.last_step || step.is_multiple_of(self.every_steps)
    }
}
