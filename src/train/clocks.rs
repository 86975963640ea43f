//! How long steps take, and when checkpoints are due by the clock.
//!
//! The clocks of ranks differ, so one rank decides, and with several ranks a checkpoint by the clock comes a step later
//! than with one.

use crate::train::step_results::{FinishedEvaluation, FinishedStep};
use std::time::{Duration, Instant};

/// A step that the device has finished, and how long it took.
pub(super) struct TimedStep {
    pub finished: FinishedStep,
    pub step_ms: f64,
}

/// Measures the time of each step: from the arrival of the previous results, or the end of a pause, to the arrival of
/// its own.
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

/// The clock of `save_checkpoint_seconds`. Only the first rank has it; the others learn from the first rank's status
/// when a checkpoint is due.
#[derive(Debug)]
pub(super) struct SaveClock {
    every: Option<Duration>,
    last: Instant,
}

impl SaveClock {
    /// A clock that starts at `now`; with 0 seconds a checkpoint is never due.
    pub fn new(seconds: u64, now: Instant) -> Self {
        Self { every: (seconds > 0).then(|| Duration::from_secs(seconds)), last: now }
    }

    /// Whether, after a step, at `now`, more time than the interval has passed since the last time that this was so.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.every.is_some_and(|every| now.saturating_duration_since(self.last) > every);
        if is_due {
            self.last = now;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_due_after_the_first_step_beyond_the_time() {
        let start = Instant::now();
        let due = |seconds, step_seconds: u64| -> Vec<u64> {
            let mut clock = SaveClock::new(seconds, start);
            (1..=10).filter(|step| clock.is_due(start + Duration::from_secs(step * step_seconds))).collect()
        };
        // As in MindFormers, a time of exactly the interval is not yet beyond it, and the next interval begins at the
        // step that was due.
        assert_eq!(due(60, 25), [3, 6, 9]);
        assert_eq!(due(60, 20), [4, 8]);
        assert_eq!(due(60, 100), (1..=10).collect::<Vec<_>>());
        assert!(due(0, 100).is_empty());
    }
}
