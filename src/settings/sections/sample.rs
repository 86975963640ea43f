//! `sample`: text that the trained model writes at the end of a run.

use crate::settings::engine::*;

rows! {
    /// `sample`: text that the trained model writes at the end of a run.
    pub struct Sample in "sample" {
        /// The text to continue.
        prompt: String = Host.optional().example("'fn main'"),
        /// Number of tokens to add.
        tokens: usize = Host.default(200),
        /// Temperature, by which logits are divided; 0 takes the likeliest token.
        temperature: f64 = Host.default(0.8).within(FROM_ZERO),
        /// Seed of the draws; by default the `seed` of the run.
        seed: Option<u64> = Host.optional().example("3"),
    }
}
