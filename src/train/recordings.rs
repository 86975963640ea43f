//! The recordings of a run: everything that training does on the device, written without a device.

use super::arenas::Arenas;
use super::hot_copies::HotCopies;
use super::monitors::{MaxLogits, Monitors};
use super::passes::{copies, magnitudes, sum_evaluation};
use super::programs::Programs;
use super::run_parts::RunParts;
use super::tensors::{InFlight, RunTensors};
use crate::error::{Error, Result};
use crate::infer::GenerateRecordings;
use crate::kernels::{Capabilities, Kernel, Tier};
use crate::model::arena::ArenaLayout;
use crate::model::config::ModelConfig;
use crate::model::parameters::{Gpt, Spec};
use crate::model::stages::Stages;
use crate::perf::limits::check_activations;
use crate::ranks::RankLayout;
use crate::ranks::pipeline::{self, Direction, Half, Pipeline, Turn};
use crate::ranks::replicas::Replicas;
use crate::ranks::sharding::ownership::Ownership;
use crate::record::{BufferId, Consumer, MemoryPlan, PersistentId, Persistents, Recording};
use crate::settings::{Optimizer, RunPlan};
use crate::train::model_chunks::ModelChunks;
use std::collections::HashSet;
use std::sync::Arc;

/// Everything that is decided before a device is opened.
pub struct Recordings {
    /// The model that the recordings compute.
    pub model: ModelConfig,
    /// Whether the model's weights come from files, so that its sizes are given.
    pub is_loaded: bool,
    /// Buffers that outlive a recording.
    pub persistents: Persistents,
    /// The parameters of the whole model, of which this rank may hold a part.
    pub whole: Vec<Spec>,
    /// Which layers each stage of a pipeline holds.
    pub stages: Stages,
    /// The optimizer, which determines the moments.
    pub optimizer: Optimizer,
    /// Where parameters lie in the arenas.
    pub layout: ArenaLayout,
    /// The arenas.
    pub arenas: Arenas,
    /// Copies of hot experts, if experts are spread over ranks and some are hot.
    pub hot_copies: Option<HotCopies>,
    /// How the ranks share the work on parameters.
    pub ownership: Ownership,
    /// The other tensors that outlive a recording.
    pub tensors: RunTensors,
    /// The tensors that each micro-batch under way has of its own, in the order of `micro_steps`.
    pub in_flight: Vec<Vec<InFlight>>,
    /// The turns of a step; empty without a pipeline.
    pub turns: Arc<[Turn]>,
    /// Forward, loss and backward of one micro-batch: gradients are added to their arena. In a pipeline one recording
    /// for each chunk of layers and each of its micro-batches under way.
    pub micro_steps: Vec<Vec<Recording>>,
    /// Norm, clipping, step state and the optimizer.
    pub update: Recording,
    /// Forward and loss of one micro-batch, for each chunk of layers.
    pub evals: Vec<Recording>,
    /// The sum of an evaluation's losses over the ranks; `None` with one rank.
    pub sum_evaluation: Option<Recording>,
    /// The log-probabilities of a micro-batch of pairs under the model as it is, if they are computed before the
    /// first step.
    pub references: Option<Recording>,
    /// Copies of the weights in the storage type of layers, after each change; `None` if that type is f32.
    pub copy: Option<Recording>,
    /// The norms from which magnitudes of adapters start; `None` without magnitudes.
    pub magnitudes: Option<Recording>,
    /// The monitors that run after an update.
    pub monitors: Monitors,
    /// Fingerprints of the weights, for several ranks.
    pub replicas: Option<Replicas>,
    /// Generation of the sample at the end, if the run asks for one.
    pub sample: Option<GenerateRecordings>,
}

