//! A whole training run: from a configuration file to a trained model in its run folder.

use super::checkpoint;
use super::checkpoint_folder::CheckpointFolder;
use super::expert_load::MixtureReport;
use super::finished::{FinishedEvaluation, FinishedStep};
use super::instruments::ExpertInstruments;
use super::length::RunLength;
use super::log::Log;
use super::metrics::{MetricsWriter, StepMetrics};
use super::peak::probe_matmul_rate;
use super::progress::{Progress, ProgressPlan};
use super::resume::take_up;
use super::run_folder::RunFolder;
use super::sample::{prompt, sample};
use super::trainer::Trainer;
use super::trainer_state::TrainerState;
use crate::data::Dataset;
use crate::device::{Gpu, GpuOptions};
use crate::error::{Error, Result};
use crate::model::count;
use crate::settings::{Override, Resume, RunConfig, RunPlan};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What a finished run reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Steps done in all, those before a resume included.
    pub steps: u64,
    /// Mean loss of the last step in nats per token.
    pub loss: f32,
    /// The last evaluation's loss in nats per token.
    pub eval_loss: Option<f32>,
    /// The text written at the end.
    pub sample: Option<String>,
    /// Whether an interrupt ended the run early.
    pub is_interrupted: bool,
}

/// Trains as the file at `config` says, `overrides` (`--a.b.c=value`) applied. Ends early, with a checkpoint, once
/// `interrupt` is set.
///
/// # Errors
/// One line that names the culprit and the remedy: configuration, data, adapter, run folder, disk.
pub async fn run(config: &Path, overrides: &[String], interrupt: Arc<AtomicBool>) -> Result<Summary> {
    let log = Log::start();
    let overrides = Override::parse_all(overrides)?;
    let config = RunConfig::load(config, &overrides)?;
    let plan = &config.plan;
    let data = plan.load_data()?;
    check_sample(plan, &data)?;
    let length = RunLength::new(plan, data.train.steps_per_epoch());
    let gpu = open_device(&plan).await?;
    let mut trainer = Trainer::new(&gpu, &plan, &length).await?;
    if plan.settings.run.resume_training == Resume::No
        && let Some(path) = &plan.settings.run.weights()
    {
        // Before the folder is made, so that a file that does not fit leaves nothing that would refuse the next start.
        checkpoint::load_weights(&trainer, path)?;
    }
    let instruments = ExpertInstruments::new(&plan);
    instruments.iter().try_for_each(ExpertInstruments::prepare)?;
    let folder = RunFolder::create(
        &plan.settings.run.folder(),
        &plan.to_yaml(),
        plan.settings.run.resume_training != Resume::No,
    )?;
    let done = take_up(&trainer, &plan, &length, &data, &folder)?;
    log.attach(&folder.log_path())?;

    config.notices.iter().chain(&data.summary).for_each(|notice| tracing::info!("{notice}"));
    let matmul_rate = probe_matmul_rate(&gpu).await?;
    report(plan, &data, &gpu, &trainer, matmul_rate);
    let keep_max =
        plan.settings.callbacks.checkpoint.as_ref().map_or(0, |config| config.keep_checkpoint_max as usize);
    let mut run = Run {
        metrics: MetricsWriter::open(&folder.metrics_path())?,
        instruments,
        progress: Progress::new(progress_plan(plan, &length, done.step, matmul_rate), &log),
        waiting: VecDeque::new(),
        last_arrival: Instant::now(),
        summary: Summary { steps: done.step, ..Summary::default() },
        checkpoints: folder.checkpoints(keep_max),
        state: done,
        interrupt,
        plan,
        length: &length,
        data: &data,
    };
    run.train(&mut trainer).await?;
    run.finish(&mut trainer).await
}

/// What would keep the model from writing at the end of the run is better said at its start.
fn check_sample(plan: &RunPlan, data: &Dataset) -> Result<()> {
    let Some(config) = &plan.settings.sample else { return Ok(()) };
    if !plan.has_text() {
        return Err(Error::Plan(
            "sample: the data are token files, and no tokenizer says what the tokens mean; name it in \
             train_dataset.tokenizer or remove `sample`"
                .into(),
        ));
    }
    prompt(&data.codec, &config.prompt, plan.model.vocab_size).map(drop)
}

