//! Text generation with a KV cache on the device, so that a new token costs one row and not a whole window.

mod generator;
mod recordings;
mod sampling;

pub use generator::{Generator, Settings};
pub use recordings::GenerateRecordings;
pub use sampling::Sampling;
