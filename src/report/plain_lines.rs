//! The lines of a run on a console that is no terminal, such as a pipe or the log of a CI job: few, short, and easy to read.

use super::metrics::StepMetrics;
use std::time::{Duration, Instant};

/// Lines that a run has about, whatever its length.
const LINES: u64 = 20;

/// No step may leave the console silent for longer.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// Which steps have a line, and what stands in it.
#[derive(Debug)]
pub(super) struct PlainLines {
    first_step: u64,
    last_step: u64,
    /// The steps that are multiples of it have a line.
    every_steps: u64,
    /// Tokens learned from since the last line.
    tokens_since: f64,
    last_line_at: Instant,
    last_step_at: Instant,
    ms_since: f64,
}

impl PlainLines {
    /// Those of a run from `first_step` to `last_step`, which begins at `now`.
    pub fn new(first_step: u64, last_step: u64, now: Instant) -> Self {
        let every_steps = round_interval(last_step);
        Self {
            first_step,
            last_step,
            every_steps,
            tokens_since: 0.0,
            last_line_at: now,
            last_step_at: now,
            ms_since: 0.0,
        }
    }

    /// The line of a step that arrived at `now`, if it has one. The speed is the mean since the last line.
    pub fn line(&mut self, metrics: &StepMetrics, remaining: Duration, now: Instant) -> Option<String> {
        self.ms_since += metrics.step_ms;
        self.tokens_since += metrics.tokens_per_second * metrics.step_ms / 1e3;
        let is_due = self.is_due(metrics, now);
        self.last_step_at = now;
        if !is_due {
            return None;
        }
        let tokens_per_second = self.tokens_since * 1e3 / self.ms_since.max(1e-3);
        (self.tokens_since, self.ms_since, self.last_line_at) = (0.0, 0.0, now);
        Some(plain_line(metrics, self.last_step, tokens_per_second, remaining))
    }

    /// Whether the step has a line. One also does if the next might come only after a minute.
    fn is_due(&self, metrics: &StepMetrics, now: Instant) -> bool {
        let step = metrics.step;
        let silence = now.saturating_duration_since(self.last_line_at);
        let pace = now.saturating_duration_since(self.last_step_at);
        step == self.first_step
            || step == self.last_step
            || step.is_multiple_of(self.every_steps)
            || metrics.eval_loss.is_some()
            || metrics.overflow
            || silence + pace > LONGEST_SILENCE
    }
}

/// The line of a step, of `last_step` in all.
fn plain_line(metrics: &StepMetrics, last_step: u64, tokens_per_second: f64, remaining: Duration) -> String {
    let StepMetrics { step, loss, lr, .. } = metrics;
    let (tokens, left) = (with_separators(tokens_per_second.round() as u64), clock(remaining));
    let mut line =
        format!("step {step}/{last_step}  loss {loss:.3}  lr {lr:.1e}  {tokens} tokens/s  {left} left");
    if let Some(loss) = metrics.eval_loss {
        line += &format!("  eval_loss {loss:.3}");
    }
    if let Some(perplexity) = metrics.eval_perplexity {
        line += &format!("  eval_perplexity {perplexity:.3}");
    }
    if let Some(accuracy) = metrics.eval_accuracy {
        line += &format!("  eval_accuracy {accuracy:.3}");
    }
    if metrics.overflow {
        line += "  overflow";
    }
    line
}

/// The number among 1, 2, 5, 10, 20, 50, ... of which a run of `steps` has a number of multiples as near to [`LINES`] as can be, by
/// their ratio.
fn round_interval(steps: u64) -> u64 {
    let tens = (0..=18).map(|exponent| 10_u64.pow(exponent));
    let round: Vec<u64> = tens.flat_map(|ten| [1, 2, 5].map(|digit| ten.saturating_mul(digit))).collect();
    // Between two neighbours their geometric mean decides.
    let square = u128::from(steps).pow(2);
    let is_enough = |pair: &&[u64]| {
        let mean = u128::from(pair[0]) * u128::from(pair[1]);
        square <= u128::from(LINES).pow(2).saturating_mul(mean)
    };
    round.windows(2).find(is_enough).map_or(u64::MAX, |pair| pair[0])
}

/// A number with commas between thousands.
fn with_separators(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or("")).collect();
    groups.join(",")
}

