//! The three matrix products of a linear layer.

mod gated;
mod matrix;
mod parts;
mod vector;

pub use vector::{FEW_ROWS, FewRows, matmul_of_few_rows};

use super::gelu::Gelu;
use super::largest::largest;
use super::swiglu::{Gate, gate_up_cols};
use crate::element::{Element, stride_of};
use crate::kernels::{Capabilities, Condition, Kernel, Tier, Workgroup};
use crate::record::{Binding, Recorder, Tensor};
use matrix::MatrixTile;
use parts::{Division, divide};

/// How the operands of a product are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// a (M, K) · b (N, K)ᵀ: the forward product x Wᵀ.
    Nt,
    /// a (M, K) · b (K, N): the input's gradient dy W.
    Nn,
    /// a (K, M)ᵀ · b (K, N): the weight's gradient dyᵀ x.
    Tn,
}

/// The shape of a product.
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

/// Kernel and grid for a [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The kernel, its tile sizes set.
    pub kernel: Kernel,
    /// Workgroups; along z one for each part of the sums.
    pub grid: [u32; 3],
    /// Length of the parts into which the sums are split; k if they are not split.
    pub part_k: u32,
}

/// What the kernel adds to the product, or computes from it, before it stores the result.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue {
    /// Factor of the product and its bias; `None`: 1. Grouped products have none.
    pub factor: Option<f32>,
    /// Bias (1, N), added to every row; of grouped products (E, N), added to the rows of each expert.
    pub bias: Option<Tensor>,
    /// Residual (M, N).
    pub residual: Option<Tensor>,
    /// Whether the product is added to the result's contents.
    pub accumulate: bool,
    /// An activation of the result, or its gradient.
    pub activated: Option<Activated>,
}

/// An activation that is computed in the product that yields its argument, or the gradient of an activation, computed
/// in the product that yields the gradient of its value. The bits are those of the kernels of [`gelu`](super::gelu) and
/// [`swiglu`](super::swiglu).
#[derive(Clone, Copy, Debug)]
pub enum Activated {
    /// The activation of the result (M, N) is also written, to this tensor.
    Gelu(Gelu, Tensor),
    /// The result is multiplied by the slope of the activation at this tensor (M, N).
    Slope(Gelu, Tensor),
    /// The result is gate and up, packed as [`gate_up_cols`] describes; activation(gate) · up (M, F) is also written, to
    /// this tensor.
    Swiglu(Gate, Tensor),
    /// The product (M, F) is the gradient of activation(gate) · up at this tensor of gate and up; the result is the
    /// gradient of gate and up.
    SwigluSlopes(Gate, Tensor),
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
        part_k: u32,
        up_start: u32,
        activation_stride: u32,
        epsilon: f32,
        factor: f32,
    }
}

impl Params {
    /// The params of an unsplit product of the size `[m, n, k]`, with the tensors `[a, b, y]`.
    fn new([m, n, k]: [u32; 3], [a, b, y]: [Tensor; 3], epilogue: &Epilogue) -> Self {
        Self {
            m,
            n,
            k,
            a_offset: a.offset4(),
            b_offset: b.offset4(),
            y_offset: y.offset4(),
            a_stride: a.stride4(),
            b_stride: b.stride4(),
            y_stride: y.stride4(),
            residual_stride: epilogue.residual.map_or(0, |residual| residual.stride4()),
            part_k: k,
            up_start: if let Some(Activated::SwigluSlopes(..)) = epilogue.activated {
                stride_of(n)
            } else {
                0
            },
            activation_stride: 0,
            epsilon: 0.0,
            factor: epilogue.factor.unwrap_or(1.0),
        }
    }
}

