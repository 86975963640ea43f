//! Models: plain parameter structs and their forward passes. [`gpt`] is the place to start reading.
//!
//! Letters in shapes: B sequences of T tokens, N = B·T; D width, L layers, H query heads and G key-value heads of C
//! dimensions, F feed-forward width, V vocabulary.

pub mod arena;
mod attention;
mod batch;
mod buffers;
pub mod config;
mod context;
mod convolution;
pub mod count;
mod expert_state;
pub mod gpt;
pub mod groups;
pub mod init;
mod latent;
mod linear;
mod magnitudes;
mod mixture;
mod modules;
mod multi_token;
pub(crate) mod names;
pub mod parameters;
mod per_layer;
pub mod stages;

pub use batch::{AheadTensors, BatchTensors, DataArrays, PairTensors};
pub use buffers::ModelBuffers;
pub use context::{Cache, ForwardContext, KeyCache, LinearCache, Masks, Mode, Training};
pub use expert_state::ExpertState;
pub(crate) use magnitudes::{fold, start_from_norms};
pub(crate) use mixture::{widest_expert_tensor, widest_spread_tensor};
#[cfg(feature = "cli")]
pub(crate) use modules::ALL_LINEAR;
pub use modules::ModuleList;
pub use modules::adaptable;
pub(crate) use modules::{Selected, adaptable_modules, adaptable_parameters, last_part, select_modules};
pub use names::selection_bias;
