//! The progress of a run on the console: about twenty short lines that are easy to read. On a terminal it is a bar, and
//! above it only the lines of evaluations and overflows.

use super::bars::{ProgressBar, add_bar};
use super::instrument::{Instrument, StepReport};
use super::log::{CONSOLE_TARGET, Log};
use super::metrics::{StartMetrics, StepMetrics};
use super::pace::{Pace, StepWindow, Work};
use crate::error::Result;
use std::time::{Duration, Instant};

/// Approximate number of lines, for a run of any length.
const LINES: u64 = 20;

/// The console must not be silent for longer than this.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// Shows the steps of a run on the console. Dropping it, as on an error, clears the bar.
#[derive(Debug)]
pub struct Progress {
    total_steps: u64,
    work: Work,
    pace: Pace,
    cadence: Cadence,
    since_line: StepWindow,
    eval_loss: Option<f32>,
    bar: ProgressBar,
    has_terminal: bool,
}

impl Progress {
    /// The progress of a run that has done `start_step` of `total_steps` steps: a bar if `log` has a terminal.
    pub fn new(start_step: u64, total_steps: u64, work: Work, log: &Log) -> Self {
        let bar = add_bar(log.bars(), total_steps, start_step);
        bar.set_message("first step");
        let now = Instant::now();
        Self {
            total_steps,
            work,
            pace: Pace::new(start_step, now),
            cadence: Cadence::new(start_step + 1, total_steps, now),
            since_line: StepWindow::default(),
            eval_loss: None,
            bar,
            has_terminal: log.is_interactive(),
        }
    }

    /// Shows one finished step. Speeds are means since the previous line, since the time of a single step is noisy.
    pub fn show(&mut self, metrics: &StepMetrics) {
        let now = Instant::now();
        self.since_line.add(metrics);
        self.pace.advance(metrics.step, now);
        self.eval_loss = metrics.eval_loss.or(self.eval_loss);
        let remaining = self.pace.remaining(self.total_steps);
        let tokens_per_second = self.since_line.tokens_per_second();
        let (_, mfu) = self.work.rate(self.since_line.step_ms());
        self.bar.set_message(bar_message(metrics, tokens_per_second, mfu, self.eval_loss, remaining));
        self.bar.set_position(metrics.step);
        if self.cadence.is_due(metrics, now) {
            if !self.has_terminal || is_special(metrics) {
                let line = step_line(metrics, self.total_steps, tokens_per_second, remaining);
                tracing::info!(target: CONSOLE_TARGET, "{line}");
            }
            self.since_line = StepWindow::default();
        }
    }
}

impl Instrument for Progress {
    fn step(&mut self, report: &StepReport<'_>) -> Result<()> {
        self.show(report.metrics);
        Ok(())
    }

    fn start(&mut self, evaluation: &StartMetrics) -> Result<()> {
        self.eval_loss = Some(evaluation.eval_loss);
        tracing::info!("{evaluation}, before training");
        Ok(())
    }

    /// Leaves the bar on the terminal.
    fn finish(&mut self) {
        self.bar.abandon();
    }
}

/// Decides which steps have a line.
#[derive(Debug)]
struct Cadence {
    first_step: u64,
    last_step: u64,
    /// Steps that are multiples of this have a line.
    every_steps: u64,
    last_line_at: Instant,
    last_step_at: Instant,
}

impl Cadence {
    /// The cadence of a run from `first_step` to `last_step`, which begins at `now`.
    fn new(first_step: u64, last_step: u64, now: Instant) -> Self {
        let every_steps = round_interval(last_step);
        Self { first_step, last_step, every_steps, last_line_at: now, last_step_at: now }
    }

    /// Whether a step that arrived at `now` has a line. It also has one if the next line might otherwise come only
    /// after a minute.
    fn is_due(&mut self, metrics: &StepMetrics, now: Instant) -> bool {
        let step = metrics.step;
        let silence = now.saturating_duration_since(self.last_line_at);
        let pace = now.saturating_duration_since(self.last_step_at);
        self.last_step_at = now;
        let is_due = step == self.first_step
            || step == self.last_step
            || step.is_multiple_of(self.every_steps)
            || is_special(metrics)
            || silence + pace > LONGEST_SILENCE;
        if is_due {
            self.last_line_at = now;
        }
        is_due
    }
}

