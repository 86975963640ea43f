//! RMSNorm of each head times the SiLU of a gate, after linear attention (Yang, Kautz and Hatamizadeh, 2024).

use super::column_sum::fold_partials;
use super::{per_block, per_item};
use crate::element::Element;
use crate::kernels::{Condition, Kernel};
use crate::record::{Binding, Recorder, Tensor};

/// Tokens that the weight gradient sums in its first launch.
const ROWS: u32 = 16;

crate::params! {
    struct Params {
        rows: u32,
        heads: u32,
        head4: u32,
        z_offset: u32,
        z_stride: u32,
        dz_offset: u32,
        dz_stride: u32,
        epsilon: f32,
    }
}

/// What the norm reads.
#[derive(Clone, Copy, Debug)]
pub struct GatedNorm {
    /// Heads (N, heads · C).
    pub x: Tensor,
    /// Their gates, of the same shape and element type; may be a range of columns.
    pub z: Tensor,
    /// (1, C), for all heads.
    pub w: Tensor,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// y (N, heads · C) = x / sqrt(mean(x²) + epsilon) · w · silu(z), head by head.
#[track_caller]
pub fn gated_norm(rec: &mut Recorder, norm: &GatedNorm, y: Tensor) {
    let params = norm.params(y);
    let (kernel, grid) = norm.per_head("gated_norm", params);
    let mut bindings = norm.bindings();
    bindings.extend([norm.w.bind("w", norm.x.element), y.bind("y", norm.x.element)]);
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// dx, written, and dz, written or, with `accumulate`, added to, from dy (N, heads · C). dz may be a range of columns.
#[track_caller]
pub fn gated_norm_backward(
    rec: &mut Recorder,
    norm: &GatedNorm,
    dy: Tensor,
    dx: Tensor,
    (dz, accumulate): (Tensor, bool),
) {
    let element = norm.x.element;
    let fits = (dz.rows, dz.cols, dz.element) == (norm.z.rows, norm.z.cols, element);
    assert!(fits && dx.cols == dy.cols, "gradients must have the shapes of gated_norm's inputs");
    let params = Params { dz_offset: dz.offset4(), dz_stride: dz.stride4(), ..norm.params(dy) };
    let (kernel, grid) = norm.per_head("gated_norm_backward", params);
    let mut bindings = norm.bindings();
    bindings.extend([
        norm.w.bind("w", element),
        dy.bind("dy", element),
        dx.bind("dx", element),
        dz.bind_with_offset("dz", element),
    ]);
    rec.dispatch(kernel.condition(Condition::Accumulate, accumulate), &bindings, &params, grid);
}

/// dw (1, C), f32, += Σ over tokens and heads of dy · x / rms · silu(z), in a fixed order.
#[track_caller]
pub fn gated_norm_backward_weight(rec: &mut Recorder, norm: &GatedNorm, dy: Tensor, dw: Tensor) {
    let params = norm.params(dy);
    let blocks = params.rows.div_ceil(ROWS);
    let partials = rec.tensor("partials", blocks, dw.cols, Element::F32);
    let entry = "gated_norm_backward_weight";
    let (kernel, grid) = per_block(rec, "gated_norm", entry, norm.x.element, [params.head4, blocks]);
    let mut bindings = norm.bindings();
    bindings.extend([dy.bind("dy", norm.x.element), partials.bind("partials", Element::F32)]);
    rec.dispatch(kernel.constant("ROWS", ROWS), &bindings, &params, grid);
    fold_partials(rec, partials, dw);
}

impl GatedNorm {
    #[track_caller]
    fn params(&self, y: Tensor) -> Params {
        let Self { x, z, w, epsilon } = *self;
        let head = w.cols;
        assert!(head.is_multiple_of(4) && x.cols.is_multiple_of(head), "heads of {head} in {}", x.cols);
        for of in [z, y] {
            let fits = (of.rows, of.cols, of.element) == (x.rows, x.cols, x.element);
            assert!(fits, "gated_norm's tensors must have the shape and element type of its input");
        }
        assert!(x.stride == x.cols && y.stride == y.cols, "only the gate may be a range of columns");
        Params {
            rows: x.rows,
            heads: x.cols / head,
            head4: head / 4,
            z_offset: z.offset4(),
            z_stride: z.stride4(),
            dz_offset: 0,
            dz_stride: 0,
            epsilon,
        }
    }

    fn bindings(&self) -> Vec<Binding> {
        vec![self.x.bind("x", self.x.element), self.z.bind_with_offset("z", self.x.element)]
    }

    fn per_head(&self, entry: &'static str, params: Params) -> (Kernel, [u32; 3]) {
        let items = u64::from(params.rows) * u64::from(params.heads);
        let (kernel, grid) = per_item("gated_norm", entry, self.x.element, items);
        (kernel.constant("ROWS", ROWS), grid)
    }
}
