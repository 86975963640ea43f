//! The part of the crate that knows nothing of language models: shader sources and their composition, recordings, and
//! the device that replays them. [`ops`](crate::ops), the kernels of language models, and [`tape`](crate::tape) build
//! on it.
//!
//! ```text
//! ops -> record -> kernels          what runs: plain data, which needs no adapter
//!        device -> record, kernels  where it runs: adapter, memory pool, pipelines, replay
//! ```

pub mod device;
pub mod element;
pub mod kernels;
pub mod random;
pub mod record;