/// Whether a step was evaluated or skipped, which is reported whatever its number.
fn is_special(metrics: &StepMetrics) -> bool {
    metrics.eval_loss.is_some() || metrics.overflow || metrics.is_skip == Some(true)
}

/// The text next to the bar, the most important part first: a narrow terminal cuts off the end.
fn bar_message(
    metrics: &StepMetrics,
    tokens_per_second: f64,
    mfu: Option<f64>,
    eval_loss: Option<f32>,
    remaining: Duration,
) -> String {
    let (tokens, left) = (with_separators(tokens_per_second.round() as u64), clock(remaining));
    let mut text = format!("loss {:.4}  {left} left  {tokens} tokens/s", metrics.loss);
    if let Some(mfu) = mfu {
        text += &format!("  MFU {:.1}%", mfu * 100.0);
    }
    if let Some(loss) = eval_loss {
        text += &format!("  eval {loss:.4}");
    }
    text
}

/// The line of a step, of `last_step` steps in total.
fn step_line(metrics: &StepMetrics, last_step: u64, tokens_per_second: f64, remaining: Duration) -> String {
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
    if let (Some(margin), Some(accuracy)) = (metrics.rewards_margin, metrics.rewards_accuracy) {
        line += &format!("  margin {margin:.3}  accuracy {accuracy:.3}");
    }
    if let (Some(margin), Some(accuracy)) = (metrics.eval_rewards_margin, metrics.eval_rewards_accuracy) {
        line += &format!("  eval margin {margin:.3}  accuracy {accuracy:.3}");
    }
    if metrics.overflow {
        line += "  overflow";
    }
    if metrics.is_skip == Some(true) {
        line += "  skipped for its norm";
    }
    line
}

/// The number among 1, 2, 5, 10, 20, 50, ... for which a run of `steps` steps has a number of multiples as close to
/// [`LINES`] as possible, by their ratio.
fn round_interval(steps: u64) -> u64 {
    let tens = (0..=18).map(|exponent| 10_u64.pow(exponent));
    let round: Vec<u64> = tens.flat_map(|ten| [1, 2, 5].map(|digit| ten.saturating_mul(digit))).collect();
    // Between two neighbours, their geometric mean is the threshold.
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
        let line = |metrics: &StepMetrics, seconds| step_line(metrics, 200, 1478.6, left(seconds));
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
        let skipped = StepMetrics { is_skip: Some(true), ..metrics(10) };
        assert_eq!(line(&skipped, 130), format!("{plain}  skipped for its norm"));
        let failed = StepMetrics { loss: f32::NAN, lr: 0.0, ..metrics(200) };
        assert_eq!(
            step_line(&failed, 200, 1_234_567.0, left(36_061)),
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

    /// The steps of a run from 3 to 100 that have a line; each step takes `seconds`.
    fn lines_at(seconds: u64, change: impl Fn(&mut StepMetrics)) -> Vec<u64> {
        let start = Instant::now();
        let mut steps = Cadence::new(3, 100, start);
        let has_line = |step: &u64| {
            let mut metrics = metrics(*step);
            change(&mut metrics);
            let now = start + Duration::from_secs((step - 2) * seconds);
            steps.is_due(&metrics, now)
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
    fn evaluations_and_skipped_steps_have_one() {
        let lines = lines_at(1, |metrics| {
            metrics.eval_loss = (metrics.step == 7).then_some(1.0);
            metrics.overflow = metrics.step == 8;
            metrics.is_skip = Some(metrics.step == 9);
        });
        assert_eq!(lines[..6], [3, 5, 7, 8, 9, 10]);
    }

    #[test]
    fn the_bar_says_what_is_known() {
        let metrics = StepMetrics { loss: 3.25, ..metrics(2) };
        let message = |mfu, eval_loss| bar_message(&metrics, 1523.4, mfu, eval_loss, Duration::from_secs(61));
        assert_eq!(message(None, None), "loss 3.2500  1:01 left  1,523 tokens/s");
        assert_eq!(
            message(Some(0.412), Some(2.5)),
            "loss 3.2500  1:01 left  1,523 tokens/s  MFU 41.2%  eval 2.5000"
        );
    }
}