/// y (M, N) = a · b, stored as `layout` says, plus the epilogue. `y` may be f32 with 16-bit `a` and `b`, for gradients
/// of parameters. `b` may be quantised.
///
/// # Examples
///
/// ```
/// use gristmill::device::{Gpu, GpuOptions};
/// use gristmill::ops::matmul::{Epilogue, Layout, matmul};
///
/// # fn main() -> gristmill::error::Result<()> {
/// # pollster::block_on(async {
/// let gpu = Gpu::request(&GpuOptions::default()).await?;
/// let y = gpu
///     .run(|job| {
///         let (x, w) = (job.input(&[1.0, 2.0, 3.0, 4.0], 1, 4), job.input(&[1.0; 8], 2, 4));
///         let (bias, y) = (job.input(&[0.5, -0.5], 1, 2), job.output(1, 2));
///         matmul(&mut job.rec, Layout::Nt, x, w, y, Epilogue { bias: Some(bias), ..Epilogue::default() }); // x wᵀ + bias
///         y
///     })
///     .await?;
/// assert_eq!(y, [10.5, 9.5]);
/// # Ok(())
/// # })
/// # }
/// ```
#[track_caller]
pub fn matmul(rec: &mut Recorder, layout: Layout, a: Tensor, b: Tensor, y: Tensor, epilogue: Epilogue) {
    let (m, k) = if layout == Layout::Tn { (a.cols, a.rows) } else { (a.rows, a.cols) };
    let (n, b_k) = if layout == Layout::Nt { (b.rows, b.cols) } else { (b.cols, b.rows) };
    assert!(k == b_k, "the inner sizes of a product must agree, but are {k} and {b_k}");
    let cols = if let Some(Activated::SwigluSlopes(..)) = epilogue.activated { gate_up_cols(n) } else { n };
    assert!(
        (y.rows, y.cols) == (m, cols),
        "a product of {m} x {n} does not fit a result of {} x {}",
        y.rows,
        y.cols
    );
    check_factors(a, b);
    epilogue.check(y);
    let capabilities = rec.capabilities().for_factors([a.element, b.element]);
    let plan = plan(Problem { layout, m, n, k }, a.element, capabilities);
    let plan = Plan { kernel: plan.kernel.with_weights(b.element), ..plan };
    let params = Params { part_k: plan.part_k, ..Params::new([m, n, k], [a, b, y], &epilogue) };
    if let Some(Activated::Swiglu(gate, value)) = epilogue.activated {
        return gated::matmul_with_swiglu(rec, layout, plan, [a, b, y, value], gate, epilogue, params);
    }
    if plan.part_k < k {
        return parts::in_parts(rec, plan, [a, b, y], &epilogue, params);
    }
    let mut bindings = factors(rec, &plan.kernel, [a, b], [None; 2]);
    let kernel = epilogue.apply(plan.kernel, a.element, y, &mut bindings);
    rec.dispatch(kernel, &bindings, &params, plan.grid);
}

/// Binds the factors a and b of `kernel`, and their largest magnitudes if it needs them to scale. Of a factor with rows of
/// experts only those before the last of its `offsets` hold anything.
#[track_caller]
pub(super) fn factors(
    rec: &mut Recorder,
    kernel: &Kernel,
    [a, b]: [Tensor; 2],
    offsets: [Option<Tensor>; 2],
) -> Vec<Binding> {
    let mut bindings = vec![a.bind_with_offset("a", a.element), b.bind_with_offset("b", b.element)];
    if kernel.is_by_matrices() {
        let factors = [(a, "a_largest"), (b, "b_largest")].into_iter().zip(offsets);
        let is_scaled = |element| matches!(element, Element::Bf16 | Element::F32);
        for ((factor, name), offsets) in factors.filter(|((factor, _), _)| is_scaled(factor.element)) {
            bindings.push(largest(rec, factor, offsets).bind(name, Element::U32));
        }
    }
    bindings
}

/// Checks that there is a kernel for the element types of `a` and `b`.
#[track_caller]
pub(super) fn check_factors(a: Tensor, b: Tensor) {
    assert!(
        a.element == b.element || b.element.is_quantised(),
        "both factors must have one element type, or the second be quantised"
    );
}

impl Epilogue {
    #[track_caller]
    pub(super) fn check(&self, y: Tensor) {
        if let Some(bias) = self.bias {
            assert!(bias.cols == y.cols, "a bias of {} elements does not fit {} columns", bias.cols, y.cols);
        }
        if let Some(residual) = self.residual {
            assert!(
                (residual.rows, residual.cols) == (y.rows, y.cols),
                "the residual must have the shape of the product"
            );
        }
        let Some(activated) = self.activated else { return };
        assert!(self.residual.is_none() && !self.accumulate, "an activation is of a product alone");
        let is_gradient = matches!(activated, Activated::Slope(..) | Activated::SwigluSlopes(..));
        assert!(self.factor.is_none() || is_gradient, "an activation is of a product without a factor");
        let fits = match activated {
            Activated::Swiglu(_, value) => (value.rows, gate_up_cols(value.cols)) == (y.rows, y.cols),
            Activated::Gelu(_, tensor) | Activated::Slope(_, tensor) | Activated::SwigluSlopes(_, tensor) => {
                (tensor.rows, tensor.cols, tensor.stride) == (y.rows, y.cols, y.stride)
            }
        };
        assert!(fits, "an activation must have the shape of the product");
    }

