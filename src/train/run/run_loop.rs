//! The run loop: its steps, the decisions after each, its checkpoints and its end.
//!
//! All ranks make the same decisions after the same step: from results that have arrived on all of them, from what the
//! first rank found, or from whether all succeeded.

use super::data_watch::DataWatch;
use crate::data::LoadedData;
use crate::error::Result;
use crate::perf::profile::Profiling;
use crate::ranks::Ranks;
use crate::ranks::rank_status::{Flag, RankStatus, RunStatus, StatusExchange};
use crate::settings::{RunPlan, Sample};
use crate::store::checkpoint_folder::{Best, CheckpointFolder};
use crate::store::trainer_state::TrainerState;
use crate::train::announce::Summary;
use crate::train::clocks::{SaveClock, StepClock, TimedStep};
use crate::train::evaluation::Evaluation;
use crate::train::health::Health;
use crate::train::reporter::{Losses, Reporter};
use crate::train::sample::{sample, sample_saved};
use crate::train::step_results::FinishedEvaluation;
use crate::train::trainer::Trainer;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A run under way.
pub(super) struct RunLoop<'a> {
    pub plan: &'a RunPlan,
    pub ranks: Ranks,
    pub total_steps: u64,
    pub data: &'a LoadedData,
    pub data_watch: DataWatch<'a>,
    pub evaluation: Option<Evaluation<'a>>,
    pub checkpoints: CheckpointFolder,
    pub reporter: Reporter<'a>,
    pub results: Results,
    pub status: StatusExchange,
    pub save_clock: SaveClock,
    pub interrupt: Arc<AtomicBool>,
    pub is_interrupted: bool,
    /// Whether evaluations have not improved for so long that the run ends.
    pub is_stopped: bool,
    pub profiling: Profiling,
    pub health: Health,
    /// Whether a checkpoint is to be written. None is written while steps fail, since it might replace the last good
    /// one.
    pub is_save_due: bool,
    /// The step of the newest checkpoint.
    pub saved: Option<u64>,
    /// The host's counters, as the next checkpoint will save them.
    pub state: TrainerState,
}

/// Results that have arrived on this rank, but perhaps not yet on all.
pub(super) struct Results {
    clock: StepClock,
    steps: VecDeque<TimedStep>,
    evaluations: Vec<FinishedEvaluation>,
    report: RankStatus,
}

impl Results {
    pub fn new() -> Self {
        let report = RankStatus::default();
        Self { clock: StepClock::start(), steps: VecDeque::new(), evaluations: Vec::new(), report }
    }
}

