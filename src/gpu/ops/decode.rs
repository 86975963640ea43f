//! Attention of one new token of each sequence against a key-value cache.

use super::heads::HeadLayout;
use super::{per_item, shared_rows};
use crate::element::Element;
use crate::kernels::{Condition, Tier};
use crate::record::{Recorder, Tensor};

/// The sizes of a decoding step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// The columns of qkv.
    pub layout: HeadLayout,
    /// Tokens that the cache of a sequence holds (T).
    pub tokens: u32,
    /// Factor of the scores, usually 1/√head_dim.
    pub scale: f32,
    /// Sliding window: a query attends to this many tokens, itself included; `None`: to all.
    pub window: Option<u32>,
    /// Whether scores fall with the distance of their key, as in [`Attention::has_alibi`](super::attention::Attention::has_alibi).
    pub has_alibi: bool,
}

crate::params! {
    struct Params {
        sequences: u32,
        tokens: u32,
        window: u32,
        heads: u32,
        group: u32,
        copied4: u32,
        k_start: u32,
        qkv_offset: u32,
        qkv_stride: u32,
        cache_offset: u32,
        cache_stride: u32,
        cached_v_start: u32,
        out_offset: u32,
        out_stride: u32,
        positions_offset: u32,
        scale: f32,
    }
}

impl Decode {
    /// Columns of a cache row: the keys of one token, then its values.
    pub fn cache_cols(&self) -> u32 {
        self.layout.k_cols() + self.layout.v_cols()
    }
}

/// Copies the keys and values of one new token of each sequence from `qkv` (B, layout.cols()) to `cache`
/// (B · T, [`Decode::cache_cols`]): those of sequence b to row b · T + positions\[b\]; `positions` (1, B) is u32.
#[track_caller]
pub fn append(rec: &mut Recorder, qkv: Tensor, positions: Tensor, cache: Tensor, shape: &Decode) {
    let params = params(qkv, positions, cache, qkv, shape);
    let items = qkv.rows as u64 * params.copied4 as u64;
    let (kernel, grid) = per_item("attention/append", "append", qkv.element, items);
    let bindings = [
        qkv.bind_with_offset("qkv", qkv.element),
        positions.bind_with_offset("positions", Element::U32),
        cache.bind_with_offset("cache", qkv.element),
    ];
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// out (B, heads · value_dim) = softmax(scale · q kᵀ) v for the queries in `qkv` (B, layout.cols()) over the rows
/// of `cache` up to each token's own position, which [`append`] must have written.
#[track_caller]
pub fn decode(
    rec: &mut Recorder,
    qkv: Tensor,
    positions: Tensor,
    cache: Tensor,
    out: Tensor,
    shape: &Decode,
) {
    let fits = (out.rows, out.cols, out.element) == (qkv.rows, shape.layout.out_cols(), qkv.element);
    assert!(fits, "out must be {} x {} with the element type of qkv", qkv.rows, shape.layout.out_cols());
    let params = params(qkv, positions, cache, out, shape);
    let value_dim4 = shape.layout.value_dim / 4;
    let is_portable = rec.capabilities().tier == Tier::Portable;
    let file = if is_portable { "attention/portable/decode" } else { "attention/software/decode" };
    let (kernel, grid) = shared_rows(rec, file, "decode", qkv.element, qkv.rows * shape.layout.heads);
    let kernel = kernel
        .condition(Condition::Alibi, shape.has_alibi)
        .constant("D4", shape.layout.head_dim / 4)
        .constant("V4", value_dim4);
    let kernel =
        if is_portable { kernel.constant("COLUMNS", value_dim4.next_power_of_two()) } else { kernel };
    let bindings = [
        qkv.bind_with_offset("qkv", qkv.element),
        positions.bind_with_offset("positions", Element::U32),
        cache.bind_with_offset("cache", qkv.element),
        out.bind_with_offset("out", qkv.element),
    ];
    rec.dispatch(kernel, &bindings, &params, grid);
}

#[track_caller]
fn params(qkv: Tensor, positions: Tensor, cache: Tensor, out: Tensor, shape: &Decode) -> Params {
    let Decode { layout, tokens, scale, window, .. } = *shape;
    layout.assert_valid();
    assert!(qkv.cols == layout.cols(), "qkv has {} columns, but its heads take {}", qkv.cols, layout.cols());
    assert!(positions.cols == qkv.rows, "{} positions for {} sequences", positions.cols, qkv.rows);
    let fits = (cache.rows, cache.cols) == (qkv.rows * tokens, shape.cache_cols());
    assert!(fits, "the cache of {} x {tokens} tokens must not be {} x {}", qkv.rows, cache.rows, cache.cols);
    assert!(cache.element == qkv.element, "the cache must have the element type of qkv");
    assert!(window != Some(0), "a window of 0 tokens does not hold the query itself");
    Params {
        sequences: qkv.rows,
        tokens,
        window: window.unwrap_or(u32::MAX),
        heads: layout.heads,
        group: layout.group(),
        copied4: shape.cache_cols() / 4,
        k_start: layout.k_start() / 4,
        qkv_offset: qkv.offset4(),
        qkv_stride: qkv.stride4(),
        cache_offset: cache.offset4(),
        cache_stride: cache.stride4(),
        cached_v_start: layout.k_cols() / 4,
        out_offset: out.offset4(),
        out_stride: out.stride4(),
        positions_offset: 4 * positions.offset4(),
        scale: scale * std::f32::consts::LOG2_E,
    }
}
