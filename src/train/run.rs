//! A whole training run: from a configuration file to a trained model in its run folder.

use super::announce::{announce, announce_entropy};
use super::evaluation::Evaluation;
use super::health::Health;
use super::instruments::expert_instruments;
use super::length::RunLength;
use super::peak::Peak;
use super::reporter::{Losses, Reporter};
use super::resume::{fresh_state, in_file, restore, start_of};
use super::sample::{check_sample, sample};
use super::trainer::Trainer;
use crate::data::{BackgroundCheck, Dataset};
use crate::device::{Gpu, GpuOptions};
use crate::error::{Error, Result};
use crate::model::count;
use crate::ranks::Ranks;
use crate::report::instruments::ExpertInstruments;
use crate::report::log::Log;
use crate::report::metrics::MetricsWriter;
use crate::report::progress::{Progress, ProgressPlan};
use crate::settings::{Context, Override, Pet, RunConfig, RunPlan};
use crate::store::checkpoint_folder::CheckpointFolder;
use crate::store::run_folder::{RunFolder, Start};
use crate::store::trainer_state::TrainerState;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a finished run reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Steps done in all, including those before a resume.
    pub steps: u64,
    /// Mean loss of the last step in nats per token.
    pub loss: f32,
    /// The last evaluation's loss in nats per token.
    pub eval_loss: Option<f32>,
    /// The sample, if one was asked for.
    pub sample: Option<String>,
    /// Whether an interrupt ended the run early.
    pub is_interrupted: bool,
}

/// Trains as configured in the file at `config`, with `overrides` (`--a.b.c=value`) applied. Once `interrupt` is set,
/// finishes the step, saves a checkpoint and ends.
///
/// # Errors
/// One line that names the culprit and the remedy: configuration, data, adapter, run folder, disk; steps whose gradients or
/// losses are not finite, 20 in a row or at the end, or whose norm spikes, while checkpoints from before them are kept.
pub async fn run(config: &Path, overrides: &[String], interrupt: Arc<AtomicBool>) -> Result<Summary> {
    run_on_ranks(config, overrides, interrupt, Ranks::alone()).await
}

/// The same as one of the ranks of a run. All of them call it with the same file and overrides.
///
/// # Errors
/// Those of [`run`], and a rank that has ended.
pub async fn run_on_ranks(
    config: &Path,
    overrides: &[String],
    interrupt: Arc<AtomicBool>,
    ranks: Ranks,
) -> Result<Summary> {
    // Whatever can fail early fails before the run folder exists, which would refuse the next start.
    let log = Log::start();
    let config = RunConfig::load(config, &Override::parse_all(overrides)?)?;
    if ranks.size() > 1 {
        return Err(Error::Plan("several ranks are not built yet; start a single one".into()));
    }
    let (plan, settings) = (&config.plan, &config.plan.settings);
    let data = plan.load_data()?;
    if let Some(sample) = &settings.sample {
        check_sample(sample, plan.has_text(), &data.codec, plan.model.vocab_size)?;
    }
    let length = RunLength::new(plan, data.train.steps_per_epoch());
    let gpu = open_device(plan, ranks.local_rank()).await?;
    let peak = Peak::of(&gpu).await?; // before the trainer, so that a probe's tensors do not lie beside it
    let mut trainer = Trainer::new(&gpu, plan, &length).await?;
    let trained = train_on(&mut trainer, &config, &data, &length, &log, peak, interrupt).await;
    trained.map_err(|error| trainer.explain(error))
}

/// Opens the device that `plan` asks for, on the rank `local_rank` of this machine.
pub(super) async fn open_device(plan: &RunPlan, local_rank: usize) -> Result<Gpu> {
    let Context { device_name, device_id, tier, .. } = plan.settings.context.clone();
    let options = GpuOptions { device_name, device_id, local_rank, tier, ..GpuOptions::default() };
    open_device_with(&options, plan).await
}

/// Opens a device for what `plan` stores: f16 is tried natively unless the plan says otherwise.
///
/// # Errors
/// Those of [`Gpu::request`].
pub async fn open_device_with(options: &GpuOptions, plan: &RunPlan) -> Result<Gpu> {
    let mut gpu = Gpu::request(options).await?;
    if plan.tries_native_f16() {
        gpu.try_native_f16().await;
    }
    Ok(gpu)
}

