//! Attention by softmax: projections, norms and rotation of heads, scores, and the choice of what mixes a layer's tokens.
//!
//! Letters as in [`gpt`](super::gpt).
//!
//! Layers may read the keys and values of an earlier one ([`Shared`]): their first product makes queries alone, which are
//! joined with a copy of that layer's keys and values, as they attended there. The copy is an activation of the run, kept
//! also where its layer is recomputed, and its gradient is the sum over all readers.
//!
//! PanGu-α's last layer projects its queries from a table of positions ([`LearnedQueries`]): q is a separate product,
//! joined with k and v to the packed row, and the rest is an ordinary layer.

use super::config::{Mixer, QkNorm};
use super::context::{DropoutSite, ForwardContext, Mode};
use super::gpt::{Normed, Shared};
use super::parameters::{HeadNorms, LearnedQueries, Linear, SelfAttention, TokenMixer};
use crate::ops::attention::Attention;
use crate::ops::decode::Decode;
use crate::ops::rope::Rope;
use crate::record::Tensor;
use crate::tape::{Parameter, Tape, Var};

impl TokenMixer<Parameter> {
    /// The first product.
    pub(super) fn reader(&self) -> &Linear<Parameter> {
        match self {
            Self::Softmax(attention) => &attention.wqkv,
            Self::Linear(linear) => &linear.w_in,
            Self::Convolution(convolution) => &convolution.w_in,
        }
    }

    /// x + dropout(f · Wo · attention(h)), or without x just f · Wo · attention(h).
    pub(super) fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        h: Normed<'p>,  // (N, D)
        x: Option<Var>, // (N, D)
        shared: &mut Shared<'p>,
    ) -> Var {
        match (self, &ctx.config.layer(layer).mixer) {
            (Self::Softmax(attention), Mixer::Softmax) => attention.forward(tape, ctx, layer, h, x, shared),
            (Self::Linear(linear), Mixer::Linear(sizes)) => linear.forward(tape, ctx, layer, sizes, h, x),
            (Self::Convolution(conv), Mixer::Convolution { .. }) => conv.forward(tape, ctx, layer, h, x),
            _ => panic!("the parameters of layer {layer} are not those of its attention"),
        }
    }
}

impl SelfAttention<Parameter> {
    /// x + dropout(f · Wo · attention(h)), or without x just f · Wo · attention(h).
    fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        h: Normed<'p>,  // (N, D)
        x: Option<Var>, // (N, D)
        shared: &mut Shared<'p>,
    ) -> Var {
        // (N, (H + 2 G)·C), or their latent parts, or queries alone
        let qkv = tape.scope("wqkv", |tape| self.project(tape, ctx, h));
        let (gate, qkv) = match ctx.config.attention_gate {
            true => {
                let gates = ctx.config.head_layout(ctx.config.layer(layer)).q_cols();
                let [gate, qkv] = tape.split(qkv, [gates, qkv.tensor.cols - gates]);
                (Some(gate), qkv)
            }
            false => (None, qkv),
        };
        let (qkv, rope) = match &self.latent {
            Some(latent) => (latent.heads(tape, ctx, layer, qkv), None),
            None => self.normed_heads(tape, ctx, layer, qkv),
        };
        let qkv = match ctx.config.clip_qkv {
            Some(limit) => {
                // Recomputed with what it clips.
                let clipped = if ctx.config.qk_norm { "qk_norm" } else { "wqkv" };
                tape.scope(clipped, |tape| tape.scope("clip", |tape| tape.clip(qkv, limit as f32)))
            }
            None => qkv,
        };
        // (N, H·V)
        let mut y = attend(tape, ctx, layer, (qkv, rope), self.sinks.as_ref(), shared);
        if let Some(gate) = gate {
            y = tape.scope("gate", |tape| tape.sigmoid_gate(y, gate));
        }
        let dropout = ctx.dropout(DropoutSite::AttentionOutput(layer));
        let factor = ctx.config.attention_factor();
        tape.scope("wo", |tape| self.wo.add(tape, ctx, y, factor, dropout, x)) // (N, D)
    }

    /// Packed `qkv` (N, (H + 2 G)·C) with q and k normalised, in models that have QK-norm, and the rotation that
    /// remains: none where the norm comes after it.
    fn normed_heads<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        qkv: Var,
    ) -> (Var, Option<(Rope, Tensor)>) {
        let rope = ctx.rope(layer);
        let Some(HeadNorms { q, k, biases }) = &self.qk_norm else { return (qkv, rope) };
        let ((layout, values), norm) = (ctx.config.own_heads(ctx.config.layer(layer)), ctx.rms_norm());
        let one_by_one = |tape: &mut Tape<'_, 'p>, qkv| {
            tape.scope("qk_norm", |tape| tape.qk_norm(qkv, (q, k.as_ref()), values, layout, norm))
        };
        match ctx.config.qk_norm_kind {
            QkNorm::Heads => (one_by_one(tape, qkv), rope),
            QkNorm::AllHeads => {
                let Some(k) = k else { panic!("queries that are normalised together with no keys") };
                (tape.scope("qk_norm", |tape| tape.joint_qk_norm(qkv, [q, k], layout, norm)), rope)
            }
            QkNorm::LayerNorm | QkNorm::LayerNormByHead => {
                let Some(k) = k else { panic!("queries that are normalised by LayerNorm beside no keys") };
                let (biases, norm) = (biases.as_ref().map(|biases| biases.each_ref()), ctx.layer_norm());
                let normed = |tape: &mut Tape<'_, 'p>| tape.qk_layer_norm(qkv, [q, k], biases, layout, norm);
                (tape.scope("qk_norm", normed), rope)
            }
            QkNorm::RotatedHeads => {
                let qkv = rotated(tape, ctx, layer, qkv, rope);
                (one_by_one(tape, qkv), None)
            }
        }
    }

    /// q, k and v of h (N, D), after their gates, if there are any: (N, (H + 2 G)·C).
    fn project<'p>(&'p self, tape: &mut Tape<'_, 'p>, ctx: &ForwardContext<'_>, h: Normed<'p>) -> Var {
        let projected = self.wqkv.of_normed(tape, ctx, h);
        match &self.queries {
            Some(queries) => {
                let q = queries.forward(tape, ctx);
                tape.join([q, projected])
            }
            None => projected,
        }
    }
}

