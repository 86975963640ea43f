//! Root mean square normalisation (Zhang and Sennrich, 2019).

use super::column_sum::fold_partials;
use super::{LANES, per_row};
use crate::element::Element;
use crate::kernels::{Condition, Kernel};
use crate::record::{Recorder, Tensor};

/// Rows that one invocation of the weight gradient sums.
const ROWS: u32 = 64;

crate::params! {
    struct Params {
        rows: u32,
        cols: u32,
        stride4: u32,
        epsilon: f32,
    }
}

impl Params {
    fn new(x: &Tensor, epsilon: f32) -> Self {
        Self { rows: x.rows, cols: x.cols, stride4: x.stride4(), epsilon }
    }
}

/// y (N, D) = x / sqrt(mean(x²) + epsilon) · w, and the rstd (1, N) for the backward, always f32.
#[track_caller]
pub fn rms_norm(rec: &mut Recorder, x: Tensor, w: Tensor, y: Tensor, rstd: Tensor, epsilon: f32) {
    assert!((x.rows, x.stride) == (y.rows, y.stride), "y must have the shape of rms_norm's input");
    assert!(w.cols == x.cols, "rms_norm of {} columns with {} weights", x.cols, w.cols);
    assert!(rstd.cols == x.rows, "rms_norm needs one rstd for each of {} rows", x.rows);
    let (kernel, grid) = per_row(rec, "rms_norm", "rms_norm", x.element, x.rows);
    let bindings = [
        x.bind("x", x.element),
        w.bind("w", x.element),
        y.bind("y", x.element),
        rstd.bind("rstd_out", Element::F32),
    ];
    rec.dispatch(kernel.constant("ROWS", ROWS), &bindings, &Params::new(&x, epsilon), grid);
}

/// The tensors that the backward reads.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormSaved {
    /// The input (N, D).
    pub x: Tensor,
    /// The weight (1, D).
    pub w: Tensor,
    /// 1 / rms of each row (1, N).
    pub rstd: Tensor,
}

/// dx (N, D), written or, with `accumulate`, added to.
#[track_caller]
pub fn rms_norm_backward(rec: &mut Recorder, saved: &RmsNormSaved, dy: Tensor, dx: Tensor, accumulate: bool) {
    let RmsNormSaved { x, w, rstd } = saved;
    assert!((dy.rows, dy.stride) == (x.rows, x.stride), "dy must have the shape of rms_norm's input");
    assert!((dx.rows, dx.stride) == (x.rows, x.stride), "dx must have the shape of rms_norm's input");
    let (kernel, grid) = per_row(rec, "rms_norm", "rms_norm_backward", x.element, x.rows);
    let kernel = kernel.constant("ROWS", ROWS).condition(Condition::Accumulate, accumulate);
    let bindings = [
        x.bind("x", x.element),
        w.bind("w", x.element),
        dy.bind("dy", x.element),
        rstd.bind("rstd", Element::F32),
        dx.bind("dx", x.element),
    ];
    rec.dispatch(kernel, &bindings, &Params::new(x, 0.0), grid);
}

/// dw (1, D) += Σ_rows dy · x · rstd: f32, summed in a fixed order.
#[track_caller]
pub fn rms_norm_backward_weight(rec: &mut Recorder, saved: &RmsNormSaved, dy: Tensor, dw: Tensor) {
    let RmsNormSaved { x, rstd, .. } = saved;
    assert!(dw.element == Element::F32, "gradients of parameters must be f32");
    let blocks = x.rows.div_ceil(ROWS);
    let partials = rec.tensor("partials", blocks, x.cols, Element::F32);
    let kernel = Kernel::new("rms_norm", "rms_norm_backward_weight", x.element);
    let kernel = kernel.constant("LANES", LANES).constant("ROWS", ROWS);
    let bindings = [
        x.bind("x", x.element),
        dy.bind("dy", x.element),
        rstd.bind("rstd", Element::F32),
        partials.bind("partials", Element::F32),
    ];
    rec.dispatch(kernel, &bindings, &Params::new(x, 0.0), [x.stride4().div_ceil(LANES), blocks, 1]);
    fold_partials(rec, partials, dw);
}
