//! The shape of a model, every number decided.

mod mixture;

pub use mixture::{
    BalanceLosses, Capacity, HotExperts, MixtureConfig, MultiToken, SharedExpert, TokenDispatch,
};

pub use crate::ops::gelu::Gelu;
pub use crate::ops::permute::DropOrder;
pub use crate::ops::rope_scaling::{Llama3, RopeScaling, Yarn};
pub use crate::ops::route::{ExpertGroups, GroupScore, RouterConfig, Score};

use crate::ops::decode::Decode;
use crate::ops::heads::HeadLayout;
use crate::ops::rope::Rope;

/// A decoder: what the layers, the loss and the initialisation need to know.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Whose names checkpoints use.
    pub family: Family,
    /// Number of different tokens (V).
    pub vocab_size: usize,
    /// Width of the residual stream (D).
    pub hidden_size: usize,
    /// Number of blocks (L).
    pub num_layers: usize,
    /// Query heads (H).
    pub num_heads: usize,
    /// Key and value heads (H_kv); each serves `num_heads / num_kv_heads` query heads.
    pub num_kv_heads: usize,
    /// Width of a head (C).
    pub head_dim: usize,
    /// Inner width of the feed-forward layer (F).
    pub intermediate_size: usize,
    /// What the feed-forward layer does between its projections.
    pub activation: Activation,
    /// Tokens in a window (T).
    pub seq_length: usize,
    /// Positions the model is made for, at least `seq_length`.
    pub max_positions: usize,
    /// How a token's place gets into the model.
    pub positions: Positions,
    /// Base of the rotary frequencies θ^(-2i/d).
    pub rope_theta: f64,
    /// How those frequencies are stretched for a longer context.
    pub rope_scaling: RopeScaling,
    /// How many of a head's dimensions rotate; even, at most `head_dim`.
    pub rotary_dim: usize,
    /// Whether rotary pairs are neighbours (2i, 2i+1) instead of halves (i, i + d/2).
    pub rotary_interleaved: bool,
    /// What stands before attention, feed-forward layer and head.
    pub norm: Norm,
    /// Added to the mean square or the variance in the norms.
    pub norm_eps: f64,
    /// Whether the head shares the embedding's weights.
    pub tie_word_embeddings: bool,
    /// Whether the q, k and v projections have a bias.
    pub qkv_bias: bool,
    /// Whether attention's output projection and those of the feed-forward layer have a bias.
    pub linear_bias: bool,
    /// Whether q and k are normalised per head before rotation.
    pub qk_norm: bool,
    /// A token sees this many tokens, itself and those before it; `None`: all of its sequence. At most `seq_length` - 1,
    /// since a wider window hides nothing.
    pub sliding_window: Option<usize>,
    /// Share of the attention weights that training drops.
    pub attention_dropout: f64,
    /// Share of what each half of a block adds to the residual stream that training drops.
    pub hidden_dropout: f64,
    /// Share of the embedding's output that training drops.
    pub embedding_dropout: f64,
    /// Standard deviation of the initial weights.
    pub init_std: f64,
    /// Targets with this id are left out of the loss; `u32::MAX`, which is no token, for a negative id.
    pub ignore_id: u32,
    /// What stands in the place of the feed-forward network in most layers, for a mixture of experts.
    pub mixture: Option<MixtureConfig>,
    /// What predicts tokens further ahead, where something does.
    pub multi_token: Option<MultiToken>,
}

/// The sizes in which models of one family differ most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of different tokens (V).
    pub vocab_size: usize,
    /// Width of the residual stream (D).
    pub hidden_size: usize,
    /// Number of blocks (L).
    pub num_layers: usize,
    /// Query heads (H), and key and value heads.
    pub num_heads: usize,
    /// Inner width of the feed-forward layer (F).
    pub intermediate_size: usize,
    /// Tokens in a window (T).
    pub seq_length: usize,
}

