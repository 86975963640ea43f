//! GELU (Hendrycks and Gimpel, 2016) and rectified units, the activations of feed-forward networks without a gate.

use crate::element::Element;
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Recorder, Tensor, fold_grid};

/// x · Φ(x): GELU, by how Φ, the distribution function of the standard normal distribution, is computed; and the
/// rectified units that it smooths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// By the error function.
    Exact,
    /// By the tanh approximation, as in GPT-2.
    Tanh,
    /// By the logistic function: Φ(x) ≈ 1 / (1 + e^(-1.702 x)), as MindSpore's `fast_gelu` and Hugging Face's
    /// `quick_gelu`.
    Fast,
    /// ReLU: Φ is 0 up to 0, and 1 above.
    Relu,
    /// ReLU² (So et al., "Primer", 2021): Φ(x) = max(x, 0).
    ReluSquared,
}

impl Gelu {
    /// Whether it is ReLU or a power of it.
    pub(crate) fn is_rectified(self) -> bool {
        matches!(self, Self::Relu | Self::ReluSquared)
    }

    /// The variant of `kernel` for this Φ.
    pub(super) fn of(self, kernel: Kernel) -> Kernel {
        kernel
            .condition(Condition::Exact, self == Self::Exact)
            .condition(Condition::Fast, self == Self::Fast)
            .condition(Condition::Relu, self.is_rectified())
            .condition(Condition::Squared, self == Self::ReluSquared)
    }
}

crate::params! {
    struct Params {
        rows: u32,
        columns4: u32,
        chunks: u32,
        x_offset: u32,
        x_stride: u32,
        y_offset: u32,
        y_stride: u32,
        dx_offset: u32,
        dx_stride: u32,
    }
}

/// y (N, F) = x · Φ(x) of x (N, F).
#[track_caller]
pub fn gelu(rec: &mut Recorder, x: Tensor, y: Tensor, kind: Gelu) {
    launch(rec, "gelu", x, y, None, kind);
}

/// dx (N, F) = dy · (Φ(x) + x · Φ'(x)).
#[track_caller]
pub fn gelu_backward(rec: &mut Recorder, x: Tensor, dy: Tensor, dx: Tensor, kind: Gelu) {
    launch(rec, "gelu_backward", x, dy, Some(dx), kind);
}

#[track_caller]
fn launch(rec: &mut Recorder, entry: &'static str, x: Tensor, y: Tensor, dx: Option<Tensor>, kind: Gelu) {
    for tensor in [Some(y), dx].into_iter().flatten() {
        let is_alike = (tensor.rows, tensor.cols, tensor.element) == (x.rows, x.cols, x.element);
        assert!(is_alike, "gelu needs tensors of one shape and element type");
    }
    let columns4 = x.cols.div_ceil(4);
    let (kernel, chunks) = plan(entry, columns4, x.element, rec.capabilities().tier);
    let params = Params {
        rows: x.rows,
        columns4,
        chunks,
        x_offset: x.offset4(),
        x_stride: x.stride4(),
        y_offset: y.offset4(),
        y_stride: y.stride4(),
        dx_offset: dx.map_or(0, |dx| dx.offset4()),
        dx_stride: dx.map_or(0, |dx| dx.stride4()),
    };
    let y_name = if dx.is_some() { "dy" } else { "y" };
    let mut bindings = vec![x.bind_with_offset("x", x.element), y.bind_with_offset(y_name, x.element)];
    bindings.extend(dx.map(|dx| dx.bind_with_offset("dx", x.element)));
    rec.dispatch(kind.of(kernel), &bindings, &params, fold_grid(x.rows as u64 * chunks as u64));
}

/// The kernel, and the number of workgroups for each row.
fn plan(entry: &'static str, columns4: u32, element: Element, tier: Tier) -> (Kernel, u32) {
    let widest = match tier {
        Tier::Software => 64,
        Tier::Portable | Tier::Matrix => 256,
    };
    // Not wider than a row: lanes past its end would be idle.
    let lanes = columns4.next_power_of_two().clamp(8, widest);
    (Kernel::new("gelu", entry, element).constant("LANES", lanes), columns4.div_ceil(lanes))
}
