//! Everything of a model that is not a parameter.

use super::config::{Activation, ModelConfig, Positions};
use super::experts::{ExpertState, Experts};
use crate::element::Element;
use crate::ops::decode::Decode;
use crate::ops::dropout::Dropout;
use crate::ops::heads::HeadLayout;
use crate::ops::rope::{Rope, scaled_cos_sin_table};
use crate::ops::rope_scaling::RopeScaling;
use crate::record::{Persistents, Tensor};

/// Everything of a model that is not a parameter.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub(super) layout: HeadLayout,
    pub(super) rotation: Option<Rotation>,
    pub(super) activation: Activation,
    pub(super) inner: u32,
    sequence_length: u32,
    pub(super) window: Option<u32>,
    pub(super) epsilon: f32,
    pub(super) dropout: DropoutShares,
    /// Seed and state of the masks; `None`: nothing is dropped, whatever the shares.
    masks: Option<(u64, Tensor)>,
    pub(super) experts: Option<Experts>,
}

/// How q and k turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    pub rope: Rope,
    scaling: RopeScaling,
    pub cos_sin: Tensor,
}

/// How much training drops, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct DropoutShares {
    pub attention: f32,
    pub hidden: f32,
    pub embedding: f32,
}

impl Shape {
    /// The shape of `config` for micro-batches of `tokens`; adds the rotary table (T, rotary_dim), if there is one, and what
    /// routers remember, if there are such, to the persistent buffers.
    pub fn new(config: &ModelConfig, tokens: u32, persistents: &mut Persistents) -> Self {
        let head_dim = config.head_dim as u32;
        let layout = HeadLayout {
            heads: config.num_heads as u32,
            kv_heads: config.num_kv_heads as u32,
            head_dim,
            value_dim: head_dim,
        };
        let sequence_length = config.seq_length as u32;
        let rotation = (config.positions == Positions::Rotary).then(|| {
            let rope = Rope {
                rotary_dim: config.rotary_dim as u32,
                theta: config.rope_theta,
                is_interleaved: config.rotary_interleaved,
            };
            let cos_sin = persistents.tensor("cos_sin", sequence_length, rope.rotary_dim, Element::F32);
            Rotation { rope, scaling: config.rope_scaling, cos_sin }
        });
        Self {
            layout,
            rotation,
            activation: config.activation,
            inner: config.intermediate_size as u32,
            sequence_length,
            window: config.sliding_window.map(|window| window as u32),
            epsilon: config.norm_eps as f32,
            dropout: DropoutShares {
                attention: config.attention_dropout as f32,
                hidden: config.hidden_dropout as f32,
                embedding: config.embedding_dropout as f32,
            },
            masks: None,
            experts: Experts::new(config, tokens, persistents),
        }
    }

    /// Whether training drops anything.
    pub fn has_dropout(&self) -> bool {
        let DropoutShares { attention, hidden, embedding } = self.dropout;
        [attention, hidden, embedding].iter().any(|share| *share > 0.0)
    }

    /// The shape in training: with the dropout of the configuration, its masks from `seed` and `DropoutState` `state`.
    pub fn dropping(self, seed: u64, state: Tensor) -> Self {
        Self { masks: Some((seed, state)), ..self }
    }

    /// The shape in training, as far as experts go: what they do is tallied, and the objective keeps them busy. `step` is
    /// `StepState`, whose steps have `accumulation` micro-batches.
    pub fn balancing(self, step: Tensor, accumulation: u32) -> Self {
        Self { experts: self.experts.map(|experts| experts.balancing(step, accumulation)), ..self }
    }

    /// The shape in generation: no expert is ever full, since what a text is must not depend on its neighbours.
    pub fn dropless(self) -> Self {
        Self { experts: self.experts.map(Experts::dropless), ..self }
    }

    /// What routers remember, if there are such.
    pub fn expert_state(&self) -> Option<ExpertState> {
        self.experts.map(|experts| experts.state)
    }

    /// The sizes of attention to what is kept of a sequence.
    pub fn decode(&self) -> Decode {
        Decode {
            layout: self.layout,
            tokens: self.sequence_length,
            scale: 1.0 / (self.layout.head_dim as f32).sqrt(),
            window: self.window,
        }
    }

    /// Dropout number `op` of the model, if `share` of anything is dropped.
    pub(super) fn dropout(&self, share: f32, op: u32) -> Option<Dropout> {
        let (seed, state) = self.masks.filter(|_| share > 0.0)?;
        Some(Dropout { probability: share, seed, site: op, state })
    }

    /// Where the rotary table lies, and what it holds; `None` for a model that does not rotate.
    pub fn rotary_table(&self) -> Option<(Tensor, Vec<f32>)> {
        let Rotation { rope, scaling, cos_sin } = self.rotation?;
        Some((cos_sin, scaled_cos_sin_table(self.sequence_length, &rope, &scaling)))
    }
}