/// The run on a trainer before its first step, from its folder to its summary.
async fn train_on(
    trainer: &mut Trainer<'_>,
    config: &RunConfig,
    data: &Dataset,
    length: &RunLength,
    log: &Log,
    peak: Peak,
    interrupt: Arc<AtomicBool>,
) -> Result<Summary> {
    let (plan, settings) = (&config.plan, &config.plan.settings);
    let start = start_of(&settings.run)?;
    if start != Start::Resume {
        settings.run.weights().map_or(Ok(()), |path| trainer.load_weights(path))?;
        let adapter = settings.model.pet_config.as_ref().and_then(Pet::adapter);
        adapter.map_or(Ok(()), |path| trainer.load_adapters(path))?;
    }
    let instruments = expert_instruments(&plan.model, settings);
    instruments.iter().try_for_each(ExpertInstruments::prepare)?;

    let folder = RunFolder::create(&settings.run.folder(), &plan.to_yaml(), start)?;
    let resume = &settings.run.resume_training;
    let state = restore(trainer, &folder, resume, fresh_state(plan, length, &data.train))?;
    log.attach(&folder.log_path())?;
    config.notices.iter().chain(&data.summary).for_each(|notice| tracing::info!("{notice}"));
    announce(trainer, plan.tokens_per_step, peak);
    let eval = data.eval.as_ref();
    let evaluation = eval.and_then(|data| Evaluation::new(&settings.run, data, length.total_steps));
    if let Some(evaluation) = evaluation {
        announce_entropy(evaluation.data, evaluation.batches);
    }

    let metrics = MetricsWriter::open(&folder.metrics_path())?;
    let progress = Progress::new(progress_plan(plan, length, state.step, peak), log);
    let checkpoint = settings.callbacks.checkpoint.as_ref();
    let mut run = Run {
        reporter: Reporter::new(
            metrics,
            progress,
            instruments,
            evaluation,
            plan.tokens_per_step,
            settings.wrapper.spike_norm(),
            trainer.recordings().layout.sizes(),
        ),
        checkpoints: folder.checkpoints(checkpoint.map_or(0, |config| config.keep_checkpoint_max as usize)),
        is_interrupted: false,
        health: Health::new(settings.monitor.global_norm_spike_count_threshold),
        is_save_due: false,
        plan,
        total_steps: length.total_steps,
        data,
        data_check: data.check_in_background(),
        evaluation,
        interrupt,
        state,
    };
    run.train(trainer).await?;
    run.finish(trainer).await
}

fn progress_plan(plan: &RunPlan, length: &RunLength, start_step: u64, peak: Peak) -> ProgressPlan {
    let runner = &plan.settings.runner;
    ProgressPlan {
        total_steps: length.total_steps,
        start_step,
        epochs: runner.epochs,
        steps_per_epoch: length.steps_per_epoch,
        samples_per_step: (runner.batch_size * runner.gradient_accumulation_steps) as u64,
        tokens_per_step: plan.tokens_per_step as u64,
        flops_per_token: count::training_flops_per_token(&plan.model),
        peak_flops: peak.flops(),
        log_every: plan.settings.callbacks.loss.per_print_times,
    }
}

/// A run under way.
struct Run<'a> {
    plan: &'a RunPlan,
    total_steps: u64,
    data: &'a Dataset,
    data_check: BackgroundCheck,
    evaluation: Option<Evaluation<'a>>,
    checkpoints: CheckpointFolder,
    reporter: Reporter<'a>,
    interrupt: Arc<AtomicBool>,
    is_interrupted: bool,
    health: Health,
    /// Whether a checkpoint is to be written. While steps fail none is, since it might replace the last good one.
    is_save_due: bool,
    /// The host's counters, as the next checkpoint will save them.
    state: TrainerState,
}

