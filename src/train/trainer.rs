//! The device side of a run: steps and evaluations.

use super::home::Home;
use super::length::RunLength;
use super::programs::Programs;
use super::readback::RING;
use super::recordings::Recordings;
use super::schedule::{Schedule, schedule_table};
use crate::data::Batch;
use crate::device::{Buffers, Exchanger, Gpu, Guard, Prepared, Program, ReadbackRing, Reader, UploadRing};
use crate::error::{Error, Result};
use crate::model::init::initial_row;
use crate::ops::loss_scale::LossScaleState;
use crate::ops::step_state::StepState;
use crate::perf::forecast::Forecast;
use crate::perf::limits::{check_turns, smaller_batch};
use crate::perf::memory_budget::Shortage;
use crate::perf::profile::Profile;
use crate::ranks::Ranks;
use crate::record::{PersistentId, Tensor};
use crate::settings::{Adaptation, RunPlan};
use crate::train::step_results::{EvaluationReadback, StepReadback};
use crate::train::weight_upload::{PORTION, RowGroup, portions};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A model in training on one device.
///
/// [`step`](Self::step) and [`evaluate`](Self::evaluate) submit work and return, on a GPU before it is done;
/// [`finished_steps`](Self::finished_steps) and [`finished_evaluations`](Self::finished_evaluations) return the results
/// that have arrived.
///
/// # Examples
///
/// A configuration in code, and data in memory:
///
/// ```
/// use gristmill::data::{Batches, NO_LABEL, SampleCollector};
/// use gristmill::prelude::*;
/// use gristmill::train::Trainer;
/// use gristmill::train::length::RunLength;
///
/// const CONFIG: &str = "
/// model:
///   model_config: {type: LlamaConfig, vocab_size: 32, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 8}
/// runner_config: {batch_size: 4, epochs: 2}
/// optimizer: {type: AdamW}
/// lr_schedule: {type: ConstantWarmUpLR, learning_rate: 1.0e-2, warmup_steps: 0}
/// ";
///
/// # fn main() -> gristmill::error::Result<()> {
/// # pollster::block_on(async {
/// let plan = RunConfig::in_memory(CONFIG, &[])?.plan;
/// let mut samples = SampleCollector::default();
/// for first in 0..16 {
///     let tokens: Vec<u32> = (first..first + 8).collect();
///     let mut targets: Vec<u32> = (first + 1..first + 9).collect();
///     targets[0] = NO_LABEL; // not learned
///     samples.push(&tokens, &targets);
/// }
/// let data = Batches::of_sources(vec![samples.finish().into()], plan.batch_spec(), Some(1), None)?;
/// let gpu = Gpu::request(&GpuOptions::default()).await?;
/// let length = RunLength::new(&plan, data.steps_per_epoch());
/// let mut trainer = Trainer::new(&gpu, &plan, &length).await?;
/// let mut losses = Vec::new();
/// for step in 1..=length.total_steps {
///     trainer.step(step, &data, step - 1).await?; // of one micro-batch
///     losses.extend(trainer.finished_steps()?.iter().map(|step| step.state.loss));
/// }
/// trainer.wait().await?;
/// losses.extend(trainer.finished_steps()?.iter().map(|step| step.state.loss));
/// assert!(losses.len() == 8 && losses[7] < losses[0]);
/// # Ok(())
/// # })
/// # }
/// ```
pub struct Trainer<'gpu> {
    pub(crate) gpu: &'gpu Gpu,
    pub(super) plan: RunPlan,
    pub(super) length: RunLength,
    /// The folder that it saves to, locked from the first save or resume on, and the checkpoints there.
    pub(super) home: Option<Home>,
    pub(super) recordings: Recordings,
    pub(super) buffers: Buffers,
    pub(super) prepared: Prepared,
    /// The place of each program among the prepared ones.
    pub(super) programs: Programs<usize>,
    pub(super) exchanger: Exchanger,
    pub(super) reader: Reader,
    pub(super) uploads: UploadRing,
    pub(super) steps: ReadbackRing,
    pub(super) evaluations: ReadbackRing,
    pub(super) step_readback: StepReadback,
    pub(super) evaluation_readback: EvaluationReadback,
    pub(super) ids: Ids,
    pub(super) gradient_accumulation_steps: u64,
    /// Steps that this trainer has submitted.
    pub(super) steps_done: u64,
    pub(super) batch: Batch,
    pub(super) staged: Vec<u8>,
    /// Whether batches are uploaded to compute the log-probabilities of their pairs under the reference.
    pub(super) computes_references: bool,
    /// Whether weights have been written since their copies were made.
    pub(super) has_stale_copies: AtomicBool,
    /// Whether magnitudes of adapters are still to start from the norms of the weights.
    pub(super) has_stale_magnitudes: AtomicBool,
    /// How long compiling the kernels and binding their buffers took.
    preparation: Duration,
    /// Receives the times of launches while a step is profiled.
    pub(super) profile: Option<Profile>,
}

