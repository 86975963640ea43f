//! Turns the results of the monitors into numbers with tags.

use super::{Losses, MaxLogits, MicroLosses, Monitors, Norms, Watched, WatchedStep};
use crate::ops::squares::SquareSum;
use crate::report::metrics::MonitorFormats;
use crate::report::metrics::{MonitorValue, Numbers};
use crate::settings::{Formats, Monitor, RunPlan};
use crate::train::step_results::FinishedStep;

/// Turns the monitors' results of a step into the numbers of `monitor_config`.
#[derive(Clone, Debug, Default)]
pub struct MonitorReport {
    config: Monitor,
    formats: MonitorFormats,
    /// The norms of gradients and of states, each with its tag if it is reported.
    gradients: Vec<(Watched, Option<String>)>,
    states: Vec<(Watched, Option<String>)>,
    /// Number of parameters of the model, if sums of squares of their gradients are asked for.
    squares: Option<usize>,
    losses: Option<MicroLosses>,
    logits: Option<MaxLogits>,
    /// Tokens of a step, if the mean loss is over tokens.
    tokens: Option<f64>,
}

impl MonitorReport {
    /// The numbers of `monitors`, for a model of `parameters` parameters.
    pub fn new(plan: &RunPlan, monitors: &Monitors, parameters: usize) -> Self {
        let watched =
            |norms: &Option<Norms>| norms.iter().flat_map(|norms| norms.watched.clone()).collect::<Vec<_>>();
        let config = plan.settings.monitor.clone();
        Self {
            formats: formats(&config),
            config,
            gradients: watched(&monitors.gradients),
            states: watched(&monitors.states),
            squares: plan.settings.wrapper.local_norm.then_some(parameters),
            losses: monitors.losses.clone(),
            logits: monitors.logits.clone(),
            tokens: plan.settings.wrapper.calculate_per_token_loss.then_some(plan.tokens_per_step as f64),
        }
    }

    /// The outputs to which each number goes.
    pub fn formats(&self) -> &MonitorFormats {
        &self.formats
    }

    /// The numbers of a step, in the order of the log; empty if none is due.
    pub fn values(&self, finished: &FinishedStep) -> Vec<MonitorValue> {
        if !self.config.monitor_on || !finished.step.is_multiple_of(self.config.step_interval) {
            return Vec::new();
        }
        let WatchedStep { states, losses, logits, .. } = &finished.watched;
        let of_losses = self.losses.iter().flat_map(|of| losses_of(&of.of_micro_batches(losses)));
        tagged(&self.gradients, self.gradient_norms(finished))
            .chain(of_losses)
            .chain(tagged(&self.states, states.iter().map(SquareSum::norm)))
            .chain(self.logits.iter().flat_map(|of| of.values(logits)))
            .collect()
    }

    /// The sum of squares of each parameter's gradients, if `runner_wrapper.local_norm` asks for them; 0 for a frozen
    /// parameter.
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

    /// The factor that turns the gradients in the arena into those of the step's mean loss.
    fn unscaling(&self, finished: &FinishedStep) -> f64 {
        let weight = self.tokens.zip(finished.watched.loss);
        let weight = weight.map_or(1.0, |(tokens, loss)| tokens / f64::from(loss.token_sum).max(1.0));
        weight / f64::from(finished.state.loss_scale)
    }
}

/// The losses of each micro-batch, and their mean.
fn losses_of(micro_batches: &[Losses]) -> Vec<MonitorValue> {
    let kinds = micro_batches.iter().take(1).flat_map(Losses::kinds).map(|(kind, _)| kind).enumerate();
    let of_kind = |(number, kind)| {
        let losses = micro_batches.iter().filter_map(move |of| of.kinds().nth(number));
        let losses: Vec<f64> = losses.map(|(_, loss)| loss).collect();
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        let lines = Numbers::Lines(losses.iter().map(|loss| *loss as f32).collect());
        let each = MonitorValue { tag: format!("micro_local_{kind}_loss"), numbers: lines };
        [each, MonitorValue::one(format!("local_{kind}_loss"), mean)]
    };
    kinds.flat_map(of_kind).collect()
}

fn formats(config: &Monitor) -> MonitorFormats {
    let mut formats = MonitorFormats::default();
    let tags = [
        ("local_norm", config.local_norm_format),
        ("adam_m_norm", config.optimizer_state_format),
        ("adam_v_norm", config.optimizer_state_format),
        ("momentum_norm", config.optimizer_state_format),
        ("weight_norm", config.weight_state_format),
        ("max_attention_logit", config.max_attention_logit_format),
    ];
    tags.into_iter().for_each(|(tag, of_tag)| formats.set(tag, of_tag));
    for kind in ["lm", "mtp", "aux"] {
        let Formats { log, tensorboard } = config.local_loss_format;
        formats.set(format!("micro_local_{kind}_loss"), Formats { log, tensorboard: false });
        formats.set(format!("local_{kind}_loss"), Formats { log: false, tensorboard });
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
