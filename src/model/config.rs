//! The shape of a model, every number decided.

pub use crate::ops::gelu::Gelu;
pub use crate::ops::rope_scaling::{Llama3, RopeScaling, Yarn};

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
}

impl ModelConfig {
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
