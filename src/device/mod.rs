//! Execution of recordings: the adapter, its buffers and pipelines, replay, and the rings that move data in and out.
//!
//! [`Gpu::run`] is the short way for work that runs once, [`Gpu::from_device`] the way onto an application's own device.
//!
//! The only module that uses wgpu. Nothing here blocks on the device: waiting is a future, and the binary decides how
//! to run it.

mod adapter;
mod buffers;
mod encoder;
mod exchange;
mod gpu;
mod half;
mod job;
mod lanes;
mod launch;
mod mapping;
mod open;
mod options;
mod pipelines;
mod polling;
mod prepare;
mod profile;
mod readback;
mod slices;
mod submissions;
mod upload;
#[cfg(not(any(target_vendor = "apple", target_family = "wasm")))]
mod vulkan;
#[cfg(any(target_vendor = "apple", target_family = "wasm"))]
#[path = "no_vulkan.rs"]
mod vulkan;
mod widening;

pub use adapter::{AdapterReport, list_adapters};
pub use buffers::Buffers;
pub use encoder::Encoder;
pub use exchange::{Exchanger, Exchanges};
pub use gpu::{Gpu, GpuCounters};
pub use half::NativeF16;
pub use job::{Job, Outputs, PreparedJob, Words};
#[doc(hidden)] // for tests
pub use lanes::lane_probe;
pub use options::{GpuOptions, HANG_TIMEOUT};
pub use prepare::{Guard, Prepared, Program};
pub use profile::DispatchTime;
pub use readback::{Arrival, ReadbackRing, Reader};
pub use submissions::Polling;
pub use upload::UploadRing;
pub use widening::Widening;
