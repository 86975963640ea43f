//! Where recordings run: the adapter, its buffers and pipelines, replay, and the rings that move data in and out.
//!
//! The only place that names wgpu. Nothing here blocks its caller until the device is done: what waits is a future, and
//! the binary that runs it decides how.

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
#[doc(hidden)] // for the tests of shaders
pub use lanes::question as question_of_lanes;
pub use prepare::{Buffers, Guard, Prepared, Program};
pub use profile::DispatchTime;
pub use readback::{Arrival, ReadbackRing, Reader};
pub use upload::UploadRing;
