//! The memory and work of a run, computed from its recordings alone, without a device.

use super::finished::StepReadback;
use super::recordings::Recordings;
use super::trainer::RING;
use crate::model::arena::Arena;
use crate::model::count;
use crate::ops::step_state::LossState;
use crate::record::{Consumer, MemoryPlan, Recording};

/// How many of the largest buffers a forecast names.
const LARGEST: usize = 5;

/// Sizes and work of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Parameters of the model, padding not counted.
    pub parameters: usize,
    /// Parameters that are active per token: fewer than all in a mixture of experts.
    pub active_parameters: usize,
    /// Floating-point operations to train on one token.
    pub flops_per_token: f64,
    /// Bytes of weights, gradients and the optimizer's moments.
    pub arena_bytes: u64,
    /// Bytes of the other persistent buffers: batch, tables, states.
    pub other_bytes: u64,
    /// Bytes of the pool that activations and their gradients share.
    pub pool_bytes: u64,
    /// Bytes of the buffers between host and device: params of kernels, uploads, readbacks.
    pub staging_bytes: u64,
    /// The largest buffers, largest first.
    pub largest: Vec<Consumer>,
    /// Kernel launches of each recording, by name.
    pub launches: Vec<(&'static str, usize)>,
}

impl Forecast {
    /// The forecast for a run of `recordings`.
    pub fn new(recordings: &Recordings) -> Self {
        let model = &recordings.model;
        let all = recordings.all();
        let buffers = recordings.persistents.buffers();
        let arenas = recordings.arenas.all().into_iter().flat_map(Arena::buffers);
        let arena_bytes: u64 = arenas.map(|id| buffers[id.0 as usize].1).sum();
        let readbacks =
            (RING as u64 + 1) * (StepReadback::new(recordings).bytes() + size_of::<LossState>() as u64);
        let params: u64 = all.iter().map(|recording| params_bytes(recording)).sum();
        Self {
            parameters: count::parameters(model),
            active_parameters: count::active_parameters(model),
            flops_per_token: count::training_flops_per_token(model),
            arena_bytes,
            other_bytes: recordings.persistents.bytes() - arena_bytes,
            pool_bytes: MemoryPlan::new(&all).bytes(),
            staging_bytes: params
                + RING as u64 * recordings.batch_bytes()
                + readbacks
                + recordings.piece_bytes(),
            largest: recordings.largest_consumers(LARGEST),
            launches: all.iter().map(|recording| (recording.name, recording.dispatches.len())).collect(),
        }
    }

    /// Device memory in all, in bytes.
    pub fn bytes(&self) -> u64 {
        self.arena_bytes + self.other_bytes + self.pool_bytes + self.staging_bytes
    }
}

fn params_bytes(recording: &Recording) -> u64 {
    recording.dispatches.iter().map(|dispatch| dispatch.params_slot()).sum()
}
