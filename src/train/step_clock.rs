//! How long steps take.

use super::finished::{FinishedEvaluation, FinishedStep};
use std::time::Instant;

/// A step that the device has finished, and how long it took.
pub(super) struct TimedStep {
    pub finished: FinishedStep,
    pub step_ms: f64,
}

/// The time of each step: from the arrival of what came before it, or the end of a pause, to its own.
pub(super) struct StepClock {
    /// When the device finished the last step or evaluation.
    last_arrival: Instant,
}

impl StepClock {
    /// Starts the clock of the first step.
    pub fn start() -> Self {
        Self { last_arrival: Instant::now() }
    }

    /// Times `steps`, oldest first; `evaluations` are those that arrived with them.
    pub fn time(&mut self, steps: Vec<FinishedStep>, evaluations: &[FinishedEvaluation]) -> Vec<TimedStep> {
        let timed = steps.into_iter().map(|finished| {
            let FinishedStep { step, at, .. } = finished;
            // The device did nothing else since the last step, or since the evaluation that followed it.
            let evaluated = evaluations.iter().filter(|evaluation| evaluation.tag < step).map(|e| e.at).max();
            let start = self.last_arrival.max(evaluated.unwrap_or(self.last_arrival));
            let step_ms = 1e3 * at.saturating_duration_since(start).as_secs_f64().max(1e-6);
            self.last_arrival = at;
            TimedStep { finished, step_ms }
        });
        let timed = timed.collect();
        let evaluated = evaluations.iter().map(|evaluation| evaluation.at);
        self.last_arrival = evaluated.fold(self.last_arrival, Instant::max);
        timed
    }

    /// Excludes the time since the last arrival from the next step's: the run was saving.
    pub fn skip_pause(&mut self) {
        self.last_arrival = Instant::now();
    }
}