impl Run<'_> {
    async fn train(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        let checkpoint = self.plan.settings.callbacks.checkpoint.as_ref();
        while self.state.step < self.total_steps && !self.is_interrupted {
            trainer.step(self.state.step + 1, &self.data.train, self.state.micro_step).await?;
            self.state.step += 1;
            self.state.micro_step += self.plan.settings.runner.gradient_accumulation_steps as u64;
            let step = self.state.step;
            if let Some(evaluation) = self.evaluation.filter(|evaluation| evaluation.is_due_after(step)) {
                let Evaluation { data, batches, .. } = evaluation;
                trainer.evaluate(step, data, batches, |trainer| self.collect(trainer)).await?;
            }
            self.collect(trainer)?;
            self.is_interrupted = self.interrupt.load(Ordering::Relaxed);
            if let Some(fault) = self.data_check.fault().cloned() {
                // As after a signal: the work so far is good.
                self.save_unless_failing(trainer).await?;
                return Err(fault);
            }
            self.is_save_due |=
                checkpoint.is_some_and(|config| step.is_multiple_of(config.save_checkpoint_steps));
            if self.is_save_due && !self.health.is_failing() {
                self.save_unless_failing(trainer).await?;
            }
        }
        Ok(())
    }

    /// Reports the last results, saves the last checkpoint, writes the sample.
    async fn finish(mut self, trainer: &mut Trainer<'_>) -> Result<Summary> {
        self.settle(trainer).await?;
        if !self.is_interrupted {
            self.health.check_end(|| self.newest_checkpoint())?;
        }
        // Save an interrupted run even if no checkpoints are configured: otherwise its work would be lost.
        let wants_checkpoint = self.plan.settings.callbacks.checkpoint.is_some() || self.is_interrupted;
        let is_lost = self.health.is_lost();
        if wants_checkpoint && !self.is_saved() && !is_lost {
            self.save(trainer).await?;
        }
        let Losses { train: loss, eval: eval_loss } = self.reporter.finish();
        let (steps, is_interrupted) = (self.state.step, self.is_interrupted);
        let mut summary = Summary { steps, loss, eval_loss, is_interrupted, sample: None };
        if is_interrupted && is_lost {
            tracing::warn!(
                "interrupted after step {steps} without a checkpoint of it, since that step failed"
            );
        } else if is_interrupted {
            tracing::info!("interrupted after step {steps}: continue with --resume_training=True");
        } else if let Some(config) = &self.plan.settings.sample {
            let text = sample(trainer, config, &self.data.codec, self.plan.settings.run.seed).await?;
            tracing::info!("a sample of {} tokens:\n{text}", config.tokens);
            summary.sample = Some(text);
        }
        Ok(summary)
    }

    /// Takes in the results that have arrived, without waiting.
    fn collect(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        let (steps, evaluations) = (trainer.finished_steps()?, trainer.finished_evaluations()?);
        if let Some(last) = steps.last() {
            self.state.global_step = last.state.global_step as u64;
            if let Some(scaler) = &last.scaler {
                self.state.loss_scale = scaler.loss_scale.into();
                self.state.scaler = Some(in_file(scaler));
            }
        }
        steps.iter().for_each(|finished| self.health.note(finished));
        self.reporter.take_in(steps, &evaluations)?;
        self.health.check(|| self.newest_checkpoint())
    }

    /// Waits until everything submitted has finished and is reported.
    async fn settle(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        trainer.wait().await?;
        self.collect(trainer)
    }

    /// Saves, unless the last step turns out to have failed: then a later step does.
    async fn save_unless_failing(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        self.settle(trainer).await?;
        if self.health.is_failing() { Ok(()) } else { self.save(trainer).await }
    }

    async fn save(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        self.settle(trainer).await?;
        self.is_save_due = false;
        let pending = self.checkpoints.begin(self.state.step)?;
        trainer.save(&self.state, &pending).await?;
        let path = pending.commit()?;
        tracing::debug!("saved {}", path.display());
        self.reporter.skip_pause();
        Ok(())
    }

    /// Whether there is a checkpoint of the last step.
    fn is_saved(&self) -> bool {
        self.newest_checkpoint() == Some(self.state.step)
    }

    /// The step of the newest checkpoint.
    fn newest_checkpoint(&self) -> Option<u64> {
        self.checkpoints.latest().ok().flatten().map(|(step, _)| step)
    }
}
