//! A mixture of experts as the feed-forward network of a layer.
//!
//! Letters: N tokens, E experts of which each token visits k, D width, F inner width of an expert, S that of the shared
//! expert, R rows of all experts.

use super::config::{BalanceLosses, MixtureConfig, ModelConfig};
use super::context::{DropoutSite, ForwardContext, Training};
use super::expert_state::ExpertState;
use super::parameters::{Mixture, Shared};
use crate::ops::balance::Balance;
use crate::ops::permute::place;
use crate::ops::work_list::WorkList;
use crate::tape::{Parameter, RouterLosses, Routing, Tape, Var};

impl Mixture<Parameter> {
    /// x + dropout(Σ gate · expert(h) + shared expert(h)).
    pub(super) fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        h: Var, // (N, D), normalised
        x: Var, // (N, D), the residual stream
    ) -> Var {
        let (Some(config), Some(state)) = (&ctx.config.mixture, &ctx.buffers.experts) else {
            panic!("layer {layer} has experts, but the configuration of its model has none")
        };
        // Without dropout the last kernel of the layer adds x.
        let dropout = ctx.dropout(DropoutSite::FeedForwardOutput(layer));
        let residual = dropout.is_none().then_some(x);
        let mut y = self.routed(tape, ctx, (config, state), layer, h, residual); // (N, D)
        if let (Some(shared), Some(sizes)) = (&self.shared, config.shared) {
            let inner = sizes.intermediate_size as u32;
            y = tape.scope("shared", |tape| shared.forward(tape, inner, h, y)); // (N, D)
        }
        match dropout {
            None => y,
            Some(dropout) => tape.scope("dropout", |tape| tape.dropout(y, Some(x), dropout)),
        }
    }

    /// residual + Σ gate · expert(h) over the experts that each token chose: (N, D).
    fn routed<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        (config, state): (&MixtureConfig, &ExpertState),
        layer: usize,
        h: Var, // (N, D)
        residual: Option<Var>,
    ) -> Var {
        let losses = ctx.training().map(|training| router_losses(ctx.config, config, state, layer, training));
        let is_dropless = ctx.is_generation();
        let rows = config.placement(h.tensor.rows, is_dropless);
        let capacities = state.capacities(layer).filter(|_| rows.has_hot_experts());

        let logits = tape.scope("router", |tape| tape.scores(h, &self.router)); // (N, E)
        let bias = state.bias(layer);
        let Routing { gates, output } =
            tape.scope("route", |tape| tape.route(logits, bias, &config.route, losses.as_ref())); // (N, k)
        // What was decided once is not decided again, and not counted again.
        let (placement, work) = tape.keeping(|tape| {
            let placement = tape.scope("place", |tape| place(tape.rec, &rows, output.ids, capacities));
            if let Some(losses) = losses {
                let capacities = state.capacities(layer);
                tape.scope("tally", |tape| tape.tally(placement.counts, capacities, losses.tally));
            }
            let offsets = placement.offsets;
            (placement, tape.scope("work_list", |tape| WorkList::new(tape.rec, offsets, rows.rows())))
        });
        let gates = match config.renormalised_sum().filter(|_| !is_dropless) {
            None => gates,
            Some(sum) => tape.scope("gates", |tape| tape.renormalise_gates(gates, &placement, sum)), // (N, k)
        };
        let x = tape.scope("permute", |tape| tape.permute(h, &placement)); // (R, D)
        let y = tape.scope("experts", |tape| {
            let inner = config.intermediate_size as u32;
            let x = tape.scope("w_gate_up", |tape| tape.grouped_linear(x, &self.w_gate_up, &work)); // (R, 2 F)
            let x = tape.scope("mul", |tape| tape.swiglu(x, inner)); // (R, F)
            tape.scope("w_down", |tape| tape.grouped_linear(x, &self.w_down, &work)) // (R, D)
        });
        tape.scope("combine", |tape| tape.combine(y, gates, residual, &placement)) // (N, D)
    }
}

impl Shared<Parameter> {
    /// y + W_down · swiglu(W_gate_up · h), gated: times sigmoid(gate · h).
    fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        inner: u32,
        h: Var, // (N, D)
        y: Var, // (N, D)
    ) -> Var {
        let gate_up = tape.scope("w_gate_up", |tape| tape.linear(h, &self.w_gate_up, None, None)); // (N, 2 S)
        let inner = tape.scope("mul", |tape| tape.swiglu(gate_up, inner)); // (N, S)
        let Some(gate) = &self.gate else {
            return tape.scope("w_down", |tape| tape.linear(inner, &self.w_down, None, Some(y))); // (N, D)
        };
        let out = tape.scope("w_down", |tape| tape.linear(inner, &self.w_down, None, None)); // (N, D)
        let logit = tape.scope("gate", |tape| tape.scores(h, gate)); // (N, 1)
        tape.scope("gated", |tape| tape.row_gate(out, logit, Some(y))) // (N, D)
    }
}

/// What the router of `layer` adds to the objective and to its tally.
fn router_losses(
    model: &ModelConfig,
    config: &MixtureConfig,
    state: &ExpertState,
    layer: usize,
    Training { step, accumulation, .. }: Training,
) -> RouterLosses {
    let BalanceLosses { expert, sequence, z } = config.losses;
    let balance = Balance {
        expert: expert as f32,
        sequence: sequence as f32,
        z: z as f32,
        tokens: model.seq_length as u32,
        accumulation,
    };
    RouterLosses { balance, step, tally: state.tally(layer) }
}

/// Rows and columns of the widest tensor that the experts of a model work on, for micro-batches of `tokens` tokens,
/// with the capacities of training or, in generation, without (`is_dropless`).
pub fn widest_expert_tensor(config: &ModelConfig, tokens: u32, is_dropless: bool) -> Option<[u64; 2]> {
    let mixture = config.mixture.as_ref()?;
    let inner = 2 * mixture.intermediate_size.next_multiple_of(4);
    let rows = mixture.placement(tokens, is_dropless).rows();
    Some([u64::from(rows), inner.max(config.hidden_size) as u64])
}
