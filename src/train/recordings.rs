//! The recordings of a run: everything that training does on the device, written without a device.

use super::arenas::Arenas;
use super::limits::{check_activations, misfit};
use super::monitors::{MaxLogits, Monitors, Watchable};
use super::passes::{Passes, copies, sum_evaluation};
use super::programs::Programs;
use super::replicas::Replicas;
use super::tensors::RunTensors;
use super::update::Update;
use crate::error::{Error, Result};
use crate::generate::GenerateRecordings;
use crate::kernels::{Capabilities, Kernel, Tier};
use crate::model::arena::ArenaLayout;
use crate::model::config::ModelConfig;
use crate::model::parameters::{Gpt, Spec};
use crate::model::{ForwardContext, Mode};
use crate::ops::grad_norm::StepRules;
use crate::ops::matrix_ranks::MatrixRanks;
use crate::ranks::RankLayout;
use crate::record::{BufferId, Consumer, Dispatch, MemoryPlan, PersistentId, Persistents, Recording};
use crate::settings::RunPlan;
use crate::sharding::ownership::Ownership;
use crate::sharding::places::Places;
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
    pub ownership: Ownership,
    /// What else outlives a recording.
    pub tensors: RunTensors,
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
    /// A tensor that no binding can hold.
    pub fn new(plan: &RunPlan, capabilities: Capabilities, steps: u64) -> Result<Self> {
        let model = &plan.model.on_matrix_ranks(&plan.layout);
        check_activations(model, plan.settings.runner.batch_size, &plan.layout, &capabilities)?;
        let mut persistents = Persistents::new();
        let (whole, layout, ownership) = shared_layout(plan, &capabilities)?;
        let arenas = Arenas::new(&layout, &mut persistents, &plan.optimizer, &ownership);
        let tensors = RunTensors::new(plan, steps, &mut persistents, &capabilities)?;
        let logits = MaxLogits::new(plan, &mut persistents);

        let passes = Passes { layout: &layout, arenas: &arenas, ownership: &ownership, capabilities };
        let (buffers, batch, expert_ranks) = (tensors.model, tensors.batch, ownership.expert_ranks());
        let recompute = &plan.settings.recompute;
        let matrix_ranks = ownership.matrix_ranks().map(|ranks| MatrixRanks {
            keeps_exchanged: !recompute.mp_comm_recompute,
            keeps_slices: recompute.recompute_slice_activation,
            ..ranks
        });
        let (expert_ranks, matrix_ranks) = (expert_ranks.as_ref(), matrix_ranks.as_ref());
        let forward =
            |mode| ForwardContext { config: model, buffers, batch, expert_ranks, matrix_ranks, mode };
        let training = tensors.training(logits.as_ref().map(|logits| logits.largest));
        let training = forward(Mode::Training(training));
        let micro_step = passes.micro_step(&training, &tensors.training_losses()).map_err(|e| misfit(&e))?;
        let evaluation = forward(Mode::Evaluation);
        let eval = passes.eval(&evaluation, &tensors.evaluation_losses()).map_err(|e| misfit(&e))?;
        let places = Places::new(&layout, &ArenaLayout::new(whole.clone(), &capabilities.limits)?);
        let update = Update {
            optimizer: &plan.optimizer,
            seed: plan.settings.run.seed,
            decays: (0..=plan.settings.groups.len()).map(|group| plan.weight_decay(group)).collect(),
            rules: step_rules(plan),
            ownership: &ownership,
            layout: &layout,
            places: &places,
            arenas: &arenas,
            tensors: &tensors,
        };
        let update = update.record(capabilities)?;
        let run = Watchable {
            plan,
            layout: &layout,
            arenas: &arenas,
            ownership: &ownership,
            tensors: &tensors,
            logits,
            capabilities,
        };
        let monitors = Monitors::new(&run, &mut persistents)?;
        let experts = tensors.model.experts.as_ref();
        let replicas = Replicas::new(&layout, &arenas, experts, &ownership, &mut persistents, capabilities)?;
        let copy = copies(&layout, &arenas, &ownership, capabilities)?;
        let sum_evaluation =
            sum_evaluation(tensors.eval_loss, tensors.eval_correct, &ownership, capabilities)?;
        let read = arenas.read();
        let sample = plan.settings.sample.as_ref().filter(|_| ownership.holds_all_weights()).map(|_| {
            let gpt = layout.bind(model, &read, None);
            GenerateRecordings::new(&mut persistents, &gpt, model, buffers, 1, capabilities)
                .map_err(|e| misfit(&e))
        });
        let sample = sample.transpose()?;
        Ok(Self {
            model: plan.model.clone(),
            persistents,
            whole,
            layout,
            arenas,
            ownership,
            tensors,
            micro_step,
            update,
            eval,
            sum_evaluation,
            copy,
            monitors,
            replicas,
            sample,
        })
    }

    /// The rank that owns the most parameters, and so has the largest share of moments, of those that share the batch with the rank
    /// of `plan`.
    ///
    /// # Errors
    /// A tensor that no binding can hold.
    pub(crate) fn fullest_rank(plan: &RunPlan, capabilities: Capabilities) -> Result<usize> {
        Ok(shared_layout(plan, &capabilities)?.2.shards.fullest_rank())
    }

    /// The recordings by name.
    pub fn programs(&self) -> Programs<&Recording> {
        let Monitors { gradients, states, stable_ranks, .. } = &self.monitors;
        Programs {
            micro_step: &self.micro_step,
            update: &self.update,
            eval: &self.eval,
            sample: self.sample.as_ref().map(|sample| sample.programs.as_ref()),
            sum_evaluation: self.sum_evaluation.as_ref(),
            copy: self.copy.as_ref(),
            gradient_norms: gradients.as_ref().map(|norms| &norms.recording),
            state_norms: states.as_ref().map(|norms| &norms.recording),
            stable_ranks: stable_ranks.as_ref().map(|ranks| &ranks.recording),
            fingerprints: self.replicas.as_ref().map(|replicas| &replicas.recording),
        }
    }

    /// All recordings, in the order in which they are prepared.
    pub fn all(&self) -> Vec<&Recording> {
        self.programs().all()
    }

    /// The buffers that accumulate over a step and are cleared before it.
    pub(super) fn accumulated(&self) -> impl Iterator<Item = PersistentId> {
        let tallies = self.tensors.model.experts.map(|experts| experts.tallies().0);
        let largest = self.monitors.logits.as_ref().map(|logits| logits.largest);
        let tensors = self.tensors.sums().chain(largest).map(|tensor| tensor.buffer);
        let id = |buffer| match buffer {
            BufferId::Persistent(id) => Some(id),
            BufferId::Transient(_) => None,
        };
        self.arenas.gradients.buffers().chain(tensors.chain(tallies).filter_map(id))
    }

    /// The kernels of all recordings, each once.
    pub fn kernels(&self) -> HashSet<&Kernel> {
        self.all()
            .into_iter()
            .flat_map(|recording| &recording.dispatches)
            .map(|launch| &launch.kernel)
            .collect()
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
        self.tensors.batch_arrays.bytes(self.tensors.batch.tokens.cols)
    }

    /// Bytes of the pieces in which checkpoints are read from the device.
    pub(super) fn piece_bytes(&self) -> u64 {
        let segment = self.layout.segments.iter().map(|segment| 4 * segment.elements).max();
        segment.unwrap_or(16).min(MAX_PIECE_BYTES)
    }

    /// The `count` largest buffers, largest first.
    pub(crate) fn largest_consumers(&self, count: usize) -> Vec<Consumer> {
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
fn shared_layout(plan: &RunPlan, capabilities: &Capabilities) -> Result<(Vec<Spec>, ArenaLayout, Ownership)> {
    let ranks = plan.layout;
    let whole = plan.grouping().apply(Gpt::describe(&plan.model));
    let whole = whole.map_err(|misfit| Error::Plan(misfit.message))?;
    let layout = ArenaLayout::new(held_by(&ranks, &whole)?, &capabilities.limits)?;
    let ownership = Ownership::new(&layout, ranks, plan.sharding);
    Ok((whole, layout, ownership))
}

/// What a rank holds of the parameters `whole`.
///
/// # Errors
/// A parameter that tensor-parallel ranks cannot divide evenly.
pub(super) fn held_by(ranks: &RankLayout, whole: &[Spec]) -> Result<Vec<Spec>> {
    let model = ranks.model;
    let held = |spec: &Spec| {
        let divided = spec.clone().of_matrix_rank(ranks);
        let divided = divided.ok_or_else(|| {
            Error::Plan(format!("{model} ranks of model_parallel cannot divide {} evenly; lower it", spec.path))
        })?;
        Ok(divided.of_expert_rank(ranks.expert_part(), ranks.expert))
    };
    whole.iter().map(held).collect()
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

/// What recordings are written for where no adapter is opened: llvmpipe for the software tier, a GPU for the others.
pub const fn assumed_capabilities(tier: Tier) -> Capabilities {
    match tier {
        Tier::Software => Capabilities::software(),
        Tier::Portable => Capabilities::portable(),
        Tier::Matrix => Capabilities::matrix(),
    }
}