impl RunLoop<'_> {
    /// Evaluates before the first step, if the run does so, and waits for the result: until then an interrupt has
    /// nothing to save.
    ///
    /// # Errors
    /// As for the whole run.
    pub async fn evaluate_on_start(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        let is_first = self.state.step == 0;
        let Some(evaluation) = self.evaluation.filter(|evaluation| evaluation.on_start && is_first) else {
            return Ok(());
        };
        let Evaluation { data, batches, .. } = evaluation;
        trainer.evaluate(0, data, batches, |trainer| self.collect(trainer)).await?;
        self.drain(trainer).await
    }

    /// Trains to the last step, or until a rank is interrupted.
    ///
    /// # Errors
    /// As for the whole run.
    pub async fn train(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        let checkpoint = self.plan.settings.callbacks.checkpoint.as_ref();
        self.data_watch.look(&mut self.state);
        while self.state.step < self.total_steps && !self.is_interrupted && !self.is_stopped {
            // The state counts the micro-batches of all ranks, the trainer those of this one.
            let first_micro_step = self.state.micro_step / self.plan.layout.data as u64;
            let next = self.state.step + 1;
            self.profiling.step(trainer, next, &self.data.train, first_micro_step).await?;
            self.state.step += 1;
            self.state.micro_step += self.plan.micro_batches_per_step() as u64;
            let step = self.state.step;
            if let Some(evaluation) = self.evaluation.filter(|evaluation| evaluation.is_due_after(step)) {
                let Evaluation { data, batches, .. } = evaluation;
                trainer.evaluate(step, data, batches, |trainer| self.collect(trainer)).await?;
                if self.plan.settings.run.judges_evaluations() {
                    self.judge(trainer, step).await?;
                }
            }
            self.collect(trainer)?;
            let mut report = self.report();
            report.raise_if(Flag::SaveDue, self.save_clock.is_due(Instant::now()));
            let status = self.status.after_step(report).await?;
            self.act_on(trainer, &status).await?;
            self.is_save_due |=
                checkpoint.is_some_and(|config| step.is_multiple_of(config.save_checkpoint_steps));
            self.is_save_due &= self.saved != Some(step);
            if self.is_save_due && !self.health.is_failing() {
                self.save_unless_failing(trainer).await?;
            }
        }
        match self.status.last().await? {
            Some(status) => self.act_on(trainer, &status).await,
            None => Ok(()),
        }
    }

    /// Reports the last results, saves the last checkpoint, writes the sample.
    ///
    /// # Errors
    /// As for the whole run.
    pub async fn finish(mut self, trainer: &mut Trainer<'_>) -> Result<Summary> {
        self.drain(trainer).await?;
        self.profiling.finish(self.state.step);
        // An interrupt in the last step ends nothing.
        self.is_interrupted &= self.state.step < self.total_steps && !self.is_stopped;
        if !self.is_interrupted {
            self.health.check_end(|| self.saved)?;
        }
        // An interrupted run is always saved: otherwise its work would be lost.
        let wants_checkpoint = self.plan.settings.run.save_final || self.is_interrupted;
        if wants_checkpoint && self.saved != Some(self.state.step) && !self.health.is_lost() {
            self.save(trainer).await?;
        }
        let Losses { train: loss, eval: eval_loss, start } = self.reporter.finish();
        let (steps, is_interrupted) = (self.state.step, self.is_interrupted);
        let checkpoint =
            self.saved.filter(|saved| *saved == steps).map(|step| self.checkpoints.path_of(step));
        let best = self.state.best.filter(|_| self.plan.settings.run.judges_evaluations());
        let mut summary = Summary {
            steps,
            loss,
            eval_loss,
            start_eval_loss: start,
            best,
            is_interrupted,
            is_stopped: self.is_stopped,
            checkpoint,
            sample: None,
        };
        if let Some(config) = self.plan.settings.sample.as_ref().filter(|_| !is_interrupted) {
            trainer.refresh_copies().await?; // ranks may have to exchange for this
            let text = match self.ranks.is_first() {
                true => {
                    write_sample(trainer, config, self.plan, self.data, summary.checkpoint.as_deref()).await
                }
                false => Ok(None),
            };
            // The other ranks wait for the sample, so that all end alike.
            summary.sample = self.ranks.agree(text).await?;
        }
        Ok(summary)
    }

    /// Waits for the evaluation after `step`, saves the weights if it is the best so far and the best are kept, and
    /// decides whether the run ends because evaluations stopped improving. All ranks decide by the loss of the first
    /// rank.
    async fn judge(&mut self, trainer: &mut Trainer<'_>, step: u64) -> Result<()> {
        self.drain(trainer).await?;
        let run = &self.plan.settings.run;
        let loss: Option<f32> = self.ranks.by_first(|| Ok(self.reporter.losses.eval)).await?;
        let gain = match (loss.filter(|loss| loss.is_finite()), self.state.best) {
            (Some(loss), Some(best)) => f64::from(best.eval_loss) - f64::from(loss),
            (Some(_), None) => f64::INFINITY,
            (None, _) => f64::NEG_INFINITY,
        };
        self.state.evaluations_since =
            if gain > run.min_delta { 0 } else { self.state.evaluations_since + 1 };
        self.is_stopped = run.stops_after(self.state.evaluations_since);
        let best = loss.filter(|_| gain > 0.0 && !self.health.is_failing());
        let Some(best) = best.map(|eval_loss| Best { step, eval_loss }) else { return Ok(()) };
        self.state.best = Some(best);
        if run.keep_best {
            self.save(trainer).await?;
            self.ranks.by_first(|| self.checkpoints.note_best(best)).await?;
        }
        Ok(())
    }

    /// Takes in the results that have arrived, without waiting. Several ranks act on results once they have arrived on
    /// all of them.
    fn collect(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        let (steps, evaluations) = (trainer.finished_steps()?, trainer.finished_evaluations()?);
        let Results { clock, report, .. } = &mut self.results;
        let steps = clock.time(steps, &evaluations);
        steps.iter().for_each(|timed| report.add(timed.finished.step, timed.step_ms));
        self.results.steps.extend(steps);
        self.results.evaluations.extend(evaluations);
        let report = self.report();
        match self.ranks.size() {
            1 => self.take_in(&RunStatus::of_one(report)),
            _ => Ok(()),
        }
    }

    /// The status that this rank reports to the others.
    fn report(&mut self) -> RankStatus {
        self.data_watch.look(&mut self.state);
        let mut report = self.results.report;
        report.data_hash = self.data_watch.hash().unwrap_or(0);
        report.raise_if(Flag::Interrupted, self.interrupt.load(Ordering::Relaxed));
        report.raise_if(Flag::DataFault, self.data_watch.fault().is_some());
        report.raise_if(Flag::OtherData, self.data_watch.has_changed());
        report
    }

    /// Acts on what all ranks have reported.
    async fn act_on(&mut self, trainer: &mut Trainer<'_>, status: &RunStatus) -> Result<()> {
        self.take_in(status)?;
        self.refuse_other_data(status).await?;
        self.is_interrupted |= status.all.has(Flag::Interrupted);
        self.is_save_due |= status.all.has(Flag::SaveDue);
        if status.all.has(Flag::DataFault) {
            // As after an interrupt: the work so far is good.
            self.save_unless_failing(trainer).await?;
            let fault = self.data_watch.fault().cloned();
            self.ranks.agree(fault.map_or(Ok(()), Err)).await?;
        }
        Ok(())
    }

    /// Ends the run if the data turn out to differ on any rank. Nothing is saved: that would continue a checkpoint of
    /// other data.
    async fn refuse_other_data(&self, status: &RunStatus) -> Result<()> {
        match status.all.has(Flag::OtherData) {
            true => self.ranks.agree(self.data_watch.check_same(status.all.data_hash())).await,
            false => Ok(()),
        }
    }

    /// Reports the steps that have arrived on all ranks, and fails if the run makes no progress.
    fn take_in(&mut self, status: &RunStatus) -> Result<()> {
        let has_arrived = |timed: &TimedStep| timed.finished.step <= status.all.arrived;
        let count = self.results.steps.iter().take_while(|timed| has_arrived(timed)).count();
        let steps: Vec<TimedStep> = self.results.steps.drain(..count).collect();
        let evaluations: Vec<FinishedEvaluation> = self
            .results
            .evaluations
            .extract_if(.., |evaluation| evaluation.tag <= status.all.arrived)
            .collect();
        if let Some(TimedStep { finished: last, .. }) = steps.last() {
            self.state.global_step = last.state.global_step as u64;
            if let Some(scaler) = last.scaler {
                self.state.loss_scale = scaler.loss_scale.into();
                self.state.scaler = Some(scaler);
            }
        }
        steps.iter().for_each(|timed| self.health.note(&timed.finished));
        self.reporter.take_in(steps, &evaluations, |step| status.step_ms(step));
        self.health.check(|| self.saved)
    }

    /// Waits until everything submitted has finished on all ranks and is reported.
    async fn drain(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        let arrived = match trainer.wait().await {
            Ok(()) => self.collect(trainer),
            failed => failed,
        };
        let report = self.report();
        let status = self.status.now(report).await?;
        let drained = arrived.and_then(|()| self.take_in(&status));
        self.ranks.agree(drained).await?;
        self.refuse_other_data(&status).await
    }

    /// Saves, unless the last step turns out to have failed: then a later step saves.
    async fn save_unless_failing(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        self.drain(trainer).await?;
        if self.health.is_failing() { Ok(()) } else { self.save(trainer).await }
    }

    /// Saves a checkpoint; everything submitted has been [drained](Self::drain).
    async fn save(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        self.is_save_due = false;
        trainer.check_replicas(self.state.step, self.saved).await?;
        trainer.save_on_ranks(&self.state, &self.checkpoints).await?;
        tracing::debug!("saved the checkpoint of step {}", self.state.step);
        self.saved = Some(self.state.step);
        self.results.clock.skip_pause();
        Ok(())
    }
}

/// The sample, written by the first rank. The parts of the model that it does not hold are in the checkpoint of the
/// last step. If the sample fails, the run is complete all the same.
async fn write_sample(
    trainer: &mut Trainer<'_>,
    config: &Sample,
    plan: &RunPlan,
    data: &LoadedData,
    checkpoint: Option<&Path>,
) -> Result<Option<String>> {
    if trainer.recordings().sample.is_some() {
        return sample(trainer, config, &data.codec, plan.settings.run.seed).await.map(Some);
    }
    let Some(weights) = checkpoint else {
        tracing::info!("no sample, since no rank has all weights and those of the last step were not saved");
        return Ok(None);
    };
    let text = sample_saved(trainer, config, plan, &data.codec, weights).await;
    Ok(text.inspect_err(|error| tracing::warn!("no sample, since no rank has all weights: {error}")).ok())
}