impl LearnedQueries<Parameter> {
    /// The queries of the tokens' positions: (N, H·C).
    fn forward<'p>(&'p self, tape: &mut Tape<'_, 'p>, ctx: &ForwardContext<'_>) -> Var {
        let x = tape.scope("queries", |tape| {
            let (positions, order) = (ctx.batch.positions, ctx.position_order());
            let x = tape.embedding(positions, order, &self.table, None, ctx.config.compute);
            let x = ctx.own_rows(tape, x);
            ctx.enter(tape, x) // (N, D)
        });
        self.wq.forward(tape, ctx, x, None)
    }
}

/// softmax(scale · q kᵀ) v of packed `qkv` (N, (H + 2 G)·C), or of its newest tokens against a cache: (N, H·C). With
/// `rope`, q and k are rotated first. With `sinks` (H) the softmax of each head has a learned logit more. Queries alone
/// (N, H·C) attend to keys and values of `shared`.
fn attend<'p>(
    tape: &mut Tape<'_, 'p>,
    ctx: &ForwardContext<'_>,
    layer: usize,
    (qkv, rope): (Var, Option<(Rope, Tensor)>),
    sinks: Option<&'p Parameter>,
    shared: &mut Shared<'p>,
) -> Var {
    let (sizes, positions) = (ctx.config.decode(layer), ctx.batch.positions);
    if let Mode::Decode(caches) = ctx.mode {
        // Keys before their rotation: a reader writes the row of its source's cache once more, and the same.
        let qkv = with_shared(tape, ctx, layer, qkv, shared);
        let cache = caches[layer].keys().rows;
        return tape.scope("decode", |tape| tape.decode(qkv, positions, cache, rope, sinks, &sizes));
    }
    let qkv = rotated(tape, ctx, layer, qkv, rope);
    let qkv = with_shared(tape, ctx, layer, qkv, shared);
    if let (Mode::Prefill { caches, .. }, None) = (ctx.mode, ctx.config.layer(layer).kv_source) {
        let cache = caches[layer].keys();
        tape.scope("cache", |tape| tape.fill_cache(qkv, cache.rows, cache.kept, &sizes));
    }
    let Decode { layout, tokens, scale, soft_cap, window, has_alibi } = sizes;
    let dropout = ctx.dropout(DropoutSite::AttentionWeights(layer));
    let head_range = ctx.head_range();
    let attention = Attention {
        layout,
        tokens,
        is_causal: true,
        scale,
        soft_cap,
        window,
        has_alibi,
        head_range,
        dropout,
    };
    let largest = ctx.largest_scores(layer);
    let documents = ctx.batch.documents;
    tape.scope("flash_attention", |tape| tape.attention(qkv, documents, attention, sinks, largest))
}

/// Packed rows (N, (H + 2 G)·C): `qkv` itself, or queries alone joined with the keys and values that the layer reads.
/// Copies keys and values that later layers read to `shared`.
fn with_shared<'p>(
    tape: &mut Tape<'_, 'p>,
    ctx: &ForwardContext<'_>,
    layer: usize,
    qkv: Var,
    shared: &mut Shared<'p>,
) -> Var {
    let own = ctx.config.layer(layer);
    if let Some(source) = own.kv_source {
        let Some(&kv) = shared.keys.get(&source) else {
            panic!("layer {layer} reads keys and values of layer {source}, which is not computed with it")
        };
        // Recomputed with the queries, whose place it takes.
        let queries = if ctx.config.qk_norm { "qk_norm" } else { "wqkv" };
        return tape.scope(queries, |tape| tape.scope("join", |tape| tape.join([qkv, kv])));
    }
    if ctx.config.is_kv_source(layer) {
        let (layout, cols) = (ctx.config.head_layout(own), ctx.config.decode(layer).cache_cols());
        let copy = |tape: &mut Tape<'_, 'p>| tape.copied_columns(qkv, layout.k_start(), cols);
        shared.keys.insert(layer, tape.scope("shared_keys", |tape| tape.keeping(copy)));
    }
    qkv
}

/// Packed `qkv` (N, (H + 2 G)·C), or queries alone, with q and k rotated by their positions, if there is a `rope`.
fn rotated(
    tape: &mut Tape<'_, '_>,
    ctx: &ForwardContext<'_>,
    layer: usize,
    qkv: Var,
    rope: Option<(Rope, Tensor)>,
) -> Var {
    let Some((rope, cos_sin)) = rope else { return qkv };
    let (positions, layout) = (ctx.batch.positions, ctx.config.own_heads(ctx.config.layer(layer)).0);
    tape.scope("rope", |tape| tape.rope(qkv, positions, cos_sin, layout, rope))
}
