//! The progress of a run: a bar on a terminal, plain lines or MindFormers' elsewhere, and always MindFormers' in `log.txt`.

use std::time::{Duration, Instant};

use super::bars::{ProgressBar, add_bar};
use super::instrument::{Instrument, StepReport};
use super::log::{FILE_TARGET, Log, PLAIN_TARGET, STEP_TARGET};
use super::loss_monitor::{LossLine, LossParts, bar_line, loss_line, python_duration};
use super::metrics::{StartMetrics, StepMetrics};
use super::pace::Pace;
use super::plain_lines::PlainLines;
use crate::error::Result;

/// The length of a run, and what its speed is computed from.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProgressPlan {
    /// The last step.
    pub total_steps: u64,
    /// Steps that were done before this run resumed; 0 for a new run.
    pub start_step: u64,
    /// Epochs in all.
    pub epochs: u64,
    /// Steps per epoch.
    pub steps_per_epoch: u64,
    /// A rank's share of the samples of a step.
    pub samples_per_rank: f64,
    /// Tokens that a step computes, padding included.
    pub tokens_per_step: u64,
    /// Floating-point operations to train on one token.
    pub flops_per_token: f64,
    /// What MFU is a share of: the adapter's peak in floating-point operations per second, published or measured.
    pub peak_flops: f64,
    /// Steps from one log line to the next; the first and the last step always have one.
    pub log_every: u64,
    /// Whether the configuration asks for MindFormers' lines, which a console without a terminal shows then.
    pub asks_for_lines: bool,
    /// The parts of the loss that MindFormers' lines have, if they are asked for.
    pub loss_parts: Option<LossParts>,
}

/// The place of a step in a run, as MindFormers counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// The epoch, from 1.
    pub epoch: u64,
    /// Epochs that the run begins in all.
    pub epochs: u64,
    /// The step in the epoch, from 1.
    pub step: u64,
    /// Steps that the run takes in this epoch: all, unless it ends within the epoch.
    pub steps: u64,
}

/// Reports the steps of a run. Dropping it, as on an error, clears the bar.
#[derive(Debug)]
pub struct Progress {
    plan: ProgressPlan,
    pace: Pace,
    since_line: StepWindow,
    eval_loss: Option<f32>,
    bar: ProgressBar,
    /// Where there is no terminal and nothing asks for MindFormers' lines.
    plain: Option<PlainLines>,
}

impl Progress {
    /// Shows a bar if `log` has a terminal, and lines otherwise.
    pub fn new(plan: ProgressPlan, log: &Log) -> Self {
        let bar = add_bar(log.bars(), plan.total_steps, plan.start_step);
        bar.set_message("first step");
        let now = Instant::now();
        let pace = Pace::new(plan.start_step, now);
        let ProgressPlan { start_step, total_steps, .. } = plan;
        let is_plain = !log.is_interactive() && !plan.asks_for_lines;
        let plain = is_plain.then(|| PlainLines::new(start_step + 1, total_steps, now));
        Self { plan, pace, since_line: StepWindow::default(), eval_loss: None, bar, plain }
    }

    /// Reports one finished step. Times and speeds are means over the steps since the last line, since the time of a
    /// single step is noisy.
    pub fn show(&mut self, metrics: &StepMetrics) {
        let now = Instant::now();
        self.since_line.add(metrics);
        let speed = self.plan.speed(&self.since_line);
        self.pace.advance(metrics.step, now);
        self.eval_loss = metrics.eval_loss.or(self.eval_loss);
        let remaining = self.pace.remaining(self.plan.total_steps);
        self.bar.set_message(bar_message(metrics.loss, &speed, self.eval_loss, remaining));
        self.bar.set_position(metrics.step);
        if self.plan.is_logged(metrics.step) {
            self.log(loss_line(&self.plan.loss_line(metrics, &speed)));
            let share = metrics.step as f64 / self.plan.total_steps.max(1) as f64;
            let samples_per_second = self.plan.samples_per_rank * 1e3 / speed.step_ms;
            self.log(bar_line(share, samples_per_second, remaining));
            self.since_line = StepWindow::default();
        }
        if let Some(eval_loss) = metrics.eval_loss {
            let &StepMetrics { step, eval_perplexity, eval_accuracy, .. } = metrics;
            let line = evaluation_line(&StartMetrics { step, eval_loss, eval_perplexity, eval_accuracy });
            match self.plain {
                Some(_) => tracing::info!(target: FILE_TARGET, "{line}"),
                None => tracing::info!("{line}"),
            }
        }
        if let Some(line) = self.plain.as_mut().and_then(|plain| plain.line(metrics, remaining, now)) {
            tracing::info!(target: PLAIN_TARGET, "{line}");
        }
    }

