//! How a device is opened.

use super::submissions::Polling;
use crate::kernels::{Sources, Tier};
use std::time::Duration;

/// Default for the longest wait for the device: the slowest known submission, a large step on a software adapter, takes
/// minutes.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(600);

/// How to open a device.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Part of the adapter's name. Default: the fastest kind of adapter is used.
    pub device_name: Option<String>,
    /// Number of the adapter in the order of [`list_adapters`](super::list_adapters), counting only those that match
    /// `device_name`. Default: the first.
    pub device_id: Option<usize>,
    /// This rank's number among the ranks on this machine: the ranks take adapters of the same kind in turns.
    pub local_rank: usize,
    /// Overrides the adapter's preferred tier. [`Tier::Matrix`] is refused where the adapter has no matrices for it, or
    /// they fail a test.
    pub tier: Option<Tier>,
    /// Whether a GPU is opened for [`Tier::Matrix`] if no tier is named and it has matrices of 16 x 16 that pass a
    /// test. For programs that multiply f16 or bf16, or split f32: on a device opened for matrices, drivers may compile
    /// all kernels differently.
    pub tries_matrices: bool,
    /// Whether matrices compute products of f32 too, on a device that is opened for them: each factor as two terms of
    /// f16, with a root mean square of errors within four times that of f32 (`shaders/lib/half_scale.wgsl`).
    pub splits_f32: bool,
    /// Keeps the bounds and loop checks that wgpu injects into shaders; for tests. Off in training, where the recorded
    /// shapes keep every index in bounds.
    pub checked_shaders: bool,
    /// Whether the driver gets kernels as those of Metal and DX12 do: with loops over arrays of an invocation unrolled,
    /// since their compilers may otherwise keep such an array in memory, and with matrices behind pointers to numbers,
    /// as Metal demands. Default: on Metal and DX12.
    pub as_on_metal: Option<bool>,
    /// Leaves out the checks of every buffer access that wgpu has Vulkan drivers make. With these checks, some drivers
    /// compile kernels to half as many instructions again. Refused together with `checked_shaders` or with shaders of a
    /// user, whose checks rely on those of the driver. Without effect on backends other than Vulkan.
    pub unchecked_buffers: bool,
    /// Lowers the adapter's binding limit, in bytes; tests use it to split small arenas into several segments.
    pub binding_bytes: Option<u64>,
    /// Longest duration of one submission; longer programs are split according to the times of their first replay.
    /// Default: 0.2 s on a GPU, which may drive a display, and unlimited on a software adapter.
    pub submission_time: Option<Duration>,
    /// How many submissions may be in flight when the host continues, at most 3. Default: 3 on a GPU and 0 on a
    /// software adapter. A software adapter executes a submission inside the submit call, so there is nothing to
    /// overlap; and wgpu cannot be polled during submit, so results would arrive, and be timed, one step late.
    pub ahead: Option<usize>,
    /// How long one wait for the device may take before the device is assumed to hang. Default: [`HANG_TIMEOUT`].
    pub hang_timeout: Option<Duration>,
    /// Turns on the validation of the backend: on Vulkan Khronos' validation layers, if they are installed, on DX12 its
    /// debug layer. wgpu's own validation is always on. The environment variables of `wgpu::InstanceFlags` take
    /// precedence.
    pub validation: bool,
    /// Who polls the device. With `Polling::Application` shaders are compiled on the calling thread, otherwise on all
    /// cores.
    pub polling: Polling,
    /// The shader files; a user may add some, which run with the bounds and loop checks of `checked_shaders`.
    pub sources: Sources,
}
