//! From what the device computed to numbers with tags.

use super::spectra::stable_ranks;
use super::{Losses, Matrices, MaxLogits, MicroLosses, Monitors, Watched, words_of};
use crate::model::arena::ArenaLayout;
use crate::model::parameters::UpdateRule;
use crate::ops::squares::SquareSum;
use crate::ops::step_state::LossState;
use crate::record::{State, Tensor};
use crate::report::monitors::{Goes, MonitorFormats, MonitorValue, Numbers};
use crate::settings::{Formats, Monitor, OptimizerKind, RunPlan, StableRank};
use crate::train::finished::FinishedStep;

/// Makes the numbers of `monitor_config` of what the device leaves after a step.
#[derive(Clone, Debug, Default)]
pub struct Board {
    config: Monitor,
    formats: MonitorFormats,
    /// Tag and kind of each norm.
    norms: Vec<(String, Watched)>,
    losses: Option<MicroLosses>,
    logits: Option<MaxLogits>,
    stable_rank: StableRank,
    matrices: Vec<Matrices>,
    /// Words of `LossState`, where it is read.
    loss_words: usize,
    /// Tokens of a step, where the mean is over tokens.
    tokens: Option<f64>,
    samples_per_step: f64,
}

impl Board {
    /// The numbers of `monitors`, for the parameters in `layout`.
    pub(in crate::train) fn new(plan: &RunPlan, monitors: &Monitors, layout: &ArenaLayout) -> Self {
        let runner = &plan.settings.runner;
        let norms = monitors.norms.iter().flat_map(|norms| &norms.watched);
        let config = plan.settings.monitor.clone();
        Self {
            formats: formats(&config, plan.settings.stable_rank.as_ref()),
            config,
            norms: norms.map(|watched| (tag(plan, layout, *watched), *watched)).collect(),
            losses: monitors.losses.clone(),
            logits: monitors.logits.clone(),
            stable_rank: plan.settings.stable_rank.clone().unwrap_or_default(),
            matrices: monitors.stable_ranks.iter().flat_map(|ranks| ranks.watched.clone()).collect(),
            loss_words: monitors.loss.as_ref().map_or(0, |loss| words_of(loss) as usize),
            tokens: plan.settings.wrapper.calculate_per_token_loss.then_some(plan.tokens_per_step as f64),
            samples_per_step: (runner.batch_size * runner.gradient_accumulation_steps) as f64,
        }
    }

    /// Where each number goes.
    pub fn formats(&self) -> &MonitorFormats {
        &self.formats
    }

    /// The numbers of a step that took `step_ms`, in the order of the log; none where none is due.
    pub fn values(&self, finished: &FinishedStep, step_ms: f64) -> Vec<MonitorValue> {
        let mut values = Vec::new();
        let (loss, rest) = finished.monitors.split_at(self.loss_words);
        let (sums, rest) = rest.split_at(4 * self.norms.len());
        let words = |tensor: Option<&Tensor>| tensor.map_or(0, |tensor| words_of(tensor) as usize);
        let (losses, rest) = rest.split_at(words(self.losses.as_ref().map(|of| &of.rows)));
        let (logits, spectra) = rest.split_at(words(self.logits.as_ref().map(|of| &of.largest)));
        if self.config.monitor_on && finished.step.is_multiple_of(self.config.step_interval) {
            let norms = self.norms(finished, loss, sums);
            let (gradients, others): (Vec<_>, Vec<_>) =
                norms.into_iter().partition(|(watched, _)| matches!(watched, Watched::Gradient(_)));
            values.extend(gradients.into_iter().map(|(_, value)| value));
            if self.config.device_local_norm_format.is_on() {
                values.push(MonitorValue::one("device_local_norm", finished.state.grad_norm.into()));
            }
            values.extend(self.losses.iter().flat_map(|of| self.losses(&of.of_micro_batches(losses))));
            values.extend(others.into_iter().map(|(_, value)| value));
            values.extend(self.linearity(step_ms));
            values.extend(self.logits.iter().flat_map(|of| of.values(logits)));
        }
        if finished.step.is_multiple_of(self.stable_rank.step_interval) {
            values.extend(stable_ranks(&self.matrices, self.stable_rank.moe_show_mode, spectra));
        }
        values
    }

    fn norms(&self, finished: &FinishedStep, loss: &[f32], sums: &[f32]) -> Vec<(Watched, MonitorValue)> {
        let sums: &[SquareSum] = bytemuck::cast_slice(sums);
        let factor = self.unscaling(finished, loss);
        let value = |((tag, watched), sum): (&(String, Watched), &SquareSum)| {
            let factor = if matches!(watched, Watched::Gradient(_)) { factor } else { 1.0 };
            (*watched, MonitorValue::one(tag.as_str(), factor * sum.norm()))
        };
        self.norms.iter().zip(sums).map(value).collect()
    }

    /// What the gradients in the arena are multiplied by to be those of the step's mean loss.
    fn unscaling(&self, finished: &FinishedStep, loss: &[f32]) -> f64 {
        let weight = self.tokens.filter(|_| !loss.is_empty()).map_or(1.0, |tokens| {
            let state: LossState =
                bytemuck::pod_read_unaligned(bytemuck::cast_slice(&loss[..LossState::WORDS as usize]));
            tokens / f64::from(state.token_sum).max(1.0)
        });
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
        let samples_per_second = self.samples_per_step * 1e3 / step_ms;
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

fn tag(plan: &RunPlan, layout: &ArenaLayout, watched: Watched) -> String {
    let spec = |index: usize| &layout.parameters[index].0;
    match watched {
        Watched::Gradient(index) => format!("local_norm/{}", spec(index).path),
        Watched::FirstMoment(index) => {
            let is_adam = match plan.optimizer.kind {
                OptimizerKind::AdamW(_) => true,
                OptimizerKind::Muon(_) => spec(index).rule == UpdateRule::Elementwise,
                OptimizerKind::Sgd(_) => false,
            };
            format!("{}/{}", if is_adam { "adam_m_norm" } else { "momentum_norm" }, spec(index).path)
        }
        Watched::SecondMoment(index) => format!("adam_v_norm/{}", spec(index).path),
        Watched::Weights => "weight_norm".to_string(),
    }
}
