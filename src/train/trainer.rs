//! The device side of a run: steps and evaluations.

use super::finished::{FinishedEvaluation, FinishedStep, StepReadback, evaluation_sources};
use super::length::RunLength;
use super::recordings::{Recordings, persistent};
use super::schedule::Schedule;
use super::shortage::Shortage;
use crate::data::{Batch, Batches};
use crate::device::{
    Buffers, Exchanger, Exchanges, Gpu, Guard, Prepared, Program, ReadbackRing, Reader, UploadRing,
};
use crate::error::{Error, Result};
use crate::ops::loss_scale::LossScaleState;
use crate::ops::step_state::StepState;
use crate::ranks::Ranks;
use crate::record::{PersistentId, Tensor};
use crate::settings::{Adaptation, RunPlan};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Slots of a ring. The host is at most 3 submissions ahead of the device, so that one is always free.
pub(super) const RING: usize = 5;

/// Steps after which programs are cut into submissions once more: by then a GPU runs at the clocks of work.
const MEASURED_AFTER: u64 = 20;

/// Indices of the prepared programs, in the order of [`Recordings::all`]; those that not every run has come last.
const MICRO_STEP: usize = 0;
const UPDATE: usize = 1;
const EVAL: usize = 2;
pub(super) const PREFILL: usize = 3;
pub(super) const DECODE: usize = 4;

/// A model in training on one device.
///
/// [`step`](Self::step) and [`evaluate`](Self::evaluate) submit work and return, on a GPU before it is done;
/// [`finished_steps`](Self::finished_steps) and [`finished_evaluations`](Self::finished_evaluations) return the results
/// that have arrived.
pub struct Trainer<'gpu> {
    pub(super) gpu: &'gpu Gpu,
    pub(super) recordings: Recordings,
    pub(super) buffers: Buffers,
    pub(super) prepared: Prepared,
    pub(super) exchanger: Exchanger,
    pub(super) reader: Reader,
    pub(super) uploads: UploadRing,
    steps: ReadbackRing,
    evaluations: ReadbackRing,
    readback: StepReadback,
    pub(super) ids: Ids,
    gradient_accumulation_steps: u64,
    /// Steps that this trainer has submitted.
    steps_done: u64,
    pub(super) batch: Batch,
    pub(super) staged: Vec<u8>,
    /// Whether weights were written since their copies were made.
    pub(super) has_stale_copies: AtomicBool,
    /// How long compiling the kernels and binding their buffers took.
    preparation: Duration,
}

/// The persistent buffers that steps clear and fill.
pub(super) struct Ids {
    gradients: Vec<PersistentId>,
    loss: PersistentId,
    /// The sums of an evaluation.
    evaluated: Vec<PersistentId>,
    pub(super) batch: PersistentId,
}

impl<'gpu> Trainer<'gpu> {
    /// Prepares everything a run needs on `gpu`, with initial weights: no later call creates a buffer or a pipeline.
    ///
    /// # Errors
    /// A tensor or pool that is too large for the adapter or the configured cap; a device that fails or has too little
    /// memory.
    pub async fn new(gpu: &'gpu Gpu, plan: &RunPlan, length: &RunLength) -> Result<Self> {
        Self::on_rank(gpu, plan, length, Ranks::alone()).await
    }

    /// The same for one of several ranks, as `plan` lays them out. All of them make the same calls in the same order.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); a rank that has ended.
    pub async fn on_rank(gpu: &'gpu Gpu, plan: &RunPlan, length: &RunLength, ranks: Ranks) -> Result<Self> {
        let recordings = Recordings::new(plan, gpu.capabilities(), length.total_steps)?;
        let shortage = Shortage::of(&recordings);
        Self::prepare(gpu, plan, length, recordings, ranks).await.map_err(|error| shortage.explain(error))
    }

