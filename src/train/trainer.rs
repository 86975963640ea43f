//! The device side of a run: state, step, evaluation.

use super::batch_arrays::{BatchArrays, batch_stride};
use super::finished::{FinishedEvaluation, FinishedStep, StepReport};
use super::length::RunLength;
use super::recordings::{Recordings, persistent};
use super::state::{LossState, StepState, schedule_table};
use crate::data::{Batch, Batches};
use crate::device::{Buffers, Gpu, Guard, Prepared, ReadbackRing, Reader, UploadRing};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::model::init::initial_row;
use crate::record::{PersistentId, Tensor};
use crate::settings::RunPlan;

/// Submissions are at most 3 ahead of the device; one slot more is always free.
pub(super) const RING: usize = 5;

/// Checkpoints leave the device in pieces of at most this size.
pub(super) const READER_BYTES: u64 = 64 << 20;

/// Positions of the programs in the prepared list; the sample's are last.
const MICRO_STEP: usize = 0;
const UPDATE: usize = 1;
const EVAL: usize = 2;
pub(super) const PREFILL: usize = 3;
pub(super) const DECODE: usize = 4;

/// A model in training on one device.
///
/// [`step`](Self::step) and [`evaluate`](Self::evaluate) submit work and return, on a GPU before it is done; results come when they are there, from
/// [`finished_steps`](Self::finished_steps) and [`finished_evaluations`](Self::finished_evaluations).
pub struct Trainer<'gpu> {
    pub(super) gpu: &'gpu Gpu,
    pub(super) recordings: Recordings,
    pub(super) buffers: Buffers,
    pub(super) prepared: Prepared,
    pub(super) reader: Reader,
    uploads: UploadRing,
    steps: ReadbackRing,
    evaluations: ReadbackRing,
    report: StepReport,
    ids: Ids,
    gradient_accumulation_steps: u64,
    batch: Batch,
    arrays: BatchArrays,
    staged: Vec<u8>,
}

/// The persistent buffers that a step names.
struct Ids {
    gradients: Vec<PersistentId>,
    loss: PersistentId,
    eval_loss: PersistentId,
    batch: PersistentId,
}

impl<'gpu> Trainer<'gpu> {
    /// Prepares everything a run needs on `gpu`, with initial weights: no later call makes a buffer or a pipeline.
    ///
    /// # Errors
    /// A tensor or pool too large for the adapter or the configured cap; a device that fails.
    pub async fn new(gpu: &'gpu Gpu, plan: &RunPlan, length: &RunLength) -> Result<Self> {
        let recordings = Recordings::new(plan, gpu.capabilities(), length.total_steps)?;
        let buffers = gpu.make_persistent(&recordings.persistents).await?;
        let prepared = gpu.prepare(&recordings.all(), &buffers, Guard::Off).await?;
        let id = |tensor: Tensor| {
            persistent(tensor).ok_or_else(|| Error::Device("a state tensor is not persistent".into()))
        };
        let ids = Ids {
            gradients: recordings.arenas.gradients.buffers().collect(),
            loss: id(recordings.loss)?,
            eval_loss: id(recordings.eval_loss)?,
            batch: id(recordings.batch.tokens)?,
        };
        let report = StepReport::new(plan, &recordings);
        let tokens = (plan.settings.runner.batch_size * plan.model.seq_length) as u32;
        let arrays = BatchArrays::of(plan);
        let batch_bytes = arrays.bytes(tokens);
        let segment = recordings.layout.segments.iter().map(|segment| 4 * segment.elements).max();
        let trainer = Self {
            uploads: UploadRing::new(gpu, batch_bytes, RING),
            steps: ReadbackRing::new(gpu, &report.sources(), RING + 1),
            evaluations: ReadbackRing::new(gpu, &[(ids.eval_loss, size_of::<LossState>() as u64)], RING + 1),
            report,
            reader: Reader::new(gpu, segment.unwrap_or(16).min(READER_BYTES)),
            gradient_accumulation_steps: plan.settings.runner.gradient_accumulation_steps as u64,
            batch: Batch::default(),
            arrays,
            staged: vec![0; batch_bytes as usize],
            gpu,
            recordings,
            buffers,
            prepared,
            ids,
        };
        trainer.initialise(plan, length);
        Ok(trainer)
    }

    fn initialise(&self, plan: &RunPlan, length: &RunLength) {
        let base = |step| length.schedule.lr_at(step);
        let groups: Vec<_> =
            length.group_schedules.iter().map(|schedule| |step| schedule.lr_at(step)).collect();
        let mut rates: Vec<&dyn Fn(u64) -> f64> = vec![&base];
        rates.extend(groups.iter().map(|lr_at| lr_at as &dyn Fn(u64) -> f64));
        let betas = [plan.optimizer.beta1, plan.optimizer.beta2];
        let betas = plan.optimizer.kind.corrects_bias().then_some(betas);
        let table = schedule_table(length.total_steps, &rates, betas);
        self.write(self.recordings.schedule, bytemuck::cast_slice(&table));
        if let Some((table, values)) = &self.recordings.rotary {
            self.write(*table, bytemuck::cast_slice(values));
        }
        if let Some(experts) = &self.recordings.experts {
            let capacities = experts.initial_capacities();
            let rows = experts.layers().filter_map(|layer| experts.capacities(layer));
            rows.for_each(|row| self.write(row, bytemuck::cast_slice(&capacities)));
        }
        self.set_state(&StepState {
            loss_scale: plan.settings.wrapper.scale_sense as f32,
            ..StepState::default()
        });
        for (index, (spec, parts)) in self.recordings.layout.parameters.list().into_iter().enumerate() {
            for part in parts {
                let mut bytes = Vec::new();
                for row in part.first_row..part.first_row + part.rows {
                    Element::F32
                        .encode_row(&initial_row(spec, index, row, plan.settings.run.seed), &mut bytes);
                }
                self.write(self.recordings.arenas.weights.part(spec, part), &bytes);
            }
        }
    }

