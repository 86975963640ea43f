//! What a run will take, from its written recordings alone: no device is asked.

use super::batch_arrays::BatchArrays;
use super::finished::StepReport;
use super::recordings::Recordings;
use super::state::LossState;
use super::trainer::{READER_BYTES, RING};
use crate::model::count;
use crate::record::{Consumer, MemoryPlan, Recording};
use crate::settings::RunPlan;

/// Sizes and work of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Numbers in the model, pads not counted.
    pub parameters: usize,
    /// Those of them that a token meets: fewer than all in a mixture of experts.
    pub active_parameters: usize,
    /// Floating-point operations to train on one token.
    pub flops_per_token: f64,
    /// Bytes of weights, gradients and the optimizer's moments.
    pub arena_bytes: u64,
    /// Bytes of the other buffers that outlive a step: batch, tables, states.
    pub other_bytes: u64,
    /// Bytes of the pool that activations and their gradients share.
    pub pool_bytes: u64,
    /// Bytes of the buffers that feed the device: params of kernels, uploads, readbacks.
    pub staging_bytes: u64,
    /// The largest buffers, largest first.
    pub largest: Vec<Consumer>,
    /// Kernel launches of each recording, by name.
    pub launches: Vec<(&'static str, usize)>,
}

impl Forecast {
    /// Of a run that `recordings` were written for.
    pub fn new(plan: &RunPlan, recordings: &Recordings) -> Self {
        let all = recordings.all();
        let buffers = recordings.persistents.buffers();
        let arenas = recordings.arenas.all().into_iter().flat_map(|arena| arena.segments.iter().flatten());
        let arena_bytes: u64 = arenas.map(|id| buffers[id.0 as usize].1).sum();
        let batch_bytes =
            BatchArrays::of(plan).bytes((plan.settings.runner.batch_size * plan.model.seq_length) as u32);
        let readbacks =
            (RING as u64 + 1) * (StepReport::new(plan, recordings).bytes() + size_of::<LossState>() as u64);
        let segment = recordings.layout.segments.iter().map(|segment| 4 * segment.elements).max();
        let params: u64 = all.iter().map(|recording| params_bytes(recording)).sum();
        Self {
            parameters: count::parameters(&plan.model),
            active_parameters: count::active_parameters(&plan.model),
            flops_per_token: count::training_flops_per_token(&plan.model),
            arena_bytes,
            other_bytes: recordings.persistents.bytes() - arena_bytes,
            pool_bytes: MemoryPlan::new(&all).bytes(),
            staging_bytes: params
                + RING as u64 * batch_bytes
                + readbacks
                + segment.unwrap_or(16).min(READER_BYTES),
            largest: recordings.largest_consumers(5),
            launches: all.iter().map(|recording| (recording.name, recording.dispatches.len())).collect(),
        }
    }

    /// Bytes of everything.
    pub fn bytes(&self) -> u64 {
        self.arena_bytes + self.other_bytes + self.pool_bytes + self.staging_bytes
    }
}

fn params_bytes(recording: &Recording) -> u64 {
    recording.dispatches.iter().map(|dispatch| dispatch.params_slot()).sum()
}
