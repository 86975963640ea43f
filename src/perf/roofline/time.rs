//! The time of a launch on a GPU.

use super::kernel::{Loop, Shader};
use crate::kernels::PublishedGpu;

/// A launch, or several equal ones.
pub(super) struct Work<'a> {
    pub shader: &'a Shader,
    pub flops: f64,
    pub bytes: f64,
    pub workgroups: u64,
    /// The number of steps in which the work of workgroups falls to nothing, if they come longest first.
    pub falling_blocks: Option<u64>,
}

/// The seconds of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    /// Time of the multiply-adds if all slots were in use.
    pub compute: f64,
    /// Time of reading and writing at the memory's rate.
    pub memory: f64,
    /// Additional time because slots are empty, or because too few loads are under way.
    pub idle: f64,
    /// Share of the units' time that its workgroups fill.
    pub share: f64,
}

/// Seconds between launches: wgpu puts a barrier before nearly every launch.
const LAUNCH: f64 = 5e-6;

/// Seconds until a load from memory arrives, and the bytes that a lane has requested meanwhile.
const LATENCY: f64 = 0.6e-6;
const LOAD: f64 = 16.0;

/// Bytes of workgroup memory that a unit reads per clock.
const SHARED_BYTES: f64 = 128.0;

/// FLOP/s of a core of Apple's chips from M2 Pro on, whose peak is not published: 128 lanes at 1.38 GHz.
const UNPUBLISHED: f64 = 0.353e12;

impl Time {
    pub(super) fn of(work: &Work<'_>, gpu: &PublishedGpu) -> Self {
        let slots = gpu.units.slots(work.shader.workgroup);
        let share = match work.falling_blocks {
            Some(blocks) => gpu.units.share_of_falling(work.shader.workgroup, work.workgroups, blocks),
            None => gpu.units.share(work.shader.workgroup, work.workgroups),
        };
        let compute = work.flops / 2.0 * cycles(work.shader.inner, gpu) / cycles_per_second(gpu);
        let memory = work.bytes / gpu.memory_bytes;
        let lanes = work.workgroups.min(slots) as f64 * f64::from(work.shader.workgroup.lanes);
        let latency = work.bytes / (lanes * LOAD / LATENCY);
        let busy = (compute / share).max(memory).max(latency);
        Self { compute, memory, idle: busy - compute.max(memory), share }
    }

    /// The total time.
    pub fn seconds(&self) -> f64 {
        self.compute.max(self.memory) + self.idle + LAUNCH
    }

    /// The name of the bound that takes most of its time.
    pub fn bound(&self) -> &'static str {
        let parts = [(self.idle, "idle"), (LAUNCH, "launch"), (self.compute.max(self.memory), "")];
        match parts.into_iter().max_by(|(a, _), (b, _)| a.total_cmp(b)) {
            Some((_, "")) if self.compute > self.memory => "compute",
            Some((_, "")) => "memory",
            Some((_, name)) => name,
            None => "",
        }
    }
}

/// Cycles that a unit takes for a multiply-add of one lane.
fn cycles(inner: Loop, gpu: &PublishedGpu) -> f64 {
    let issuing = inner.instructions / f64::from(gpu.issued);
    let by_matrices = gpu.matrices.map_or(0.0, |(_, rate)| f64::from(inner.by_matrices) / f64::from(rate));
    (issuing + by_matrices).max(inner.shared_bytes / SHARED_BYTES)
}

/// Cycles per second of all units together.
fn cycles_per_second(gpu: &PublishedGpu) -> f64 {
    let flops = gpu.flops.unwrap_or(UNPUBLISHED * f64::from(gpu.units.count));
    flops / (2.0 * f64::from(gpu.multiply_adds))
}
