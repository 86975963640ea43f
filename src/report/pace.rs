//! The time that a run still needs.

use std::time::{Duration, Instant};

/// Steps that the moving mean covers.
const REMEMBERED_STEPS: u64 = 50;

/// The wall-clock time of a step, evaluation and checkpoints included: the mean of the first steps, then a moving mean.
#[derive(Debug)]
pub(super) struct Pace {
    step: u64,
    at: Instant,
    steps_seen: u64,
    seconds_per_step: f64,
}

impl Pace {
    /// Starts the clock at `at`, after `step`.
    pub fn new(step: u64, at: Instant) -> Self {
        Self { step, at, steps_seen: 0, seconds_per_step: 0.0 }
    }

    /// Records that `step` was finished at `at`.
    pub fn advance(&mut self, step: u64, at: Instant) {
        let steps = step.saturating_sub(self.step);
        if steps == 0 {
            return;
        }
        self.steps_seen += steps;
        let seconds = at.saturating_duration_since(self.at).as_secs_f64() / steps as f64;
        let weight = (steps as f64 / self.steps_seen.min(REMEMBERED_STEPS) as f64).min(1.0);
        self.seconds_per_step += weight * (seconds - self.seconds_per_step);
        (self.step, self.at) = (step, at);
    }

    /// The time until step `total_steps` is done.
    pub fn remaining(&self, total_steps: u64) -> Duration {
        let seconds = self.seconds_per_step * total_steps.saturating_sub(self.step) as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_pace_of_this_run() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace::new(100, start);
        assert_eq!(pace.remaining(200), Duration::ZERO);
        pace.advance(101, at(4));
        assert_eq!(pace.remaining(201), Duration::from_secs(400));
        pace.advance(102, at(6)); // the mean of 4 and 2
        assert_eq!(pace.remaining(202), Duration::from_secs(300));
        pace.advance(102, at(7));
        assert_eq!(pace.remaining(202), Duration::from_secs(300), "no step, no news");
        assert_eq!(pace.remaining(50), Duration::ZERO);
    }
}
