//! Attention of one new token per sequence against a KV cache.

use super::attention::Sinks;
use super::heads::HeadLayout;
use super::rope::Rope;
use super::soft_cap::cap_and_inverse;
use super::{per_item, shared_rows};
use crate::element::Element;
use crate::kernels::{Capabilities, Condition, Tier};
use crate::record::{Recorder, Tensor};

/// The sizes of a decoding step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// The columns of qkv.
    pub layout: HeadLayout,
    /// Most tokens of a sequence (T).
    pub tokens: u32,
    /// Factor of the scores, usually 1/√head_dim.
    pub scale: f32,
    /// Soft cap of the scaled scores, as in [`Attention::soft_cap`](super::attention::Attention::soft_cap).
    pub soft_cap: Option<f32>,
    /// Sliding window: a query attends to this many tokens, itself included; `None`: to all.
    pub window: Option<u32>,
    /// Whether scores decrease with the distance of the key, as in
    /// [`Attention::has_alibi`](super::attention::Attention::has_alibi).
    pub has_alibi: bool,
}

crate::params! {
    struct Params {
        sequences: u32,
        tokens: u32,
        window: u32,
        heads: u32,
        group: u32,
        k_start: u32,
        v_start: u32,
        qkv_offset: u32,
        qkv_stride: u32,
        cache_offset: u32,
        cache_stride: u32,
        cached_v_start: u32,
        out_offset: u32,
        out_stride: u32,
        positions_offset: u32,
        scale: f32,
        pairs: u32,
        table_offset: u32,
        table_stride: u32,
        table_rows: u32,
        query_angles: u32,
        parts: u32,
        part_keys: u32,
        cap: f32,
        inverse_cap: f32,
    }
}

crate::params! {
    struct JoinParams {
        items: u32,
        heads: u32,
        parts: u32,
        out_offset: u32,
        out_stride: u32,
    }
}

/// Keys of the shortest part of a cache: fewer would cost less time than the launch that joins them.
const SHORTEST_PART: u32 = 256;

/// Workgroups for each compute unit of a GPU, so that some multiply while others wait for keys.
const WORKGROUPS_PER_UNIT: u32 = 4;

impl Decode {
    /// Columns of a cache row: the keys of one token, then its values.
    pub fn cache_cols(&self) -> u32 {
        self.layout.k_cols() + self.layout.v_cols()
    }

    /// Most keys that a query attends to.
    fn seen(&self) -> u32 {
        self.window.unwrap_or(u32::MAX).min(self.tokens)
    }
}

/// The tensors of a decoding step.
#[derive(Clone, Copy, Debug)]
pub struct DecodeTensors {
    /// Packed queries, keys and values (B, layout.cols()) of one new token per sequence.
    pub qkv: Tensor,
    /// The position of each new token in its sequence (1, B) u32.
    pub positions: Tensor,
    /// Keys and values of all tokens so far (B · T, [`Decode::cache_cols`]): sequence b starts at row b · T. With a
    /// window of W tokens it may be a ring of R rows, from W to T, which hold the last R tokens (B · R): token t of
    /// sequence b is in row b · R + t mod R.
    pub cache: Tensor,
    /// Rotates queries and keys by a [table](super::rope::cos_sin_table); `None`: they need no rotation.
    pub rope: Option<(Rope, Tensor)>,
    /// A learned logit of each head in the softmax, as in attention; `None`: there is none.
    pub sinks: Option<Sinks>,
    /// Receives attention's output (B, heads · value_dim).
    pub out: Tensor,
}

/// out = softmax(scale · q kᵀ) v for the queries in `qkv`, over the keys and values in `cache` up to and including each
/// token's own, which this op writes to the cache. `qkv` stays as it is.
#[track_caller]
pub fn decode(rec: &mut Recorder, tensors: &DecodeTensors, shape: &Decode) {
    let DecodeTensors { qkv, positions, cache, rope, sinks, out } = *tensors;
    let capabilities = rec.capabilities();
    let params = params(tensors, shape, part_keys(qkv.rows * shape.layout.heads, shape.seen(), capabilities));
    let value_dim4 = shape.layout.value_dim / 4;
    let is_portable = capabilities.tier != Tier::Software;
    let file = if is_portable { "attention/portable/decode" } else { "attention/software/decode" };
    let items = qkv.rows * shape.layout.heads;
    let (kernel, grid) = shared_rows(rec, file, "decode", qkv.element, items * params.parts);
    let is_split = params.parts > 1;
    let kernel = kernel
        .condition(Condition::Alibi, shape.has_alibi)
        .condition(Condition::Capped, shape.soft_cap.is_some())
        .condition(Condition::Prefetched, prefetches(shape, qkv.element, capabilities))
        .condition(Condition::Ring, params.tokens < shape.tokens)
        .condition(Condition::Rotated, rope.is_some())
        .condition(Condition::Sinks, sinks.is_some())
        .condition(Condition::Interleaved, rope.is_some_and(|(rope, _)| rope.is_interleaved))
        .condition(Condition::Straddling, rope.is_some_and(|(rope, _)| rope.straddles()))
        .constant("D4", shape.layout.head_dim / 4)
        .constant("V4", value_dim4);
    let kernel = match is_portable {
        true => kernel
            .condition(Condition::Split, is_split)
            .constant("COLUMNS", value_dim4.next_power_of_two())
            .constant("SHARE", (shape.layout.head_dim / 4).next_power_of_two().min(8)),
        false => kernel,
    };
    let sums = is_split.then(|| rec.tensor("sums", items * params.parts, 4 * (value_dim4 + 1), Element::F32));
    let mut bindings = vec![
        qkv.bind_with_offset("qkv", qkv.element),
        positions.bind_with_offset("positions", Element::U32),
        cache.bind_with_offset("cache", qkv.element),
    ];
    bindings.push(match sums {
        Some(sums) => sums.bind("sums", Element::F32),
        None => out.bind_with_offset("out", qkv.element),
    });
    bindings.extend(rope.map(|(_, cos_sin)| cos_sin.bind_with_offset("table", Element::F32)));
    bindings.extend(sinks.map(|sinks| sinks.bind(shape.layout.heads, qkv.element)));
    rec.dispatch(kernel, &bindings, &params, grid);
    let Some(sums) = sums else { return };
    let Params { parts, out_offset, out_stride, .. } = params;
    let params = JoinParams { items, heads: shape.layout.heads, parts, out_offset, out_stride };
    let count = u64::from(items) * u64::from(value_dim4);
    let (kernel, grid) = per_item("attention/portable/decode_join", "decode_join", qkv.element, count);
    let bindings = [sums.bind("sums", Element::F32), out.bind_with_offset("out", qkv.element)];
    rec.dispatch(kernel.constant("V4", value_dim4), &bindings, &params, grid);
}

