//! Reports the steps of a run in order, each when its results have arrived, including those of its evaluation.

use super::clocks::TimedStep;
use super::evaluation::Evaluation;
use super::monitors::MonitorReport;
use crate::data::Batches;
use crate::ops::step_state::SKIPPED;
use crate::report::expert_load::LayerLoad;
use crate::report::experts::ExpertMetrics;
use crate::report::instrument::{Instruments, StepReport};
use crate::report::metrics::MonitorValue;
use crate::report::metrics::singles;
use crate::report::metrics::{StartMetrics, StepMetrics};
use crate::settings::Metrics;
use crate::train::step_results::{FinishedEvaluation, FinishedStep};
use std::collections::VecDeque;

/// Turns finished steps into metrics and hands them to the instruments.
pub(super) struct Reporter<'a> {
    /// The instruments that show the metrics. Only the first rank has any.
    pub instruments: Instruments,
    /// Which numbers about experts a step has, for a mixture.
    pub experts: Option<ExpertMetrics>,
    pub evaluation: Option<Evaluation<'a>>,
    /// The training data.
    pub train: &'a Batches,
    /// Tokens that a step computes, padding included.
    pub tokens_per_step: usize,
    /// The metric that an evaluation reports in addition to the loss.
    pub metric: Metrics,
    /// Whether steps are skipped for their gradient norm.
    pub skips_spikes: bool,
    /// Device memory of this rank in MiB.
    pub device_memory_mib: f32,
    /// Device memory of each rank in MiB, if the metrics of every rank are asked for.
    pub memory_by_rank: Option<Vec<f32>>,
    /// Computes the numbers of `monitor_config`.
    pub board: MonitorReport,
    /// The hot experts of each layer in the next step, if the model has hot experts.
    pub hot_experts: Option<Vec<Vec<u32>>>,
    /// The list of windows of a loss scale that has several.
    pub scale_windows: Option<Vec<u32>>,
    /// Steps that wait for the loss of their evaluation.
    pub waiting: VecDeque<Measured>,
    pub losses: Losses,
}

/// The results of a step.
pub(super) struct Measured {
    pub metrics: StepMetrics,
    /// The load of each layer with experts.
    pub loads: Option<Vec<LayerLoad>>,
    /// The numbers of `monitor_config`.
    pub watched: Vec<MonitorValue>,
}

/// The losses at the end of a run, in nats per token.
#[derive(Clone, Copy, Default)]
pub(super) struct Losses {
    /// Loss of the last step.
    pub train: Option<f32>,
    /// Loss of the last evaluation.
    pub eval: Option<f32>,
    /// Loss of the evaluation before the first step, if this process made it.
    pub start: Option<f32>,
}

