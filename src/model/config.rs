//! The shape of a model, every number decided.

/// A Llama-shaped decoder: what the layers, the loss and the initialisation need to know.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
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
    /// Tokens in a window (T).
    pub seq_length: usize,
    /// Base of the rotary frequencies θ^(-2i/d).
    pub rope_theta: f64,
    /// How many of a head's dimensions rotate; even, at most `head_dim`.
    pub rotary_dim: usize,
    /// Whether rotary pairs are neighbours (2i, 2i+1) instead of halves (i, i + d/2).
    pub rotary_interleaved: bool,
    /// Added to the mean square in rms_norm.
    pub rms_norm_eps: f64,
    /// Whether the head shares the embedding's weights.
    pub tie_word_embeddings: bool,
    /// Whether the q, k and v projections have a bias.
    pub qkv_bias: bool,
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
