//! The memory and work of a run, computed from its recordings alone, without a device.
//!
//! All buffers of a run follow from its recordings: arenas, tables, the pool, staging, and for a while wgpu's copies of
//! initial weights that are being written. `gristmill plan` prints these parts; `context.max_device_memory` is compared
//! with their sum at its peak.
//!
//! **Ranks that are not there.** A recording is written for a layout, without its ranks. So memory and bytes are those
//! of the rank that owns most; rows for experts are counted as if all experts were chosen equally often. The time of a
//! step is a replay on two clocks (`forecast/timeline.rs`): the device's, on which launches take time by the FLOPs of
//! their products, and the link's, on which exchanges follow one another. So the recording, and not a model of it,
//! decides which exchanges overlap with which launches.
//!
//! Only a few stages of a pipeline are recorded, each with its micro-batches under way; the bubble follows from their
//! order.

mod ranks;
mod step_time;
mod timeline;
mod traffic;
mod work;

pub use ranks::RankForecast;
pub use step_time::{Machine, StepTime};
pub use traffic::{Traffic, TrafficKind, kept_bytes, traffic};
pub use work::launch_flops;

use crate::device::Exchanger;
use crate::model::arena::Arena;
use crate::model::count;
use crate::record::{Consumer, Exchange, LARGEST, MemoryPlan, Recording, Room};
pub(crate) use crate::train::hot_copies::HotCopies;
use crate::train::readback::{RING, ReadBuffers};
use crate::train::recordings::Recordings;
use crate::train::step_results::{EvaluationReadback, StepReadback};
use crate::train::weight_upload::start_bytes;

/// Sizes and work of a run. Sizes are those of buffers; wgpu cuts small buffers out of blocks of 8 MiB, whose unused
/// rest is not counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Parameters of the model, not counting padding.
    pub parameters: usize,
    /// Parameters that are active per token: fewer than all in a mixture of experts.
    pub active_parameters: usize,
    /// Floating-point operations to train on one token.
    pub flops_per_token: f64,
    /// Bytes of the weights: in f32, unless they are frozen or rounded stochastically.
    pub weight_bytes: u64,
    /// Bytes of the copies of weights that layers read in 16 bits.
    pub copy_bytes: u64,
    /// Bytes of the gradients.
    pub gradient_bytes: u64,
    /// Bytes of the optimizer's moments.
    pub moment_bytes: u64,
    /// Bytes of the copies of hot experts, weights and gradients, if experts are spread over ranks.
    pub hot_copy_bytes: u64,
    /// Bytes of the other persistent buffers: batch, tables, states.
    pub other_bytes: u64,
    /// Bytes of the pool that activations and their gradients share.
    pub pool_bytes: u64,
    /// Bytes of the buffers between host and device: params of kernels, uploads, readbacks.
    pub staging_bytes: u64,
    /// Bytes of the staging buffers for exchanges between ranks; 0 with one rank.
    pub exchange_bytes: u64,
    /// Bytes of host memory for exchanges between ranks.
    pub exchange_host_bytes: u64,
    /// Additional bytes until the first step: wgpu's copies of tables and initial weights.
    pub start_bytes: u64,
    /// The largest buffers, largest first.
    pub largest: Vec<Consumer>,
    /// The largest range that a kernel binds.
    pub largest_binding: Consumer,
    /// Kernel launches of each recording, by name.
    pub launches: Vec<(&'static str, usize)>,
}