impl Recordings {
    /// Writes the recordings of `plan` for adapters with `capabilities`. The schedule has `steps` rows.
    ///
    /// # Errors
    /// A tensor that no binding can hold.
    pub fn new(plan: &RunPlan, capabilities: Capabilities, steps: u64) -> Result<Self> {
        let model = &plan.model.on_matrix_ranks(&plan.layout);
        check_activations(model, plan.settings.runner.batch_size, &plan.layout, &capabilities)?;
        let mut persistents = Persistents::new();
        let (whole, layout, ownership) = shared_layout(plan, &capabilities)?;
        let chunks = ModelChunks::of(plan);
        let arenas = Arenas::new(&layout, &mut persistents, &plan.settings.optimizer, &ownership);
        let tensors = RunTensors::new(plan, steps, &mut persistents, &capabilities)?;
        let logits = MaxLogits::new(plan, &mut persistents);
        let in_flight = tensors.in_flight(plan, &chunks.in_flight, &mut persistents);
        let hot_copies = HotCopies::new(
            model,
            (&layout, &arenas.read()),
            tensors.model.experts.as_ref(),
            &ownership,
            &capabilities.limits,
            &mut persistents,
        );
        let parts = RunParts {
            plan,
            whole: &whole,
            layout: &layout,
            arenas: &arenas,
            hot_copies: hot_copies.as_ref(),
            ownership: &ownership,
            tensors: &tensors,
            capabilities,
        };
        let largest = logits.as_ref().map(|logits| logits.largest);
        let (micro_steps, evals) = parts.passes(model, &chunks, &in_flight, largest)?;
        let update = parts.update()?;
        let monitors = Monitors::new(&parts, logits, &mut persistents)?;
        let replicas = parts.replicas(&mut persistents)?;
        let copy = copies(&layout, &arenas, hot_copies.as_ref(), &ownership, capabilities)?;
        let magnitudes = magnitudes(plan, (&layout, &arenas), capabilities)?;
        let sum_evaluation =
            sum_evaluation(&tensors.evaluation_sums().collect::<Vec<_>>(), &ownership, capabilities)?;
        let references = parts.references(model)?;
        let sample = parts.sample(model, &mut persistents)?;
        Ok(Self {
            model: plan.model.clone(),
            is_loaded: plan.settings.run.weights().is_some(),
            persistents,
            whole,
            stages: plan.stages.clone(),
            optimizer: plan.settings.optimizer.clone(),
            layout,
            arenas,
            hot_copies,
            ownership,
            tensors,
            in_flight,
            turns: chunks.turns(plan).into(),
            micro_steps,
            update,
            evals,
            sum_evaluation,
            references,
            copy,
            magnitudes,
            monitors,
            replicas,
            sample,
        })
    }

    /// The rank that owns the most parameters, and so has the largest share of moments, among the ranks that share the
    /// batch with the rank of `plan`.
    ///
    /// # Errors
    /// A tensor that no binding can hold.
    pub(crate) fn fullest_rank(plan: &RunPlan, capabilities: Capabilities) -> Result<usize> {
        Ok(shared_layout(plan, &capabilities)?.2.shards.fullest_rank())
    }

    /// Path and number of elements of each parameter of the model.
    pub(super) fn sizes(&self) -> Vec<(String, usize)> {
        self.whole.iter().map(|spec| (spec.path.clone(), spec.rows * spec.cols)).collect()
    }

    /// Forward, loss and backward of a micro-batch: the whole model without a pipeline, otherwise its first chunk.
    pub fn micro_step(&self) -> &Recording {
        &self.micro_steps[0][0]
    }

    /// Forward, loss and backward of a micro-batch, for each chunk.
    pub fn chunks(&self) -> impl Iterator<Item = &Recording> {
        self.micro_steps.iter().flat_map(|slots| slots.first())
    }

    /// The degrees of the pipeline; a single stage if there is no pipeline.
    pub(super) fn pipeline(&self) -> Pipeline {
        Pipeline { stages: self.stages.stages(), interleaves: self.stages.interleaves() }
    }

