//! QK-norm: RMSNorm of each query and key head in packed rows (Henry et al., 2020; as in Qwen3).

use super::column_sum::fold_partials;
use super::heads::HeadLayout;
use super::rms_norm::RmsNorm;
use super::{per_block, per_item};
use crate::element::Element;
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Binding, Recorder, Tensor};

/// Tokens that a workgroup of the weight gradient sums on the software tier.
const ROWS: u32 = 64;

crate::params! {
    struct Params {
        tokens: u32,
        heads: u32,
        kv_heads: u32,
        head4: u32,
        value4: u32,
        stride4: u32,
        rstd_stride: u32,
        epsilon: f32,
        first_head: u32,
        head_count: u32,
        x_offset: u32,
        x_stride: u32,
        dx_offset: u32,
        dx_stride: u32,
    }
}

/// What becomes of the values beside queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// They stay as they are.
    #[default]
    Plain,
    /// They are normalised, without a weight.
    Normalised,
    /// They are the normalised keys before their weight: the input has none, and values are as wide as keys.
    OfKeys,
}

impl Values {
    /// Columns of the rows of `layout` that the input has.
    pub fn input_cols(self, layout: &HeadLayout) -> u32 {
        layout.cols() - if self == Self::OfKeys { layout.v_cols() } else { 0 }
    }

    /// Heads that have an rstd.
    pub fn normalised_heads(self, layout: &HeadLayout) -> u32 {
        layout.heads + layout.kv_heads * if self == Self::Normalised { 2 } else { 1 }
    }
}

/// The tensors that the backward reads.
#[derive(Clone, Copy, Debug)]
pub struct QkNormSaved {
    /// The packed input (N, cols), without v if that is of the keys. With plain values it may be a range of columns.
    pub x: Tensor,
    /// Weight of the query heads (1, head_dim).
    pub wq: Tensor,
    /// Weight of the key heads (1, head_dim); any tensor of that shape for rows of queries alone.
    pub wk: Tensor,
    /// 1 / rms of each head (N, heads + kv_heads), with normalised values (N, heads + 2 kv_heads); f32.
    pub rstd: Tensor,
    /// What becomes of v.
    pub values: Values,
}

/// y (N, cols) = packed `saved.x` with its q and k heads normalised, and v as `saved.values` says; fills `saved.rstd`.
#[track_caller]
pub fn qk_norm(rec: &mut Recorder, saved: &QkNormSaved, y: Tensor, layout: &HeadLayout, norm: RmsNorm) {
    let QkNormSaved { x, wq, wk, rstd, .. } = saved;
    saved.assert_beside(y, layout);
    let (kernel, grid) = per_head(saved, "qk_norm", layout, norm);
    let bindings = [
        saved.bind_x(),
        wq.bind("wq", x.element),
        wk.bind("wk", x.element),
        y.bind("y", x.element),
        rstd.bind("rstd_out", Element::F32),
    ];
    rec.dispatch(kernel, &bindings, &params(saved, layout, norm.epsilon), grid);
}

/// The gradient dx, in the shape of `saved.x`, of dy (N, cols): in place on dy, or a tensor of its own if values are of
/// the keys. The weight gradient must be recorded before it. Where `saved.x` is a range of columns, dx is written to
/// `range`, which may be one, too.
#[track_caller]
pub fn qk_norm_backward(
    rec: &mut Recorder,
    saved: &QkNormSaved,
    dy: Tensor,
    range: Option<Tensor>,
    layout: &HeadLayout,
    norm: RmsNorm,
) -> Tensor {
    let QkNormSaved { x, wq, wk, rstd, values } = *saved;
    saved.assert_beside(dy, layout);
    let (kernel, grid) = per_head(saved, "qk_norm_backward", layout, norm);
    let mut bindings = vec![saved.bind_x(), wq.bind("wq", x.element), wk.bind("wk", x.element)];
    let of_keys = (values == Values::OfKeys).then(|| rec.tensor("dx", x.rows, x.cols, x.element));
    let dx = match range.or(of_keys) {
        Some(dx) => {
            bindings.extend([dy.bind("dy", x.element), dx.bind_with_offset("dx", x.element)]);
            dx
        }
        None => {
            bindings.push(dy.bind("gradient", x.element));
            dy
        }
    };
    bindings.push(rstd.bind("rstd", Element::F32));
    let [dx_offset, dx_stride] = range.map_or([0; 2], |dx| [dx.offset4(), dx.stride4()]);
    let params = Params { dx_offset, dx_stride, ..params(saved, layout, 0.0) };
    rec.dispatch(kernel, &bindings, &params, grid);
    dx
}