/// Keys that a workgroup walks, of the `seen` keys for each of `items` heads: all, unless that leaves units of a GPU
/// without work.
fn part_keys(items: u32, seen: u32, capabilities: Capabilities) -> u32 {
    if capabilities.tier == Tier::Software {
        return seen;
    }
    let wanted = (WORKGROUPS_PER_UNIT * capabilities.units.count).div_ceil(items);
    seen.div_ceil(wanted).next_multiple_of(128).max(SHORTEST_PART)
}

/// Whether keys and values are prefetched: where loops have turns for it, beside two for each round of the lanes over
/// the cache. A key takes a turn, one for each line of 64 bytes of it and of its value, and one to leave each of these
/// two loops.
fn prefetches(shape: &Decode, element: Element, capabilities: Capabilities) -> bool {
    let lines = |columns: u32| (u64::from(columns) * element.bytes()).div_ceil(64);
    let of_key = 3 + lines(shape.layout.head_dim) + lines(shape.layout.value_dim);
    let seen = u64::from(shape.seen());
    let turns = 1024 + 2 * seen.div_ceil(u64::from(capabilities.lanes)) + seen * of_key;
    capabilities.prefetches() && turns <= capabilities.most_turns()
}

#[track_caller]
fn params(tensors: &DecodeTensors, shape: &Decode, part_keys: u32) -> Params {
    let DecodeTensors { qkv, positions, cache, rope, out, .. } = *tensors;
    let Decode { layout, tokens, scale, window, .. } = *shape;
    layout.assert_valid();
    assert!(qkv.cols == layout.cols(), "qkv has {} columns, but its heads take {}", qkv.cols, layout.cols());
    assert!(positions.cols == qkv.rows, "{} positions for {} sequences", positions.cols, qkv.rows);
    let rows = cache.rows / qkv.rows; // of a sequence
    let fits = (cache.rows, cache.cols) == (qkv.rows * rows, shape.cache_cols());
    let fits = fits && (shape.seen()..=tokens).contains(&rows);
    assert!(fits, "the cache of {} x {tokens} tokens must not be {} x {}", qkv.rows, cache.rows, cache.cols);
    assert!(cache.element == qkv.element, "the cache must have the element type of qkv");
    let fits = (out.rows, out.cols, out.element) == (qkv.rows, layout.out_cols(), qkv.element);
    assert!(fits, "out must be {} x {} with the element type of qkv", qkv.rows, layout.out_cols());
    assert!(window != Some(0), "a window of 0 tokens does not hold the query itself");
    if let Some((rope, cos_sin)) = &rope {
        rope.assert_fits(&layout, *cos_sin);
    }
    let table = rope.map(|(_, cos_sin)| cos_sin);
    let [cap, inverse_cap] = cap_and_inverse(shape.soft_cap, std::f32::consts::LOG2_E);
    Params {
        sequences: qkv.rows,
        tokens: rows,
        window: window.unwrap_or(u32::MAX),
        heads: layout.heads,
        group: layout.group(),
        k_start: layout.k_start() / 4,
        v_start: layout.v_start() / 4,
        qkv_offset: qkv.offset4(),
        qkv_stride: qkv.stride4(),
        cache_offset: cache.offset4(),
        cache_stride: cache.stride4(),
        cached_v_start: layout.k_cols() / 4,
        out_offset: out.offset4(),
        out_stride: out.stride4(),
        positions_offset: 4 * positions.offset4(),
        scale: scale * std::f32::consts::LOG2_E,
        pairs: rope.map_or(0, |(rope, _)| rope.rotary_dim / 2),
        table_offset: table.map_or(0, |table| table.offset4()),
        table_stride: table.map_or(0, |table| table.stride4()),
        table_rows: table.map_or(0, |table| table.rows),
        query_angles: rope.map_or(0, |(rope, cos_sin)| rope.query_angles(cos_sin)),
        parts: shape.seen().div_ceil(part_keys),
        part_keys,
        cap,
        inverse_cap,
    }
}
