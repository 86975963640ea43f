//! What an author of kernels needs, and nothing of language models: kernels, recordings of them, the tape, and the device that
//! replays them.
//!
//! ```text
//! tape -> ops -> record -> kernels     what runs: plain data, which needs no adapter
//!       device -> record, kernels      where it runs: adapter, memory pool, pipelines, replay
//! ```

pub mod device;
pub mod element;
pub mod kernels;
pub mod ops;
pub mod random;
pub mod record;
pub mod tape;