impl QkNormSaved {
    /// Whether the input is a range of wider rows.
    pub fn is_range(&self) -> bool {
        self.x.stride != self.x.cols
    }

    fn bind_x(&self) -> Binding {
        if self.is_range() {
            self.x.bind_with_offset("x", self.x.element)
        } else {
            self.x.bind("x", self.x.element)
        }
    }

    /// Panics unless `rows`, the result or its gradient, fits the input.
    #[track_caller]
    fn assert_beside(&self, rows: Tensor, layout: &HeadLayout) {
        let Self { x, values, .. } = self;
        let taken = layout.cols() - values.input_cols(layout);
        let stride = if self.is_range() { x.cols } else { x.stride };
        assert!(
            (x.rows, stride + taken) == (rows.rows, rows.stride),
            "y must have the rows of qk_norm's input, with values"
        );
        assert!(!self.is_range() || *values == Values::Plain, "a range of columns has plain values");
        let have_one_width = layout.head_dim == layout.value_dim;
        assert!(*values == Values::Plain || have_one_width, "normalised values must be as wide as keys");
    }
}

/// dwq += Σ over tokens and query heads of dy · x · rstd, and dwk for key heads likewise; f32. `None` for a frozen
/// weight.
#[track_caller]
pub fn qk_norm_backward_weight(
    rec: &mut Recorder,
    saved: &QkNormSaved,
    dy: Tensor,
    [dwq, dwk]: [Option<Tensor>; 2],
    layout: &HeadLayout,
) {
    let QkNormSaved { x, rstd, .. } = saved;
    for (dw, first_head, head_count) in [(dwq, 0, layout.heads), (dwk, layout.heads, layout.kv_heads)] {
        let Some(dw) = dw else { continue };
        let has_key_values = saved.values == Values::OfKeys;
        let rows = block_rows(rec.capabilities().tier);
        let blocks = x.rows.div_ceil(rows);
        let partials = rec.tensor("partials", blocks, layout.head_dim, Element::F32);
        let size = [partials.stride4(), blocks];
        let (kernel, grid) = per_block(rec, "qk_norm", "qk_norm_backward_weight", x.element, size);
        let params = Params { first_head, head_count, ..params(saved, layout, 0.0) };
        let bindings = [
            saved.bind_x(),
            dy.bind("dy", x.element),
            rstd.bind("rstd", Element::F32),
            partials.bind("partials", Element::F32),
        ];
        let kernel = kernel.constant("ROWS", rows).condition(Condition::KeyValues, has_key_values);
        rec.dispatch(kernel.condition(Condition::Ranged, saved.is_range()), &bindings, &params, grid);
        fold_partials(rec, partials, dw);
    }
}

/// Tokens per block: on GPUs one for each row of lanes, since a head has few columns to share, and 4,096 tokens in
/// blocks of 64 would leave half of an H100 idle.
fn block_rows(tier: Tier) -> u32 {
    match tier {
        Tier::Software => ROWS,
        Tier::Portable | Tier::Matrix => 16,
    }
}

fn per_head(
    saved: &QkNormSaved,
    entry: &'static str,
    layout: &HeadLayout,
    norm: RmsNorm,
) -> (Kernel, [u32; 3]) {
    assert!(norm.factor.is_none(), "a norm of heads has no factor");
    let QkNormSaved { x, values, .. } = saved;
    let has_key_values = *values == Values::OfKeys;
    let heads = layout.heads + layout.kv_heads * if has_key_values { 1 } else { 2 };
    let (kernel, grid) = per_item("qk_norm", entry, x.element, u64::from(x.rows) * u64::from(heads));
    let kernel = kernel
        .constant("ROWS", ROWS)
        .condition(Condition::KeyValues, has_key_values)
        .condition(Condition::Ranged, saved.is_range())
        .condition(Condition::ValueNorm, *values == Values::Normalised)
        .condition(Condition::ZeroCentered, norm.is_zero_centered);
    (kernel, grid)
}

fn params(saved: &QkNormSaved, layout: &HeadLayout, epsilon: f32) -> Params {
    let x_cols = if saved.is_range() { saved.x.cols } else { saved.x.stride };
    Params {
        tokens: saved.x.rows,
        heads: layout.heads,
        kv_heads: layout.kv_heads,
        head4: layout.head_dim / 4,
        value4: layout.value_dim / 4,
        stride4: (x_cols + layout.cols() - saved.values.input_cols(layout)) / 4,
        rstd_stride: saved.rstd.stride,
        epsilon,
        first_head: 0,
        head_count: 0,
        x_offset: saved.x.offset4(),
        x_stride: saved.x.stride4(),
        dx_offset: 0,
        dx_stride: 0,
    }
}
