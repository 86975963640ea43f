//! The parameters of linear attention.

use super::Linear;
use super::scope::{Scope, StackedRows};
use super::spec::{Init, RowGroups};
use crate::model::config::{Family, LinearAttention};
use crate::model::names::linear as names;

/// Linear attention of H value heads, whose queries, keys and values are C columns.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearMixer<P> {
    /// Queries, keys and values, the gates of the norm, b of the strengths and a of the decays as one product:
    /// (C + H·V + 2 H, D).
    pub w_in: Linear<P>,
    /// (W, C)
    pub conv: P,
    /// (H): logarithms of the decay rates.
    pub a_log: P,
    /// (H): added to a.
    pub dt_bias: P,
    /// (V): the norm of each head.
    pub norm: P,
    /// (D, H·V)
    pub wo: Linear<P>,
}

impl<P> LinearMixer<P> {
    pub(super) fn declare(layer: &mut Scope<'_, P>, sizes: &LinearAttention) -> Self {
        let config = layer.config;
        let (width, values, heads) = (config.hidden_size, sizes.values(), sizes.heads);
        let (std, residual_std) = (config.init_std, config.residual_init_std());
        let parts = [sizes.channels(), values, heads, heads];
        let rows = match config.family {
            Family::Qwen3Next => {
                let merged = [parts[0] + parts[1], parts[2] + parts[3]];
                StackedRows::new(names::MERGED, &merged).in_groups(groups(sizes))
            }
            _ => StackedRows::new(names::PARTS, &parts),
        };
        let out = StackedRows::new([names::OUT], &[width]);
        Self {
            w_in: layer.linear(["attention.w_in", ""], &rows, width, std, false),
            conv: layer.convolution("attention.conv", names::CONV, [sizes.conv_width, sizes.channels()]),
            a_log: layer.of_linear_heads("attention.a_log", names::A_LOG, heads, Init::LogOfDecayRate),
            dt_bias: layer.of_linear_heads("attention.dt_bias", names::DT_BIAS, heads, Init::Ones),
            norm: layer.plain_norm("attention.norm", names::NORM, sizes.value_dim),
            wo: layer.linear(["attention.wo", ""], &out, values, residual_std, false),
        }
    }
}

/// Files of Qwen3-Next hold, for each key head, its query, its key, its values and their gates side by side; and b and
/// a of its value heads.
fn groups(sizes: &LinearAttention) -> Vec<RowGroups> {
    let shared = sizes.heads / sizes.key_heads;
    let values = shared * sizes.value_dim;
    let of = |rows| RowGroups { groups: sizes.key_heads, rows, is_reversed: false };
    vec![of([sizes.key_dim, sizes.key_dim, values, values]), of([shared, shared, 0, 0])]
}
