//! The parts of a run, and the recordings that follow from them.

use super::arenas::Arenas;
use super::hot_copies::HotCopies;
use super::model_chunks::{ModelChunk, ModelChunks};
use super::passes::Passes;
use super::tensors::{InFlight, RunTensors};
use super::update::Update;
use crate::error::Result;
use crate::infer::GenerateRecordings;
use crate::kernels::Capabilities;
use crate::model::arena::ArenaLayout;
use crate::model::config::ModelConfig;
use crate::model::parameters::Spec;
use crate::model::{ForwardContext, Mode};
use crate::ops::grad_norm::StepRules;
use crate::perf::limits::misfit;
use crate::ranks::replicas::Replicas;
use crate::ranks::sharding::global_offsets::GlobalOffsets;
use crate::ranks::sharding::ownership::Ownership;
use crate::record::{Persistents, Recording, Tensor};
use crate::settings::RunPlan;

/// Everything that outlives a step, and how ranks share it.
pub(super) struct RunParts<'a> {
    pub plan: &'a RunPlan,
    /// The parameters of the whole model.
    pub whole: &'a [Spec],
    pub layout: &'a ArenaLayout,
    pub arenas: &'a Arenas,
    /// The copies of hot experts, if there are any.
    pub hot_copies: Option<&'a HotCopies>,
    pub ownership: &'a Ownership,
    pub tensors: &'a RunTensors,
    pub capabilities: Capabilities,
}

impl RunParts<'_> {
    /// Forward, loss and backward of the micro-batches `in_flight` of each chunk, and forward and loss of an
    /// evaluation, for `model` as this rank computes it. Training writes the largest attention scores to `largest`, if
    /// they are watched.
    pub fn passes(
        &self,
        model: &ModelConfig,
        chunks: &ModelChunks,
        in_flight: &[Vec<InFlight>],
        largest: Option<Tensor>,
    ) -> Result<(Vec<Vec<Recording>>, Vec<Recording>)> {
        let Self { layout, arenas, hot_copies: copies, ownership, tensors, capabilities, .. } = *self;
        let windows = self.plan.settings.runner.batch_size;
        let passes = Passes { layout, arenas, copies, ownership, capabilities };
        let (expert_ranks, matrix_ranks) = (ownership.expert_ranks(), ownership.matrix_ranks());
        let forward = |batch, mode| ForwardContext {
            config: model,
            buffers: tensors.model,
            batch,
            expert_ranks: expert_ranks.as_ref(),
            matrix_ranks: matrix_ranks.as_ref(),
            mode,
        };
        let micro_step = |chunk: ModelChunk, InFlight { batch, masks }: InFlight| {
            let training = forward(batch, Mode::Training(tensors.training(masks, largest)));
            let loss = tensors.training_loss(&training);
            passes.micro_step(&chunk, &training, &loss).map_err(|e| misfit(&e, windows))
        };
        let of_chunk = |(chunk, slots): (usize, &Vec<InFlight>)| -> Result<Vec<Recording>> {
            let slots = slots.iter().enumerate();
            slots.map(|(slot, own)| micro_step(chunks.training(chunk, slot), *own)).collect()
        };
        let micro_steps = in_flight.iter().enumerate().map(of_chunk).collect::<Result<_>>()?;
        let evaluation = forward(tensors.batch, Mode::Evaluation);
        let loss = tensors.evaluation_loss(&evaluation);
        let eval = |chunk| passes.eval(chunk, &evaluation, &loss).map_err(|e| misfit(&e, windows));
        Ok((micro_steps, chunks.all.iter().map(eval).collect::<Result<_>>()?))
    }

    /// The log-probabilities of a micro-batch of pairs under `model` as it is, if they are computed before the first
    /// step.
    pub fn references(&self, model: &ModelConfig) -> Result<Option<Recording>> {
        let Self { layout, arenas, hot_copies: copies, ownership, tensors, capabilities, .. } = *self;
        let Some(computed) = tensors.preference.and_then(|preference| preference.computed) else {
            return Ok(None);
        };
        let passes = Passes { layout, arenas, copies, ownership, capabilities };
        let (expert_ranks, matrix_ranks) = (ownership.expert_ranks(), ownership.matrix_ranks());
        let evaluation = ForwardContext {
            config: model,
            buffers: tensors.model,
            batch: tensors.batch,
            expert_ranks: expert_ranks.as_ref(),
            matrix_ranks: matrix_ranks.as_ref(),
            mode: Mode::Evaluation,
        };
        let recording = passes.references(&evaluation, &tensors.evaluation_loss(&evaluation), computed);
        recording.map(Some).map_err(|e| misfit(&e, self.plan.settings.runner.batch_size))
    }

    /// Norm, clipping, step state and the optimizer.
    pub fn update(&self) -> Result<Recording> {
        let Self { plan, whole, layout, arenas, hot_copies, ownership, tensors, capabilities } = *self;
        let places = match plan.settings.optimizer.stochastic_rounding {
            true => {
                Some(GlobalOffsets::new(layout, &ArenaLayout::new(whole.to_vec(), &capabilities.limits)?))
            }
            false => None,
        };
        let update = Update {
            optimizer: &plan.settings.optimizer,
            seed: plan.settings.run.seed,
            decays: (0..=plan.groups()).map(|group| plan.weight_decay(group)).collect(),
            rules: step_rules(plan),
            ownership,
            whole,
            layout,
            places: places.as_ref(),
            arenas,
            hot_copies,
            tensors,
        };
        update.record(capabilities)
    }

    /// Fingerprints of the weights, for several ranks.
    pub fn replicas(&self, persistents: &mut Persistents) -> Result<Option<Replicas>> {
        let Self { whole, layout, arenas, ownership, tensors, capabilities, .. } = *self;
        let experts = tensors.model.experts.as_ref();
        Replicas::new(whole, (layout, arenas), experts, ownership, persistents, capabilities)
    }

    /// Generation of the sample at the end, if the run asks for one and this rank holds all weights.
    pub fn sample(
        &self,
        model: &ModelConfig,
        persistents: &mut Persistents,
    ) -> Result<Option<GenerateRecordings>> {
        if self.plan.settings.sample.is_none() || !self.ownership.holds_all_weights() {
            return Ok(None);
        }
        let gpt = self.layout.bind(model, &self.arenas.read(), None);
        let passes = [model.seq_length as u32]; // one of a run's many recordings, which is replayed once
        GenerateRecordings::new(persistents, &gpt, model, self.tensors.model, 1, &passes, self.capabilities)
            .map(Some)
            .map_err(|e| misfit(&e, 1))
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
