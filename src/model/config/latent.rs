//! Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1).
//!
//! With heads whose parts are P and R wide, scores are scaled by 1/√(P + R), and with YaRN also by m(mscale_all_dim)²,
//! as in DeepSeek's published code and in `transformers`. MindFormers always multiplies by m(mscale)², with a factor of
//! 40 and an mscale of 0.707 if a file names neither, and leaves out the norms of latent vectors unless `qk_layernorm`
//! is True; here they are always there.

use super::ModelConfig;
use crate::ops::latent_heads::LatentHeads;

/// Queries, keys and values from latent vectors:
///
/// ```text
/// q = W_uq norm(W_dq h), or W_q h        each head [q_nope | rot(q_rope)]
/// [c | k_rope] = W_dkv h                 k_rope is the same for all heads
/// [k_nope | v] = W_ukv norm(c)           each head's key is [k_nope | rot(k_rope)]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentAttention {
    /// Width of the latent vector of the queries, a multiple of 4; `None`: queries are computed directly from h.
    pub q_rank: Option<usize>,
    /// Width of the latent vector of keys and values (c). A multiple of 4.
    pub kv_rank: usize,
    /// Width of the part of a head that does not rotate (q_nope, k_nope). A multiple of 4.
    pub nope_dim: usize,
    /// Width of the part of a head that rotates (q_rope, k_rope), in pairs that `rotary_interleaved` of the layers says. A
    /// multiple of 4.
    pub rope_dim: usize,
    /// Width of a value. A multiple of 4.
    pub value_dim: usize,
}

impl LatentAttention {
    /// Width of a query and of a key.
    pub fn head_dim(&self) -> usize {
        self.nope_dim + self.rope_dim
    }

    /// Columns for the queries in the first product: their latent vector, or otherwise all heads.
    pub(crate) fn q_cols(&self, heads: usize) -> usize {
        self.q_rank.unwrap_or(heads * self.head_dim())
    }

    /// Columns of the first product: those for the queries, the latent vector of keys and values, and the rotating part
    /// of the keys.
    pub(crate) fn down_cols(&self, heads: usize) -> usize {
        self.q_cols(heads) + self.kv_rank + self.rope_dim
    }

    /// The model `config` with this attention in place of its own. Positions are rotary, in pairs (2i, 2i + 1), and every
    /// head has a key and a value.
    pub fn within(self, config: ModelConfig) -> ModelConfig {
        let heads = config.num_heads;
        ModelConfig { latent: Some(self), ..config }.with_layers(|layer| {
            (layer.num_kv_heads, layer.head_dim) = (heads, self.head_dim());
            (layer.rotary_dim, layer.rotary_interleaved) = (self.rope_dim, true);
        })
    }

    /// The sizes of `heads` heads, as the kernel takes them.
    pub(crate) fn heads(&self, heads: usize, is_interleaved: bool) -> LatentHeads {
        LatentHeads {
            heads: heads as u32,
            nope_dim: self.nope_dim as u32,
            rope_dim: self.rope_dim as u32,
            is_interleaved,
            value_dim: self.value_dim as u32,
        }
    }
}

/// Which elements of the rotating part of a head are a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatentRotation {
    /// (2i, 2i + 1), as in DeepSeek.
    #[default]
    Neighbours,
    /// (i, i + R/2), as in MiniCPM 3.
    Halves,
}
