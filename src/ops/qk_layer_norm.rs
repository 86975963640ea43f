//! LayerNorm of each query and key head in packed rows (Dehghani et al., "Scaling Vision Transformers to 22 Billion
//! Parameters", 2023, section 2; as in Phi, StableLM 2 of 12B and Command R+).

use super::column_sum::fold_partials;
use super::heads::HeadLayout;
use super::layer_norm::LayerNorm;
use super::{per_block, per_item};
use crate::element::Element;
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Recorder, Tensor};

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
        statistics_stride: u32,
        weight_step: u32,
        first_head: u32,
        head_count: u32,
        columns4: u32,
        epsilon: f32,
    }
}

/// The tensors that the backward reads.
#[derive(Clone, Copy, Debug)]
pub struct QkLayerNormSaved {
    /// The packed input (N, cols).
    pub x: Tensor,
    /// Weights of the query heads and of the key heads: (1, head_dim) each, which all heads share, or one for each head,
    /// (1, heads · head_dim) and (1, kv_heads · head_dim).
    pub weights: [Tensor; 2],
    /// Mean of each head (N, heads + kv_heads), f32.
    pub mean: Tensor,
    /// 1 / standard deviation of each head (N, heads + kv_heads), f32.
    pub rstd: Tensor,
}

/// y (N, cols) = packed `saved.x` with its q and k heads normalised; v is copied. `biases` are as wide as the weights.
/// Fills `saved.mean` and `saved.rstd`.
#[track_caller]
pub fn qk_layer_norm(
    rec: &mut Recorder,
    saved: &QkLayerNormSaved,
    biases: Option<[Tensor; 2]>,
    y: Tensor,
    layout: &HeadLayout,
    norm: LayerNorm,
) {
    let QkLayerNormSaved { x, weights, mean, rstd } = saved;
    assert!((x.rows, x.stride) == (y.rows, y.stride), "y must have the shape of qk_layer_norm's input");
    let (kernel, grid) = per_head(saved, "qk_layer_norm", layout, norm);
    let element = x.element;
    let mut bindings = vec![x.bind("x", element)];
    bindings.extend(["wq", "wk"].into_iter().zip(weights).map(|(name, w)| w.bind(name, element)));
    bindings.extend([
        y.bind("y", element),
        mean.bind("mean_out", Element::F32),
        rstd.bind("rstd_out", Element::F32),
    ]);
    for (name, b, w) in biases.iter().flat_map(|[q, k]| [("bq", q, weights[0]), ("bk", k, weights[1])]) {
        assert!(b.cols == w.cols, "a bias of {} columns beside {} weights", b.cols, w.cols);
        bindings.push(b.bind(name, element));
    }
    let kernel = kernel.condition(Condition::Unbiased, biases.is_none());
    rec.dispatch(kernel, &bindings, &saved.params(layout, norm.epsilon), grid);
}

/// The gradient dx of dy (N, cols), in place on dy. The weight gradient must be recorded before it.
#[track_caller]
pub fn qk_layer_norm_backward(
    rec: &mut Recorder,
    saved: &QkLayerNormSaved,
    dy: Tensor,
    layout: &HeadLayout,
    norm: LayerNorm,
) {
    let QkLayerNormSaved { x, weights: [wq, wk], mean, rstd } = saved;
    assert!((x.rows, x.stride) == (dy.rows, dy.stride), "dy must have the shape of qk_layer_norm's input");
    let (kernel, grid) = per_head(saved, "qk_layer_norm_backward", layout, norm);
    let bindings = [
        x.bind("x", x.element),
        wq.bind("wq", x.element),
        wk.bind("wk", x.element),
        dy.bind("gradient", x.element),
        mean.bind("mean", Element::F32),
        rstd.bind("rstd", Element::F32),
    ];
    // No kernel of the backward reads a bias.
    let kernel = kernel.condition(Condition::Unbiased, true);
    rec.dispatch(kernel, &bindings, &saved.params(layout, 0.0), grid);
}

