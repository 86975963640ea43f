//! Text from a trained model, and measures of its quality: the device only holds its weights, and the buffers that
//! either task needs.
//!
//! Text is generated with a KV cache, so that a new token costs one row and not a whole window. Generation never drops
//! a token of a mixture, and has recordings of its own, for the prompts and for one token per sequence.

mod generator;
mod gguf;
pub(crate) mod inference_model;
mod judgement;
pub(crate) mod on_device;
pub(crate) mod opened_model;
mod recordings;
mod sampling;
mod scoring;

pub use generator::{CachedText, GenerationSettings, Generator};
pub use inference_model::InferenceModel;
pub use judgement::{Judgement, Share};
pub use opened_model::{OpenedModel, outline, prompt_tokens};
pub use recordings::{GeneratePrograms, GenerateRecordings, Ring};
pub use sampling::Sampling;
pub use scoring::Scorer;