/// The persistent buffers that steps clear and fill.
pub(super) struct Ids {
    /// Buffers that accumulate over a step: gradients, losses, and counts.
    pub step: Vec<PersistentId>,
    /// The sums of an evaluation.
    pub evaluation: Vec<PersistentId>,
    /// The tokens of micro-batches, in the order of the programs `micro_steps`.
    pub batches: Vec<Vec<PersistentId>>,
}

impl<'gpu> Trainer<'gpu> {
    /// Prepares everything that a run needs on `gpu`, with initial weights: no later call creates a buffer or a
    /// pipeline.
    ///
    /// # Errors
    /// A tensor or pool that is too large for the adapter or the configured cap; a device that fails or has too little
    /// memory.
    pub async fn new(gpu: &'gpu Gpu, plan: &RunPlan, length: &RunLength) -> Result<Self> {
        Self::on_rank(gpu, plan, length, Ranks::alone()).await
    }

    /// A trainer for one of several ranks, as `plan` lays them out. All of them make the same calls in the same order.
    ///
    /// # Errors
    /// As [`new`](Self::new); a rank that has ended.
    pub async fn on_rank(gpu: &'gpu Gpu, plan: &RunPlan, length: &RunLength, ranks: Ranks) -> Result<Self> {
        let (windows, capabilities) = (plan.settings.runner.batch_size, gpu.capabilities());
        check_turns(windows * plan.model.seq_length, &capabilities, smaller_batch(windows))?;
        let recordings = Recordings::new(plan, capabilities, length.total_steps)?;
        let shortage = Shortage::of(&recordings);
        let cap = plan.settings.context.max_device_memory.map(|size| size.0);
        shortage.check(Forecast::new(&recordings).peak_bytes(), cap)?;
        Self::prepare(gpu, plan, length, recordings, ranks).await.map_err(|error| shortage.explain(error))
    }

    async fn prepare(
        gpu: &'gpu Gpu,
        plan: &RunPlan,
        length: &RunLength,
        recordings: Recordings,
        ranks: Ranks,
    ) -> Result<Self> {
        gpu.compare_matrices(&recordings.all()).await?;
        let buffers = gpu.make_persistent(&recordings.persistents).await?;
        let begin = Instant::now();
        let prepared = gpu.prepare(&recordings.all(), &buffers, Guard::Off).await?;
        let preparation = begin.elapsed();
        gpu.wait().await?; // frees wgpu's copies of the params
        let step_readback = StepReadback::new(&recordings);
        let evaluation_readback = EvaluationReadback::new(&recordings);
        let ids = Ids {
            step: recordings.accumulated().collect(),
            evaluation: evaluation_readback.sources.list.iter().map(|(id, _)| *id).collect(),
            batches: (recordings.in_flight.iter())
                .map(|slots| slots.iter().map(|one| one.batch.buffer()).collect())
                .collect(),
        };
        let batch_bytes = recordings.batch_bytes();
        let mut trainer = Self {
            exchanger: Exchanger::new(gpu, ranks, &prepared, recordings.waiting()).await?,
            uploads: UploadRing::new(gpu, batch_bytes, RING).await?,
            steps: ReadbackRing::new(gpu, &step_readback.sources.list, RING + 1).await?,
            evaluations: ReadbackRing::new(gpu, &evaluation_readback.sources.list, RING + 1).await?,
            step_readback,
            evaluation_readback,
            programs: recordings.programs().places(),
            reader: Reader::new(gpu, recordings.piece_bytes()).await?,
            gradient_accumulation_steps: plan.settings.runner.gradient_accumulation_steps as u64,
            steps_done: 0,
            batch: Batch::default(),
            staged: vec![0; batch_bytes as usize],
            computes_references: false,
            has_stale_copies: AtomicBool::new(true),
            has_stale_magnitudes: AtomicBool::new(true),
            preparation,
            profile: None,
            gpu,
            plan: plan.clone(),
            length: length.clone(),
            home: None,
            recordings,
            buffers,
            prepared,
            ids,
        };
        let schedules: Vec<&Schedule> =
            [&length.schedule].into_iter().chain(&length.group_schedules).collect();
        trainer.write_schedules(length.total_steps, &schedules, plan.settings.optimizer.corrected_betas());
        trainer.write_tables();
        let scale = &plan.settings.wrapper.scale_sense;
        let loss_scale = scale.loss_scale_value as f32;
        trainer.set_state(&StepState { loss_scale, ..StepState::default() });
        if let (Some(Adaptation { windows, first, .. }), Some(scaler)) =
            (scale.adaptation(), trainer.recordings.tensors.scaler)
        {
            trainer.write(scaler.windows, bytemuck::cast_slice(&windows));
            trainer.set_scaler(&LossScaleState::new(loss_scale, &windows, first));
        }
        trainer.write_initial_weights(plan.settings.run.seed).await?;
        trainer.refresh_magnitudes().await?;
        Ok(trainer)
    }