impl Reporter<'_> {
    /// Takes in results that have arrived and reports the steps that are complete. `by_rank` gives the milliseconds
    /// that a step took on each rank.
    pub fn take_in(
        &mut self,
        steps: Vec<TimedStep>,
        evaluations: &[FinishedEvaluation],
        by_rank: impl Fn(u64) -> Vec<f32>,
    ) {
        for timed in steps {
            let mut metrics = self.measure(&timed);
            // The experts chosen after a step are those of the next step.
            metrics.hot_experts =
                timed.finished.hot_experts.clone().and_then(|next| self.hot_experts.replace(next));
            if self.memory_by_rank.is_some() {
                metrics.rank_step_ms = Some(by_rank(metrics.step));
                metrics.rank_memory_mib = self.memory_by_rank.clone();
            }
            let watched = self.board.values(&timed.finished);
            metrics.monitor = singles(&watched);
            self.waiting.push_back(Measured { metrics, loads: timed.finished.loads, watched });
        }
        for &FinishedEvaluation { tag: step, loss, accuracy, preference, .. } in evaluations {
            let eval_rewards_margin = preference.map(|mean| mean.chosen_reward - mean.rejected_reward);
            let eval_rewards_accuracy = preference.map(|mean| mean.accurate);
            let perplexity = self.metric.perplexity.then(|| loss.exp());
            if step == 0 {
                self.losses.start = Some(loss);
                let (eval_loss, eval_perplexity, eval_accuracy) = (loss, perplexity, accuracy);
                self.instruments.start(&StartMetrics {
                    step,
                    eval_loss,
                    eval_perplexity,
                    eval_accuracy,
                    eval_rewards_margin,
                    eval_rewards_accuracy,
                });
            }
            let of_step = self.waiting.iter_mut().map(|measured| &mut measured.metrics);
            of_step.filter(|metrics| metrics.step == step).for_each(|metrics| {
                metrics.eval_loss = Some(loss);
                metrics.eval_perplexity = perplexity;
                metrics.eval_accuracy = accuracy;
                metrics.eval_rewards_margin = eval_rewards_margin;
                metrics.eval_rewards_accuracy = eval_rewards_accuracy;
            });
            self.losses.eval = Some(loss);
        }
        while self.waiting.front().is_some_and(|measured| self.is_complete(&measured.metrics)) {
            let Some(Measured { metrics, loads, watched }) = self.waiting.pop_front() else { break };
            self.losses.train = Some(metrics.loss);
            let report = StepReport { metrics: &metrics, loads: loads.as_deref(), watched: &watched };
            self.instruments.step(&report);
        }
    }

    /// Ends the instruments and returns the last losses.
    pub fn finish(mut self) -> Losses {
        self.instruments.finish();
        self.losses
    }

    fn measure(&self, TimedStep { finished, step_ms }: &TimedStep) -> StepMetrics {
        let &FinishedStep { step, state, .. } = finished;
        let rate = |tokens: u64| tokens as f64 * 1e3 / step_ms;
        let (computed, tokens) = (self.tokens_per_step as u64, self.train.tokens_of_step(step));
        let mut metrics = StepMetrics {
            step,
            global_step: state.global_step as u64,
            loss: state.loss,
            lr: state.learning_rate,
            global_norm: state.grad_norm,
            loss_scale: state.loss_scale as f64,
            overflow: state.is_overflow != 0,
            local_norm: self.board.squares(finished),
            is_skip: self.skips_spikes.then_some(state.halt == SKIPPED),
            tokens_per_second: rate(tokens),
            computed_tokens_per_second: (tokens < computed).then(|| rate(computed)),
            step_ms: *step_ms,
            mtp_loss: finished.ahead_loss,
            rewards_chosen: finished.preference.map(|mean| mean.chosen_reward),
            rewards_rejected: finished.preference.map(|mean| mean.rejected_reward),
            rewards_margin: finished.preference.map(|mean| mean.chosen_reward - mean.rejected_reward),
            rewards_accuracy: finished.preference.map(|mean| mean.accurate),
            logps_chosen: finished.preference.map(|mean| mean.chosen_log_prob),
            logps_rejected: finished.preference.map(|mean| mean.rejected_log_prob),
            device_memory_mib: Some(self.device_memory_mib),
            host_memory_mib: host_memory_mib(),
            ..StepMetrics::default()
        };
        if let (Some(experts), Some(loads)) = (self.experts, &finished.loads) {
            experts.measure(loads, self.hot_experts.as_deref(), &mut metrics);
        }
        if let (Some(scaler), Some(windows)) = (finished.scaler, &self.scale_windows) {
            metrics.loss_scale_windows = (step == 1).then(|| windows.clone());
            metrics.loss_scale_window = Some(scaler.window);
            metrics.loss_scale_increases = Some(scaler.increases);
            metrics.loss_scale_decreases = Some(scaler.decreases);
        }
        metrics
    }

    fn is_complete(&self, metrics: &StepMetrics) -> bool {
        let is_evaluated = self.evaluation.is_some_and(|evaluation| evaluation.is_due_after(metrics.step));
        metrics.eval_loss.is_some() || !is_evaluated
    }
}

/// Memory of this process in MiB, where the system says it.
fn host_memory_mib() -> Option<f32> {
    memory_stats::memory_stats().map(|memory| memory.physical_mem as f32 / 1048576.0)
}
