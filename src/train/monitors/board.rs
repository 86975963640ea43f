//! From what the device computed to numbers with tags.

use super::spectra::stable_ranks;
use super::{Losses, Matrices, MaxLogits, MicroLosses, Monitors, Norms, Watched, WatchedStep};
use crate::ops::squares::SquareSum;
use crate::report::metrics::{MonitorValue, Numbers};
use crate::report::monitor_lines::{Goes, MonitorFormats};
use crate::settings::{Formats, Monitor, RunPlan, StableRank};
use crate::train::finished::FinishedStep;

/// Makes the numbers of `monitor_config` of what the device leaves after a step.
#[derive(Clone, Debug, Default)]
pub struct Board {
    config: Monitor,
    formats: MonitorFormats,
    /// The norms of gradients and of states, each with its tag if it is reported.
    gradients: Vec<(Watched, Option<String>)>,
    states: Vec<(Watched, Option<String>)>,
    /// How many parameters the model has, where sums of squares of their gradients are asked for.
    squares: Option<usize>,
    losses: Option<MicroLosses>,
    logits: Option<MaxLogits>,
    stable_rank: StableRank,
    matrices: Vec<Matrices>,
    /// Tokens of a step, where the mean is over tokens.
    tokens: Option<f64>,
    samples_per_rank: f64,
}

impl Board {
    /// The numbers of `monitors`, for a model of `parameters` parameters.
    pub fn new(plan: &RunPlan, monitors: &Monitors, parameters: usize) -> Self {
        let watched =
            |norms: &Option<Norms>| norms.iter().flat_map(|norms| norms.watched.clone()).collect::<Vec<_>>();
        let config = plan.settings.monitor.clone();
        Self {
            formats: formats(&config, plan.settings.stable_rank.as_ref()),
            config,
            gradients: watched(&monitors.gradients),
            states: watched(&monitors.states),
            squares: plan.settings.wrapper.local_norm.then_some(parameters),
            losses: monitors.losses.clone(),
            logits: monitors.logits.clone(),
            stable_rank: plan.settings.stable_rank.clone().unwrap_or_default(),
            matrices: monitors.stable_ranks.iter().flat_map(|ranks| ranks.watched.clone()).collect(),
            tokens: plan.settings.wrapper.calculate_per_token_loss.then_some(plan.tokens_per_step as f64),
            samples_per_rank: plan.samples_per_rank(),
        }
    }

    /// Where each number goes.
    pub fn formats(&self) -> &MonitorFormats {
        &self.formats
    }

    /// The numbers of a step that took `step_ms`, in the order of the log; none where none is due.
    pub fn values(&self, finished: &FinishedStep, step_ms: f64) -> Vec<MonitorValue> {
        let mut values = Vec::new();
        let WatchedStep { states, losses, logits, eigenvalues, squares, .. } = &finished.watched;
        if self.config.monitor_on && finished.step.is_multiple_of(self.config.step_interval) {
            values.extend(tagged(&self.gradients, self.gradient_norms(finished)));
            if self.config.device_local_norm_format.is_on() {
                values.push(MonitorValue::one("device_local_norm", finished.state.grad_norm.into()));
            }
            values.extend(self.losses.iter().flat_map(|of| self.losses(&of.of_micro_batches(losses))));
            values.extend(tagged(&self.states, states.iter().map(SquareSum::norm)));
            values.extend(self.linearity(step_ms));
            values.extend(self.logits.iter().flat_map(|of| of.values(logits)));
        }
        if finished.step.is_multiple_of(self.stable_rank.step_interval) {
            let mode = self.stable_rank.moe_show_mode;
            values.extend(stable_ranks(&self.matrices, mode, eigenvalues, squares));
        }
        values
    }

    /// The sum of squares of each parameter's gradients, if `runner_wrapper.local_norm` asks for them; 0 of a frozen one.
    pub fn squares(&self, finished: &FinishedStep) -> Option<Vec<f32>> {
        let mut squares = vec![0.0; self.squares?];
        for ((watched, _), norm) in self.gradients.iter().zip(self.gradient_norms(finished)) {
            if let Watched::Gradient(index) = watched {
                squares[*index] = (norm * norm) as f32;
            }
        }
        Some(squares)
    }

