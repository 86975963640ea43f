//! Models: functions over plain parameter structs.
//!
//! Letters in shapes: B sequences of T tokens, N = B·T; D width, L layers, H query heads and G key-value heads of C
//! dimensions, F feed-forward width, V vocabulary.

pub mod arena;
pub mod config;
pub mod count;
mod experts;
pub mod gpt;
pub mod groups;
pub mod init;
mod mixture;
mod multi_token;
mod names;
pub mod parameters;
mod shape;

pub use experts::{ExpertState, widest_expert_tensor};
pub use multi_token::{Prediction, multi_token};
pub use names::selection_bias;
pub use shape::Shape;
