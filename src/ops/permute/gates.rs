//! Renormalisation of the gates of tokens whose choices were partly dropped.
//!
//! This is all that `TopkRouterV1` does beyond V2. MindFormers' router may choose a full expert again in its next
//! round.

use super::Placement;
use crate::element::Element;
use crate::ops::per_item;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        tokens: u32,
        chosen: u32,
        stride: u32,
        scaling: f32,
    }
}

/// `renormalised` (N, k): the gates of kept choices, divided by their sum (+ 1e-9) and multiplied by `scaling`; zero
/// for dropped choices. If all choices of a token were dropped, its gates are all zero.
#[track_caller]
pub fn renormalise_gates(
    rec: &mut Recorder,
    placement: &Placement,
    gates: Tensor,
    renormalised: Tensor,
    scaling: f32,
) {
    let result = ("renormalised", renormalised);
    launch(rec, "renormalise_gates", placement, gates, &[result], scaling);
}

/// The gradient of [`renormalise_gates`]: writes `d_gates` (N, k), given the gradient of its result.
#[track_caller]
pub fn renormalise_gates_backward(
    rec: &mut Recorder,
    placement: &Placement,
    gates: Tensor,
    d_renormalised: Tensor,
    d_gates: Tensor,
    scaling: f32,
) {
    let gradients = [("d_renormalised", d_renormalised), ("d_gates", d_gates)];
    launch(rec, "renormalise_gates_backward", placement, gates, &gradients, scaling);
}

/// `others` are shaped like `gates`.
#[track_caller]
fn launch(
    rec: &mut Recorder,
    entry: &'static str,
    placement: &Placement,
    gates: Tensor,
    others: &[(&'static str, Tensor)],
    scaling: f32,
) {
    placement.assert_shapes();
    placement.assert_gates(gates);
    let mut bindings = vec![gates.bind("gates", Element::F32), placement.places.bind("places", Element::U32)];
    for &(name, other) in others {
        placement.assert_gates(other);
        assert!(other.stride == gates.stride, "gates and their gradients must have one stride");
        bindings.push(other.bind(name, Element::F32));
    }
    let config = &placement.config;
    let (kernel, grid) = per_item("permute/gates", entry, Element::F32, config.tokens.into());
    let params = Params { tokens: config.tokens, chosen: config.chosen, stride: gates.stride, scaling };
    rec.dispatch(kernel, &bindings, &params, grid);
}
