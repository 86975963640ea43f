//! Root mean square normalisation (Zhang and Sennrich, 2019).

use super::column_sum::fold_partials;
use super::{few_or_many_rows, per_block, per_row};
use crate::element::{Element, stride_of};
use crate::kernels::{Condition, Kernel};
use crate::record::{Recorder, Tensor};

/// Rows that the weight gradient sums in its first launch.
const ROWS: u32 = 64;

/// The formula of an RMSNorm, apart from its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub epsilon: f32,
    /// Whether it multiplies by 1 + w instead of w.
    pub is_zero_centered: bool,
    /// A factor of its result; `None`: 1. Only norms by themselves have one, not those within products.
    pub factor: Option<f32>,
}

impl RmsNorm {
    /// The norm that multiplies by its weight.
    pub fn new(epsilon: f32) -> Self {
        Self { epsilon, is_zero_centered: false, factor: None }
    }

    /// The variant of `kernel` that computes it or a gradient of it.
    fn of(self, kernel: Kernel) -> Kernel {
        kernel
            .condition(Condition::ZeroCentered, self.is_zero_centered)
            .condition(Condition::Scaled, self.factor.is_some())
    }
}

crate::params! {
    struct Params {
        rows: u32,
        cols: u32,
        cols4: u32,
        epsilon: f32,
        x_offset: u32,
        x_stride: u32,
        dx_offset: u32,
        dx_stride: u32,
        y_offset: u32,
        y_stride: u32,
        factor: f32,
    }
}

impl Params {
    #[track_caller]
    fn new(x: &Tensor, y: &Tensor, norm: RmsNorm) -> Self {
        assert!((y.rows, y.cols) == (x.rows, x.cols), "y must have the shape of rms_norm's input");
        [x, y].into_iter().for_each(assert_is_padded);
        Self {
            rows: x.rows,
            cols: x.cols,
            cols4: x.cols.div_ceil(4),
            epsilon: norm.epsilon,
            x_offset: x.offset4(),
            x_stride: x.stride4(),
            dx_offset: 0,
            dx_stride: 0,
            y_offset: y.offset4(),
            y_stride: y.stride4(),
            factor: norm.factor.unwrap_or(1.0),
        }
    }
}

/// y (N, D) = x / sqrt(mean(x²) + epsilon) · w, times the factor of the norm, and the rstd (1, N) for the backward, always f32. x and y may
/// be ranges of columns of larger tensors; their width is then a multiple of 4.
#[track_caller]
pub fn rms_norm(rec: &mut Recorder, x: Tensor, w: Tensor, y: Tensor, rstd: Tensor, norm: RmsNorm) {
    forward(rec, &RmsNormSaved { x, w, rstd }, y, norm, None);
}

/// y (N, D) = residual + [`rms_norm`] of `saved.x` by `saved.w`; fills `saved.rstd`.
#[track_caller]
pub fn add_rms_norm(rec: &mut Recorder, residual: Tensor, saved: &RmsNormSaved, y: Tensor, norm: RmsNorm) {
    let is_whole = (y.rows, y.cols, y.stride) == (residual.rows, residual.cols, stride_of(residual.cols));
    assert!(is_whole && y.stride == residual.stride, "y must have the shape of the residual");
    forward(rec, saved, y, norm, Some(residual));
}

#[track_caller]
fn forward(rec: &mut Recorder, saved: &RmsNormSaved, y: Tensor, norm: RmsNorm, residual: Option<Tensor>) {
    let RmsNormSaved { x, w, rstd } = saved;
    assert!(w.cols == x.cols, "rms_norm of {} columns with {} weights", x.cols, w.cols);
    assert!(rstd.cols == x.rows, "rms_norm needs one rstd for each of {} rows", x.rows);
    let (kernel, grid) = few_or_many_rows(rec, "rms_norm", "rms_norm", x.element, x.rows);
    let mut bindings = vec![
        x.bind_with_offset("x", x.element),
        w.bind("w", x.element),
        y.bind_with_offset("y", x.element),
        rstd.bind("rstd_out", Element::F32),
    ];
    bindings.extend(residual.map(|residual| residual.bind("residual", x.element)));
    let kernel = norm.of(kernel.constant("ROWS", ROWS)).condition(Condition::Residual, residual.is_some());
    rec.dispatch(kernel, &bindings, &Params::new(x, &y, norm), grid);
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

/// dx (N, D), written or, with `accumulate`, added to. It may be a range of columns, as x and dy may.
#[track_caller]
pub fn rms_norm_backward(
    rec: &mut Recorder,
    saved: &RmsNormSaved,
    norm: RmsNorm,
    dy: Tensor,
    dx: Tensor,
    accumulate: bool,
) {
    let RmsNormSaved { x, w, rstd } = saved;
    assert!((dx.rows, dx.cols) == (x.rows, x.cols), "dx must have the shape of rms_norm's input");
    assert_is_padded(&dx);
    let (kernel, grid) = per_row(rec, "rms_norm", "rms_norm_backward", x.element, x.rows);
    let kernel = norm.of(kernel.constant("ROWS", ROWS)).condition(Condition::Accumulate, accumulate);
    let bindings = [
        x.bind_with_offset("x", x.element),
        w.bind("w", x.element),
        dy.bind_with_offset("dy", x.element),
        rstd.bind("rstd", Element::F32),
        dx.bind_with_offset("dx", x.element),
    ];
    let params = Params { dx_offset: dx.offset4(), dx_stride: dx.stride4(), ..Params::new(x, &dy, norm) };
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// dw (1, D) += Σ_rows dy · x · rstd, times the factor of the norm: f32, summed in a fixed order.
#[track_caller]
pub fn rms_norm_backward_weight(
    rec: &mut Recorder,
    saved: &RmsNormSaved,
    norm: RmsNorm,
    dy: Tensor,
    dw: Tensor,
) {
    let RmsNormSaved { x, rstd, .. } = saved;
    assert!(dw.element == Element::F32, "gradients of parameters must be f32");
    let blocks = x.rows.div_ceil(ROWS);
    let partials = rec.tensor("partials", blocks, x.cols, Element::F32);
    let params = Params::new(x, &dy, norm);
    let size = [params.cols4, blocks];
    let (kernel, grid) = per_block(rec, "rms_norm", "rms_norm_backward_weight", x.element, size);
    let bindings = [
        x.bind_with_offset("x", x.element),
        dy.bind_with_offset("dy", x.element),
        rstd.bind("rstd", Element::F32),
        partials.bind("partials", Element::F32),
    ];
    let kernel = kernel.constant("ROWS", ROWS).condition(Condition::Scaled, norm.factor.is_some());
    rec.dispatch(kernel, &bindings, &params, grid);
    fold_partials(rec, partials, dw);
}

/// The last group of a row is read and written whole, so the elements that follow the row in this group must be
/// padding.
#[track_caller]
fn assert_is_padded(x: &Tensor) {
    let is_whole = x.cols.is_multiple_of(4) || x.stride == stride_of(x.cols);
    assert!(
        is_whole,
        "rms_norm of {} columns of a larger tensor: their number must be a multiple of 4",
        x.cols
    );
}
