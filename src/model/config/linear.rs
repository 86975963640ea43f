//! Linear attention by the gated delta rule (Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024), as in
//! Qwen3-Next and Qwen3.5.

use crate::ops::attention::DocumentBounds;
use crate::ops::causal_conv::{CausalConv, ConvForm};
use crate::ops::gated_delta_rule::{GatedDeltaRule, gate_cols};

/// The sizes of a layer's linear attention:
///
/// ```text
/// h (N, D) -- w_in --> [u | z | b | a]     u: queries, keys and values
/// u -- conv -- silu --> [q | k | v]        q and k of each head divided by their lengths
/// decay = e^(-e^a_log · softplus(a + dt_bias)),   strength = sigmoid(b)
/// q, k, v, decay, strength -- gated delta rule -- norm of each head · silu(z) -- wo --> (N, D)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttention {
    /// Value heads (H), each of which has a state; a multiple of 4.
    pub heads: usize,
    /// Heads of queries and keys, a divisor of H.
    pub key_heads: usize,
    /// Width of a query and of a key (K), a multiple of 4.
    pub key_dim: usize,
    /// Width of a value (V), a multiple of 4.
    pub value_dim: usize,
    /// Tokens that the convolution sees (W), 2 or more.
    pub conv_width: usize,
}

impl LinearAttention {
    /// Columns of all queries, and of all keys.
    pub(crate) fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Columns of all values, and of the gates of the norm.
    pub(crate) fn values(&self) -> usize {
        self.heads * self.value_dim
    }

    /// Columns that are convolved: queries, keys and values (C).
    pub(crate) fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Widths of the parts of the first product: what is convolved, the gates of the norm, and what decays and
    /// strengths are made of.
    pub(crate) fn parts(&self) -> [u32; 3] {
        [self.channels() as u32, self.values() as u32, gate_cols(self.heads as u32)]
    }

    /// Operations of the rule on one token: of each head three products with its state.
    pub(crate) fn rule_flops_per_token(&self) -> f64 {
        6.0 * (self.values() * self.key_dim) as f64
    }

    /// The convolution of sequences of `tokens` tokens.
    pub(crate) fn conv(tokens: usize, documents: Option<DocumentBounds>) -> CausalConv {
        CausalConv { tokens: tokens as u32, documents, form: ConvForm::Silu }
    }

    /// The rule over sequences of `tokens` tokens.
    pub(crate) fn rule(&self, tokens: usize, documents: Option<DocumentBounds>) -> GatedDeltaRule {
        GatedDeltaRule {
            tokens: tokens as u32,
            heads: self.heads as u32,
            key_heads: self.key_heads as u32,
            key_dim: self.key_dim as u32,
            value_dim: self.value_dim as u32,
            scale: 1.0 / (self.key_dim as f32).sqrt(),
            documents,
        }
    }
}
