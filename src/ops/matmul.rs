//! The three matrix products of a linear layer.

use crate::element::Element;
use crate::kernels::{Capabilities, Kernel, Tier};
use crate::record::{Recorder, Tensor};

/// How the operands are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// a (M, K) · b (N, K)ᵀ: the forward product x Wᵀ.
    Nt,
    /// a (M, K) · b (K, N): the input's gradient dy W.
    Nn,
    /// a (K, M)ᵀ · b (K, N): the weight's gradient dyᵀ x.
    Tn,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How the operands are stored.
    pub layout: Layout,
    /// Rows of the result.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Length of the sums.
    pub k: u32,
}

/// Which kernel answers a [`Problem`], and on which grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The kernel, its tile sizes set.
    pub kernel: Kernel,
    /// Workgroups.
    pub grid: [u32; 3],
}

/// What the kernel adds to the product, and where it puts it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue {
    /// (N), added to every row.
    pub bias: Option<Tensor>,
    /// (M, N), added.
    pub residual: Option<Tensor>,
    /// Add to what the result holds already.
    pub accumulate: bool,
}

crate::params! {
    struct Params {
        m: u32,
        n: u32,
        k: u32,
        a_offset: u32,
        b_offset: u32,
        y_offset: u32,
        a_stride: u32,
        b_stride: u32,
        y_stride: u32,
        residual_stride: u32,
    }
}

/// y (M, N) = a · b as `layout` says, plus the epilogue. `y` may be f32 where `a` and `b` are 16-bit: a gradient.
#[track_caller]
pub fn matmul(rec: &mut Recorder, layout: Layout, a: Tensor, b: Tensor, y: Tensor, epilogue: Epilogue) {
    let (m, k) = if layout == Layout::Tn { (a.cols, a.rows) } else { (a.rows, a.cols) };
    let (n, b_k) = if layout == Layout::Nt { (b.rows, b.cols) } else { (b.cols, b.rows) };
    assert!(k == b_k, "a product over {k} and {b_k} elements: the inner sizes differ");
    assert!((y.rows, y.cols) == (m, n), "a product of {m} x {n} does not fit {} x {}", y.rows, y.cols);
    assert!(a.element == b.element, "both factors are stored alike");
    let problem = Problem { layout, m, n, k };
    let Plan { kernel, grid } = plan(problem, a.element, rec.capabilities());
    let kernel = kernel
        .feature("gradient", y.element == Element::F32 && a.element != Element::F32)
        .feature("bias", epilogue.bias.is_some())
        .feature("residual", epilogue.residual.is_some())
        .feature("accumulate", epilogue.accumulate);
    let ((a_range, a_offset), (b_range, b_offset)) = (a.offset_binding(), b.offset_binding());
    let (y_range, y_offset) = y.offset_binding();
    let mut bindings = vec![(1, a_range), (2, b_range), (3, y_range)];
    if let Some(bias) = epilogue.bias {
        assert!(bias.cols == n, "a bias of {} for {n} columns", bias.cols);
        bindings.push((4, bias.binding()));
    }
    if let Some(residual) = epilogue.residual {
        assert!((residual.rows, residual.cols) == (m, n), "the residual has another shape than the product");
        bindings.push((5, residual.binding()));
    }
    let params = Params {
        m,
        n,
        k,
        a_offset,
        b_offset,
        y_offset,
        a_stride: a.stride4(),
        b_stride: b.stride4(),
        y_stride: y.stride4(),
        residual_stride: epilogue.residual.map_or(0, |residual| residual.stride4()),
    };
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// Chooses kernel and tile.
pub fn plan(problem: Problem, element: Element, capabilities: Capabilities) -> Plan {
    let with_layout = |kernel: Kernel| {
        kernel
            .feature("a_transposed", problem.layout == Layout::Tn)
            .feature("b_transposed", problem.layout == Layout::Nt)
    };
    match capabilities.tier {
        Tier::Software => {
            let (rows, columns4, lanes) = (16, 2, 8);
            let kernel = Kernel::new("matmul/software", "matmul", element);
            let kernel = with_layout(kernel).constant("ROWS", rows).constant("COLUMNS4", columns4);
            let kernel = kernel.constant("LANES", lanes);
            Plan { kernel, grid: [problem.n.div_ceil(4 * columns4 * lanes), problem.m.div_ceil(rows), 1] }
        }
        Tier::Portable => {
            // Small products take the small tile, so that more than a handful of workgroups run.
            let tiles = |side: u32| problem.m.div_ceil(side) as u64 * problem.n.div_ceil(side) as u64;
            let (width4, depth) = if tiles(128) >= 64 { (2, 8) } else { (1, 16) };
            let kernel = Kernel::new("matmul/portable", "matmul", element);
            let kernel = with_layout(kernel).constant("TM4", width4).constant("TN4", width4);
            let side = 64 * width4;
            Plan {
                kernel: kernel.constant("DEPTH", depth),
                grid: [problem.n.div_ceil(side), problem.m.div_ceil(side), 1],
            }
        }
    }
}
