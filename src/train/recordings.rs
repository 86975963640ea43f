//! The recordings of a run: everything that training does on the device, written without a device.

use super::arenas::Arenas;
use super::batch_arrays::{BatchArrays, batch_tensors};
use super::limits::{check_activations, check_memory, check_schedule};
use super::micro_step::{DropoutMasks, MicroBatch};
use super::state::{LossState, StepState, schedule_columns};
use super::update::Update;
use crate::config::RunPlan;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::generate::GenerateRecordings;
use crate::kernels::Capabilities;
use crate::model::arena::ArenaLayout;
use crate::model::config::ModelConfig;
use crate::model::gpt::BatchTensors;
use crate::model::parameters::Gpt;
use crate::model::{ExpertState, Shape};
use crate::ops::grad_norm::StepTensors;
use crate::record::{BufferId, Consumer, MemoryPlan, PersistentId, Persistents, Recording, Tensor};

/// Everything that is decided before a device is opened.
pub struct Recordings {
    /// The model that they compute.
    pub model: ModelConfig,
    /// Buffers that outlive a recording.
    pub persistents: Persistents,
    /// Where parameters lie in the arenas.
    pub layout: ArenaLayout,
    /// The arenas.
    pub arenas: Arenas,
    /// `StepState`.
    pub state: Tensor,
    /// `LossState` of the training batches.
    pub loss: Tensor,
    /// `LossState` of the evaluation batches.
    pub eval_loss: Tensor,
    /// `LossState` of multi-token prediction, for a model that has it.
    pub ahead_loss: Option<Tensor>,
    /// Tallies, biases and capacities of the routers, for a mixture.
    pub experts: Option<ExpertState>,
    /// Learning rate and bias corrections, by global step.
    pub schedule: Tensor,
    /// Which id arrays a micro-batch has.
    pub batch_arrays: BatchArrays,
    /// The current micro-batch.
    pub batch: BatchTensors,
    /// The rotary table and its content, for a model with rotary embeddings.
    pub rotary: Option<(Tensor, Vec<f32>)>,
    /// Forward, loss and backward of one micro-batch: gradients are added to their arena.
    pub micro_step: Recording,
    /// Norm, clipping, step state and the optimizer.
    pub update: Recording,
    /// Forward and loss of one micro-batch.
    pub eval: Recording,
    /// Generation of the sample at the end, if the run asks for one.
    pub sample: Option<GenerateRecordings>,
}

impl Recordings {
    /// Writes the recordings of `plan` for adapters that can do `capabilities`. The schedule has `steps` rows.
    ///
    /// # Errors
    /// A tensor that no binding can hold; a run over `context.max_device_memory`.
    pub fn new(plan: &RunPlan, capabilities: Capabilities, steps: u64) -> Result<Self> {
        let model = &plan.model;
        let mut persistents = Persistents::new();
        let parameters = plan.grouping().apply(Gpt::describe(model));
        let parameters = parameters.map_err(|misfit| Error::Plan(misfit.message))?;
        let layout = ArenaLayout::new(parameters, &capabilities.limits)?;
        let arenas = Arenas::new(&layout, &mut persistents);
        let state = words(&mut persistents, "step state", StepState::WORDS);
        let loss = words(&mut persistents, "loss state", LossState::WORDS);
        let eval_loss = words(&mut persistents, "evaluation loss state", LossState::WORDS);
        let rows = steps.clamp(1, u32::MAX as u64) as u32;
        let columns = schedule_columns(1 + plan.groups.len());
        let schedule = persistents.tensor("schedule", rows, columns, Element::F32);
        let tokens = (plan.batch_size * model.seq_length) as u32;
        let batch_arrays = BatchArrays::of(model, plan.isolates_documents());
        let batch = batch_tensors(&mut persistents, "batch", tokens, batch_arrays);
        let ahead_loss =
            model.multi_token.map(|_| words(&mut persistents, "loss state ahead", LossState::WORDS));
        let shape = Shape::new(model, tokens, &mut persistents);
        let dropout = shape.has_dropout().then(|| DropoutMasks {
            seed: plan.seed,
            state: words(&mut persistents, "dropout state", DropoutMasks::WORDS),
        });
        check_schedule(schedule, &capabilities)?;
        check_activations(model, plan.batch_size, &capabilities)?;

        let gpt = layout.bind(&arenas.weights, Some(&arenas.gradients));
        let micro_batch = MicroBatch {
            gpt: &gpt,
            shape,
            batch: &batch,
            state,
            accumulation: plan.gradient_accumulation_steps as u32,
            ignore_id: model.ignore_id,
        };
        let micro_step = micro_batch.train(capabilities, loss, model.multi_token.zip(ahead_loss), dropout);
        let eval = micro_batch.evaluate(capabilities, eval_loss);
        let update = Update {
            optimizer: &plan.optimizer,
            decays: (0..=plan.groups.len()).map(|group| plan.weight_decay(group)).collect(),
            max_norm: plan.clip,
            layout: &layout,
            arenas: &arenas,
            tensors: StepTensors { state, loss, schedule },
            experts: shape.expert_state(),
        };
        let update = update.record(capabilities)?;
        let sample = plan
            .sample
            .is_some()
            .then(|| GenerateRecordings::new(&mut persistents, &gpt, model, &shape, 1, capabilities));
        let recordings = Self {
            model: model.clone(),
            persistents,
            layout,
            arenas,
            state,
            loss,
            eval_loss,
            ahead_loss,
            experts: shape.expert_state(),
            schedule,
            batch_arrays,
            batch,
            rotary: shape.rotary_table(),
            micro_step,
            update,
            eval,
            sample,
        };
        check_memory(&recordings, plan.max_device_memory)?;
        Ok(recordings)
    }

    /// All recordings, in the order in which they are prepared.
    pub fn all(&self) -> Vec<&Recording> {
        let mut all = vec![&self.micro_step, &self.update, &self.eval];
        all.extend(self.sample.iter().flat_map(|sample| [&sample.prefill, &sample.step]));
        all
    }

    /// Bytes of persistent buffers and pool.
    pub fn bytes(&self) -> u64 {
        self.persistents.bytes() + MemoryPlan::new(&self.all()).bytes()
    }

    /// The `count` largest buffers, largest first.
    pub fn largest_consumers(&self, count: usize) -> Vec<Consumer> {
        let mut consumers = MemoryPlan::largest(&self.all(), count);
        let persistent = self.persistents.buffers().iter();
        consumers.extend(persistent.map(|(label, bytes)| Consumer { label: label.clone(), bytes: *bytes }));
        consumers.sort_by_key(|consumer| std::cmp::Reverse(consumer.bytes));
        consumers.truncate(count);
        consumers
    }
}

/// The buffer of a persistent tensor.
pub fn persistent(tensor: Tensor) -> Option<PersistentId> {
    match tensor.buffer {
        BufferId::Persistent(id) => Some(id),
        BufferId::Transient(_) => None,
    }
}

/// A persistent row of `count` 32-bit words, for a struct that kernels share.
fn words(persistents: &mut Persistents, label: &str, count: u32) -> Tensor {
    persistents.tensor(label, 1, count, Element::F32)
}
