//! Columns times learned magnitudes, divided by the norms of the rows of their matrix (DoRA; Liu et al., 2024).

use super::column_sum::fold_scaled;
use super::{per_block, per_item};
use crate::element::Element;
use crate::kernels::Condition;
use crate::record::{Recorder, Tensor};

/// Rows that the first launch of a gradient sums into one.
const BLOCK: u32 = 64;

crate::params! {
    struct Params {
        rows: u32,
        cols4: u32,
        x_stride: u32,
        y_stride: u32,
        residual_stride: u32,
        block: u32,
        factor: f32,
    }
}

/// The factors of columns: `magnitudes` (1, D), with `squares` (1, D) divided by their roots, and 1 where these are 0;
/// both f32.
#[derive(Clone, Copy, Debug)]
pub struct ColumnFactors {
    /// Numbers that are learned.
    pub magnitudes: Tensor,
    /// Sums of squares of the rows that the columns are products with.
    pub squares: Option<Tensor>,
}

/// What is added to a product whose columns are scaled, as in [`Epilogue`](super::matmul::Epilogue).
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// Bias (1, D), added to every row.
    pub bias: Option<Tensor>,
    /// Factor of the product and its bias; `None`: 1.
    pub factor: Option<f32>,
    /// Residual (N, D).
    pub residual: Option<Tensor>,
}

/// y (N, D) = residual + factor · (f · x (N, D) + bias), where f are the factors `of` columns.
#[track_caller]
pub fn column_scale(rec: &mut Recorder, x: Tensor, of: ColumnFactors, terms: Terms, y: Tensor) {
    assert_fits(x, y, of);
    let Terms { bias, factor, residual } = terms;
    let cols4 = x.cols.div_ceil(4);
    let (kernel, grid) =
        per_item("column_scale", "column_scale", x.element, u64::from(x.rows) * u64::from(cols4));
    let kernel = kernel
        .condition(Condition::Normed, of.squares.is_some())
        .condition(Condition::Bias, bias.is_some())
        .condition(Condition::Scaled, factor.is_some())
        .condition(Condition::Residual, residual.is_some());
    let mut bindings =
        vec![x.bind("x", x.element), of.magnitudes.bind("m", Element::F32), y.bind("y", x.element)];
    bindings.extend(of.squares.map(|squares| squares.bind("s", Element::F32)));
    bindings.extend(bias.map(|bias| bias.bind("bias", x.element)));
    bindings.extend(residual.map(|residual| residual.bind("residual", x.element)));
    let params = Params {
        residual_stride: residual.map_or(0, |residual| residual.stride4()),
        factor: factor.unwrap_or(1.0),
        ..params(x, y)
    };
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// gradient (1, D) f32 += factor · Σ over rows of dy · x / √squares (N, D): of the magnitudes.
#[track_caller]
pub fn column_scale_backward_weight(
    rec: &mut Recorder,
    x: Tensor,
    dy: Tensor,
    of: ColumnFactors,
    factor: Option<f32>,
    gradient: Tensor,
) {
    assert_fits(x, dy, of);
    let Some(squares) = of.squares else { panic!("magnitudes that train are divided by norms") };
    let blocks = x.rows.div_ceil(BLOCK);
    let partials = rec.tensor("partials", blocks, x.cols, Element::F32);
    let (kernel, grid) = per_block(
        rec,
        "column_scale",
        "column_scale_backward_weight",
        x.element,
        [partials.stride4(), blocks],
    );
    let bindings = [
        x.bind("x", x.element),
        squares.bind("s", Element::F32),
        dy.bind("dy", x.element),
        partials.bind("partials", Element::F32),
    ];
    let params = Params { block: BLOCK, ..params(x, dy) };
    rec.dispatch(kernel.condition(Condition::Normed, true), &bindings, &params, grid);
    fold_scaled(rec, partials, gradient, factor);
}

#[track_caller]
fn assert_fits(x: Tensor, y: Tensor, ColumnFactors { magnitudes, squares }: ColumnFactors) {
    assert!(
        (x.rows, x.cols, x.element) == (y.rows, y.cols, y.element),
        "column_scale needs tensors of one shape and element type"
    );
    for of in [Some(magnitudes), squares].into_iter().flatten() {
        let fits = (of.rows, of.cols, of.element) == (1, x.cols, Element::F32);
        assert!(fits, "column_scale of {} columns needs as many f32 numbers", x.cols);
    }
}

fn params(x: Tensor, y: Tensor) -> Params {
    Params {
        rows: x.rows,
        cols4: x.cols.div_ceil(4),
        x_stride: x.stride4(),
        y_stride: y.stride4(),
        residual_stride: 0,
        block: 0,
        factor: 1.0,
    }
}
