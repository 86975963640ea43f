//! A gate for each row: the factor of the shared expert's output.

use super::per_row;
use crate::element::Element;
use crate::kernels::Condition;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        cols: u32,
        x_stride4: u32,
        y_stride4: u32,
        other_stride4: u32,
    }
}

/// y (N, D) = residual (N, D) + x (N, D) · sigmoid(g); g (N, 1) is f32, the others have the same element.
#[track_caller]
pub fn row_gate(rec: &mut Recorder, x: Tensor, g: Tensor, residual: Option<Tensor>, y: Tensor) {
    assert_fits(x, g, &[Some(y), residual]);
    let (kernel, grid) = per_row(rec, "row_gate", "row_gate", x.element, x.rows);
    let mut bindings = vec![x.bind("x", x.element), g.bind("g", Element::F32), y.bind("y", x.element)];
    bindings.extend(residual.map(|residual| residual.bind("residual", x.element)));
    let params = params(x, y, residual.unwrap_or(y));
    rec.dispatch(kernel.condition(Condition::Residual, residual.is_some()), &bindings, &params, grid);
}

/// dx (N, D) = dy · sigmoid(g), written or, with `accumulate`, added to, and dg (N, 1) f32, written.
#[track_caller]
pub fn row_gate_backward(
    rec: &mut Recorder,
    x: Tensor,
    g: Tensor,
    dy: Tensor,
    dx: Tensor,
    accumulate: bool,
    dg: Tensor,
) {
    assert_fits(x, g, &[Some(dy), Some(dx)]);
    assert_fits(x, dg, &[]);
    let (kernel, grid) = per_row(rec, "row_gate", "row_gate_backward", x.element, x.rows);
    let bindings = [
        x.bind("x", x.element),
        g.bind("g", Element::F32),
        dy.bind("dy", x.element),
        dx.bind("dx", x.element),
        dg.bind("dg", Element::F32),
    ];
    rec.dispatch(kernel.condition(Condition::Accumulate, accumulate), &bindings, &params(x, dy, dx), grid);
}

#[track_caller]
fn assert_fits(x: Tensor, g: Tensor, others: &[Option<Tensor>]) {
    let gate = (g.rows, g.cols, g.stride, g.element);
    assert!(
        gate == (x.rows, 1, 4, Element::F32),
        "a gate of {} x {} does not fit {} rows, or is not f32",
        g.rows,
        g.cols,
        x.rows
    );
    for other in others.iter().flatten() {
        let fits = (other.rows, other.cols, other.element) == (x.rows, x.cols, x.element);
        assert!(fits, "row_gate needs tensors of one shape and element type");
    }
}

fn params(x: Tensor, y: Tensor, other: Tensor) -> Params {
    Params {
        rows: x.rows,
        cols: x.cols,
        x_stride4: x.stride4(),
        y_stride4: y.stride4(),
        other_stride4: other.stride4(),
    }
}