/// The device that a plan asks for.
pub(super) async fn open_device(plan: &RunPlan) -> Result<Gpu> {
    let options = GpuOptions {
        device_name: plan.settings.context.device_name.clone(),
        tier: plan.settings.context.tier,
        ..GpuOptions::default()
    };
    Gpu::request(&options).await
}

fn progress_plan(plan: &RunPlan, length: &RunLength, start_step: u64, peak_flops: f64) -> ProgressPlan {
    ProgressPlan {
        total_steps: length.total_steps,
        start_step,
        epochs: plan.settings.runner.epochs,
        steps_per_epoch: length.steps_per_epoch,
        samples_per_step: (plan.settings.runner.batch_size * plan.settings.runner.gradient_accumulation_steps)
            as u64,
        tokens_per_step: plan.tokens_per_step as u64,
        flops_per_token: count::training_flops_per_token(&plan.model),
        peak_flops,
        log_every: plan.settings.callbacks.loss.per_print_times,
    }
}

fn report(plan: &RunPlan, data: &Dataset, gpu: &Gpu, trainer: &Trainer<'_>, matmul_rate: f64) {
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    tracing::info!("adapter: {}, {}", gpu.report(), gpu.capabilities());
    tracing::info!(
        "model: {} parameters, {:.3} GFLOP a token to train; {} tokens a step",
        count::parameters(&plan.model),
        count::training_flops_per_token(&plan.model) / 1e9,
        plan.tokens_per_step
    );
    if plan.model.mixture.is_some() {
        tracing::info!(
            "experts: a token meets {} of these parameters",
            count::active_parameters(&plan.model)
        );
    }
    let layout = &trainer.recordings.layout;
    let frozen = layout.parameters.list().into_iter().filter(|(spec, _)| !spec.trains);
    let frozen: usize = frozen.map(|(spec, _)| spec.count()).sum();
    if frozen > 0 {
        tracing::info!("frozen: {frozen} of these parameters stay as they are");
    }
    tracing::info!(
        "memory: {:.1} MiB for weights, gradients, moments and tables, {:.1} MiB for activations",
        mib(trainer.persistent_bytes()),
        mib(trainer.pool_bytes())
    );
    tracing::info!("matrix products reach {:.1} GFLOP/s: MFU is measured against that", matmul_rate / 1e9);
    if let (Some(eval), Some(config)) = (&data.eval, &plan.eval) {
        let nats = eval.unigram_entropy(eval_batches(eval, config.batches));
        tracing::info!(
            "the evaluated tokens have a unigram entropy of {nats:.3} nats: no model that ignores context does better"
        );
    }
}

fn eval_batches(eval: &crate::data::Batches, wanted: u64) -> u64 {
    wanted.min(eval.micro_steps_per_epoch())
}

/// A run under way.
struct Run<'a> {
    plan: &'a RunPlan,
    length: &'a RunLength,
    data: &'a Dataset,
    checkpoints: CheckpointFolder,
    metrics: MetricsWriter,
    instruments: Option<ExpertInstruments>,
    progress: Progress,
    interrupt: Arc<AtomicBool>,
    /// Where the run stands on the host: what the next checkpoint will say.
    state: TrainerState,
    /// Steps whose metrics wait for their evaluation's loss, and what their experts did.
    waiting: VecDeque<(StepMetrics, Option<MixtureReport>)>,
    last_arrival: Instant,
    summary: Summary,
}

