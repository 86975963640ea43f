//! The recordings of a run: everything that training does on the device, written without a device.

use super::arenas::Arenas;
use super::batch_arrays::{BatchArrays, batch_tensors};
use super::limits::{check_activations, check_binding, check_memory, misfit};
use super::monitors::{MaxLogits, Monitors, Watchable};
use super::passes::{Passes, copies, sum_evaluation};
use super::replicas::Replicas;
use super::schedule_table::schedule_columns;
use super::sharing::Sharing;
use super::update::Update;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::generate::GenerateRecordings;
use crate::kernels::{Capabilities, Kernel, Tier};
use crate::model::arena::ArenaLayout;
use crate::model::config::ModelConfig;
use crate::model::gpt::LossTensors;
use crate::model::parameters::{Gpt, Spec};
use crate::model::places::Places;
use crate::model::{BatchTensors, ExpertState, ForwardContext, Masks, Mode, ModelBuffers, Training};
use crate::ops::dropout::DropoutState;
use crate::ops::grad_norm::{StepRules, StepTensors};
use crate::ops::loss_scale::{LossScaleState, LossScaler};
use crate::ops::step_state::{LossState, StepState};
use crate::ranks::Layout;
use crate::record::{
    BufferId, Consumer, Dispatch, MemoryPlan, PersistentId, Persistents, Recording, State, Tensor,
};
use crate::settings::{Adaptation, RunPlan};
use std::collections::HashSet;

/// Everything that is decided before a device is opened.
pub struct Recordings {
    /// The model that they compute.
    pub model: ModelConfig,
    /// Buffers that outlive a recording.
    pub persistents: Persistents,
    /// The parameters of the whole model, of which this rank may hold a part.
    pub whole: Vec<Spec>,
    /// Where parameters lie in the arenas.
    pub layout: ArenaLayout,
    /// The arenas.
    pub arenas: Arenas,
    /// How the ranks share the work on parameters.
    pub sharing: Sharing,
    /// `StepState`.
    pub state: Tensor,
    /// What the loss scale adapts by, if it does.
    pub scaler: Option<LossScaler>,
    /// `LossState` of the training batches.
    pub loss: Tensor,
    /// `LossState` of the evaluation batches.
    pub eval_loss: Tensor,
    /// How many of their targets have the largest logit (1, 1), if it is asked for.
    pub eval_correct: Option<Tensor>,
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
    /// The sum of an evaluation's losses over the ranks; `None` with one.
    pub sum_evaluation: Option<Recording>,
    /// Copies of the weights in the storage type of layers, after each change; `None` where that is f32.
    pub copy: Option<Recording>,
    /// What is watched after an update.
    pub monitors: Monitors,
    /// Fingerprints of the weights, for several ranks.
    pub replicas: Option<Replicas>,
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
        check_activations(model, plan.settings.runner.batch_size, &plan.layout, &capabilities)?;
        let mut persistents = Persistents::new();
        let (whole, layout, sharing) = shared_layout(plan, &capabilities)?;
        let arenas = Arenas::new(&layout, &mut persistents, &plan.optimizer, &sharing);
        let state = StepState::tensor(&mut persistents, "step state");
        let adaptation = plan.settings.wrapper.scale_sense.adaptation();
        let scaler = adaptation.map(|adaptation| scaler(&adaptation, &mut persistents));
        let loss = LossState::tensor(&mut persistents, "loss state");
        let eval_loss = LossState::tensor(&mut persistents, "evaluation loss state");
        let counts_correct = plan.settings.metric.accuracy;
        let eval_correct =
            counts_correct.then(|| persistents.tensor("correct predictions", 1, 1, Element::F32));
        let rows = steps.clamp(1, u32::MAX as u64) as u32;
        let columns = schedule_columns(1 + plan.settings.groups.len());
        let schedule = persistents.tensor("schedule", rows, columns, Element::F32);
        let tokens = (plan.settings.runner.batch_size * model.seq_length) as u32;
        let batch_arrays = BatchArrays::of(model, plan.isolates_documents());
        let batch = batch_tensors(&mut persistents, "batch", tokens, batch_arrays);
        let ahead_loss = model.multi_token.map(|_| LossState::tensor(&mut persistents, "loss state ahead"));
        let buffers = ModelBuffers::new(model, tokens, &mut persistents);
        let masks = model.has_dropout().then(|| Masks {
            seed: plan.settings.run.seed,
            state: DropoutState::tensor(&mut persistents, "dropout state"),
        });
        let what = format!("the learning rates of {rows} steps take");
        let remedy = "lower runner_config.epochs or runner_config.stop_step";
        check_binding(schedule.bytes(), &capabilities, what, remedy)?;

