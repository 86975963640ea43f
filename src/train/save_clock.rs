//! When checkpoints are due by the clock.
//!
//! The clocks of ranks differ, so one decides, and a checkpoint by the clock comes a step later than on one rank.

use std::time::{Duration, Instant};

/// The clock of `save_checkpoint_seconds`. The first rank has it; the others learn of it from its status.
#[derive(Debug)]
pub(super) struct SaveClock {
    every: Option<Duration>,
    last: Instant,
}

impl SaveClock {
    /// A clock that starts at `now`; one of 0 seconds never says that a checkpoint is due.
    pub fn new(seconds: u64, now: Instant) -> Self {
        Self { every: (seconds > 0).then(|| Duration::from_secs(seconds)), last: now }
    }

    /// Whether more time than that has passed at `now`, after a step, since it last was so.
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
        // As in MindFormers, exactly the time is not yet beyond it, and the next stretch begins with the step that was.
        assert_eq!(due(60, 25), [3, 6, 9]);
        assert_eq!(due(60, 20), [4, 8]);
        assert_eq!(due(60, 100), (1..=10).collect::<Vec<_>>());
        assert!(due(0, 100).is_empty());
    }
}
