//! The device buffers of a model besides its parameters.

use super::config::ModelConfig;
use super::expert_state::ExpertState;
use crate::element::Element;
use crate::ops::rope::cos_sin_table;
use crate::record::{Persistents, Tensor};

/// Persistent buffers of a model besides its parameters.
#[derive(Clone, Copy, Debug)]
pub struct ModelBuffers {
    /// cos and sin of the rotary angles (T, rotary_dim), f32; `None` with learned positions.
    pub cos_sin: Option<Tensor>,
    /// The state that routers carry from step to step; `None` for a dense model.
    pub experts: Option<ExpertState>,
}

impl ModelBuffers {
    /// Adds the buffers of the model of `config`, for micro-batches of `tokens` tokens, to `persistents`.
    pub fn new(config: &ModelConfig, tokens: u32, persistents: &mut Persistents) -> Self {
        let cos_sin = config.rotary().map(|(rope, _)| {
            persistents.tensor("cos_sin", config.seq_length as u32, rope.rotary_dim, Element::F32)
        });
        Self { cos_sin, experts: ExpertState::new(config, tokens, persistents) }
    }

    /// The rotary table and its contents, for a model that has one.
    pub fn rotary_table(&self, config: &ModelConfig) -> Option<(Tensor, Vec<f32>)> {
        let (rope, scaling) = config.rotary()?;
        Some((self.cos_sin?, cos_sin_table(config.seq_length as u32, &rope, &scaling)))
    }
}