    /// Logs a line of MindFormers: to the file, and to a console that shows neither a bar nor plain lines.
    fn log(&self, line: String) {
        match self.plain {
            Some(_) => tracing::info!(target: FILE_TARGET, "{line}"),
            None => tracing::info!(target: STEP_TARGET, "{line}"),
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
        tracing::info!("{}, before training", evaluation_line(evaluation));
        Ok(())
    }

    /// Leaves the bar on the terminal.
    fn finish(&mut self) {
        self.bar.abandon();
    }
}

impl ProgressPlan {
    fn is_logged(&self, step: u64) -> bool {
        step.is_multiple_of(self.log_every.max(1)) || step == self.start_step + 1 || step == self.total_steps
    }

    /// The mean speed over a stretch of steps.
    fn speed(&self, stretch: &StepWindow) -> Speed {
        let step_ms = (stretch.ms / stretch.steps.max(1) as f64).max(1e-3);
        let tokens_per_second = stretch.tokens * 1e3 / stretch.ms.max(1e-3);
        // Padding is computed too.
        let flops = self.flops_per_token * self.tokens_per_step as f64 * 1e3 / step_ms;
        let mfu = Some(flops / self.peak_flops).filter(|share| *share <= 1.0);
        Speed { step_ms, tokens_per_second, tflops: flops / 1e12, mfu }
    }

    /// Where step number `step` of the run is.
    pub fn place(&self, step: u64) -> Position {
        let steps_per_epoch = self.steps_per_epoch.max(1);
        let steps_before = step.saturating_sub(1);
        let (epochs_before, step) = (steps_before / steps_per_epoch, steps_before % steps_per_epoch + 1);
        // MindFormers counts whole epochs, also where `stop_step` ends the run within one.
        let steps_left = self.total_steps.saturating_sub(epochs_before * steps_per_epoch);
        Position {
            epoch: epochs_before + 1,
            epochs: self.total_steps.div_ceil(steps_per_epoch).min(self.epochs),
            step,
            steps: steps_left.clamp(step, steps_per_epoch),
        }
    }

