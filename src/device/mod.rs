//! Execution of recordings: the adapter, its buffers and pipelines, replay, and the rings that move data in and out.
//!
//! The only module that uses wgpu. Nothing here blocks on the device: waiting is a future, and the binary decides how
//! to run it.

mod adapter;
mod encoder;
mod gpu;
mod lanes;
mod mapping;
mod pipelines;
mod prepare;
mod profile;
mod readback;
mod slices;
mod submissions;
mod upload;

pub use adapter::{AdapterReport, list_adapters};
pub use encoder::Encoder;
pub use gpu::{Gpu, GpuCounters, GpuOptions};
#[doc(hidden)] // for tests
pub use lanes::lane_probe;
pub use prepare::{Buffers, Guard, Prepared, Program};
pub use profile::DispatchTime;
pub use readback::{Arrival, ReadbackRing, Reader};
pub use upload::UploadRing;