    async fn prepare(
        gpu: &'gpu Gpu,
        plan: &RunPlan,
        length: &RunLength,
        recordings: Recordings,
        ranks: Ranks,
    ) -> Result<Self> {
        let buffers = gpu.make_persistent(&recordings.persistents).await?;
        let begin = Instant::now();
        let prepared = gpu.prepare(&recordings.all(), &buffers, Guard::Off).await?;
        let preparation = begin.elapsed();
        gpu.wait().await?; // frees wgpu's copies of the params
        let id = |tensor: Tensor| {
            persistent(tensor).ok_or_else(|| Error::Device("a state tensor is not persistent".into()))
        };
        let evaluated = evaluation_sources(&recordings);
        let ids = Ids {
            gradients: recordings.arenas.gradients.buffers().collect(),
            loss: id(recordings.loss)?,
            evaluated: evaluated.iter().map(|(id, _)| *id).collect(),
            batch: id(recordings.batch.tokens)?,
        };
        let readback = StepReadback::new(&recordings);
        let batch_bytes = recordings.batch_bytes();
        let trainer = Self {
            exchanger: Exchanger::new(gpu, ranks, &prepared).await?,
            uploads: UploadRing::new(gpu, batch_bytes, RING).await?,
            steps: ReadbackRing::new(gpu, &readback.sources(), RING + 1).await?,
            evaluations: ReadbackRing::new(gpu, &evaluated, RING + 1).await?,
            readback,
            reader: Reader::new(gpu, recordings.piece_bytes()).await?,
            gradient_accumulation_steps: plan.settings.runner.gradient_accumulation_steps as u64,
            steps_done: 0,
            batch: Batch::default(),
            staged: vec![0; batch_bytes as usize],
            has_stale_copies: AtomicBool::new(true),
            preparation,
            gpu,
            recordings,
            buffers,
            prepared,
            ids,
        };
        let schedules: Vec<&Schedule> =
            [&length.schedule].into_iter().chain(&length.group_schedules).collect();
        trainer.write_schedules(length.total_steps, &schedules, plan.optimizer.corrected_betas());
        trainer.write_tables();
        let scale = &plan.settings.wrapper.scale_sense;
        let loss_scale = scale.loss_scale_value as f32;
        trainer.set_state(&StepState { loss_scale, ..StepState::default() });
        if let (Some(Adaptation { windows, first, .. }), Some(scaler)) =
            (scale.adaptation(), trainer.recordings.scaler)
        {
            trainer.write(scaler.windows, bytemuck::cast_slice(&windows));
            trainer.set_scaler(&LossScaleState::new(loss_scale, &windows, first));
        }
        trainer.write_initial_weights(plan.settings.run.seed).await?;
        Ok(trainer)
    }

    /// Writes `bytes` to the start of a persistent tensor. For set-up, not within steps.
    pub(super) fn write(&self, tensor: Tensor, bytes: &[u8]) {
        if let Some(id) = persistent(tensor) {
            self.gpu.write(&self.buffers, id, tensor.offset, bytes);
        }
    }

    /// Replaces `StepState`: at the start, and when a run resumes.
    pub fn set_state(&self, state: &StepState) {
        self.write(self.recordings.state, bytemuck::bytes_of(state));
    }

    /// Replaces `LossScaleState`, where the loss scale adapts: at the start, and when a run resumes.
    pub fn set_scaler(&self, state: &LossScaleState) {
        if let Some(scaler) = &self.recordings.scaler {
            self.write(scaler.state, bytemuck::bytes_of(state));
        }
    }

    /// Submits step number `step` (from 1) on the micro-batches from `first_micro_step` on, counted in those of this rank.
    ///
    /// # Errors
    /// A token outside the vocabulary; a device that fails; a rank that has ended.
    pub async fn step(&mut self, step: u64, data: &Batches, first_micro_step: u64) -> Result<()> {
        self.micro_steps(data, first_micro_step).await?;
        self.update(step).await
    }

    /// The other half of step number `step`: norm, loss scale and optimizer, on the gradients in the arena.
    ///
    /// # Errors
    /// A device that fails; a rank that has ended.
    pub async fn update(&mut self, step: u64) -> Result<()> {
        let mut encoder = self.gpu.encoder();
        self.replay(&mut encoder, UPDATE, Exchanges::All).await?;
        self.copy_weights(&mut encoder).await?;
        self.replay_monitors(&mut encoder, step).await?;
        self.steps.copy(&mut encoder, step, &self.buffers)?;
        encoder.submit().await?;
        self.steps.request(self.gpu);
        self.steps_done += 1;
        if self.steps_done == MEASURED_AFTER {
            self.prepared.programs.iter().for_each(Program::measure_again);
        }
        Ok(())
    }

