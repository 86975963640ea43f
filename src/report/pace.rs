//! The speed of a run, and its remaining time.

use super::metrics::StepMetrics;
use std::time::{Duration, Instant};

/// Number of steps that the moving mean covers.
const REMEMBERED_STEPS: u64 = 50;

/// The wall-clock time of a step, including evaluation and checkpoints: the mean of the first steps, then a moving
/// mean.
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

/// A number of steps, the time they took, and the number of trained tokens.
#[derive(Debug, Default)]
pub(super) struct StepWindow {
    pub steps: u64,
    pub ms: f64,
    pub tokens: f64,
}

impl StepWindow {
    /// Adds a step.
    pub fn add(&mut self, metrics: &StepMetrics) {
        self.steps += 1;
        self.ms += metrics.step_ms;
        self.tokens += metrics.tokens_per_second * metrics.step_ms / 1e3;
    }

    /// The mean time of a step in milliseconds.
    pub fn step_ms(&self) -> f64 {
        (self.ms / self.steps.max(1) as f64).max(1e-3)
    }

    /// The mean number of trained tokens per second.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens * 1e3 / self.ms.max(1e-3)
    }
}

/// The floating-point operations that a run needs, and the adapter's peak.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Tokens that a step computes, padding included.
    pub tokens_per_step: u64,
    /// Floating-point operations to train on one token.
    pub flops_per_token: f64,
    /// The adapter's peak in floating-point operations per second, published or measured.
    pub peak_flops: f64,
}

impl Work {
    /// FLOP/s of steps of `step_ms`, including padding, and their share of the peak (MFU). The share is `None` if it
    /// exceeds 1, since then the peak is wrong, for example because other programs ran while it was measured.
    pub(super) fn rate(&self, step_ms: f64) -> (f64, Option<f64>) {
        let flops = self.flops_per_token * self.tokens_per_step as f64 * 1e3 / step_ms;
        (flops, Some(flops / self.peak_flops).filter(|share| *share <= 1.0))
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

    #[test]
    fn speeds_are_means_over_a_window() {
        // Half of the tokens are padding.
        let step = |step_ms: f64| StepMetrics {
            step_ms,
            tokens_per_second: 200.0 * 1e3 / step_ms,
            ..StepMetrics::default()
        };
        let mut window = StepWindow::default();
        [1799.0, 1.0, 200.0].into_iter().for_each(|ms| window.add(&step(ms)));
        assert!((window.step_ms() - 2000.0 / 3.0).abs() < 1e-9);
        assert!((window.tokens_per_second() - 300.0).abs() < 1e-9);
        let work = Work { tokens_per_step: 400, flops_per_token: 1e6, peak_flops: 1e10 };
        let (flops, mfu) = work.rate(window.step_ms());
        assert!((flops - 6e8).abs() < 1.0 && (mfu.expect("possible") - 0.06).abs() < 1e-12);
        assert_eq!(work.rate(39.0).1, None, "1.03 of the peak");
    }
}
