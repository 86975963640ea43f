//! Which parts of the model a rank computes, and for which micro-batches.

use crate::model::stages::Chunk;
use crate::ranks::pipeline::{Pipeline, Turn};
use crate::settings::RunPlan;

/// The chunk of the model that a pass computes. In a pipeline, a pass may belong to one slot of the micro-batches under
/// way.
#[derive(Clone, Debug)]
pub(super) struct ModelChunk {
    pub chunk: Chunk,
    /// The ranks with the chunks before and after it.
    pub neighbours: [Option<usize>; 2],
    /// The slot among the micro-batches under way that it computes, and the number of slots; `None` if it computes all
    /// micro-batches, one after the other.
    pub slot: Option<(usize, usize)>,
    /// Whether its backward pass is the last of a step; the gradients of all chunks are summed over the ranks after it.
    pub ends_step: bool,
}

impl ModelChunk {
    /// The whole model, of `layers` layers.
    pub fn whole(layers: usize) -> Self {
        Self { chunk: Chunk::whole(layers), neighbours: [None, None], slot: None, ends_step: true }
    }
}

/// The chunks of the model that a rank computes: the whole model, or the chunks of its stage.
pub(super) struct ModelChunks {
    /// The chunks as an evaluation computes them: micro-batches one after the other.
    pub all: Vec<ModelChunk>,
    /// For each chunk, the most micro-batches that are under way.
    pub in_flight: Vec<usize>,
}

impl ModelChunks {
    /// The chunks of the rank of `plan`.
    pub fn of(plan: &RunPlan) -> Self {
        let (ranks, stages) = (&plan.layout, &plan.stages);
        if ranks.pipeline == 1 {
            return Self { all: vec![ModelChunk::whole(plan.model.num_layers)], in_flight: vec![1] };
        }
        let (own, count) = (ranks.stage(), ranks.pipeline);
        let chunk = |(number, chunk): (usize, Chunk)| ModelChunk {
            neighbours: [
                (!chunk.is_first).then(|| ranks.in_stage((own + count - 1) % count)),
                (!chunk.is_last).then(|| ranks.in_stage((own + 1) % count)),
            ],
            chunk,
            slot: None,
            ends_step: number == 0, // the first chunk comes last in the backward pass
        };
        let micro_batches = plan.settings.runner.gradient_accumulation_steps;
        Self {
            all: stages.chunks(own).into_iter().enumerate().map(chunk).collect(),
            in_flight: pipeline(plan).in_flight(own, micro_batches),
        }
    }

    /// Chunk number `chunk` in training, for the micro-batches in `slot` among those under way.
    pub fn training(&self, chunk: usize, slot: usize) -> ModelChunk {
        let is_cut = self.all[chunk].neighbours != [None, None];
        let slot = is_cut.then_some((slot, self.in_flight[chunk]));
        ModelChunk { slot, ..self.all[chunk].clone() }
    }

    /// The turns of a step; empty without a pipeline.
    pub fn turns(&self, plan: &RunPlan) -> Vec<Turn> {
        match plan.layout.pipeline {
            1 => Vec::new(),
            _ => pipeline(plan).turns(plan.layout.stage(), plan.settings.runner.gradient_accumulation_steps),
        }
    }
}

/// The degrees of the pipeline of `plan`.
pub(super) fn pipeline(plan: &RunPlan) -> Pipeline {
    Pipeline { stages: plan.layout.pipeline, interleaves: plan.stages.interleaves() }
}