    /// Writes `bytes` to the start of a tensor of [`recordings`](Self::recordings) that outlives them, between steps or
    /// the two halves of one.
    pub fn write(&self, tensor: Tensor, bytes: &[u8]) {
        if let Some(id) = tensor.buffer.persistent() {
            self.gpu.write(&self.buffers, id, tensor.offset, bytes);
        }
    }

    /// Replaces `StepState`: at the start, and when a run resumes.
    pub(crate) fn set_state(&self, state: &StepState) {
        self.write(self.recordings.tensors.state, bytemuck::bytes_of(state));
    }

    /// Replaces `LossScaleState`, if the loss scale adapts: at the start, and when a run resumes.
    pub(crate) fn set_scaler(&self, state: &LossScaleState) {
        if let Some(scaler) = &self.recordings.tensors.scaler {
            self.write(scaler.state, bytemuck::bytes_of(state));
        }
    }

    /// Completes when the device has done everything submitted.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn wait(&self) -> Result<()> {
        self.gpu.wait().await
    }

    /// `error`; if the device is out of memory, with the largest consumers and ways to save memory.
    pub(super) fn explain(&self, error: Error) -> Error {
        Shortage::of(&self.recordings).explain(error)
    }

    /// The ranks of the run.
    pub(super) fn ranks(&self) -> Ranks {
        self.exchanger.ranks().clone()
    }

    /// The recordings that the trainer replays.
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

    /// Pipelines of all recordings: one for each kernel, however many launches use it.
    pub fn pipelines(&self) -> usize {
        self.recordings.kernels().len()
    }

    /// How long it took to compile the kernels, or to find them in the driver's cache, and to bind their buffers.
    pub(crate) fn preparation(&self) -> Duration {
        self.preparation
    }

    /// Kernel launches of one micro-batch and of one update.
    pub fn launches(&self) -> (usize, usize) {
        let (micro_step, update) = self.parts();
        (micro_step.map(Program::launches).sum(), update.launches())
    }

    /// How often the programs of a micro-batch and of an update were cut into submissions by measured times.
    pub fn cuts(&self) -> (usize, usize) {
        let (micro_step, update) = self.parts();
        (micro_step.map(Program::cuts).max().unwrap_or(0), update.cuts())
    }

    /// The programs of a micro-batch, chunk by chunk, and the program of an update.
    fn parts(&self) -> (impl Iterator<Item = &Program>, &Program) {
        let program = |&program: &usize| &self.prepared.programs[program];
        let chunks = self.programs.micro_steps.iter().filter_map(|slots| slots.first());
        (chunks.map(program), program(&self.programs.update))
    }
}

impl Trainer<'_> {
    /// Writes the learning rates of `steps` steps, a schedule per parameter group, and with `betas` the corrections of
    /// the moments' bias.
    pub(super) fn write_schedules(&self, steps: u64, schedules: &[&Schedule], betas: Option<[f64; 2]>) {
        let rates: Vec<_> = schedules.iter().map(|schedule| |step| schedule.lr_at(step)).collect();
        let rates: Vec<&dyn Fn(u64) -> f64> =
            rates.iter().map(|lr_at| lr_at as &dyn Fn(u64) -> f64).collect();
        let table = schedule_table(steps, &rates, betas);
        self.write(self.recordings.tensors.schedule, bytemuck::cast_slice(&table));
    }

    /// Writes the rotary tables and the capacities that experts start with, for a model that has them.
    pub(super) fn write_tables(&self) {
        let Recordings { tensors, model, .. } = &self.recordings;
        for (table, values) in tensors.model.rotary_tables(model) {
            self.write(table, bytemuck::cast_slice(&values));
        }
        if let Some(experts) = &self.recordings.tensors.model.experts {
            let capacities = experts.initial_capacities();
            let rows = experts.layers().filter_map(|layer| experts.capacities(layer));
            rows.for_each(|row| self.write(row, bytemuck::cast_slice(&capacities)));
        }
    }

    /// Writes the weights that a run starts with, drawn from `seed`, portion by portion: the device takes over each
    /// portion before the next one is drawn.
    ///
    /// # Errors
    /// A device that fails.
    pub(super) async fn write_initial_weights(&self, seed: u64) -> Result<()> {
        let mut written = 0;
        for RowGroup { spec, rows, skipped, place } in RowGroup::all(&self.recordings) {
            let mut bytes = Vec::new();
            rows.for_each(|row| place.element.encode_row(&initial_row(spec, row, seed), &mut bytes));
            let start = place.element.bytes_of(skipped) as usize;
            let bytes = &bytes[start..start + place.bytes() as usize];
            self.write(place, bytes);
            written += bytes.len() as u64;
            if written >= PORTION {
                self.gpu.encoder().submit().await?;
                self.gpu.wait().await?;
                written = 0;
            }
        }
        Ok(())
    }

    /// Writes like [`write`](Self::write), and submits each portion without waiting for it: for loading checkpoints.
    pub(super) fn portions(&self) -> impl Fn(Tensor, &[u8]) {
        portions(self.gpu, &self.buffers)
    }
}
