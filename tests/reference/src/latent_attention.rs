//! The sizes of multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1), and the names of its
//! tensors.

use super::latent_heads::LatentHeads;
use super::rope::Rope;

/// Queries, keys and values by way of latent vectors, in a model whose rotary embedding is that of the rotating parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentAttention {
    /// Width of the latent vector of the queries; `None`: they are computed directly.
    pub q_rank: Option<usize>,
    /// Width of the latent vector of keys and values.
    pub kv_rank: usize,
    /// Elements of a head that do not rotate.
    pub nope_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Factor of the attention scores.
    pub scale: f64,
    /// Added to the mean square in the norms of latent vectors.
    pub norm_eps: f64,
}

pub(super) const Q: &str = "self_attn.q_proj";
pub(super) const Q_DOWN: &str = "self_attn.q_a_proj";
pub(super) const Q_NORM: &str = "self_attn.q_a_layernorm";
pub(super) const Q_UP: &str = "self_attn.q_b_proj";
pub(super) const KV_DOWN: &str = "self_attn.kv_a_proj_with_mqa";
pub(super) const KV_NORM: &str = "self_attn.kv_a_layernorm";
pub(super) const KV_UP: &str = "self_attn.kv_b_proj";

impl LatentAttention {
    /// (name, number of elements) of the weights of a layer, without that of the output, in a model `hidden` wide.
    pub(super) fn parameters(
        &self,
        hidden: usize,
        heads: usize,
        rotating: usize,
    ) -> Vec<(&'static str, usize)> {
        let q_cols = heads * (self.nope_dim + rotating);
        let mut list = match self.q_rank {
            Some(rank) => vec![(Q_DOWN, rank * hidden), (Q_NORM, rank), (Q_UP, q_cols * rank)],
            None => vec![(Q, q_cols * hidden)],
        };
        let kv_cols = heads * (self.nope_dim + self.value_dim);
        list.extend([
            (KV_DOWN, (self.kv_rank + rotating) * hidden),
            (KV_NORM, self.kv_rank),
            (KV_UP, kv_cols * self.kv_rank),
        ]);
        list
    }

    /// The heads in a model of `heads` heads.
    pub(super) fn heads(&self, heads: usize, rope: Rope) -> LatentHeads {
        LatentHeads { heads, nope_dim: self.nope_dim, value_dim: self.value_dim, rope }
    }
}