        let passes = Passes { layout: &layout, arenas: &arenas, sharing: &sharing, capabilities };
        // Every rank's micro-batches count, as if one rank had accumulated them all.
        let accumulation = plan.micro_batches_per_step() as u32;
        let expert_ranks = sharing.expert_ranks();
        let expert_ranks = expert_ranks.as_ref();
        let context = |mode| ForwardContext { config: model, buffers, batch, expert_ranks, mode };
        let is_per_token = plan.settings.wrapper.calculate_per_token_loss;
        let losses = LossTensors {
            step: state,
            accumulation,
            is_per_token,
            next_token: loss,
            correct: None,
            multi_token: ahead_loss,
        };
        let logits = MaxLogits::new(plan, &mut persistents);
        let largest_scores = logits.as_ref().map(|logits| logits.largest);
        let training = Training { step: state, accumulation, masks, largest_scores };
        let training = context(Mode::Training(training));
        let micro_step = passes.micro_step(&training, &losses).map_err(|e| misfit(&e))?;
        let losses =
            LossTensors { next_token: eval_loss, correct: eval_correct, multi_token: None, ..losses };
        let eval = passes.eval(&context(Mode::Evaluation), &losses).map_err(|e| misfit(&e))?;
        let places = Places::new(&layout, &ArenaLayout::new(whole.clone(), &capabilities.limits)?);
        let update = Update {
            optimizer: &plan.optimizer,
            seed: plan.settings.run.seed,
            decays: (0..=plan.settings.groups.len()).map(|group| plan.weight_decay(group)).collect(),
            rules: step_rules(plan),
            scaler,
            sharing: &sharing,
            layout: &layout,
            places: &places,
            arenas: &arenas,
            tensors: StepTensors { state, loss, schedule },
            ahead_loss,
            experts: buffers.experts,
        };
        let update = update.record(capabilities)?;
        let watchable = Watchable {
            plan,
            layout: &layout,
            arenas: &arenas,
            sharing: &sharing,
            state,
            loss,
            ahead_loss,
            experts: buffers.experts,
            logits,
            capabilities,
        };
        let monitors = Monitors::new(&watchable, &mut persistents)?;
        let experts = buffers.experts.as_ref();
        let replicas = Replicas::new(&layout, &arenas, experts, &sharing, &mut persistents, capabilities)?;
        let copy = copies(&layout, &arenas, &sharing, capabilities)?;
        let sum_evaluation = sum_evaluation(eval_loss, eval_correct, &sharing, capabilities)?;
        let read = arenas.read();
        let sample = plan.settings.sample.as_ref().filter(|_| sharing.holds_all_weights()).map(|_| {
            let gpt = layout.bind(model, &read, None);
            GenerateRecordings::new(&mut persistents, &gpt, model, buffers, 1, capabilities)
                .map_err(|e| misfit(&e))
        });
        let sample = sample.transpose()?;
        let recordings = Self {
            model: model.clone(),
            persistents,
            whole,
            layout,
            arenas,
            sharing,
            state,
            scaler,
            loss,
            eval_loss,
            eval_correct,
            ahead_loss,
            experts: buffers.experts,
            schedule,
            batch_arrays,
            batch,
            rotary: buffers.rotary_table(model),
            micro_step,
            update,
            eval,
            sum_evaluation,
            copy,
            monitors,
            replicas,
            sample,
        };
        check_memory(&recordings, plan.settings.context.max_device_memory.map(|size| size.0))?;
        Ok(recordings)
    }

    /// The rank that owns the most parameters, and so has the largest share of moments, of those that share the batch with the rank
    /// of `plan`.
    ///
    /// # Errors
    /// A tensor that no binding can hold.
    pub fn fullest_rank(plan: &RunPlan, capabilities: Capabilities) -> Result<usize> {
        Ok(shared_layout(plan, &capabilities)?.2.shards.fullest_rank())
    }

    /// All recordings, in the order in which they are prepared.
    pub fn all(&self) -> Vec<&Recording> {
        let mut all = vec![&self.micro_step, &self.update, &self.eval];
        all.extend(self.sample.iter().flat_map(|sample| [&sample.prefill, &sample.step]));
        all.extend(&self.sum_evaluation);
        all.extend(&self.copy);
        all.extend(self.monitors.recordings());
        all.extend(self.replicas.iter().map(|replicas| &replicas.recording));
        all
    }

    /// The place of one of them in [`all`](Self::all).
    pub(super) fn index_of(&self, recording: Option<&Recording>) -> Option<usize> {
        let recording = recording?;
        self.all().into_iter().position(|other| std::ptr::eq(other, recording))
    }

    /// The kernels of all recordings, each once.
    pub fn kernels(&self) -> HashSet<&Kernel> {
        self.all()
            .into_iter()
            .flat_map(|recording| &recording.dispatches)
            .map(|launch| &launch.kernel)
            .collect()
    }

    /// Bytes of persistent buffers and pool.
    pub fn bytes(&self) -> u64 {
        self.persistents.bytes() + MemoryPlan::new(&self.all()).bytes()
    }

    /// Bytes of the params structs of all kernel launches.
    pub(super) fn params_bytes(&self) -> u64 {
        let of = |recording: &&Recording| {
            recording.dispatches.iter().map(Dispatch::params_slot).sum::<u64>().max(16)
        };
        self.all().iter().map(of).sum()
    }

    /// Bytes of the id arrays of a micro-batch.
    pub(super) fn batch_bytes(&self) -> u64 {
        self.batch_arrays.bytes(self.batch.tokens.cols)
    }

    /// Bytes of the pieces in which checkpoints are read from the device.
    pub(super) fn piece_bytes(&self) -> u64 {
        let segment = self.layout.segments.iter().map(|segment| 4 * segment.elements).max();
        segment.unwrap_or(16).min(MAX_PIECE_BYTES)
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

/// Checkpoints are read from the device in pieces of at most this many bytes.
const MAX_PIECE_BYTES: u64 = 64 << 20;

/// The parameters of the model, where those that a rank holds lie, and how the ranks share them.
fn shared_layout(plan: &RunPlan, capabilities: &Capabilities) -> Result<(Vec<Spec>, ArenaLayout, Sharing)> {
    let ranks = plan.layout;
    let whole = plan.grouping().apply(Gpt::describe(&plan.model));
    let whole = whole.map_err(|misfit| Error::Plan(misfit.message))?;
    let layout = ArenaLayout::new(held_by(&ranks, &whole), &capabilities.limits)?;
    let sharing = Sharing::new(&layout, ranks, plan.sharding);
    Ok((whole, layout, sharing))
}

/// What a rank holds of the parameters `whole`.
pub(super) fn held_by(ranks: &Layout, whole: &[Spec]) -> Vec<Spec> {
    whole.iter().map(|spec| spec.clone().of_expert_rank(ranks.expert_part(), ranks.expert)).collect()
}

/// The tensors of a loss scale that adapts.
fn scaler(adaptation: &Adaptation, persistents: &mut Persistents) -> LossScaler {
    let windows = adaptation.windows.len() as u32;
    LossScaler {
        state: LossScaleState::tensor(persistents, "loss scale state"),
        windows: persistents.tensor("loss scale windows", 1, windows, Element::U32),
        factor: adaptation.factor as f32,
    }
}

fn step_rules(plan: &RunPlan) -> StepRules {
    let wrapper = &plan.settings.wrapper;
    StepRules {
        max_norm: wrapper.clip().map(|norm| norm as f32),
        spike_norm: wrapper.spike_norm().map(|norm| norm as f32),
        halts_on_nan: plan.settings.run.check_for_nan_in_loss_and_grad,
        tokens: wrapper.calculate_per_token_loss.then_some(plan.tokens_per_step as f32),
    }
}

/// What recordings are written for where no adapter is opened: llvmpipe for the software tier, a GPU for the portable one.
pub const fn assumed_capabilities(tier: Tier) -> Capabilities {
    match tier {
        Tier::Software => Capabilities::software(),
        Tier::Portable => Capabilities::portable(),
    }
}

/// The buffer of a persistent tensor.
pub fn persistent(tensor: Tensor) -> Option<PersistentId> {
    match tensor.buffer {
        BufferId::Persistent(id) => Some(id),
        BufferId::Transient(_) => None,
    }
}
