//! The parameters of multi-head latent attention other than its first and last products.

use super::scope::{Scope, StackedRows};
use super::spec::Role;
use crate::model::config::LatentAttention;
use crate::model::names;

/// The parameters that turn latent parts into heads.
#[derive(Clone, Debug, PartialEq)]
pub struct Latent<P> {
    /// For the queries; `None` if the first product computes their heads directly.
    pub queries: Option<LatentQueries<P>>,
    /// (K): norm of the latent vector of keys and values.
    pub kv_norm: P,
    /// (H·(P + V), K): for each head the part of the key that does not rotate, then the value.
    pub w_ukv: P,
}

/// The parameters that turn the latent vector of the queries into queries.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentQueries<P> {
    /// (Q)
    pub norm: P,
    /// (H·(P + R), Q)
    pub w_up: P,
}

impl<P> Latent<P> {
    pub(super) fn declare(layer: &mut Scope<'_, P>, sizes: &LatentAttention) -> Self {
        let (heads, std) = (layer.config.num_heads, layer.config.init_std);
        let kv =
            StackedRows::new([names::KV_UP], &[heads * (sizes.nope_dim + sizes.value_dim)]).divided(&[heads]);
        Self {
            queries: sizes.q_rank.map(|rank| LatentQueries::declare(layer, sizes, rank)),
            kv_norm: layer.inner_norm_weight("attention.kv_norm", names::KV_NORM, sizes.kv_rank),
            w_ukv: layer.matrix(Role::Matrix, "attention.w_ukv", &kv, sizes.kv_rank, std),
        }
    }
}

impl<P> LatentQueries<P> {
    fn declare(layer: &mut Scope<'_, P>, sizes: &LatentAttention, rank: usize) -> Self {
        let (heads, std) = (layer.config.num_heads, layer.config.init_std);
        let up = StackedRows::new([names::Q_UP], &[heads * sizes.head_dim()]).divided(&[heads]);
        Self {
            norm: layer.inner_norm_weight("attention.q_norm", names::Q_NORM, rank),
            w_up: layer.matrix(Role::Matrix, "attention.w_uq", &up, rank, std),
        }
    }
}

/// The rows of the first product: the latent vector of the queries or their heads, then the latent vector of keys and
/// values, then the rotating part of the keys.
pub(super) fn down_rows(sizes: &LatentAttention, heads: usize) -> StackedRows {
    let (of_q, units) = if sizes.q_rank.is_some() { (names::Q_DOWN, 1) } else { (names::Q, heads) };
    StackedRows::new([of_q, names::KV_DOWN], &[sizes.q_cols(heads), sizes.kv_rank + sizes.rope_dim])
        .divided(&[units, 1])
}
