//! Shader sources, kernel variants and their composition, and the capabilities of an adapter.
//!
//! Nothing here needs an adapter. A [`Kernel`] is a plain value: a shader file, an entry point and every choice made
//! when composing them. The device compiles it into a pipeline.
//!
//! **Composition.** Shaders are WGSL with two constructs of WESL: `import` for shared parts, `@if(...)` for variants. Constants
//! that size register arrays and workgroups come from the virtual module `package::tile`, which the op's plan writes.
//! There is no other text mechanism, and no `override`: in naga an override cannot size an array, and one mechanism
//! serves both purposes. The list of conditions is closed ([`Condition`]), so a misspelt one is an error and does not
//! silently drop code. naga validates every variant and derives the bind group layout, so nothing is declared twice. An
//! op binds tensors by the names of their WGSL variables; a name that the entry point does not use is an error when the
//! recording is prepared, and in the test of all variants.
//!
//! **Tiers.** `software` is for software adapters (llvmpipe, WARP), where barriers are slow: one invocation computes a
//! whole register tile. `portable` is for any GPU: at most 16 KiB of workgroup memory and 256 invocations. `matrix`
//! multiplies f16 by cooperative matrices and equals `portable` in everything else. Plans depend only on
//! [`Capabilities`], a small struct without wgpu types, so `--tier` and tests can force any tier.

mod capabilities;
mod compose;
mod condition;
mod interface;
mod kernel;
mod link;
mod memory_model;
mod published_gpus;
mod sources;
mod units;
mod unroll;

pub use capabilities::{Capabilities, Limits, Matrices, Tier};
pub use compose::{Composed, compose};
pub use condition::Condition;
pub use interface::{Access, ParamsLayout, Variable};
pub use kernel::Kernel;
pub(crate) use kernel::MATRIX_STORAGE_BUFFERS;
pub use memory_model::ordered_spirv;
pub use published_gpus::PublishedGpu;
pub use sources::Sources;
pub use units::{Unit, Units, Workgroup};
pub use unroll::unroll;
