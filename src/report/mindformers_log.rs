//! MindFormers' lines in `log.txt`, which existing scripts parse: the two lines of a step, as its MFLossMonitor writes
//! them, and the lines of norms, skipped steps and `monitor_config`.
//!
//! Numbers that only this trainer reports (tokens per second, MFU) are appended to the first line, so that a pattern
//! written for MindFormers still matches.

use super::instrument::{Instrument, StepReport};
use super::log::FILE_TARGET;
use super::metrics::{MonitorFormats, MonitorValue, Numbers, StartMetrics, StepMetrics};
use super::pace::{Pace, StepWindow, Work};
use crate::error::Result;
use std::time::{Duration, Instant};

/// Width of the bar of the second line, in characters.
const BAR_CELLS: usize = 50;

/// Most decimals that numpy prints.
const NUMPY_DECIMALS: usize = 8;

/// The data and settings that the lines of a run need.
#[derive(Clone, Debug, Default)]
pub struct LogPlan {
    /// The last step.
    pub total_steps: u64,
    /// Steps done before this run resumed; 0 for a new run.
    pub start_step: u64,
    /// Total number of epochs.
    pub epochs: u64,
    /// Steps per epoch.
    pub steps_per_epoch: u64,
    /// A rank's share of the samples of a step.
    pub samples_per_rank: f64,
    /// The numbers that throughput and MFU are computed from.
    pub work: Work,
    /// Steps from one pair of lines to the next; the first and the last step always have a pair.
    pub log_every: u64,
    /// The parts of the loss, if they are asked for.
    pub loss_parts: Option<LossParts>,
    /// Path and number of elements of each parameter.
    pub parameters: Vec<(String, usize)>,
    /// Steps with this gradient norm or a larger one are skipped, if there is such a bound.
    pub spike_norm: Option<f64>,
    /// Which numbers of `monitor_config` have lines.
    pub formats: MonitorFormats,
}

/// The position of a step in a run, as MindFormers counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    /// The epoch, from 1.
    epoch: u64,
    /// Total number of epochs that the run begins.
    epochs: u64,
    /// The step in the epoch, from 1.
    step: u64,
    /// Steps that the run takes in this epoch: all of them, unless it ends within the epoch.
    steps: u64,
}

/// Writes the lines of each step to `log.txt`.
#[derive(Debug)]
pub struct MindFormersLog {
    plan: LogPlan,
    pace: Pace,
    since_line: StepWindow,
}

impl MindFormersLog {
    /// The lines of a run that starts now.
    pub fn new(plan: LogPlan) -> Self {
        let pace = Pace::new(plan.start_step, Instant::now());
        Self { plan, pace, since_line: StepWindow::default() }
    }

    /// The lines of a step. Times and speeds are means over the steps since the previous lines, since the time of a
    /// single step is noisy.
    fn lines(&mut self, StepReport { metrics, watched, .. }: &StepReport<'_>, now: Instant) -> Vec<String> {
        let plan = &self.plan;
        self.since_line.add(metrics);
        self.pace.advance(metrics.step, now);
        let mut lines = Vec::new();
        if plan.is_logged(metrics.step) {
            let window = std::mem::take(&mut self.since_line);
            lines.push(plan.loss_line(metrics, &window));
            let share = metrics.step as f64 / plan.total_steps.max(1) as f64;
            let samples_per_second = plan.samples_per_rank * 1e3 / window.step_ms();
            lines.push(bar_line(share, samples_per_second, self.pace.remaining(plan.total_steps)));
        }
        lines.extend(StartMetrics::of(metrics).map(|evaluation| evaluation.to_string()));
        let norms = metrics.local_norm.as_ref();
        lines.extend(norms.map(|norms| local_norm_lines(&plan.parameters, norms)));
        let skip = plan.spike_norm.zip(metrics.is_skip);
        lines.extend(skip.map(|(bound, is_skip)| skip_line(metrics.global_step, bound, is_skip)));
        let position = plan.position(metrics.step);
        let logged = watched.iter().filter(|value| plan.formats.of(&value.tag).log);
        lines.extend(logged.flat_map(|value| monitor_lines(&position, value)));
        lines
    }
}

