//! A block's linear attention.

use super::Block;
use crate::gated_delta_rule::GatedDeltaRule;
use crate::gpt::{LinearHeads, Weights, accumulate};
use crate::linear_attention::{
    LinearAttention, Weights as LayerWeights, linear_attention, linear_attention_backward,
};
use crate::low_rank::LowRank;
use crate::matmul::{matmul_nn, matmul_nt, matmul_tn};
use crate::vector::{add, scaled};

/// The names of its tensors.
const NAMES: [&str; 9] = [
    "linear_attn.in_proj_qkv.weight",
    "linear_attn.in_proj_z.weight",
    "linear_attn.in_proj_b.weight",
    "linear_attn.in_proj_a.weight",
    "linear_attn.conv1d.weight",
    "linear_attn.A_log",
    "linear_attn.dt_bias",
    "linear_attn.norm.weight",
    "linear_attn.out_proj.weight",
];

impl LinearHeads {
    /// Name and number of elements of each tensor, in a model `width` wide.
    pub(crate) fn parameters(&self, width: usize) -> [(&'static str, usize); 9] {
        let Self { heads, key_heads, key_dim, value_dim, conv_width } = *self;
        let values = heads * value_dim;
        let channels = 2 * key_heads * key_dim + values;
        let counts = [
            channels * width,
            values * width,
            heads * width,
            heads * width,
            channels * conv_width,
            heads,
            heads,
            value_dim,
            width * values,
        ];
        std::array::from_fn(|number| (NAMES[number], counts[number]))
    }
}

impl Block<'_> {
    /// What linear attention makes of x (N, D), its projection back included.
    pub(super) fn linear(&self, heads: &LinearHeads, x: &[f64]) -> Vec<f64> {
        linear_attention(x, &self.linear_weights(), &self.linear_shape(heads))
    }

    /// The gradient of x, given that of [`Block::linear`]; adds those of the weights to `grads`.
    pub(super) fn linear_backward(
        &self,
        heads: &LinearHeads,
        x: &[f64],
        dy: &[f64],
        grads: &mut Weights,
    ) -> Vec<f64> {
        let (dx, gradients) =
            linear_attention_backward(x, &self.linear_weights(), dy, &self.linear_shape(heads));
        let LayerWeights { qkv, z, b, a, conv, a_log, bias, norm, out } = gradients;
        for (name, gradient) in NAMES.iter().zip([qkv, z, b, a, conv, a_log, bias, norm, out]) {
            self.factors_backward(name, &gradient, grads);
            accumulate(grads, &self.path(name), gradient);
        }
        dx
    }

    fn linear_shape(&self, heads: &LinearHeads) -> LinearAttention<'_> {
        let LinearHeads { heads, key_heads, key_dim, value_dim, conv_width } = *heads;
        let scale = 1.0 / (key_dim as f64).sqrt();
        let tokens = self.sequence_length;
        LinearAttention {
            hidden_size: self.shape.hidden_size,
            rule: GatedDeltaRule { tokens, heads, key_heads, key_dim, value_dim, scale, starts: None },
            conv_width,
            epsilon: self.shape.norm_eps,
            storage: self.shape.storage,
        }
    }

    /// The weights, of adapted projections with what their adapters add.
    fn linear_weights(&self) -> LayerWeights {
        let of = |number: usize| {
            let (name, path) = (NAMES[number], self.path(NAMES[number]));
            let weight = &self.weights[&path];
            match self.linear_factors(name) {
                None => weight.clone(),
                Some((scale, [a, b], rank)) => {
                    let (a, b) = (&self.weights[&a], &self.weights[&b]);
                    let product = matmul_nn(b, a, b.len() / rank, a.len() / rank, rank);
                    add(weight, &scaled(&product, scale))
                }
            }
        };
        LayerWeights {
            qkv: of(0),
            z: of(1),
            b: of(2),
            a: of(3),
            conv: of(4),
            a_log: of(5),
            bias: of(6),
            norm: of(7),
            out: of(8),
        }
    }

    /// Adds the gradients of the factors of an adapter, given that of the whole matrix.
    fn factors_backward(&self, name: &str, dw: &[f64], grads: &mut Weights) {
        let Some((scale, [a_name, b_name], rank)) = self.linear_factors(name) else { return };
        let (a, b) = (&self.weights[&a_name], &self.weights[&b_name]);
        let (rows, cols) = (b.len() / rank, a.len() / rank);
        accumulate(grads, &a_name, scaled(&matmul_tn(b, dw, rank, cols, rows), scale));
        accumulate(grads, &b_name, scaled(&matmul_nt(dw, a, rows, rank, cols), scale));
    }

    /// The scale, the names of A and B and the rank of the adapter of a tensor, if it has one.
    fn linear_factors(&self, name: &str) -> Option<(f64, [String; 2], usize)> {
        let module = self.path(name.strip_suffix(".weight")?);
        let adapters = self.shape.low_rank.as_ref().filter(|adapters| adapters.modules.contains(&module))?;
        let (rank, scale) = adapters.of(&module);
        Some((scale, ["A", "B"].map(|factor| LowRank::factor(&module, factor)), rank))
    }
}
