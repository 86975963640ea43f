//! Renormalisation of the gates of tokens whose choices were partly dropped.

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
    let tensors = [gates, placement.places, renormalised];
    launch(rec, "renormalise_gates", placement, &tensors, scaling);
}

/// The gradient of [`renormalise_gates`]: writes `d_gates` (N, k), given that of its result.
#[track_caller]
pub fn renormalise_gates_backward(
    rec: &mut Recorder,
    placement: &Placement,
    gates: Tensor,
    d_renormalised: Tensor,
    d_gates: Tensor,
    scaling: f32,
) {
    let tensors = [gates, placement.places, d_renormalised, d_gates];
    launch(rec, "renormalise_gates_backward", placement, &tensors, scaling);
}

/// `tensors` at bindings 1 and on; all but the places are gates.
#[track_caller]
fn launch(rec: &mut Recorder, entry: &'static str, placement: &Placement, tensors: &[Tensor], scaling: f32) {
    placement.assert_shapes();
    let stride = tensors[0].stride;
    for gates in tensors.iter().filter(|tensor| **tensor != placement.places) {
        placement.assert_gates(*gates);
        assert!(gates.stride == stride, "gates and their gradients must have one stride");
    }
    let config = &placement.config;
    let (kernel, grid) = per_item("permute/gates", entry, Element::F32, config.tokens.into());
    let bindings: Vec<_> = (1..).zip(tensors.iter().map(Tensor::binding)).collect();
    let params = Params { tokens: config.tokens, chosen: config.chosen, stride, scaling };
    rec.dispatch(kernel, &bindings, &params, grid);
}