impl Forecast {
    /// The forecast for a run of `recordings`.
    pub fn new(recordings: &Recordings) -> Self {
        let (model, arenas) = (&recordings.model, &recordings.arenas);
        let all = recordings.all();
        let buffers = recordings.persistents.buffers();
        let of_arena = |arena: &Arena| arena.buffers().map(|id| buffers[id.0 as usize].1).sum::<u64>();
        let hot_copy_bytes = recordings.hot_copies.iter().flat_map(HotCopies::buffers);
        let hot_copy_bytes = hot_copy_bytes.map(|id| buffers[id.0 as usize].1).sum::<u64>();
        let arena_bytes: u64 = arenas.all().into_iter().map(of_arena).sum();
        let readbacks = [StepReadback::new(recordings).sources, EvaluationReadback::new(recordings).sources];
        let readback_bytes: u64 = readbacks.iter().map(ReadBuffers::bytes).sum();
        let (exchange_bytes, exchange_host_bytes) = exchange_bytes(&all, recordings.waiting());
        let mut listed = recordings.programs();
        listed.micro_steps.iter_mut().for_each(|slots| slots.truncate(1)); // the others are alike
        Self {
            parameters: count::parameters(model),
            active_parameters: count::active_parameters(model),
            flops_per_token: count::training_flops_per_token(model),
            weight_bytes: of_arena(&arenas.weights),
            copy_bytes: of_arena(&arenas.copies),
            gradient_bytes: of_arena(&arenas.gradients),
            moment_bytes: of_arena(&arenas.first_moments) + of_arena(&arenas.second_moments),
            hot_copy_bytes,
            other_bytes: recordings.persistents.bytes() - arena_bytes - hot_copy_bytes,
            pool_bytes: MemoryPlan::new(&all).bytes(),
            staging_bytes: recordings.params_bytes()
                + RING as u64 * recordings.batch_bytes()
                + (RING as u64 + 1) * readback_bytes
                + recordings.piece_bytes(),
            exchange_bytes,
            exchange_host_bytes,
            start_bytes: start_bytes(recordings),
            largest: recordings.largest_consumers(LARGEST),
            largest_binding: largest_binding(&all),
            launches: listed
                .all()
                .iter()
                .map(|recording| (recording.name, recording.dispatches.len()))
                .collect(),
        }
    }

    /// Device memory while the run trains, in bytes.
    pub fn bytes(&self) -> u64 {
        let arenas = self.weight_bytes + self.copy_bytes + self.gradient_bytes + self.moment_bytes;
        arenas
            + self.hot_copy_bytes
            + self.other_bytes
            + self.pool_bytes
            + self.staging_bytes
            + self.exchange_bytes
    }

    /// Device memory at its peak, before the first step, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.bytes() + self.start_bytes
    }
}

/// Bytes for exchanges between ranks, on the device and on the host: a few exchanges are under way at a time, with room
/// for the largest. At most `waiting` results of a stage wait to be sent.
fn exchange_bytes(recordings: &[&Recording], waiting: usize) -> (u64, u64) {
    let all = recordings.iter().flat_map(|recording| &recording.exchanges);
    let (between, among): (Vec<&Exchange>, Vec<&Exchange>) =
        all.partition(|exchange| exchange.collective.is_between_stages());
    let room = among.iter().fold(Room::default(), |room, exchange| room.or(exchange.room()));
    let passed = between.iter().map(|exchange| exchange.room()).map(|room| room.down.max(room.up)).max();
    let passing = passed.map_or(0, |bytes| Exchanger::passing_bytes(waiting, bytes));
    let [staging, host] =
        [Exchanger::staging_bytes, Exchanger::host_bytes].map(|bytes| bytes(among.len(), &room));
    (staging + passing, host + passing)
}

fn largest_binding(recordings: &[&Recording]) -> Consumer {
    let dispatches = recordings.iter().flat_map(|recording| &recording.dispatches);
    let bindings =
        dispatches.flat_map(|dispatch| dispatch.bindings.iter().map(move |binding| (dispatch, binding)));
    let largest = bindings.max_by_key(|(_, binding)| binding.bytes);
    largest.map_or(Consumer { label: String::new(), bytes: 0 }, |(dispatch, binding)| Consumer {
        label: format!("{} of {}", binding.variable, dispatch.path),
        bytes: binding.bytes,
    })
}