    /// The gradient half of a step: afterwards the arena holds the gradients of the scaled mean loss.
    ///
    /// # Errors
    /// A token outside the vocabulary; a device that fails; a rank that has ended.
    pub async fn micro_steps(&mut self, data: &Batches, first_micro_step: u64) -> Result<()> {
        for micro_step in 0..self.gradient_accumulation_steps {
            let mut encoder = self.gpu.encoder();
            if micro_step == 0 {
                self.ids.gradients.iter().for_each(|&id| encoder.clear(&self.buffers, id));
                encoder.clear(&self.buffers, self.ids.loss);
                self.readback.cleared().for_each(|id| encoder.clear(&self.buffers, id));
            }
            let is_last = micro_step + 1 == self.gradient_accumulation_steps;
            let exchanges = if is_last { Exchanges::All } else { Exchanges::OfEveryMicroBatch };
            self.replay_on(&mut encoder, MICRO_STEP, exchanges, data, first_micro_step + micro_step).await?;
            self.copy_losses(&mut encoder, micro_step);
            encoder.submit().await?;
            self.uploads.recycle(self.gpu);
        }
        Ok(())
    }

    /// Submits an evaluation over the first `batches` micro-batches of `data`; `tag` is returned with its loss.
    /// `between` is called after each micro-batch and can collect the steps that finish meanwhile.
    ///
    /// # Errors
    /// Those of [`step`](Self::step) and of `between`.
    pub async fn evaluate(
        &mut self,
        tag: u64,
        data: &Batches,
        batches: u64,
        mut between: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        for micro_step in 0..batches {
            let mut encoder = self.gpu.encoder();
            if micro_step == 0 {
                self.ids.evaluated.iter().for_each(|&id| encoder.clear(&self.buffers, id));
            }
            self.replay_on(&mut encoder, EVAL, Exchanges::All, data, micro_step).await?;
            let is_last = micro_step + 1 == batches;
            if is_last {
                if let Some(sum) = self.recordings.index_of(self.recordings.sum_evaluation.as_ref()) {
                    self.replay(&mut encoder, sum, Exchanges::All).await?;
                }
                self.evaluations.copy(&mut encoder, tag, &self.buffers)?;
            }
            encoder.submit().await?;
            self.uploads.recycle(self.gpu);
            if is_last {
                self.evaluations.request(self.gpu);
            }
            between(self)?;
        }
        Ok(())
    }

    /// The steps that have finished since the last call, oldest first. Never blocks.
    pub fn finished_steps(&mut self) -> Result<Vec<FinishedStep>> {
        let arrived = self.steps.collect(self.gpu)?;
        Ok(arrived.into_iter().map(|arrival| self.readback.read(arrival)).collect())
    }

    /// The evaluations that have finished since the last call, oldest first. Never blocks.
    pub fn finished_evaluations(&mut self) -> Result<Vec<FinishedEvaluation>> {
        Ok(self.evaluations.collect(self.gpu)?.into_iter().map(FinishedEvaluation::read).collect())
    }

    /// Completes when the device has done everything submitted.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn wait(&self) -> Result<()> {
        self.gpu.wait().await
    }

    /// `error`; if it is that the device is out of memory, with what takes it and what would save some.
    pub(super) fn explain(&self, error: Error) -> Error {
        Shortage::of(&self.recordings).explain(error)
    }

    /// The recordings that it replays.
    pub fn recordings(&self) -> &Recordings {
        &self.recordings
    }

    /// Bytes of the pool for activations.
    pub fn pool_bytes(&self) -> u64 {
        self.prepared.pool_bytes()
    }

    /// Bytes of the persistent buffers: arenas, tables, states.
    pub fn persistent_bytes(&self) -> u64 {
        self.recordings.persistents.bytes()
    }

    /// Pipelines of all recordings: one for each kernel, however many launches have it.
    pub fn pipelines(&self) -> usize {
        self.recordings.kernels().len()
    }

    /// How long compiling the kernels, or finding them in the driver's cache, and binding their buffers took.
    pub fn preparation(&self) -> Duration {
        self.preparation
    }

    /// Kernel launches of one micro-batch and of one update.
    pub fn launches(&self) -> (usize, usize) {
        (self.prepared.programs[MICRO_STEP].launches(), self.prepared.programs[UPDATE].launches())
    }

    /// How often the programs of a micro-batch and of an update were cut into submissions by measured times.
    pub fn cuts(&self) -> (usize, usize) {
        (self.prepared.programs[MICRO_STEP].cuts(), self.prepared.programs[UPDATE].cuts())
    }

    /// The time of each dispatch of a micro-step and an update, by the device's clock.
    ///
    /// # Errors
    /// An adapter without timestamps; a device that fails.
    pub async fn profile(&self) -> Result<Vec<crate::device::DispatchTime>> {
        let mut times = self.gpu.profile(&self.prepared.programs[MICRO_STEP]).await?;
        times.extend(self.gpu.profile(&self.prepared.programs[UPDATE]).await?);
        Ok(times)
    }
}
