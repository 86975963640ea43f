//! Reports the steps of a run in order, each when its results have arrived, including those of its evaluation.

use super::evaluation::Evaluation;
use super::finished::{FinishedEvaluation, FinishedStep};
use super::monitors::Board;
use super::step_clock::TimedStep;
use crate::error::Result;
use crate::ops::step_state::SKIPPED;
use crate::report::expert_load::MixtureReport;
use crate::report::instruments::ExpertInstruments;
use crate::report::loss_monitor::{local_norm_lines, skip_line};
use crate::report::metrics::{MetricsWriter, StepMetrics};
use crate::report::monitors::{MonitorValue, monitor_lines, singles};
use crate::report::progress::Progress;
use std::collections::VecDeque;

/// Turns finished steps into log lines, metrics and files, on the first rank. The others only keep the losses.
pub(super) struct Reporter<'a> {
    pub outlets: Option<Outlets>,
    pub evaluation: Option<Evaluation<'a>>,
    pub tokens_per_step: usize,
    /// Steps with this gradient norm or more are skipped, if there is such a bound.
    pub spike_norm: Option<f64>,
    /// Path and number of elements of each parameter.
    pub parameters: Vec<(String, usize)>,
    /// Device memory of each rank in MiB, if the metrics of every rank are asked for.
    pub memory_by_rank: Option<Vec<f32>>,
    /// Makes the numbers of `monitor_config`.
    pub board: Board,
    /// Steps that wait for the loss of their evaluation.
    pub waiting: VecDeque<Measured>,
    pub losses: Losses,
}

/// What is known of a step.
pub(super) struct Measured {
    pub metrics: StepMetrics,
    /// The load of its experts.
    pub mixture: Option<MixtureReport>,
    /// The numbers of `monitor_config`.
    pub watched: Vec<MonitorValue>,
}

/// Where reports go.
pub(super) struct Outlets {
    pub metrics: MetricsWriter,
    pub progress: Progress,
    pub instruments: Option<ExpertInstruments>,
}

/// The losses at the end of a run, in nats per token.
#[derive(Clone, Copy, Default)]
pub(super) struct Losses {
    /// Of the last step.
    pub train: f32,
    /// Of the last evaluation.
    pub eval: Option<f32>,
}

impl Reporter<'_> {
    /// Takes in results that have arrived and reports the steps that are complete. `by_rank` says how many milliseconds a step
    /// took on each rank.
    ///
    /// # Errors
    /// The metrics or a file about experts cannot be written.
    pub fn take_in(
        &mut self,
        steps: Vec<TimedStep>,
        evaluations: &[FinishedEvaluation],
        by_rank: impl Fn(u64) -> Vec<f32>,
    ) -> Result<()> {
        for timed in steps {
            let mut metrics = self.measure(&timed);
            if self.memory_by_rank.is_some() {
                metrics.rank_step_ms = Some(by_rank(metrics.step));
                metrics.rank_memory_mib = self.memory_by_rank.clone();
            }
            let watched = self.board.values(&timed.finished, timed.step_ms);
            metrics.monitor = singles(&watched);
            self.waiting.push_back(Measured { metrics, mixture: timed.finished.mixture, watched });
        }
        for &FinishedEvaluation { tag: step, loss, .. } in evaluations {
            let of_step = self.waiting.iter_mut().filter(|measured| measured.metrics.step == step);
            of_step.for_each(|measured| measured.metrics.eval_loss = Some(loss));
            self.losses.eval = Some(loss);
        }
        while self.waiting.front().is_some_and(|measured| self.is_complete(&measured.metrics)) {
            let Some(measured) = self.waiting.pop_front() else { break };
            self.report(&measured)?;
        }
        Ok(())
    }

    /// Ends the progress bar and returns the last losses.
    pub fn finish(self) -> Losses {
        self.outlets.into_iter().for_each(|outlets| outlets.progress.finish());
        self.losses
    }

    fn measure(&self, TimedStep { finished, step_ms }: &TimedStep) -> StepMetrics {
        let &FinishedStep { step, state, .. } = finished;
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
            step_ms: *step_ms,
            mtp_loss: finished.ahead_loss,
            ..StepMetrics::default()
        };
        let instruments = self.outlets.as_ref().and_then(|outlets| outlets.instruments.as_ref());
        if let (Some(instruments), Some(report)) = (instruments, &finished.mixture) {
            instruments.measure(report, &mut metrics);
        }
        metrics
    }

    fn is_complete(&self, metrics: &StepMetrics) -> bool {
        let is_evaluated = self.evaluation.is_some_and(|evaluation| evaluation.is_due_after(metrics.step));
        metrics.eval_loss.is_some() || !is_evaluated
    }

    fn report(&mut self, measured: &Measured) -> Result<()> {
        let Measured { metrics, mixture, watched } = measured;
        let losses = Losses { train: metrics.loss, ..self.losses };
        if let Some(outlets) = &mut self.outlets {
            outlets.progress.step(metrics);
            if let Some(norms) = &metrics.local_norm {
                tracing::info!("{}", local_norm_lines(&self.parameters, norms));
            }
            if let (Some(bound), Some(is_skip)) = (self.spike_norm, metrics.is_skip) {
                tracing::info!("{}", skip_line(metrics.global_step, bound, is_skip));
            }
            let place = outlets.progress.place(metrics.step);
            let logged = watched.iter().filter(|value| self.board.formats().of(&value.tag).to_log);
            logged.flat_map(|value| monitor_lines(&place, value)).for_each(|line| tracing::info!("{line}"));
            if let (Some(instruments), Some(report)) = (&outlets.instruments, mixture) {
                instruments.show(report, metrics.step)?;
            }
            outlets.metrics.write(metrics)?;
        }
        self.losses = losses;
        Ok(())
    }
}
