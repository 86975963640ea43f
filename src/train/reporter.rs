//! Reports the steps of a run in order, each when its results have arrived, including those of its evaluation.

use super::evaluation::Evaluation;
use super::finished::{FinishedEvaluation, FinishedStep};
use crate::error::Result;
use crate::ops::step_state::SKIPPED;
use crate::report::expert_load::MixtureReport;
use crate::report::instruments::ExpertInstruments;
use crate::report::loss_monitor::{local_norm_lines, skip_line};
use crate::report::metrics::{MetricsWriter, StepMetrics};
use crate::report::progress::Progress;
use std::collections::VecDeque;
use std::time::Instant;

/// Turns finished steps into log lines, metrics and files.
pub(super) struct Reporter<'a> {
    metrics: MetricsWriter,
    progress: Progress,
    instruments: Option<ExpertInstruments>,
    evaluation: Option<Evaluation<'a>>,
    tokens_per_step: usize,
    /// Steps with this gradient norm or more are skipped, if there is such a bound.
    spike_norm: Option<f64>,
    /// Path and number of elements of each parameter.
    parameters: Vec<(String, usize)>,
    /// Steps that wait for the loss of their evaluation, and the load of their experts.
    waiting: VecDeque<(StepMetrics, Option<MixtureReport>)>,
    /// When the device finished the last step or evaluation: the next step's time starts here.
    last_arrival: Instant,
    losses: Losses,
}

/// The losses at the end of a run, in nats per token.
#[derive(Clone, Copy, Default)]
pub(super) struct Losses {
    /// Of the last step.
    pub train: f32,
    /// Of the last evaluation.
    pub eval: Option<f32>,
}

impl<'a> Reporter<'a> {
    /// Starts the clock of the first step.
    pub fn new(
        metrics: MetricsWriter,
        progress: Progress,
        instruments: Option<ExpertInstruments>,
        evaluation: Option<Evaluation<'a>>,
        tokens_per_step: usize,
        spike_norm: Option<f64>,
        parameters: Vec<(String, usize)>,
    ) -> Self {
        Self {
            metrics,
            progress,
            instruments,
            evaluation,
            tokens_per_step,
            spike_norm,
            parameters,
            waiting: VecDeque::new(),
            last_arrival: Instant::now(),
            losses: Losses::default(),
        }
    }

    /// Takes in results that have arrived and reports the steps that are complete.
    ///
    /// # Errors
    /// The metrics or a file about experts cannot be written.
    pub fn take_in(&mut self, steps: Vec<FinishedStep>, evaluations: &[FinishedEvaluation]) -> Result<()> {
        for step in steps {
            let metrics = self.measure(&step, evaluations);
            self.waiting.push_back((metrics, step.mixture));
        }
        for &FinishedEvaluation { tag: step, loss, at } in evaluations {
            self.last_arrival = self.last_arrival.max(at);
            let of_step = self.waiting.iter_mut().filter(|(metrics, _)| metrics.step == step);
            of_step.for_each(|(metrics, _)| metrics.eval_loss = Some(loss));
            self.losses.eval = Some(loss);
        }
        while self.waiting.front().is_some_and(|(metrics, _)| self.is_complete(metrics)) {
            let Some((metrics, mixture)) = self.waiting.pop_front() else { break };
            self.report(&metrics, mixture.as_ref())?;
        }
        Ok(())
    }

    /// Excludes the time since the last arrival from the next step's: the run was saving.
    pub fn skip_pause(&mut self) {
        self.last_arrival = Instant::now();
    }

    /// Ends the progress bar and returns the last losses.
    pub fn finish(self) -> Losses {
        self.progress.finish();
        self.losses
    }

    /// The metrics of a step, whose time ends with its arrival. `evaluations` are those that arrived with it.
    fn measure(&mut self, finished: &FinishedStep, evaluations: &[FinishedEvaluation]) -> StepMetrics {
        let &FinishedStep { step, state, at, .. } = finished;
        // The device did nothing else since the last step, or since the evaluation that followed it.
        let evaluated = evaluations.iter().filter(|evaluation| evaluation.tag < step).map(|e| e.at).max();
        let start = self.last_arrival.max(evaluated.unwrap_or(self.last_arrival));
        let step_ms = 1e3 * at.saturating_duration_since(start).as_secs_f64().max(1e-6);
        self.last_arrival = at;
        let mut metrics = StepMetrics {
            step,
            global_step: state.global_step as u64,
            loss: state.loss,
            lr: state.learning_rate,
            global_norm: state.grad_norm,
            loss_scale: state.loss_scale as f64,
            overflow: state.is_overflow != 0,
            local_norm: finished.local_norms.clone(),
            is_skip: self.spike_norm.map(|_| state.halt == SKIPPED),
            tokens_per_second: self.tokens_per_step as f64 * 1e3 / step_ms,
            step_ms,
            mtp_loss: finished.ahead_loss,
            ..StepMetrics::default()
        };
        if let (Some(instruments), Some(report)) = (&self.instruments, &finished.mixture) {
            instruments.measure(report, &mut metrics);
        }
        metrics
    }

    fn is_complete(&self, metrics: &StepMetrics) -> bool {
        let is_evaluated = self.evaluation.is_some_and(|evaluation| evaluation.is_due_after(metrics.step));
        metrics.eval_loss.is_some() || !is_evaluated
    }

    fn report(&mut self, metrics: &StepMetrics, mixture: Option<&MixtureReport>) -> Result<()> {
        self.progress.step(metrics);
        if let Some(norms) = &metrics.local_norm {
            tracing::info!("{}", local_norm_lines(&self.parameters, norms));
        }
        if let (Some(bound), Some(is_skip)) = (self.spike_norm, metrics.is_skip) {
            tracing::info!("{}", skip_line(metrics.global_step, bound, is_skip));
        }
        if let (Some(instruments), Some(report)) = (&self.instruments, mixture) {
            instruments.show(report, metrics.step)?;
        }
        self.metrics.write(metrics)?;
        self.losses.train = metrics.loss;
        Ok(())
    }
}
