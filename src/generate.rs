//! Text generation with a KV cache on the device, so that a new token costs one row and not a whole window.
//!
//! Generation never drops a token of a mixture, and knows neither training nor settings: it has recordings of its
//! own, for the prompts and for one token per sequence.

mod generator;
mod recordings;
mod sampling;

pub use generator::{Generator, Settings};
pub use recordings::{GeneratePrograms, GenerateRecordings};
pub use sampling::Sampling;