    /// The most results of a stage that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        let sends = |half: Half| {
            let recording = self.micro_steps.get(half.chunk).and_then(|slots| slots.first());
            recording.is_some_and(|recording| recording.sends(half.direction == Direction::Forward))
        };
        // In an evaluation one result is being sent while the next is computed.
        if self.turns.is_empty() { 0 } else { pipeline::waiting(&self.turns, sends).max(2) }
    }

    /// The recordings by name.
    pub fn programs(&self) -> Programs<&Recording> {
        let Monitors { gradients, states, shared, .. } = &self.monitors;
        Programs {
            micro_steps: self.micro_steps.iter().map(|slots| slots.iter().collect()).collect(),
            update: &self.update,
            evals: self.evals.iter().collect(),
            sample: self.sample.as_ref().map(|sample| sample.programs.as_ref()),
            sum_evaluation: self.sum_evaluation.as_ref(),
            references: self.references.as_ref(),
            copy: self.copy.as_ref(),
            magnitudes: self.magnitudes.as_ref(),
            gradient_norms: gradients.as_ref().map(|norms| &norms.recording),
            state_norms: states.as_ref().map(|norms| &norms.recording),
            shared: shared.as_ref(),
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
        let copies = self.hot_copies.iter().flat_map(HotCopies::gradient_buffers);
        self.arenas.gradients.buffers().chain(copies).chain(tensors.chain(tallies).filter_map(id))
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
    pub(crate) fn params_bytes(&self) -> u64 {
        self.all().into_iter().map(Recording::params_bytes).sum()
    }

    /// Bytes of the id arrays of a micro-batch.
    pub(crate) fn batch_bytes(&self) -> u64 {
        self.persistents.buffers()[self.tensors.batch.buffer().0 as usize].1
    }

    /// Bytes of the pieces in which checkpoints are read from the device.
    pub(crate) fn piece_bytes(&self) -> u64 {
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

/// The parameters of the model, the places of those that a rank holds, and how the ranks share them.
fn shared_layout(plan: &RunPlan, capabilities: &Capabilities) -> Result<(Vec<Spec>, ArenaLayout, Ownership)> {
    let ranks = plan.layout;
    let whole = plan.grouping().apply(Gpt::describe(&plan.model));
    let whole = whole.map_err(|misfit| Error::Plan(misfit.message))?;
    let of_stage = |stage| {
        let on = RankLayout { rank: ranks.in_stage(stage), ..ranks };
        ArenaLayout::new(held_by(&on, &plan.stages, &whole)?, &capabilities.limits)
    };
    let mut layouts = (0..ranks.pipeline).map(of_stage).collect::<Result<Vec<ArenaLayout>>>()?;
    let ownership = Ownership::among_stages(&layouts, ranks, plan.sharding);
    Ok((whole, layouts.swap_remove(ranks.stage()), ownership))
}

/// The part of the parameters `whole` that a rank holds.
///
/// # Errors
/// A parameter that tensor-parallel ranks cannot divide evenly.
pub(crate) fn held_by(ranks: &RankLayout, stages: &Stages, whole: &[Spec]) -> Result<Vec<Spec>> {
    let model = ranks.model;
    let held = |spec: Spec| {
        let path = spec.path.clone();
        spec.held_by(ranks).ok_or_else(|| {
            Error::Plan(format!("{model} ranks of model_parallel cannot divide {path} evenly; lower it"))
        })
    };
    let of_stage = whole.iter().filter_map(|spec| stages.held(ranks.stage(), spec.clone()));
    of_stage.map(held).collect()
}

/// The capabilities that recordings assume where no adapter is opened: llvmpipe for the software tier, a GPU for the
/// others.
pub const fn assumed_capabilities(tier: Tier) -> Capabilities {
    match tier {
        Tier::Software => Capabilities::software(),
        Tier::Portable => Capabilities::portable(),
        Tier::Matrix => Capabilities::matrix(),
    }
}
