//! Text from a model: its keys and values are kept on the device, so that a new token costs one row, not a window.

mod generator;
mod recordings;
mod sampling;

pub use generator::{Generator, Settings};
pub use recordings::GenerateRecordings;
pub use sampling::Sampling;
