//! Rows divided by their length, as in the head of Baichuan 2 (Yang et al., 2023).
//!
//! If the head divides each row by its length (`head_epsilon`), this op writes the divided rows in each micro-batch,
//! the loss reads them as its head, and their gradient is propagated to the gradient of the table. Checkpoints hold the
//! table itself, since training continues from its lengths. A row is divided by the root of its sum of squares plus
//! 1e-5, as in MindFormers; the published code has no epsilon.

use super::per_row;
use crate::element::Element;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        cols: u32,
        stride4: u32,
        x_offset: u32,
        y_offset: u32,
        dx_offset: u32,
        epsilon: f32,
    }
}

/// y (N, D) = x / sqrt(Σ x² + epsilon), row by row.
#[track_caller]
pub fn l2_norm(rec: &mut Recorder, x: Tensor, y: Tensor, epsilon: f32) {
    assert!((x.rows, x.stride) == (y.rows, y.stride), "y must have the shape of l2_norm's input");
    let (kernel, grid) = per_row(rec, "l2_norm", "l2_norm", x.element, x.rows);
    let bindings = [x.bind_with_offset("x", x.element), y.bind_with_offset("y", x.element)];
    rec.dispatch(kernel, &bindings, &params(x, y, None, epsilon), grid);
}

/// The parts of a table with rows of unit length: [`l2_norm`] of each part.
#[track_caller]
pub fn unit_rows(rec: &mut Recorder, parts: &[Tensor], epsilon: f32) -> Vec<Tensor> {
    let unit = |part: &Tensor| {
        let unit = rec.tensor("unit rows", part.rows, part.cols, part.element);
        l2_norm(rec, *part, unit, epsilon);
        unit
    };
    parts.iter().map(unit).collect()
}

/// dx (N, D) += the gradient of x, given dy (N, D); both f32.
#[track_caller]
pub fn l2_norm_backward(rec: &mut Recorder, x: Tensor, dy: Tensor, dx: Tensor, epsilon: f32) {
    assert!((dy.rows, dy.stride) == (x.rows, x.stride), "dy must have the shape of l2_norm's input");
    assert!((dx.rows, dx.stride) == (x.rows, x.stride), "dx must have the shape of l2_norm's input");
    let (kernel, grid) = per_row(rec, "l2_norm", "l2_norm_backward", x.element, x.rows);
    let bindings = [
        x.bind_with_offset("x", x.element),
        dy.bind_with_offset("dy", Element::F32),
        dx.bind_with_offset("dx", Element::F32),
    ];
    rec.dispatch(kernel, &bindings, &params(x, dy, Some(dx), epsilon), grid);
}

fn params(x: Tensor, y: Tensor, dx: Option<Tensor>, epsilon: f32) -> Params {
    Params {
        rows: x.rows,
        cols: x.cols,
        stride4: x.stride4(),
        x_offset: x.offset4(),
        y_offset: y.offset4(),
        dx_offset: dx.map_or(0, |dx| dx.offset4()),
        epsilon,
    }
}