    fn loss_line(&self, metrics: &StepMetrics, speed: &Speed) -> LossLine {
        let Position { epoch, epochs, step, steps } = self.place(metrics.step);
        LossLine {
            epoch,
            epochs,
            step,
            steps,
            loss: metrics.loss,
            epoch_loss: None,
            separate: self.loss_parts.map(|parts| parts.of(metrics)),
            step_ms: speed.step_ms,
            lr: Some(metrics.lr),
            overflow: metrics.overflow,
            loss_scale: Some(metrics.loss_scale),
            global_norm: Some(metrics.global_norm),
            tflops: Some(speed.tflops),
            tokens_per_second: Some(speed.tokens_per_second),
            mfu: speed.mfu,
        }
    }
}

/// What is logged of the evaluation after a step.
fn evaluation_line(
    &StartMetrics { step, eval_loss, eval_perplexity, eval_accuracy }: &StartMetrics,
) -> String {
    let mut line = format!("step {step}: eval_loss {eval_loss:.4}");
    for (name, number) in [("eval_perplexity", eval_perplexity), ("eval_accuracy", eval_accuracy)] {
        line += &number.map_or_else(String::new, |number| format!(", {name} {number:.4}"));
    }
    line
}

/// A number of steps, the time they took, and the tokens that they learned from.
#[derive(Debug, Default)]
struct StepWindow {
    steps: u64,
    ms: f64,
    tokens: f64,
}

impl StepWindow {
    fn add(&mut self, metrics: &StepMetrics) {
        self.steps += 1;
        self.ms += metrics.step_ms;
        self.tokens += metrics.tokens_per_second * metrics.step_ms / 1e3;
    }
}

/// The speed of steps. MFU is model FLOP/s over the peak; none where that is more than all of it, since then the peak is wrong, as
/// where other programs ran while it was measured.
#[derive(Debug)]
struct Speed {
    step_ms: f64,
    tokens_per_second: f64,
    tflops: f64,
    mfu: Option<f64>,
}

/// The text next to the bar, most important first: a narrow terminal cuts off the end.
fn bar_message(loss: f32, speed: &Speed, eval_loss: Option<f32>, remaining: Duration) -> String {
    let Speed { tokens_per_second, mfu, .. } = speed;
    let mut text =
        format!("loss {loss:.4}  {} left  {tokens_per_second:.0} tokens/s", python_duration(remaining));
    if let Some(mfu) = mfu {
        text += &format!("  MFU {:.1}%", mfu * 100.0);
    }
    if let Some(loss) = eval_loss {
        text += &format!("  eval {loss:.4}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> ProgressPlan {
        ProgressPlan {
            total_steps: 25,
            start_step: 2,
            epochs: 3,
            steps_per_epoch: 10,
            samples_per_rank: 4.0,
            tokens_per_step: 400,
            flops_per_token: 1e6,
            peak_flops: 1e10,
            log_every: 10,
            asks_for_lines: true,
            loss_parts: None,
        }
    }

    #[test]
    fn steps_are_placed_in_their_epoch() {
        let place = |step| {
            let speed = plan().speed(&StepWindow { steps: 1, ms: 5.0, tokens: 400.0 });
            let line = plan().loss_line(&StepMetrics { step, ..StepMetrics::default() }, &speed);
            (line.epoch, line.step, line.steps)
        };
        assert_eq!(
            [1, 10, 11, 20, 25].map(place),
            [(1, 1, 10), (1, 10, 10), (2, 1, 10), (2, 10, 10), (3, 5, 5)]
        );
        let speed = plan().speed(&StepWindow::default());
        let nothing = ProgressPlan::default().loss_line(&StepMetrics::default(), &speed);
        assert_eq!((nothing.epoch, nothing.step), (1, 1));
    }

    #[test]
    fn a_run_that_stops_within_an_epoch_counts_its_own_steps() {
        let plan = ProgressPlan { total_steps: 200, epochs: 2, steps_per_epoch: 7782, ..plan() };
        let speed = plan.speed(&StepWindow { steps: 1, ms: 5.0, tokens: 400.0 });
        let line = plan.loss_line(&StepMetrics { step: 1, ..StepMetrics::default() }, &speed);
        assert_eq!([line.epoch, line.epochs, line.step, line.steps], [1, 1, 1, 200]);
    }

    #[test]
    fn the_first_the_last_and_every_nth_step_are_logged() {
        let logged: Vec<u64> = (3..=25).filter(|&step| plan().is_logged(step)).collect();
        assert_eq!(logged, [3, 10, 20, 25]);
        let each = ProgressPlan { log_every: 0, ..plan() };
        assert!((3..=25).all(|step| each.is_logged(step)));
    }

    #[test]
    fn the_bar_says_what_is_known() {
        let speed = Speed { step_ms: 5.0, tokens_per_second: 1523.4, tflops: 0.1, mfu: Some(0.412) };
        let minute = Duration::from_secs(61);
        let known = "loss 3.2500  0:01:01 left  1523 tokens/s  MFU 41.2%";
        assert_eq!(bar_message(3.25, &speed, None, minute), known);
        assert_eq!(bar_message(3.25, &speed, Some(2.5), minute), format!("{known}  eval 2.5000"));
    }

    #[test]
    fn speeds_are_means_over_a_stretch() {
        // Half of the tokens are padding.
        let step = |step_ms: f64| StepMetrics {
            step_ms,
            tokens_per_second: 200.0 * 1e3 / step_ms,
            ..StepMetrics::default()
        };
        let mut stretch = StepWindow::default();
        [1799.0, 1.0, 200.0].into_iter().for_each(|ms| stretch.add(&step(ms)));
        let speed = plan().speed(&stretch);
        assert!((speed.step_ms - 2000.0 / 3.0).abs() < 1e-9);
        assert!((speed.tokens_per_second - 300.0).abs() < 1e-9);
        assert!((speed.tflops - 6e-4).abs() < 1e-12 && (speed.mfu.expect("possible") - 0.06).abs() < 1e-12);
        stretch = StepWindow::default();
        stretch.add(&step(39.0));
        assert_eq!(plan().speed(&stretch).mfu, None, "1.03 of the peak");
    }
}
