//! Execution of recordings: the adapter, its buffers and pipelines, replay, and the rings that move data in and
//! out.
//!
//! The only module that uses wgpu. Nothing here blocks on the device: waiting is a future, and the binary decides
//! how to run it.
//!
//! **Two levels.** [`Gpu::run`] is one-off work: a closure over a [`Job`] uploads inputs, records kernels and names the
//! outputs. [`Gpu::prepare_job`] prepares a [`Job`] for several replays; kernel tests, benches and `doctor` use it. The
//! trainer uses the lower level: [`Gpu::make_persistent`], [`Gpu::prepare`], [`Encoder`], and rings that move data
//! without waiting.
//!
//! **An application's device.** [`Gpu::from_device`] takes a device and a queue, reads limits and adapter from them,
//! and leaves the device's error handlers alone: everything created here is created within error scopes.
//! [`Gpu::bind_persistent`] puts tensors into ranges of the application's buffers, and [`Program::encode`] adds a
//! recording to its command encoder. The polling thread starts with the first submission of this crate, so an
//! application that makes all submissions itself never has one; with [`Polling::Application`] there is never one.
//!
//! **Checks of drivers.** wgpu has Vulkan drivers check every access to a buffer. `context.robust_buffers: False` turns
//! these checks off. Shaders composed with naga's checks rely on those of the driver, so a device without them refuses
//! such shaders. The backend's own validation layers are off unless `context.validation` or `WGPU_VALIDATION=1` asks
//! for them, as `.ci/run` does.

mod adapter;
mod buffers;
mod encoder;
mod exchange;
mod f16_probe;
mod f16_widen_probe;
mod fault;
mod gpu;
mod job;
mod lanes;
mod launch;
mod mapping;
mod matrices;
mod open;
mod options;
mod pipelines;
mod polling;
mod prepare;
mod profile;
mod readback;
mod staging;
mod submission_split;
mod submissions;
mod upload;
#[cfg(not(any(target_vendor = "apple", target_family = "wasm")))]
mod vulkan;
#[cfg(any(target_vendor = "apple", target_family = "wasm"))]
#[path = "device/no_vulkan.rs"]
mod vulkan;

pub use adapter::{AdapterReport, list_adapters};
pub use buffers::Buffers;
pub use encoder::Encoder;
pub use exchange::{Exchanger, Exchanges};
pub use f16_probe::NativeF16;
pub use f16_widen_probe::Widening;
pub use gpu::{Gpu, GpuCounters};
pub use job::{Job, Outputs, PreparedJob, Words};
#[doc(hidden)] // for tests
pub use lanes::lane_probe;
#[doc(hidden)] // for tests
pub use matrices::recorded::without_trial;
pub use options::{GpuOptions, HANG_TIMEOUT};
pub use prepare::{Guard, Prepared, Program};
pub use profile::LaunchTime;
pub use readback::{Arrival, ReadbackRing, Reader};
pub use submissions::Polling;
pub use upload::UploadRing;
