//! A trained model from its folder, to write text with or to judge: only its weights are on the device, and what either needs.

mod generation;
mod judgement;
mod opened;
mod scoring;

pub use crate::train::saved::TrainedModel;
pub use judgement::{Judgement, Share};
pub use opened::{TrainedRun, outline, prompt_tokens};
pub use scoring::Scorer;