impl ModelConfig {
    /// A Llama of these sizes: RMSNorm, rotary positions, SwiGLU, a head of its own, no biases (Touvron et al., 2023).
    /// What is not a size can be changed in the result.
    pub fn llama(sizes: Sizes) -> Self {
        let Sizes { vocab_size, hidden_size, num_layers, num_heads, intermediate_size, seq_length } = sizes;
        let head_dim = hidden_size / num_heads;
        Self {
            family: Family::Llama,
            vocab_size,
            hidden_size,
            num_layers,
            num_heads,
            num_kv_heads: num_heads,
            head_dim,
            intermediate_size,
            activation: Activation::SwiGlu,
            seq_length,
            max_positions: seq_length,
            positions: Positions::Rotary,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            rotary_dim: head_dim,
            rotary_interleaved: false,
            norm: Norm::RmsNorm,
            norm_eps: 1e-5,
            tie_word_embeddings: false,
            qkv_bias: false,
            linear_bias: false,
            qk_norm: false,
            sliding_window: None,
            attention_dropout: 0.0,
            hidden_dropout: 0.0,
            embedding_dropout: 0.0,
            init_std: 0.02,
            ignore_id: u32::MAX,
            mixture: None,
            multi_token: None,
        }
    }

    /// A GPT-2 of these sizes: LayerNorm, learned positions, GELU, biases, the embedding as its head (Radford et al.,
    /// 2019).
    pub fn gpt2(sizes: Sizes) -> Self {
        Self {
            family: Family::Gpt2,
            activation: Activation::Gelu(Gelu::Tanh),
            positions: Positions::Learned,
            norm: Norm::LayerNorm,
            tie_word_embeddings: true,
            qkv_bias: true,
            linear_bias: true,
            ..Self::llama(sizes)
        }
    }

    /// The mixture of experts of layer number `layer`, counted from 0, unless that layer is dense. Layers from
    /// `num_layers` on are those that predict further ahead.
    pub fn mixture_of(&self, layer: usize) -> Option<&MixtureConfig> {
        self.mixture.as_ref().filter(|mixture| layer >= mixture.first_dense_layers)
    }

    /// How queries, keys and values are packed in a row.
    pub fn head_layout(&self) -> HeadLayout {
        let head_dim = self.head_dim as u32;
        HeadLayout {
            heads: self.num_heads as u32,
            kv_heads: self.num_kv_heads as u32,
            head_dim,
            value_dim: head_dim,
        }
    }

    /// The sizes of attention, also against a cache of keys and values.
    pub fn decode(&self) -> Decode {
        Decode {
            layout: self.head_layout(),
            tokens: self.seq_length as u32,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            window: self.sliding_window.map(|window| window as u32),
        }
    }

    /// The rotary embedding; `None` with learned positions.
    pub fn rope(&self) -> Option<Rope> {
        (self.positions == Positions::Rotary).then_some(Rope {
            rotary_dim: self.rotary_dim as u32,
            theta: self.rope_theta,
            is_interleaved: self.rotary_interleaved,
        })
    }

    /// Whether training drops anything.
    pub fn has_dropout(&self) -> bool {
        [self.attention_dropout, self.hidden_dropout, self.embedding_dropout].iter().any(|share| *share > 0.0)
    }

    /// Standard deviation of the initial matrices that write into the residual stream.
    pub fn residual_init_std(&self) -> f64 {
        self.init_std / (2.0 * self.num_layers as f64).sqrt()
    }

    /// Whether positions come from a table, whose gradient needs the tokens sorted by position.
    pub fn learns_positions(&self) -> bool {
        self.positions == Positions::Learned
    }
}

/// The published model that a checkpoint can be read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama and Qwen (Touvron et al., 2023).
    Llama,
    /// GPT-2 (Radford et al., 2019).
    Gpt2,
}

/// How activations are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// By their root mean square; a weight, no bias.
    RmsNorm,
    /// By mean and standard deviation; a weight and a bias.
    LayerNorm,
}

/// What the feed-forward layer does between its projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// silu(gate) · up, two projections side by side.
    SwiGlu,
    /// x · Φ(x) of one projection.
    Gelu(Gelu),
}

/// How a token's place gets into the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// q and k turn by it.
    Rotary,
    /// A row of a table of `max_positions` rows is added to the token's embedding.
    Learned,
}
