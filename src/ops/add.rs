//! Sums of tensors that no other kernel can fuse.

use super::per_item;
use crate::kernels::Condition;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        cols4: u32,
        x_offset: u32,
        y_offset: u32,
        x_stride: u32,
        y_stride: u32,
        factor: f32,
    }
}

/// y = factor · x, or y += factor · x with `accumulate`.
#[track_caller]
pub fn add(rec: &mut Recorder, x: Tensor, y: Tensor, factor: f32, accumulate: bool) {
    add_scaled(rec, x, y, factor, None, accumulate);
}

/// y = s · x with the number s in `scalar` (1, 1).
#[track_caller]
pub fn scale(rec: &mut Recorder, x: Tensor, scalar: Tensor, y: Tensor) {
    assert!((scalar.rows, scalar.cols) == (1, 1), "scale takes one number");
    add_scaled(rec, x, y, 1.0, Some(scalar), false);
}

#[track_caller]
fn add_scaled(
    rec: &mut Recorder,
    x: Tensor,
    y: Tensor,
    factor: f32,
    scalar: Option<Tensor>,
    accumulate: bool,
) {
    assert!(
        (x.rows, x.cols, x.element) == (y.rows, y.cols, y.element),
        "add needs tensors of one shape and element type"
    );
    let cols4 = x.cols.div_ceil(4);
    let (kernel, grid) = per_item("add", "add", x.element, x.rows as u64 * cols4 as u64);
    let params = Params {
        rows: x.rows,
        cols4,
        x_offset: x.offset4(),
        y_offset: y.offset4(),
        x_stride: x.stride4(),
        y_stride: y.stride4(),
        factor,
    };
    let mut bindings = vec![x.bind_with_offset("x", x.element), y.bind_with_offset("y", x.element)];
    bindings.extend(scalar.map(|scalar| scalar.bind("scalar", x.element)));
    let kernel =
        kernel.condition(Condition::Accumulate, accumulate).condition(Condition::Scaled, scalar.is_some());
    rec.dispatch(kernel, &bindings, &params, grid);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element::{F32, U32};
    use crate::kernels::Capabilities;

    #[test]
    #[should_panic(expected = "add computes with f32, f16 or bf16 tensors, not with u32")]
    fn token_ids_are_not_added() {
        let mut rec = Recorder::new("add", Capabilities::software());
        let [ids, sum] = [0; 2].map(|_| rec.tensor("ids", 1, 8, U32));
        add(&mut rec, ids, sum, 1.0, false);
    }

    #[test]
    #[should_panic(expected = "the tensor of `ids` must hold u32, not f32")]
    fn floats_are_not_looked_up() {
        let mut rec = Recorder::new("embedding", Capabilities::software());
        let [ids, table, y] = [(1, 4), (9, 8), (4, 8)].map(|(rows, cols)| rec.tensor("x", rows, cols, F32));
        crate::ops::embedding::embedding(&mut rec, ids, &[table], None, y);
    }
}
