//! What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere, and the step's lines in `log.txt`.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::log::{Log, STEP_TARGET};
use super::loss_monitor::{LossLine, bar_line, loss_line, python_duration};
use super::metrics::StepMetrics;

/// How far a run goes, and where it starts.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProgressPlan {
    /// The last step.
    pub total_steps: u64,
    /// Steps that a resumed run has done before; 0 in a new one.
    pub start_step: u64,
    /// Epochs in all.
    pub epochs: u64,
    /// Steps of one epoch.
    pub steps_per_epoch: u64,
    /// Samples of one step: batch size times gradient accumulation steps.
    pub samples_per_step: u64,
    /// Steps between two log lines; the first and the last step have one in any case.
    pub log_every: u64,
}

/// Reports the steps of a run. On an error, simply drop it: the bar is cleared.
#[derive(Debug)]
pub struct Progress {
    plan: ProgressPlan,
    pace: Pace,
    eval_loss: Option<f32>,
    bar: ProgressBar,
}

impl Progress {
    /// Shows a bar at the start step where `log` has a terminal.
    pub fn new(plan: ProgressPlan, log: &Log) -> Self {
        let style = ProgressStyle::with_template("{bar:16} {pos}/{len}  {wide_msg}")
            .expect("a constant template")
            .progress_chars("█▉▊▋▌▍▎▏ ");
        let bar = ProgressBar::new(plan.total_steps).with_style(style).with_position(plan.start_step);
        let bar = log.bars().add(bar);
        bar.set_message("first step");
        Self { plan, pace: Pace::new(plan.start_step, Instant::now()), eval_loss: None, bar }
    }

    /// Reports one finished step. `mfu` is its model FLOP/s as a share of the adapter's peak (0 to 1), `tflops` the
    /// same in TFLOP/s; `None` where unknown.
    pub fn step(&mut self, metrics: &StepMetrics, mfu: Option<f64>, tflops: Option<f64>) {
        self.pace.advance(metrics.step, Instant::now());
        self.eval_loss = metrics.eval_loss.or(self.eval_loss);
        let remaining = self.pace.remaining(self.plan.total_steps);
        self.bar.set_message(bar_message(metrics, self.eval_loss, mfu, remaining));
        self.bar.set_position(metrics.step);
        if self.plan.is_logged(metrics.step) {
            tracing::info!(target: STEP_TARGET, "{}", loss_line(&self.plan.loss_line(metrics, mfu, tflops)));
            let share = metrics.step as f64 / self.plan.total_steps.max(1) as f64;
            let samples_per_second = self.plan.samples_per_step as f64 * 1e3 / metrics.step_ms.max(1e-3);
            tracing::info!(target: STEP_TARGET, "{}", bar_line(share, samples_per_second, remaining));
        }
        if let Some(loss) = metrics.eval_loss {
            tracing::info!("step {}: eval_loss {loss:.4}", metrics.step);
        }
    }

    /// Says something, above the bar and in `log.txt`.
    pub fn message(&self, text: &str) {
        tracing::info!("{text}");
    }

    /// Leaves the bar as it is and ends it.
    pub fn finish(self) {
        self.bar.abandon();
    }
}

impl ProgressPlan {
    fn is_logged(&self, step: u64) -> bool {
        step.is_multiple_of(self.log_every.max(1)) || step == self.start_step + 1 || step == self.total_steps
    }

    fn loss_line(&self, metrics: &StepMetrics, mfu: Option<f64>, tflops: Option<f64>) -> LossLine {
        let steps_per_epoch = self.steps_per_epoch.max(1);
        let steps_before = metrics.step.saturating_sub(1);
        LossLine {
            epoch: steps_before / steps_per_epoch + 1,
            epochs: self.epochs,
            step: steps_before % steps_per_epoch + 1,
            steps_per_epoch,
            loss: metrics.loss,
            epoch_loss: None,
            step_ms: metrics.step_ms,
            lr: Some(metrics.lr),
            overflow: metrics.overflow,
            loss_scale: Some(metrics.loss_scale),
            global_norm: Some(metrics.global_norm),
            tflops,
            tokens_per_second: Some(metrics.tokens_per_second),
            mfu,
        }
    }
}

/// What stands beside the bar, the most wanted first: a narrow terminal cuts off the end.
fn bar_message(
    metrics: &StepMetrics,
    eval_loss: Option<f32>,
    mfu: Option<f64>,
    remaining: Duration,
) -> String {
    let StepMetrics { loss, tokens_per_second, .. } = metrics;
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

/// The wall-clock time of a step, evaluation and checkpoints included: the mean of the first steps, then a moving mean
/// that remembers about fifty.
#[derive(Debug)]
struct Pace {
    step: u64,
    at: Instant,
    steps_seen: u64,
    seconds_per_step: f64,
}

impl Pace {
    fn new(step: u64, at: Instant) -> Self {
        Self { step, at, steps_seen: 0, seconds_per_step: 0.0 }
    }

    fn advance(&mut self, step: u64, at: Instant) {
        let steps = step.saturating_sub(self.step);
        if steps == 0 {
            return;
        }
        self.steps_seen += steps;
        let seconds = at.saturating_duration_since(self.at).as_secs_f64() / steps as f64;
        let weight = (steps as f64 / self.steps_seen.min(50) as f64).min(1.0);
        self.seconds_per_step += weight * (seconds - self.seconds_per_step);
        (self.step, self.at) = (step, at);
    }

    fn remaining(&self, total_steps: u64) -> Duration {
        let seconds = self.seconds_per_step * total_steps.saturating_sub(self.step) as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
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
            samples_per_step: 4,
            log_every: 10,
        }
    }

    #[test]
    fn steps_are_placed_in_their_epoch() {
        let place = |step| {
            let line = plan().loss_line(&StepMetrics { step, ..StepMetrics::default() }, None, None);
            (line.epoch, line.step)
        };
        assert_eq!([1, 10, 11, 20, 25].map(place), [(1, 1), (1, 10), (2, 1), (2, 10), (3, 5)]);
        let nothing = ProgressPlan::default().loss_line(&StepMetrics::default(), None, None);
        assert_eq!((nothing.epoch, nothing.step), (1, 1));
    }

    #[test]
    fn the_first_the_last_and_every_nth_step_are_logged() {
        let logged: Vec<u64> = (3..=25).filter(|&step| plan().is_logged(step)).collect();
        assert_eq!(logged, [3, 10, 20, 25]);
        let each = ProgressPlan { log_every: 0, ..plan() };
        assert!((3..=25).all(|step| each.is_logged(step)));
    }

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
    fn the_bar_says_what_is_known() {
        let metrics = StepMetrics { loss: 3.25, tokens_per_second: 1523.4, ..StepMetrics::default() };
        let minute = Duration::from_secs(61);
        assert_eq!(bar_message(&metrics, None, None, minute), "loss 3.2500  0:01:01 left  1523 tokens/s");
        assert_eq!(
            bar_message(&metrics, Some(2.5), Some(0.412), minute),
            "loss 3.2500  0:01:01 left  1523 tokens/s  MFU 41.2%  eval 2.5000"
        );
    }
}
