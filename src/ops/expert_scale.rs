//! A learned factor for each expert, by which the gates of its tokens are multiplied (Gemma 4, Google, 2026).

use super::{per_item, per_row};
use crate::element::Element;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        tokens: u32,
        chosen: u32,
        experts: u32,
        stride: u32,
    }
}

/// scaled (N, k) = gates (N, k) · the scale (1, E) of each choice's expert; `ids` (1, N · k), u32. All others are f32.
/// The gradient of the gates is the same of that of the result.
#[track_caller]
pub fn scale_gates(rec: &mut Recorder, gates: Tensor, ids: Tensor, scale: Tensor, scaled: Tensor) {
    let params = params(gates, ids, scale, scaled);
    let (kernel, grid) = per_item("expert_scale", "scale_gates", Element::F32, gates.rows.into());
    let bindings = [
        gates.bind("gates", Element::F32),
        ids.bind("ids", Element::U32),
        scale.bind("scale", Element::F32),
        scaled.bind("scaled", Element::F32),
    ];
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// d_scale (1, E) += the gradient of the scale, given that of the scaled gates.
#[track_caller]
pub fn expert_scale_gradient(
    rec: &mut Recorder,
    gates: Tensor,
    ids: Tensor,
    d_scaled: Tensor,
    d_scale: Tensor,
) {
    let params = params(gates, ids, d_scale, d_scaled);
    let (kernel, grid) = per_row(rec, "expert_scale", "expert_scale_gradient", Element::F32, d_scale.cols);
    let bindings = [
        gates.bind("gates", Element::F32),
        ids.bind("ids", Element::U32),
        d_scaled.bind("d_scaled", Element::F32),
        d_scale.bind("d_scale", Element::F32),
    ];
    rec.dispatch(kernel, &bindings, &params, grid);
}

#[track_caller]
fn params(gates: Tensor, ids: Tensor, scale: Tensor, scaled: Tensor) -> Params {
    let shape = |tensor: Tensor| (tensor.rows, tensor.cols, tensor.stride, tensor.element);
    assert!(gates.element == Element::F32 && shape(gates) == shape(scaled), "gates are f32 and of one shape");
    let choices = gates.rows * gates.cols;
    assert!(ids.cols == choices, "{} experts of {choices} choices", ids.cols);
    let fits = scale.rows == 1 && scale.element == Element::F32;
    assert!(fits, "the scales of experts are one row of f32");
    Params { tokens: gates.rows, chosen: gates.cols, experts: scale.cols, stride: gates.stride }
}
