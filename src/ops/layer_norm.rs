//! Layer normalisation (Ba, Kiros and Hinton, 2016).

use super::column_sum::fold_partials;
use super::{few_or_many_rows, per_block, per_row};
use crate::element::Element;
use crate::kernels::Condition;
use crate::record::{Recorder, Tensor};

/// Rows that the weight gradient sums in its first launch.
const ROWS: u32 = 64;

/// The formula of a LayerNorm, apart from its weight and bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether it multiplies by 1 + w instead of w, as in Nemotron.
    pub is_zero_centered: bool,
}

impl LayerNorm {
    /// The norm that multiplies by its weight.
    pub fn new(epsilon: f32) -> Self {
        Self { epsilon, is_zero_centered: false }
    }
}

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

/// The tensors that the backward reads.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormSaved {
    /// The input (N, D).
    pub x: Tensor,
    /// The weight (1, D).
    pub w: Tensor,
    /// Mean of each row (1, N), f32.
    pub mean: Tensor,
    /// 1 / standard deviation of each row (1, N), f32.
    pub rstd: Tensor,
}

/// y (N, D) = (x - mean(x)) / sqrt(var(x) + epsilon) · w, plus b (1, D) if there is one; fills `saved.mean` and
/// `saved.rstd`.
#[track_caller]
pub fn layer_norm(rec: &mut Recorder, saved: &LayerNormSaved, b: Option<Tensor>, y: Tensor, norm: LayerNorm) {
    let LayerNormSaved { x, w, mean, rstd } = saved;
    assert!((x.rows, x.stride) == (y.rows, y.stride), "y must have the shape of layer_norm's input");
    assert!(
        w.cols == x.cols && b.is_none_or(|b| b.cols == x.cols),
        "layer_norm of {} columns with {} weights and {} biases",
        x.cols,
        w.cols,
        b.map_or(0, |b| b.cols)
    );
    assert!(
        mean.cols == x.rows && rstd.cols == x.rows,
        "layer_norm needs one mean and one rstd for each of {} rows",
        x.rows
    );
    let (kernel, grid) = few_or_many_rows(rec, "layer_norm", "layer_norm", x.element, x.rows);
    let mut bindings = vec![x.bind("x", x.element), w.bind("w", x.element)];
    bindings.extend(b.map(|b| b.bind("b", x.element)));
    bindings.extend([
        y.bind("y", x.element),
        mean.bind("mean_out", Element::F32),
        rstd.bind("rstd_out", Element::F32),
    ]);
    let kernel = kernel
        .constant("ROWS", ROWS)
        .condition(Condition::Unbiased, b.is_none())
        .condition(Condition::ZeroCentered, norm.is_zero_centered);
    rec.dispatch(kernel, &bindings, &Params::new(x, norm.epsilon), grid);
}

/// dx (N, D), written or, with `accumulate`, added to.
#[track_caller]
pub fn layer_norm_backward(
    rec: &mut Recorder,
    saved: &LayerNormSaved,
    norm: LayerNorm,
    dy: Tensor,
    dx: Tensor,
    accumulate: bool,
) {
    let LayerNormSaved { x, w, mean, rstd } = saved;
    assert!((dy.rows, dy.stride) == (x.rows, x.stride), "dy must have the shape of layer_norm's input");
    assert!((dx.rows, dx.stride) == (x.rows, x.stride), "dx must have the shape of layer_norm's input");
    let (kernel, grid) = per_row(rec, "layer_norm", "layer_norm_backward", x.element, x.rows);
    let kernel = kernel
        .constant("ROWS", ROWS)
        .condition(Condition::Accumulate, accumulate)
        .condition(Condition::ZeroCentered, norm.is_zero_centered);
    let bindings = [
        x.bind("x", x.element),
        w.bind("w", x.element),
        dy.bind("dy", x.element),
        mean.bind("mean", Element::F32),
        rstd.bind("rstd", Element::F32),
        dx.bind("dx", x.element),
    ];
    rec.dispatch(kernel, &bindings, &Params::new(x, 0.0), grid);
}

/// dw (1, D) += Σ_rows dy · (x - mean) · rstd and, if there is a bias, db (1, D) += Σ_rows dy: f32, summed in a fixed
/// order.
#[track_caller]
pub fn layer_norm_backward_weight(
    rec: &mut Recorder,
    saved: &LayerNormSaved,
    dy: Tensor,
    dw: Tensor,
    db: Option<Tensor>,
) {
    let LayerNormSaved { x, mean, rstd, .. } = saved;
    let blocks = x.rows.div_ceil(ROWS);
    let w_partials = rec.tensor("partials", blocks, x.cols, Element::F32);
    let b_partials = db.map(|db| (rec.tensor("partials", blocks, x.cols, Element::F32), db));
    let size = [x.stride4(), blocks];
    let (kernel, grid) = per_block(rec, "layer_norm", "layer_norm_backward_weight", x.element, size);
    let mut bindings = vec![
        x.bind("x", x.element),
        dy.bind("dy", x.element),
        mean.bind("mean", Element::F32),
        rstd.bind("rstd", Element::F32),
        w_partials.bind("w_partials", Element::F32),
    ];
    bindings.extend(b_partials.map(|(partials, _)| partials.bind("b_partials", Element::F32)));
    let kernel = kernel.constant("ROWS", ROWS).condition(Condition::Unbiased, db.is_none());
    rec.dispatch(kernel, &bindings, &Params::new(x, 0.0), grid);
    fold_partials(rec, w_partials, dw);
    if let Some((partials, db)) = b_partials {
        fold_partials(rec, partials, db);
    }
}
