//! Which parts of the model a rank computes, and for which micro-batches.

use super::passes::Stretch;
use crate::model::stages::Chunk;
use crate::ranks::pipeline::{Pipeline, Turn};
use crate::settings::RunPlan;

/// The parts of the model of one rank: all of it, or the chunks of its stage.
pub(super) struct Stretches {
    /// As an evaluation computes them: micro-batches one after the other.
    pub all: Vec<Stretch>,
    /// Of each, how many micro-batches are under way at most.
    pub in_flight: Vec<usize>,
}

impl Stretches {
    /// Those of the rank of `plan`.
    pub fn of(plan: &RunPlan) -> Self {
        let (ranks, stages) = (&plan.layout, &plan.stages);
        if ranks.pipeline == 1 {
            return Self { all: vec![Stretch::whole(plan.model.num_layers)], in_flight: vec![1] };
        }
        let (own, count) = (ranks.stage(), ranks.pipeline);
        let stretch = |(number, chunk): (usize, Chunk)| Stretch {
            neighbours: [
                (!chunk.is_first).then(|| ranks.in_stage((own + count - 1) % count)),
                (!chunk.is_last).then(|| ranks.in_stage((own + 1) % count)),
            ],
            chunk,
            slot: None,
            ends_step: number == 0, // the first one comes last in the backward pass
        };
        let micro_batches = plan.settings.runner.gradient_accumulation_steps;
        Self {
            all: stages.chunks(own).into_iter().enumerate().map(stretch).collect(),
            in_flight: pipeline(plan).in_flight(own, micro_batches),
        }
    }

    /// Chunk number `chunk` in training, for the micro-batches that take the place `slot` among those under way.
    pub fn training(&self, chunk: usize, slot: usize) -> Stretch {
        let is_cut = self.all[chunk].neighbours != [None, None];
        let slot = is_cut.then_some((slot, self.in_flight[chunk]));
        Stretch { slot, ..self.all[chunk].clone() }
    }

    /// The turns of a step; none without a pipeline.
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
