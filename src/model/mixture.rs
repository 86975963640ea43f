//! A mixture of experts in the place of a feed-forward network.
//!
//! Letters: N tokens, E experts of which each token visits k, D width, F inner width of an expert, R rows of all experts.

use super::experts::Experts;
use super::gpt::add_dropped;
use super::parameters::{Mixture, Shared};
use super::shape::Shape;
use crate::ops::permute::place;
use crate::ops::work_list::WorkList;
use crate::tape::{Parameter, Routing, Tape, Var};

/// x + dropout(Σ gates · experts(h) + shared expert(h)): h (N, D) is normalised, x (N, D) the residual stream, `op` the number
/// of the dropout.
pub(super) fn mixture<'p>(
    tape: &mut Tape<'_, 'p>,
    parameters: &'p Mixture<Parameter>,
    shape: &Shape,
    layer: usize,
    op: u32,
    [h, x]: [Var; 2], // (N, D) each
) -> Var {
    let Some(experts) = &shape.experts else { panic!("layer {layer} has experts, and the model has none") };
    // Where nothing is dropped, the last kernel of the layer adds x.
    let dropout = shape.dropout(shape.dropout.hidden, op);
    let residual = dropout.is_none().then_some(x);
    let y = routed(tape, parameters, experts, layer, h, residual); // (N, D)
    let y = match &parameters.shared {
        None => y,
        Some(shared) => tape.scope("shared", |tape| shared_expert(tape, shared, experts, h, y)),
    };
    add_dropped(tape, y, dropout, x)
}

/// residual + Σ gates · experts(h), over the experts that each token chose.
fn routed<'p>(
    tape: &mut Tape<'_, 'p>,
    parameters: &'p Mixture<Parameter>,
    experts: &Experts,
    layer: usize,
    h: Var, // (N, D)
    residual: Option<Var>,
) -> Var {
    let (state, losses) = (&experts.state, experts.losses(layer));
    let logits = tape.scope("router", |tape| tape.linear(h, &parameters.router, None, None)); // (N, E)
    let Routing { gates, output } =
        tape.scope("route", |tape| tape.route(logits, state.bias(layer), &experts.route, losses.as_ref()));
    let config = experts.placement(h.tensor.rows);
    let capacities = experts.varying_capacities(layer);
    let placement = tape.scope("place", |tape| place(tape.rec, &config, output.ids, capacities));
    if let Some(losses) = losses {
        tape.scope("tally", |tape| tape.tally(placement.counts, state.capacities(layer), losses.tally));
    }
    let work = tape.scope("work_list", |tape| WorkList::new(tape.rec, placement.offsets, config.rows()));
    let gates = match experts.renormalised_to {
        None => gates,
        Some(sum) => tape.scope("gates", |tape| tape.renormalise_gates(gates, &placement, sum)),
    };
    let rows = tape.scope("permute", |tape| tape.permute(h, &placement)); // (R, D)
    let rows = tape.scope("experts", |tape| {
        let rows = tape.scope("w_gate_up", |tape| tape.grouped_linear(rows, &parameters.w_gate_up, &work)); // (R, 2 F)
        let rows = tape.scope("mul", |tape| tape.swiglu(rows, experts.inner)); // (R, F)
        tape.scope("w_down", |tape| tape.grouped_linear(rows, &parameters.w_down, &work)) // (R, D)
    });
    tape.scope("combine", |tape| tape.combine(rows, gates, residual, &placement)) // (N, D)
}

/// y + the expert that every token visits, times sigmoid of its gate's logit where it has one.
fn shared_expert<'p>(
    tape: &mut Tape<'_, 'p>,
    shared: &'p Shared<Parameter>,
    experts: &Experts,
    h: Var, // (N, D)
    y: Var, // (N, D)
) -> Var {
    let inner = tape.scope("w_gate_up", |tape| tape.linear(h, &shared.w_gate_up, None, None)); // (N, 2 S)
    let inner = tape.scope("mul", |tape| tape.swiglu(inner, experts.shared_inner)); // (N, S)
    let Some(gate) = &shared.gate else {
        return tape.scope("w_down", |tape| tape.linear(inner, &shared.w_down, None, Some(y)));
    };
    let out = tape.scope("w_down", |tape| tape.linear(inner, &shared.w_down, None, None)); // (N, D)
    let logit = tape.scope("gate", |tape| tape.linear(h, gate, None, None)); // (N, 1)
    tape.scope("gated", |tape| tape.row_gate(out, logit, Some(y)))
}