impl Instrument for MindFormersLog {
    fn step(&mut self, report: &StepReport<'_>) -> Result<()> {
        let lines = self.lines(report, Instant::now());
        lines.iter().for_each(|line| tracing::info!(target: FILE_TARGET, "{line}"));
        Ok(())
    }
}

impl LogPlan {
    fn is_logged(&self, step: u64) -> bool {
        step.is_multiple_of(self.log_every.max(1)) || step == self.start_step + 1 || step == self.total_steps
    }

    /// The position of step number `step` of the run.
    fn position(&self, step: u64) -> Position {
        let steps_per_epoch = self.steps_per_epoch.max(1);
        let steps_before = step.saturating_sub(1);
        let (epochs_before, step) = (steps_before / steps_per_epoch, steps_before % steps_per_epoch + 1);
        // MindFormers counts whole epochs, even if `stop_step` ends the run within one.
        let steps_left = self.total_steps.saturating_sub(epochs_before * steps_per_epoch);
        Position {
            epoch: epochs_before + 1,
            epochs: self.total_steps.div_ceil(steps_per_epoch).min(self.epochs),
            step,
            steps: steps_left.clamp(step, steps_per_epoch),
        }
    }

    /// The first line of a step; times and speeds are those of `window`.
    fn loss_line(&self, metrics: &StepMetrics, window: &StepWindow) -> String {
        let Position { epoch, epochs, step, steps } = self.position(metrics.step);
        let (flops, mfu) = self.work.rate(window.step_ms());
        let mut text = format!("{{ Epoch:[{epoch:3}/{epochs:3}], step:[{step:5}/{steps:5}], ");
        text += &format!("loss: {}, ", fixed(metrics.loss));
        text += &self.loss_parts.map_or_else(String::new, |parts| parts.of(metrics).text());
        text += &format!("per_step_time: {}ms", window.step_ms() as u64);
        text += &format!(", lr: {}", python_float(metrics.lr));
        text += &format!(", overflow cond: {}", if metrics.overflow { "True" } else { "False" });
        text += &format!(", loss_scale: {}", python_float(metrics.loss_scale));
        text += &format!(", global_norm: [{}]", numpy_float(metrics.global_norm));
        text += &format!(", train_throughput_per_npu: {:.3}T", flops / 1e12);
        text += &format!(", tokens/s: {:.0}", window.tokens_per_second());
        text + &mfu.map_or_else(String::new, |mfu| format!(", mfu: {:.1}%", mfu * 100.0))
    }
}

/// The parts of a step's loss as MindFormers prints and plots them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SeparateLosses {
    /// Mean cross-entropy of the next token, in nats per token.
    pub lm: f32,
    /// The balance loss without its factor, a mean over the layers with experts; left out of the line unless above 0.
    pub load_balancing: Option<f32>,
    /// The loss of multi-token prediction with its factor.
    pub mtp: Option<f32>,
}

/// The factors that convert the parts of a step's loss to those of MindFormers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossParts {
    /// The factors of the balance losses, summed over the layers with experts, if the model has such losses.
    pub balance_scale: Option<f32>,
    /// The factor of multi-token prediction, if the model has it.
    pub mtp_factor: Option<f32>,
}

impl LossParts {
    /// The parts of the loss of a step.
    pub fn of(&self, metrics: &StepMetrics) -> SeparateLosses {
        SeparateLosses {
            lm: metrics.loss,
            load_balancing: self
                .balance_scale
                .zip(metrics.load_balancing_loss)
                .map(|(scale, loss)| loss / scale),
            mtp: self.mtp_factor.zip(metrics.mtp_loss).map(|(factor, loss)| loss * factor),
        }
    }
}

/// The line for skipped steps, in a run that skips steps whose gradient norm is `bound` or more.
fn skip_line(global_step: u64, bound: f64, is_skip: bool) -> String {
    let (bound, is_skip) = (python_float(bound), if is_skip { "[ True]" } else { "[False]" });
    format!("opt_global_step: {global_step}, skip_data_grad_norm_threshold: {bound}, is_skip: {is_skip}")
}

