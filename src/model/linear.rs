//! Linear attention by the gated delta rule, as [`LinearAttention`] draws it.
//!
//! Letters, besides those of [`gpt`](super::gpt): H value heads with values of V elements and queries and keys of K; C
//! columns that are convolved, over W tokens.
//!
//! In generation a state of fixed size takes the place of the cache: the last W - 1 tokens before the convolution, and
//! what the rule holds. Neither can go back to earlier tokens.

use super::config::LinearAttention;
use super::context::{DropoutSite, ForwardContext, LinearCache, Mode};
use super::gpt::Normed;
use super::parameters::LinearMixer;
use crate::ops::causal_conv::ConvForm;
use crate::tape::{Parameter, Tape, Var};

impl LinearMixer<Parameter> {
    /// x + dropout(f · Wo · attention(h)), or without x just f · Wo · attention(h).
    pub(super) fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        sizes: &LinearAttention,
        h: Normed<'p>,  // (N, D)
        x: Option<Var>, // (N, D)
    ) -> Var {
        let projected = tape.scope("w_in", |tape| self.w_in.of_normed(tape, ctx, h)); // (N, C + H·V + 2 H)
        let [u, z, ba] = tape.split(projected, sizes.parts());
        let y = match ctx.mode {
            Mode::Decode(caches) => self.step(tape, caches[layer].linear(), sizes, u, ba),
            _ => self.attend(tape, ctx, layer, sizes, u, ba),
        };
        let epsilon = ctx.rms_norm().epsilon;
        let y = tape.scope("norm", |tape| tape.gated_norm(y, z, &self.norm, epsilon)); // (N, H·V)
        let dropout = ctx.dropout(DropoutSite::AttentionOutput(layer));
        let factor = ctx.config.residual_factor();
        tape.scope("wo", |tape| self.wo.add(tape, ctx, y, factor, dropout, x)) // (N, D)
    }

    /// The rule over whole sequences, of u (N, C) and ba (N, 2 H): (N, H·V).
    fn attend<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        sizes: &LinearAttention,
        u: Var,
        ba: Var,
    ) -> Var {
        let (tokens, documents) = (ctx.config.seq_length, ctx.batch.documents);
        let (mut last_rows, mut state) = (None, None);
        if let Mode::Prefill { caches, last_rows: last } = ctx.mode {
            let LinearCache { conv, rule } = caches[layer].linear();
            tape.scope("cache", |tape| {
                tape.fill_conv_state(u, last, conv, sizes.conv_width as u32, ConvForm::Silu);
            });
            (last_rows, state) = (Some(last), Some(rule));
        }
        let conv = LinearAttention::conv(tokens, documents);
        let qkv = tape.scope("conv", |tape| tape.causal_conv(u, &self.conv, conv)); // (N, C)
        let gates = tape.scope("gates", |tape| tape.delta_gates(ba, &self.a_log, &self.dt_bias, last_rows));
        let rule = sizes.rule(tokens, documents);
        tape.scope("delta_rule", |tape| tape.gated_delta_rule(qkv, gates, rule, state))
    }

    /// The rule on the newest tokens u (B, C) and ba (B, 2 H) of B sequences: (B, H·V).
    fn step<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        LinearCache { conv, rule }: LinearCache,
        sizes: &LinearAttention,
        u: Var,
        ba: Var,
    ) -> Var {
        let qkv = tape.scope("conv", |tape| tape.causal_conv_step(u, &self.conv, conv, ConvForm::Silu)); // (B, C)
        let gates = tape.scope("gates", |tape| tape.delta_gates(ba, &self.a_log, &self.dt_bias, None));
        let shape = sizes.rule(1, None);
        tape.scope("delta_rule", |tape| tape.gated_delta_rule_step(qkv, gates, rule, shape))
    }
}
