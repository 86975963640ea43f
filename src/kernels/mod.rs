//! What can run: the sources of the kernels, how a variant of one is named, and what an adapter can do.
//!
//! Nothing here needs an adapter. A [`Kernel`] is a plain value: it names a shader file, an entry point and every
//! choice made when the file is composed. The device turns it into a pipeline.

mod capabilities;
mod compose;
mod kernel;
mod sources;

pub use capabilities::{Capabilities, Limits, Tier};
pub use compose::{Access, Composed, compose};
pub use kernel::{FEATURES, Kernel};
pub use sources::SOURCES;