    /// The norm of each gradient of the step's mean loss.
    fn gradient_norms(&self, finished: &FinishedStep) -> impl Iterator<Item = f64> {
        let factor = self.unscaling(finished);
        finished.watched.gradients.iter().map(move |sum| factor * sum.norm())
    }

    /// What the gradients in the arena are multiplied by to be those of the step's mean loss.
    fn unscaling(&self, finished: &FinishedStep) -> f64 {
        let weight = self.tokens.zip(finished.watched.loss);
        let weight = weight.map_or(1.0, |(tokens, loss)| tokens / f64::from(loss.token_sum).max(1.0));
        weight / f64::from(finished.state.loss_scale)
    }

    /// The losses of each micro-batch with their means, then the means of the device.
    fn losses(&self, of_micro_batches: &[Losses]) -> Vec<MonitorValue> {
        let kinds: Vec<&str> =
            of_micro_batches.iter().take(1).flat_map(Losses::kinds).map(|(kind, _)| kind).collect();
        let of_kind = |number: usize| {
            let losses = of_micro_batches.iter().filter_map(move |of| of.kinds().nth(number));
            losses.map(|(_, loss)| loss).collect::<Vec<f64>>()
        };
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let mut values = Vec::new();
        if self.config.local_loss_format.is_on() {
            for (number, kind) in kinds.iter().enumerate() {
                let losses = of_kind(number);
                let lines = Numbers::Lines(losses.iter().map(|loss| *loss as f32).collect());
                values.push(MonitorValue { tag: format!("micro_local_{kind}_loss"), numbers: lines });
                values.push(MonitorValue::one(format!("local_{kind}_loss"), mean(&losses)));
            }
        }
        if self.config.device_local_loss_format.is_on() {
            let means = kinds.iter().enumerate().map(|(number, kind)| (kind, mean(&of_kind(number))));
            let named =
                means.map(|(kind, mean)| MonitorValue::one(format!("device_accum_local_{kind}_loss"), mean));
            values.extend(named);
        }
        values
    }

    fn linearity(&self, step_ms: f64) -> Option<MonitorValue> {
        let baseline = self.config.throughput_baseline?;
        let samples_per_second = self.samples_per_rank * 1e3 / step_ms;
        Some(MonitorValue::one("throughput_linearity", samples_per_second / baseline))
    }
}

fn formats(config: &Monitor, stable_rank: Option<&StableRank>) -> MonitorFormats {
    let mut formats = MonitorFormats::default();
    let tags = [
        ("local_norm", config.local_norm_format),
        ("device_local_norm", config.device_local_norm_format),
        ("adam_m_norm", config.optimizer_state_format),
        ("adam_v_norm", config.optimizer_state_format),
        ("momentum_norm", config.optimizer_state_format),
        ("weight_norm", config.weight_state_format),
        ("throughput_linearity", Formats::BOTH),
        ("max_attention_logit", config.max_attention_logit_format),
    ];
    for (tag, Formats { log, tensorboard }) in tags {
        formats.set(tag, Goes { to_log: log, to_tensorboard: tensorboard });
    }
    if let Some(StableRank { format: Formats { log, tensorboard }, .. }) = stable_rank {
        for tag in ["weight_stable_rank", "weight_eigenvalue"] {
            formats.set(tag, Goes { to_log: *log, to_tensorboard: *tensorboard });
        }
    }
    for kind in ["lm", "mtp", "aux"] {
        let Formats { log, tensorboard } = config.local_loss_format;
        formats.set(format!("micro_local_{kind}_loss"), Goes { to_log: log, to_tensorboard: false });
        formats.set(format!("local_{kind}_loss"), Goes { to_log: false, to_tensorboard: tensorboard });
        let Formats { log, tensorboard } = config.device_local_loss_format;
        let goes = Goes { to_log: log, to_tensorboard: tensorboard };
        formats.set(format!("device_accum_local_{kind}_loss"), goes);
    }
    formats
}

/// The norms that are reported.
fn tagged(
    watched: &[(Watched, Option<String>)],
    norms: impl Iterator<Item = f64>,
) -> impl Iterator<Item = MonitorValue> {
    let tags = watched.iter().map(|(_, tag)| tag.as_deref());
    tags.zip(norms).filter_map(|(tag, norm)| Some(MonitorValue::one(tag?, norm)))
}