/// A duration as `m:ss`, from an hour on as `h:mm:ss`.
fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours == 0 { format!("{minutes}:{seconds:02}") } else { format!("{hours}:{minutes:02}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(step: u64) -> StepMetrics {
        StepMetrics { step, loss: 4.2766, lr: 1.4e-3, step_ms: 1000.0, ..StepMetrics::default() }
    }

    #[test]
    fn a_line_reads_as_documented() {
        let left = |seconds| Duration::from_secs(seconds);
        let line = |metrics: &StepMetrics, seconds| plain_line(metrics, 200, 1478.6, left(seconds));
        let plain = "step 10/200  loss 4.277  lr 1.4e-3  1,479 tokens/s  2:10 left";
        assert_eq!(line(&metrics(10), 130), plain);
        let evaluated = StepMetrics { eval_loss: Some(4.5), overflow: true, ..metrics(10) };
        assert_eq!(line(&evaluated, 130), format!("{plain}  eval_loss 4.500  overflow"));
        let judged = StepMetrics {
            eval_loss: Some(4.5),
            eval_perplexity: Some(90.0171),
            eval_accuracy: Some(0.125),
            ..metrics(10)
        };
        let numbers = "  eval_loss 4.500  eval_perplexity 90.017  eval_accuracy 0.125";
        assert_eq!(line(&judged, 130), format!("{plain}{numbers}"));
        let failed = StepMetrics { loss: f32::NAN, lr: 0.0, ..metrics(200) };
        assert_eq!(
            plain_line(&failed, 200, 1_234_567.0, left(36_061)),
            "step 200/200  loss NaN  lr 0.0e0  1,234,567 tokens/s  10:01:01 left"
        );
    }

    #[test]
    fn numbers_have_separators_and_durations_two_digits() {
        assert_eq!([0, 999, 1000, 1_000_000].map(with_separators), ["0", "999", "1,000", "1,000,000"]);
        let texts = [0, 59, 61, 3599, 3600, 90_061].map(|seconds| clock(Duration::from_secs(seconds)));
        assert_eq!(texts, ["0:00", "0:59", "1:01", "59:59", "1:00:00", "25:01:01"]);
    }

    #[test]
    fn a_run_of_any_length_has_about_twenty_round_steps() {
        let pairs =
            [(0, 1), (7, 1), (20, 1), (28, 1), (29, 2), (63, 2), (64, 5), (200, 10), (300, 20), (1000, 50)];
        for (steps, interval) in pairs {
            assert_eq!(round_interval(steps), interval, "{steps} steps");
        }
        for steps in (30..100_000).step_by(37) {
            let lines = steps / round_interval(steps);
            assert!((12..=32).contains(&lines), "{lines} lines of {steps} steps");
        }
        assert!(round_interval(u64::MAX) > 100_000_000_000_000_000);
    }

    /// The steps of a run from 3 to 100 that have a line, each taking as many seconds.
    fn lines_at(seconds: u64, change: impl Fn(&mut StepMetrics)) -> Vec<u64> {
        let start = Instant::now();
        let mut lines = PlainLines::new(3, 100, start);
        let has_line = |step: &u64| {
            let mut metrics = metrics(*step);
            change(&mut metrics);
            let now = start + Duration::from_secs((step - 2) * seconds);
            lines.line(&metrics, Duration::ZERO, now).is_some()
        };
        (3..=100).filter(has_line).collect()
    }

    #[test]
    fn the_first_the_last_and_round_steps_have_one() {
        let round: Vec<u64> = [3].into_iter().chain((5..=100).step_by(5)).collect();
        assert_eq!(lines_at(1, |_| ()), round);
        assert_eq!(lines_at(12, |_| ()), round, "exactly a minute from one to the next");
    }

    #[test]
    fn no_line_comes_more_than_a_minute_after_the_one_before() {
        let lines = lines_at(25, |_| ());
        assert!(lines.windows(2).all(|pair| (pair[1] - pair[0]) * 25 <= 60), "{lines:?}");
        assert_eq!(lines[..4], [3, 5, 7, 9]);
        assert_eq!(lines_at(70, |_| ()).len(), 98, "every step, where one takes longer");
    }

    #[test]
    fn evaluations_and_overflows_have_one() {
        let lines = lines_at(1, |metrics| {
            metrics.eval_loss = (metrics.step == 7).then_some(1.0);
            metrics.overflow = metrics.step == 8;
        });
        assert_eq!(lines[..5], [3, 5, 7, 8, 10]);
    }

    #[test]
    fn the_speed_is_the_mean_since_the_last_line() {
        let start = Instant::now();
        let mut lines = PlainLines::new(1, 200, start);
        let mut line = |step, step_ms| {
            let tokens_per_second = 400.0 * 1e3 / step_ms;
            let metrics = StepMetrics { step_ms, tokens_per_second, ..metrics(step) };
            lines.line(&metrics, Duration::ZERO, start).unwrap_or_default()
        };
        assert!(line(1, 4000.0).contains("  100 tokens/s  "));
        assert!((2..10).all(|step| line(step, 1000.0).is_empty()));
        assert!(line(10, 2000.0).contains("  360 tokens/s  "));
    }
}