impl Run<'_> {
    async fn train(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        while self.state.step < self.length.total_steps && !self.summary.is_interrupted {
            trainer.step(self.state.step + 1, &self.data.train, self.state.micro_step).await?;
            self.state.step += 1;
            self.state.micro_step += self.plan.settings.runner.gradient_accumulation_steps as u64;
            let step = self.state.step;
            if let (Some(eval), Some(config)) = (&self.data.eval, &self.plan.eval)
                && self.evaluates_after(step)
            {
                let batches = eval_batches(eval, config.batches);
                trainer.evaluate(step, eval, batches, |trainer| self.collect(trainer)).await?;
            }
            self.collect(trainer)?;
            self.summary.is_interrupted = self.interrupt.load(Ordering::Relaxed);
            if self
                .plan
                .settings
                .callbacks
                .checkpoint
                .as_ref()
                .is_some_and(|c| self.state.step.is_multiple_of(c.save_checkpoint_steps))
            {
                self.save(trainer).await?;
            }
        }
        Ok(())
    }

    fn evaluates_after(&self, step: u64) -> bool {
        let is_last = step == self.length.total_steps;
        self.data.eval.is_some()
            && self.plan.eval.as_ref().is_some_and(|eval| is_last || step.is_multiple_of(eval.every_steps))
    }

    /// Takes in what has arrived, without waiting, and reports the steps that are complete.
    fn collect(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        let (finished, evaluations) = (trainer.finished_steps()?, trainer.finished_evaluations()?);
        for FinishedStep { step, state, at, ahead_loss, mixture } in finished {
            // The device did nothing else since the last step, or since the evaluation that followed it.
            let evaluated = evaluations.iter().filter(|evaluation| evaluation.tag < step).map(|e| e.at).max();
            let start = self.last_arrival.max(evaluated.unwrap_or(self.last_arrival));
            let step_ms = 1e3 * at.saturating_duration_since(start).as_secs_f64().max(1e-6);
            self.last_arrival = at;
            self.state.global_step = state.global_step as u64;
            let mut metrics = StepMetrics {
                step,
                global_step: state.global_step as u64,
                loss: state.loss,
                lr: state.learning_rate,
                global_norm: state.grad_norm,
                loss_scale: state.loss_scale as f64,
                overflow: state.is_overflow != 0,
                tokens_per_second: self.plan.tokens_per_step as f64 * 1e3 / step_ms,
                step_ms,
                mtp_loss: ahead_loss,
                ..StepMetrics::default()
            };
            if let (Some(instruments), Some(report)) = (&self.instruments, &mixture) {
                instruments.measure(report, &mut metrics);
            }
            self.waiting.push_back((metrics, mixture));
        }
        for FinishedEvaluation { tag: step, loss, at } in evaluations {
            self.last_arrival = self.last_arrival.max(at);
            let of_step = self.waiting.iter_mut().filter(|(metrics, _)| metrics.step == step);
            of_step.for_each(|(metrics, _)| metrics.eval_loss = Some(loss));
            self.summary.eval_loss = Some(loss);
        }
        while let Some((front, _)) = self.waiting.front()
            && (front.eval_loss.is_some() || !self.evaluates_after(front.step))
        {
            let Some((metrics, mixture)) = self.waiting.pop_front() else { break };
            self.progress.step(&metrics);
            if let (Some(instruments), Some(report)) = (&self.instruments, &mixture) {
                instruments.show(report, metrics.step)?;
            }
            self.metrics.write(&metrics)?;
            self.summary.loss = metrics.loss;
            self.summary.steps = metrics.step;
        }
        Ok(())
    }

    /// Everything submitted so far, finished and reported.
    async fn settle(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        trainer.wait().await?;
        self.collect(trainer)
    }

    async fn save(&mut self, trainer: &mut Trainer<'_>) -> Result<()> {
        self.settle(trainer).await?;
        let pending = self.checkpoints.begin(self.state.step)?;
        checkpoint::save(trainer, &self.plan.model, &self.state, &pending).await?;
        let path = pending.commit()?;
        tracing::debug!("saved {}", path.display());
        self.last_arrival = Instant::now(); // the pause is no step's
        Ok(())
    }

    /// The last results, the last checkpoint, the sample.
    async fn finish(mut self, trainer: &mut Trainer<'_>) -> Result<Summary> {
        self.settle(trainer).await?;
        // An interrupted run is saved even where the configuration asks for no checkpoints: else its work were lost.
        let is_saved =
            || self.checkpoints.latest().is_ok_and(|l| l.is_some_and(|(step, _)| step == self.state.step));
        if (self.plan.settings.callbacks.checkpoint.is_some() || self.summary.is_interrupted) && !is_saved() {
            self.save(trainer).await?;
        }
        let Self { progress, mut summary, plan, data, .. } = self;
        progress.finish();
        if summary.is_interrupted {
            tracing::info!("interrupted after step {}: continue with --resume_training=True", summary.steps);
            return Ok(summary);
        }
        if let Some(config) = &plan.settings.sample {
            let text = sample(trainer, config, &data.codec, plan.settings.run.seed).await?;
            tracing::info!("a sample of {} tokens:\n{text}", config.tokens);
            summary.sample = Some(text);
        }
        Ok(summary)
    }
}