/// The entry of a step about the gradients of individual parameters: their numbers of elements, then name and sum of
/// squares of each. MindFormers prints no names.
fn local_norm_lines(parameters: &[(String, usize)], norms: &[f32]) -> String {
    let sizes: Vec<usize> = parameters.iter().map(|(_, size)| *size).collect();
    let line = |((name, _), norm): (&(String, usize), &f32)| format!("\n{name} {}", python_float(*norm));
    let lines = parameters.iter().zip(norms).map(line);
    format!(" norm_size: {sizes:?}\nlocal_norm:{}", lines.collect::<String>())
}

/// The second line of a step: the share of the run that is done (0 to 1), samples per second, and the time left.
fn bar_line(share: f64, samples_per_second: f64, remaining: Duration) -> String {
    let full = "█".repeat((BAR_CELLS as f64 * share.clamp(0.0, 1.0)) as usize);
    let percent = 100.0 * share;
    let remaining = python_duration(remaining);
    format!("  {percent:4.1}% |{full:BAR_CELLS$}| {samples_per_second:.5} samples/s/p  {remaining} }}")
}

/// The lines of a tag in the log.
fn monitor_lines(place: &Position, value: &MonitorValue) -> Vec<String> {
    let Position { epoch, epochs, step, steps } = place;
    let tag = &value.tag;
    let line =
        |text: String| format!("Epoch:[{epoch:3}/{epochs:3}], step:[{step:5}/{steps:5}] {tag}: {text}");
    match &value.numbers {
        Numbers::One(number) => vec![line(four_decimals(*number))],
        Numbers::Lines(numbers) => numbers.iter().map(|number| line(four_decimals(*number))).collect(),
        Numbers::List(numbers) => {
            let list: Vec<String> = numbers.iter().map(|number| four_decimals(*number)).collect();
            vec![line(format!("[{}]", list.join(", ")))]
        }
    }
}

/// A duration as Python prints its `timedelta`: `0:05:03`, `1 day, 2:03:04`.
fn python_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let clock = format!("{}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match seconds / 86_400 {
        0 => clock,
        1 => format!("1 day, {clock}"),
        days => format!("{days} days, {clock}"),
    }
}

impl SeparateLosses {
    fn text(&self) -> String {
        let mut text = format!("lm_loss: {}, ", fixed(self.lm));
        if let Some(loss) = self.load_balancing.filter(|loss| *loss > 0.0) {
            text += &format!("load_balancing_loss: {}, ", fixed(loss));
        }
        if let Some(loss) = self.mtp {
            text += &format!("mtp_loss: {}, ", fixed(loss));
        }
        text
    }
}

/// A number as Python prints a float: the shortest decimal that reads back as the same number, lower-case `nan`, and
/// below 1e-4 and from 1e16 on an exponent of at least two digits (Rust's `{:?}` switches to an exponent at the same
/// bounds).
fn python_float<N: std::fmt::Debug>(number: N) -> String {
    let text = format!("{number:?}").to_lowercase();
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |positive| ('-', positive));
    let digits = digits.strip_suffix(".0").unwrap_or(digits);
    format!("{digits}e{sign}{exponent:0>2}")
}

/// A number as numpy prints it in an array of one element: at most eight decimals, none after a point that ends the
/// number, and an exponent below 1e-4 and from 1e8 on.
fn numpy_float(number: f32) -> String {
    let size = number.abs();
    if !number.is_finite() {
        return python_float(number);
    }
    if size >= 1e8 || (size < 1e-4 && size > 0.0) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |positive| ('-', positive));
        let point = if digits.contains('.') { "" } else { "." };
        return format!("{digits}{point}e{sign}{exponent:0>2}");
    }
    let shortest = number.to_string();
    match shortest.split_once('.') {
        None => shortest + ".",
        Some((_, decimals)) if decimals.len() <= NUMPY_DECIMALS => shortest,
        Some(_) => format!("{:.NUMPY_DECIMALS$}", f64::from(number)).trim_end_matches('0').to_owned(),
    }
}

/// Four decimals, as Python's `%.4f`.
fn four_decimals(number: f32) -> String {
    format!("{number:.4}").to_lowercase()
}

/// Six decimals and at least five characters, as Python's `%5.6f`.
fn fixed(number: f32) -> String {
    format!("{number:5.6}").to_lowercase()
}

#[cfg(test)]
mod tests;
