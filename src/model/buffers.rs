//! The device buffers of a model besides its parameters.

use super::config::{LayerConfig, ModelConfig};
use super::expert_state::ExpertState;
use crate::element::Element;
use crate::ops::rope::Rope;
use crate::record::{Persistents, Tensor};

/// The most different rotations of a model.
pub const MOST_ROTATIONS: usize = 4;

/// Persistent buffers of a model besides its parameters.
#[derive(Clone, Copy, Debug)]
pub struct ModelBuffers {
    /// cos and sin of the angles (T, [`Rotary::table_cols`](super::config::Rotary::table_cols)), f32, of each
    /// rotation of the model, in the order of [`ModelConfig::rotaries`].
    pub cos_sin: [Option<Tensor>; MOST_ROTATIONS],
    /// The state that routers carry from step to step; `None` for a dense model.
    pub experts: Option<ExpertState>,
}

impl ModelBuffers {
    /// Adds the buffers of the model of `config`, for micro-batches of `tokens` tokens, to `persistents`.
    pub fn new(config: &ModelConfig, tokens: u32, persistents: &mut Persistents) -> Self {
        let (rotaries, rows) = (config.rotaries(), config.seq_length as u32);
        assert!(rotaries.len() <= MOST_ROTATIONS, "layers rotate in at most {MOST_ROTATIONS} ways");
        let cos_sin = std::array::from_fn(|number| {
            let rotary = rotaries.get(number)?;
            Some(persistents.tensor("cos_sin", rows, rotary.table_cols(), Element::F32))
        });
        Self { cos_sin, experts: ExpertState::new(config, tokens, persistents) }
    }

    /// The rotary tables and their contents.
    pub fn rotary_tables(&self, config: &ModelConfig) -> Vec<(Tensor, Vec<f32>)> {
        let tables = self.cos_sin.iter().flatten().zip(config.rotaries());
        tables.map(|(tensor, rotary)| (*tensor, rotary.table(config.seq_length as u32))).collect()
    }

    /// The rotary embedding of `layer` of the model of `config` and its table; `None` without one.
    pub(super) fn rope(&self, config: &ModelConfig, layer: &LayerConfig) -> Option<(Rope, Tensor)> {
        let rotary = config.rotary(layer)?;
        let number = config.rotaries().iter().position(|other| *other == rotary)?;
        Some((rotary.rope, self.cos_sin[number]?))
    }
}