    /// Writes the start of a persistent tensor. For set-up.
    pub(super) fn write(&self, tensor: Tensor, bytes: &[u8]) {
        if let Some(id) = persistent(tensor) {
            self.gpu.write(&self.buffers, id, tensor.offset, bytes);
        }
    }

    /// Replaces the step's state: at the start, and when a run resumes.
    pub fn set_state(&self, state: &StepState) {
        self.write(self.recordings.state, bytemuck::bytes_of(state));
    }

    /// Submits step number `step` (counted from 1) on the micro-batches that follow `first_micro_step`.
    ///
    /// # Errors
    /// Data outside the vocabulary; a device that fails.
    pub async fn step(&mut self, step: u64, data: &Batches, first_micro_step: u64) -> Result<()> {
        self.micro_steps(data, first_micro_step).await?;
        // The exchange: with several ranks their gradients would be added here, and only here. One rank has none to add.
        let mut encoder = self.gpu.encoder();
        encoder.replay(&self.prepared.programs[UPDATE]).await?;
        self.steps.copy(&mut encoder, step, &self.buffers)?;
        encoder.submit().await?;
        self.steps.request(self.gpu);
        Ok(())
    }

    /// The gradient half of a step: after it the arena holds the gradients of the scaled mean loss.
    pub async fn micro_steps(&mut self, data: &Batches, first_micro_step: u64) -> Result<()> {
        for micro_step in 0..self.gradient_accumulation_steps {
            let mut encoder = self.gpu.encoder();
            if micro_step == 0 {
                self.ids.gradients.iter().for_each(|&id| encoder.clear(&self.buffers, id));
                encoder.clear(&self.buffers, self.ids.loss);
                self.report.cleared().for_each(|id| encoder.clear(&self.buffers, id));
            }
            data.fill(first_micro_step + micro_step, &mut self.batch)?;
            self.stage();
            self.uploads.upload(self.gpu, &mut encoder, &self.staged, &self.buffers, self.ids.batch).await?;
            encoder.replay(&self.prepared.programs[MICRO_STEP]).await?;
            encoder.submit().await?;
            self.uploads.recycle(self.gpu);
        }
        Ok(())
    }

    /// Submits an evaluation over the first `batches` micro-batches of `data`; `tag` comes back with its loss. `between`
    /// runs after each: time to take in the steps that finish meanwhile.
    ///
    /// # Errors
    /// As [`step`](Self::step), and those of `between`.
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
                encoder.clear(&self.buffers, self.ids.eval_loss);
            }
            data.fill(micro_step, &mut self.batch)?;
            self.stage();
            self.uploads.upload(self.gpu, &mut encoder, &self.staged, &self.buffers, self.ids.batch).await?;
            encoder.replay(&self.prepared.programs[EVAL]).await?;
            let is_last = micro_step + 1 == batches;
            if is_last {
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
        Ok(arrived.into_iter().map(|arrival| self.report.read(arrival)).collect())
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

    /// What it runs.
    pub fn recordings(&self) -> &Recordings {
        &self.recordings
    }

    /// Bytes of the pool that activations live in.
    pub fn pool_bytes(&self) -> u64 {
        self.prepared.pool_bytes()
    }

    /// Bytes of the arenas, tables and other buffers that outlive a step.
    pub fn persistent_bytes(&self) -> u64 {
        self.recordings.persistents.bytes()
    }

    /// Kernel launches of one micro-batch and of one update.
    pub fn launches(&self) -> (usize, usize) {
        (self.prepared.programs[MICRO_STEP].launches(), self.prepared.programs[UPDATE].launches())
    }

    /// Time of each dispatch of a micro-step and an update, by the device's clock.
    ///
    /// # Errors
    /// An adapter without timestamps; a device that fails.
    pub async fn profile(&self) -> Result<Vec<crate::device::DispatchTime>> {
        let mut times = self.gpu.profile(&self.prepared.programs[MICRO_STEP]).await?;
        times.extend(self.gpu.profile(&self.prepared.programs[UPDATE]).await?);
        Ok(times)
    }

    /// The micro-batch as the device's batch buffer holds it.
    fn stage(&mut self) {
        let stride = batch_stride(self.batch.tokens.len() as u32) as usize;
        for (slot, ids) in self.staged.chunks_exact_mut(stride).zip(self.arrays.list(&self.batch)) {
            slot[..4 * ids.len()].copy_from_slice(bytemuck::cast_slice(ids));
        }
    }
}