    /// Adds the result `y` and the tensors of the epilogue to a kernel whose factors are of `element`.
    pub(super) fn apply(
        &self,
        kernel: Kernel,
        element: Element,
        y: Tensor,
        bindings: &mut Vec<Binding>,
    ) -> Kernel {
        let is_gradient = y.element == Element::F32 && element != Element::F32;
        bindings.push(y.bind_with_offset("y", if is_gradient { Element::F32 } else { element }));
        bindings.extend(self.bias.map(|bias| bias.bind("bias", element)));
        bindings.extend(self.residual.map(|residual| residual.bind("residual", element)));
        let kernel = kernel
            .condition(Condition::Gradient, is_gradient)
            .condition(Condition::Bias, self.bias.is_some())
            .condition(Condition::Scaled, self.factor.is_some())
            .condition(Condition::Residual, self.residual.is_some())
            .condition(Condition::Accumulate, self.accumulate);
        let Some(activated) = self.activated else { return kernel };
        let (condition, name, tensor) = match activated {
            Activated::Gelu(_, to) => (Condition::Gelu, "activation", to),
            Activated::Slope(_, at) => (Condition::GeluSlope, "argument", at),
            Activated::Swiglu(_, to) => (Condition::Swiglu, "activation", to),
            Activated::SwigluSlopes(_, at) => (Condition::SwigluSlopes, "argument", at),
        };
        bindings.push(tensor.bind(name, element));
        let kernel = kernel.condition(condition, true);
        match activated {
            Activated::Gelu(kind, _) | Activated::Slope(kind, _) => kind.of(kernel),
            Activated::Swiglu(gate, _) | Activated::SwigluSlopes(gate, _) => gate.of(kernel),
        }
    }
}

/// Chooses kernel, tile and parts for two factors of `element`.
pub fn plan(problem: Problem, element: Element, capabilities: Capabilities) -> Plan {
    let capabilities = capabilities.for_factors([element; 2]);
    if let Some(plan) = vector::plan(problem, element, capabilities) {
        return plan;
    }
    let (tile, part_k) = match capabilities.tier {
        Tier::Software => (Tile::of(problem, 1, capabilities), problem.k),
        Tier::Portable | Tier::Matrix => {
            let Division { tile, part_k, .. } = divide(problem, capabilities);
            (tile, part_k)
        }
    };
    let [across, down, _] = tile.grid(problem);
    let grid = [across, down, problem.k.div_ceil(part_k)];
    Plan { kernel: tile.kernel(problem.layout, element), grid, part_k }
}

/// The tile of the result that one workgroup computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tile {
    /// `rows` rows of [`SOFTWARE_COLUMNS`] columns.
    Software {
        /// A multiple of `lanes`, or of 4 · `lanes` if a is transposed.
        rows: u32,
        /// Invocations of the workgroup.
        lanes: u32,
        /// Whether the invocations exchange loaded values by subgroup shuffles.
        is_shuffled: bool,
    },
    /// 64 · `rows4` rows of 64 · `columns4` columns.
    Portable {
        /// Groups of 4 rows of an invocation's part: 1 or 2.
        rows4: u32,
        /// Groups of 4 columns of that part: 1 or 2.
        columns4: u32,
        /// How matrices compute it, instead of multiply-adds of each invocation.
        matrices: Option<MatrixTile>,
    },
}

impl Tile {
    /// The tile for `count` products of one shape.
    pub fn of(problem: Problem, count: u32, capabilities: Capabilities) -> Self {
        let lanes = capabilities.lanes;
        match capabilities.tier {
            Tier::Software => {
                let rows = match problem.layout {
                    _ if lanes == 1 => 2 * capabilities.software_workgroup,
                    Layout::Tn => 4 * lanes,
                    // In decoding m is the batch size; do not tile wider than m (`vector` takes up to 4 rows).
                    _ if problem.m <= lanes => lanes,
                    _ => 3 * lanes, // faster than 2 · lanes; 4 · lanes take longer to compile
                };
                Self::software(rows, capabilities)
            }
            Tier::Portable | Tier::Matrix => parts::tile(problem, count, None, capabilities),
        }
    }

