//! Shader sources, kernel variants and their composition, and the capabilities of an adapter.
//!
//! Nothing here needs an adapter. A [`Kernel`] is a plain value: a shader file, an entry point and every choice made in
//! composing them. The device compiles it into a pipeline.

mod capabilities;
mod compose;
mod condition;
mod interface;
mod kernel;
mod sources;

pub use capabilities::{Capabilities, Limits, Tier};
pub use compose::{Composed, compose};
pub use condition::Condition;
pub use interface::{Access, ParamsLayout, Variable};
pub use kernel::Kernel;
pub use sources::Sources;