/// dw += Σ dy · (x - mean) · rstd of q and of k, over tokens and the heads that share a weight, and db += Σ dy; f32,
/// summed in a fixed order. `None` for what is frozen or not there.
#[track_caller]
pub fn qk_layer_norm_backward_weight(
    rec: &mut Recorder,
    saved: &QkLayerNormSaved,
    dy: Tensor,
    gradients: [[Option<Tensor>; 2]; 2],
    layout: &HeadLayout,
) {
    let QkLayerNormSaved { x, weights, mean, rstd } = saved;
    let ranges = [(0, layout.heads), (layout.heads, layout.kv_heads)];
    for (([dw, db], (first_head, head_count)), w) in gradients.into_iter().zip(ranges).zip(weights) {
        if dw.is_none() && db.is_none() {
            continue;
        }
        let rows = match rec.capabilities().tier {
            Tier::Software => ROWS,
            // One token for each row of lanes, since a head has few columns to share.
            Tier::Portable | Tier::Matrix => 16,
        };
        let blocks = x.rows.div_ceil(rows);
        let mut partials = |name| rec.tensor(name, blocks, w.cols, Element::F32);
        let w_partials = partials("w_partials");
        let b_partials = db.map(|db| (partials("b_partials"), db));
        let size = [w_partials.stride4(), blocks];
        let (kernel, grid) =
            per_block(rec, "qk_layer_norm", "qk_layer_norm_backward_weight", x.element, size);
        let mut bindings = vec![
            x.bind("x", x.element),
            dy.bind("dy", x.element),
            mean.bind("mean", Element::F32),
            rstd.bind("rstd", Element::F32),
            w_partials.bind("w_partials", Element::F32),
        ];
        bindings.extend(b_partials.map(|(partials, _)| partials.bind("b_partials", Element::F32)));
        let params = Params { first_head, head_count, columns4: w.cols / 4, ..saved.params(layout, 0.0) };
        let kernel = kernel.constant("ROWS", rows).condition(Condition::Unbiased, db.is_none());
        rec.dispatch(kernel, &bindings, &params, grid);
        if let Some(dw) = dw {
            fold_partials(rec, w_partials, dw);
        }
        if let Some((partials, db)) = b_partials {
            fold_partials(rec, partials, db);
        }
    }
}

impl QkLayerNormSaved {
    #[track_caller]
    fn params(&self, layout: &HeadLayout, epsilon: f32) -> Params {
        let [q_cols, k_cols] = self.weights.map(|w| w.cols);
        let head_dim = layout.head_dim;
        let own = [layout.heads * head_dim, layout.kv_heads * head_dim];
        let are_shared = [q_cols, k_cols] == [head_dim; 2];
        assert!(are_shared || [q_cols, k_cols] == own, "weights of {q_cols} and {k_cols} columns");
        Params {
            tokens: self.x.rows,
            heads: layout.heads,
            kv_heads: layout.kv_heads,
            head4: head_dim / 4,
            value4: layout.value_dim / 4,
            stride4: self.x.stride4(),
            statistics_stride: self.rstd.stride,
            weight_step: if are_shared { 0 } else { head_dim / 4 },
            first_head: 0,
            head_count: 0,
            columns4: 0,
            epsilon,
        }
    }
}

fn per_head(
    saved: &QkLayerNormSaved,
    entry: &'static str,
    layout: &HeadLayout,
    norm: LayerNorm,
) -> (Kernel, [u32; 3]) {
    let heads = layout.heads + 2 * layout.kv_heads;
    let items = u64::from(saved.x.rows) * u64::from(heads);
    let (kernel, grid) = per_item("qk_layer_norm", entry, saved.x.element, items);
    let kernel = kernel.constant("ROWS", ROWS).condition(Condition::ZeroCentered, norm.is_zero_centered);
    (kernel, grid)
}
