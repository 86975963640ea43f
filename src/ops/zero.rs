//! Zeros, for sums that begin within a recording.

use super::per_item;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        cols4: u32,
        offset: u32,
        stride: u32,
    }
}

/// y = 0.
#[track_caller]
pub fn zero(rec: &mut Recorder, y: Tensor) {
    let cols4 = y.cols.div_ceil(4);
    let (kernel, grid) = per_item("zero", "zero", y.element, u64::from(y.rows) * u64::from(cols4));
    let params = Params { rows: y.rows, cols4, offset: y.offset4(), stride: y.stride4() };
    rec.dispatch(kernel, &[y.bind_with_offset("y", y.element)], &params, grid);
}