    /// The tile with the same number of rows for a product with another number of columns, or with sums of another
    /// length.
    pub fn widened_for(self, problem: Problem, capabilities: Capabilities) -> Self {
        match self {
            Self::Software { .. } => self,
            Self::Portable { .. } => parts::tile(problem, 1, Some(self.rows()), capabilities),
        }
    }

    /// 64 x 64.
    pub const SMALL: Self = Self::portable(1, 1);
    /// 64 x 128.
    pub const FLAT: Self = Self::portable(1, 2);
    /// 128 x 64.
    pub const TALL: Self = Self::portable(2, 1);
    /// 128 x 128.
    pub const LARGE: Self = Self::portable(2, 2);

    const fn portable(rows4: u32, columns4: u32) -> Self {
        Self::Portable { rows4, columns4, matrices: None }
    }

    /// The same tile computed by matrices, if `capabilities` have matrices for these elements.
    pub fn by_matrices(self, capabilities: Capabilities) -> Self {
        match self {
            Self::Portable { rows4, columns4, .. } if capabilities.tier == Tier::Matrix => {
                Self::Portable { rows4, columns4, matrices: MatrixTile::new(self, capabilities) }
            }
            tile => tile,
        }
    }

    /// A tile of `rows` rows on the software tier.
    pub fn software(rows: u32, capabilities: Capabilities) -> Self {
        Self::Software { rows, lanes: capabilities.software_workgroup, is_shuffled: capabilities.lanes > 1 }
    }

    /// Rows of the tile.
    pub fn rows(self) -> u32 {
        match self {
            Self::Software { rows, .. } => rows,
            Self::Portable { rows4, .. } => 64 * rows4,
        }
    }

    /// Columns of the tile.
    pub fn columns(self) -> u32 {
        match self {
            Self::Software { .. } => SOFTWARE_COLUMNS,
            Self::Portable { columns4, .. } => 64 * columns4,
        }
    }

    /// The grid of a product: tiles along its columns, then along its rows.
    pub fn grid(self, problem: Problem) -> [u32; 3] {
        [problem.n.div_ceil(self.columns()), problem.m.div_ceil(self.rows()), 1]
    }

    /// The resources of a GPU's unit that a workgroup takes, by the compilers for RDNA 3 and Ampere: registers for the
    /// sums, the operands and the next slice, and more of them if groups along k are transposed when they are staged.
    fn workgroup(self, layout: Layout) -> Workgroup {
        if let Self::Portable { matrices: Some(tile), .. } = self {
            return tile.workgroup();
        }
        let others = if layout == Layout::Tn { 32 } else { 56 };
        Workgroup { lanes: 256, registers: self.rows() * self.columns() / 256 + others, bytes: 16 << 10 }
    }

    /// The kernel with this tile.
    pub fn kernel(self, layout: Layout, element: Element) -> Kernel {
        let kernel = match self {
            Self::Software { rows, lanes, is_shuffled } => Kernel::new("matmul/software", "matmul", element)
                .condition(Condition::Shuffled, is_shuffled)
                .constant("ROWS", rows)
                .constant("COLUMNS4", SOFTWARE_COLUMNS / 4 / lanes)
                .constant("LANES", lanes),
            Self::Portable { rows4, columns4, matrices } => {
                let kernel = match matrices {
                    None => Kernel::new("matmul/portable", "matmul", element)
                        .constant("DEPTH", if self == Self::LARGE { 8 } else { 16 }),
                    Some(tile) => tile.kernel(element),
                };
                kernel.constant("TM4", rows4).constant("TN4", columns4)
            }
        };
        kernel
            .condition(Condition::ATransposed, layout == Layout::Tn)
            .condition(Condition::BTransposed, layout == Layout::Nt)
    }
}

/// The tiles of the portable tier, and the cost of a step along k for a lane: the instructions in AMD's compiled code,
/// 1.21 to 1.52 for each multiply-add (x Wᵀ in f32; benches/LOG.md), and two more for each group of 4 that it reads
/// from workgroup memory, since some GPUs read these for only a quarter of the lanes at a time.
const PORTABLE: [(Tile, f64); 4] =
    [(Tile::LARGE, 86.0), (Tile::FLAT, 48.0), (Tile::TALL, 50.0), (Tile::SMALL, 28.0)];

/// Columns of a tile of the software tier.
const SOFTWARE_COLUMNS: u32 = 64;
