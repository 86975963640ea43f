//! Gated short convolutions in place of attention, as in LFM2 (Liquid AI, 2025):
//!
//! ```text
//! h (N, D) -- w_in --> [b | c | v]
//! b · v -- convolution of each column over W tokens --> z
//! c · z -- wo --> (N, D)
//! ```
//!
//! In generation the last W - 1 rows of b · v take the place of the cache. They cannot go back to earlier tokens.

use super::context::{DropoutSite, ForwardContext, Mode};
use super::gpt::Normed;
use super::parameters::GatedConvolution;
use crate::ops::causal_conv::{CausalConv, ConvForm};
use crate::tape::{Parameter, Tape, Var};

impl GatedConvolution<Parameter> {
    /// x + dropout(f · Wo · convolution(h)), or without x just f · Wo · convolution(h).
    pub(super) fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        h: Normed<'p>,  // (N, D)
        x: Option<Var>, // (N, D)
    ) -> Var {
        let parts = tape.scope("w_in", |tape| self.w_in.of_normed(tape, ctx, h)); // (N, 3 D)
        let y = match ctx.mode {
            Mode::Decode(caches) => {
                let rows = caches[layer].convolved();
                tape.scope("conv", |tape| tape.causal_conv_step(parts, &self.conv, rows, ConvForm::Gated))
            }
            _ => self.convolve(tape, ctx, layer, parts),
        }; // (N, D)
        let dropout = ctx.dropout(DropoutSite::AttentionOutput(layer));
        let factor = ctx.config.residual_factor();
        tape.scope("wo", |tape| self.wo.add(tape, ctx, y, factor, dropout, x)) // (N, D)
    }

    /// c · z over whole sequences, of `parts` (N, 3 D): (N, D).
    fn convolve<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        parts: Var,
    ) -> Var {
        if let Mode::Prefill { caches, last_rows } = ctx.mode {
            let (rows, width) = (caches[layer].convolved(), self.conv.weight().rows);
            tape.scope("cache", |tape| {
                tape.fill_conv_state(parts, last_rows, rows, width, ConvForm::Gated);
            });
        }
        let (tokens, documents) = (ctx.config.seq_length as u32, ctx.batch.documents);
        let conv = CausalConv { tokens, documents, form: ConvForm::Gated };
        tape.scope("conv", |tape| tape.causal_conv(parts, &self.conv, conv))
    }
}
