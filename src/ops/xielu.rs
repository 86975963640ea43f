//! xIELU (Huang and Schlag, "Deriving Activation Functions Using Integration", 2024), the activation of Apertus: its two
//! curvatures are learned.

use super::column_sum::column_sum;
use super::per_row;
use crate::element::Element;
use crate::kernels::{Kernel, Tier};
use crate::record::{Binding, Recorder, Tensor, fold_grid};

crate::params! {
    struct Params {
        rows: u32,
        columns: u32,
        chunks: u32,
        x_offset: u32,
        x_stride: u32,
        y_offset: u32,
        y_stride: u32,
        dx_offset: u32,
        dx_stride: u32,
    }
}

/// An xIELU of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Xielu {
    /// (1, 2), f32: a and b, where α_p = softplus(a) and α_n = β + softplus(b).
    pub alphas: Tensor,
    /// (1, 2), f32: β, and ε, which is just below 0.
    pub constants: Tensor,
}

/// y (N, F) of x (N, F): α_p·x² + β·x above 0, and α_n·(expm1(min(x, ε)) - x) + β·x from 0 down.
#[track_caller]
pub fn xielu(rec: &mut Recorder, x: Tensor, numbers: Xielu, y: Tensor) {
    let (kernel, chunks) = per_column("xielu", x, rec.capabilities().tier);
    let mut bindings = numbers.bindings(x);
    bindings.push(y.bind_with_offset("y", x.element));
    let grid = fold_grid(u64::from(x.rows) * u64::from(chunks));
    rec.dispatch(kernel, &bindings, &Params::new(x, y, None, chunks), grid);
}

/// dx (N, F) = dy · xielu'(x).
#[track_caller]
pub fn xielu_backward(rec: &mut Recorder, x: Tensor, numbers: Xielu, dy: Tensor, dx: Tensor) {
    let (kernel, chunks) = per_column("xielu_backward", x, rec.capabilities().tier);
    let mut bindings = numbers.bindings(x);
    bindings.extend([dy.bind_with_offset("dy", x.element), dx.bind_with_offset("dx", x.element)]);
    let grid = fold_grid(u64::from(x.rows) * u64::from(chunks));
    rec.dispatch(kernel, &bindings, &Params::new(x, dy, Some(dx), chunks), grid);
}

/// `gradient` (1, 2), f32, += that of a and b, summed in a fixed order.
#[track_caller]
pub fn xielu_backward_weight(rec: &mut Recorder, x: Tensor, numbers: Xielu, dy: Tensor, gradient: Tensor) {
    assert!(gradient.cols == 2, "xielu has two learned numbers, not {}", gradient.cols);
    let partials = rec.tensor("partials", x.rows, 2, Element::F32);
    let (kernel, grid) = per_row(rec, "xielu", "xielu_backward_weight", x.element, x.rows);
    let mut bindings = numbers.bindings(x);
    let partials_bound = partials.bind("partials", Element::F32);
    bindings.extend([dy.bind_with_offset("dy", x.element), partials_bound]);
    rec.dispatch(kernel, &bindings, &Params::new(x, dy, None, 1), grid);
    column_sum(rec, partials, gradient, None);
}

impl Xielu {
    #[track_caller]
    fn bindings(self, x: Tensor) -> Vec<Binding> {
        let Self { alphas, constants } = self;
        assert!(alphas.cols == 2 && constants.cols == 2, "xielu has two learned numbers and two constants");
        vec![
            x.bind_with_offset("x", x.element),
            alphas.bind("alphas", Element::F32),
            constants.bind("constants", Element::F32),
        ]
    }
}

impl Params {
    #[track_caller]
    fn new(x: Tensor, y: Tensor, dx: Option<Tensor>, chunks: u32) -> Self {
        for tensor in [Some(y), dx].into_iter().flatten() {
            let is_alike = (tensor.rows, tensor.cols, tensor.element) == (x.rows, x.cols, x.element);
            assert!(is_alike, "xielu needs tensors of one shape and element type");
        }
        Self {
            rows: x.rows,
            columns: x.cols,
            chunks,
            x_offset: x.offset4(),
            x_stride: x.stride4(),
            y_offset: y.offset4(),
            y_stride: y.stride4(),
            dx_offset: dx.map_or(0, |dx| dx.offset4()),
            dx_stride: dx.map_or(0, |dx| dx.stride4()),
        }
    }
}

/// A kernel with an invocation for 4 columns of a row, and the number of workgroups for each row.
fn per_column(entry: &'static str, x: Tensor, tier: Tier) -> (Kernel, u32) {
    let widest = match tier {
        Tier::Software => 64,
        Tier::Portable | Tier::Matrix => 256,
    };
    let columns4 = x.cols.div_ceil(4);
    // Not wider than a row: lanes past its end would be idle.
    let lanes = columns4.next_power_of_two().clamp(8, widest);
    (Kernel::new("xielu", entry, x.element).constant("LANES", lanes), columns4.div_ceil(lanes))
}
