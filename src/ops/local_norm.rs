//! The sum of squares of each tensor's gradients.

use super::fold;
use super::grad_norm::{StepRules, StepTensors, square_sums};
use crate::element::Element;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        index: u32,
    }
}

/// Writes the sum of squares of a tensor's gradients, unscaled and before clipping, to element `index` of `norms` (1, N);
/// infinity if one is not finite. `parts` are flat. Recorded before the loss scale of the step changes.
#[track_caller]
pub fn local_norm(
    rec: &mut Recorder,
    parts: &[Tensor],
    tensors: &StepTensors,
    rules: &StepRules,
    norms: Tensor,
    index: u32,
) {
    assert!(index < norms.cols, "there are {} norms, so none has the number {index}", norms.cols);
    let (partials, rows) = square_sums(rec, parts, tensors, rules);
    let bindings = [partials.bind("partials", Element::F32), norms.bind("norms", Element::F32)];
    rec.dispatch(
        fold("local_norm", "local_norm", Element::F32),
        &bindings,
        &Params { rows, index },
        [1, 1, 1],
    );
}
