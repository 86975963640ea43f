//! Decoding with a cache gives the last row of attention over the whole sequence.

use crate::lab::{Case, allowed, check};
use crate::packed::{columns, pack_qkv, split_qkv};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::attention::Sinks;
use gristmill::ops::decode::{Decode, DecodeTensors, decode};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::rope::{Rope, cos_sin_table};
use gristmill::ops::rope_scaling::{QueryScaling, RopeScaling};
use gristmill::record::Tensor;
use reference::storage::Storage;

/// Query heads, key heads, head_dim, value_dim, tokens in the cache, window.
const SHAPES: [(u32, u32, u32, u32, u32, Option<u32>); 8] = [
    (1, 1, 4, 4, 1, None),
    (4, 4, 32, 32, 33, None),
    (4, 2, 12, 20, 31, None),
    (3, 1, 64, 4, 257, None),
    (2, 2, 8, 8, 33, Some(1)),
    (2, 1, 16, 16, 257, Some(130)),
    (2, 1, 16, 16, 31, Some(100)),
    (2, 1, 512, 512, 33, None),
];

/// Rotated dimensions, and whether pairs are neighbours: whole heads, parts of them, and pairs that straddle groups of
/// 4; last those of queries that grow.
const ROTATIONS: [Rotation; 7] = [
    (12, false, None),
    (8, false, None),
    (6, false, None),
    (12, true, None),
    (6, true, None),
    (12, false, Some(GROWTH)),
    (12, true, Some(GROWTH)),
];

type Rotation = (u32, bool, Option<QueryScaling>);

/// Grows within the 31 positions. The factor is in the table, so a product with it has no error of its own.
const GROWTH: QueryScaling = QueryScaling { beta: 0.2, original: 8.0 };

#[test]
pub fn a_token_attends_to_the_cache() {
    for element in [F32, F16, Bf16] {
        for shape in SHAPES {
            check_shape(shape, None, false, None, false, element);
        }
        for shape in [(6, 2, 12, 20, 131, None), (1, 1, 4, 4, 33, None), (4, 4, 16, 16, 257, Some(130))] {
            check_shape(shape, None, true, None, false, element);
        }
        for (shape, cap) in [((4, 2, 12, 20, 131, None), 1.0), ((2, 1, 64, 4, 33, Some(7)), 30.0)] {
            check_shape(shape, Some(cap), false, None, false, element);
        }
        for rotation in ROTATIONS {
            check_shape((6, 2, 12, 20, 31, None), None, false, Some(rotation), false, element);
        }
        for shape in [(1, 1, 4, 4, 1, None), (5, 1, 12, 20, 131, None), (4, 4, 16, 16, 257, Some(130))] {
            check_shape(shape, None, false, None, true, element);
        }
        check_shape(
            (6, 2, 16, 20, 31, None),
            Some(1.0),
            true,
            Some((16, false, Some(GROWTH))),
            true,
            element,
        );
    }
    check_shape((1, 1, 4, 4, 131_072, None), None, false, None, false, F32);
    check_shape((3, 1, 4, 4, 4096, None), None, false, None, true, F32);
}

/// Rings of which a window sees some of the rows, and all of them; the last one is divided.
#[test]
pub fn a_token_attends_to_a_ring() {
    for element in [F32, F16, Bf16] {
        check_rows((4, 2, 12, 20, 131, Some(7)), 10, None, false, None, false, element);
        let rotation = Some((16, false, Some(GROWTH)));
        check_rows((6, 2, 16, 20, 31, Some(8)), 8, Some(1.0), true, rotation, true, element);
    }
    check_rows((3, 1, 4, 4, 4096, Some(600)), 632, None, false, None, true, F32);
}

fn check_shape(
    row: (u32, u32, u32, u32, u32, Option<u32>),
    soft_cap: Option<f32>,
    has_alibi: bool,
    rotation: Option<Rotation>,
    has_sinks: bool,
    element: Element,
) {
    check_rows(row, row.4, soft_cap, has_alibi, rotation, has_sinks, element);
}

/// With `rows` rows of a sequence in the cache.
fn check_rows(
    row: (u32, u32, u32, u32, u32, Option<u32>),
    rows: u32,
    soft_cap: Option<f32>,
    has_alibi: bool,
    rotation: Option<Rotation>,
    has_sinks: bool,
    element: Element,
) {
    let (heads, kv_heads, head_dim, value_dim, tokens, window) = row;
    let layout = HeadLayout { heads, kv_heads, head_dim, value_dim };
    let shape = Decode { layout, tokens, scale: 0.3, soft_cap, window, has_alibi };
    // One sequence each at the first, the last and a middle position.
    let ids = [0, tokens - 1, tokens / 2];
    let name = format!(
        "decode {row:?} rows {rows} cap {soft_cap:?} alibi {has_alibi} rotation {rotation:?} sinks {has_sinks} \
         {element:?}"
    );
    check(&name, |case| {
        let qkv = case.input(3, layout.cols(), element);
        let positions = case.integers(&ids);
        // What a query does not see is NaN and must not be read: tokens before the window, rows not written yet.
        let cols = shape.cache_cols() as usize;
        let mut cached = vec![f64::NAN; 3 * rows as usize * cols];
        for (sequence, position) in (0..).zip(ids) {
            for token in first_seen(position, window)..position {
                let row = (sequence * rows + token % rows) as usize;
                cached[row * cols..][..cols].fill_with(|| case.normal());
            }
        }
        let cache = case.input_of(&cached, 3 * rows, shape.cache_cols(), element);
        let out = case.output(3, layout.out_cols(), element);
        let rope = rotation.map(|rotation| rope(case, rotation, tokens));
        // Below, among and above the scores.
        let of_heads: Vec<f64> = (0..heads).map(|head| f64::from(head % 4) * 1.5 - 2.0).collect();
        let stored = has_sinks.then(|| case.input_of(&of_heads, 1, heads, element));
        let sinks = stored.as_ref().map(|sinks| Sinks { logits: sinks.tensor, gradient: None });
        let tensors = DecodeTensors { qkv: qkv.tensor, positions, cache: cache.tensor, rope, sinks, out };
        decode(&mut case.rec, &tensors, &shape);

        let new_rows = match &rope {
            Some((rope, _)) => {
                let growth = rotation.and_then(|(.., growth)| growth);
                rotated(&qkv.values, &layout, (rope, growth), &ids, element)
            }
            None => qkv.values,
        };
        let mut whole = cache.values;
        let mut want = Vec::new();
        let sequences = whole.chunks_mut(rows as usize * cols).zip(ids);
        for ((cached, position), row) in sequences.zip(new_rows.chunks(layout.cols() as usize)) {
            let new = &row[layout.k_start() as usize..];
            cached[(position % rows) as usize * cols..][..cols].copy_from_slice(new);
            for head in 0..heads {
                let query = &row[(head * head_dim) as usize..][..head_dim as usize];
                let sink = stored.as_ref().map(|sinks| sinks.values[head as usize]);
                want.extend(attend(query, cached, position, (head, sink), &shape));
            }
        }
        case.expect_words("cache", cache.tensor, move |words| {
            let allowed = allowed(element, 2);
            for (i, (got, want)) in element.decode(bytemuck::cast_slice(words)).iter().zip(&whole).enumerate()
            {
                let got = *got as f64;
                let is_near = (got - want).abs() <= allowed * (want.abs() + 1.0);
                assert!(
                    is_near || got.is_nan() && want.is_nan(),
                    "element {i} of the cache is {got}, not {want}"
                );
            }
        });
        // The error of a capped score, of which a mean has two: see `of_cap` in attention.rs.
        let of_cap = soft_cap.map_or(0.0, |cap| f64::from(cap) * 2f64.powi(-20));
        case.expect("out", out, want, allowed(element, head_dim + tokens) + of_cap);
    });
}

/// A rotary embedding, and its table for `tokens` positions.
fn rope(case: &mut Case, (rotary_dim, is_interleaved, growth): Rotation, tokens: u32) -> (Rope, Tensor) {
    let rope = Rope { rotary_dim, theta: 100.0, is_interleaved };
    let cols = rope.table_cols(growth.as_ref());
    let table = cos_sin_table(tokens, &rope, &RopeScaling::None, growth.as_ref());
    let table: Vec<f64> = table.into_iter().map(f64::from).collect();
    let table = columns(&table, cols.next_multiple_of(4), 0..cols as usize);
    (rope, case.input_of(&table, tokens, cols, F32).tensor)
}

/// Packed rows with queries and keys rotated, and rounded as they are stored.
fn rotated(
    qkv: &[f64],
    layout: &HeadLayout,
    (rope, growth): (&Rope, Option<QueryScaling>),
    positions: &[u32],
    element: Element,
) -> Vec<f64> {
    let settings = reference::rope::Rope {
        head_dim: layout.head_dim as usize,
        rotary_dim: rope.rotary_dim as usize,
        theta: rope.theta,
        interleaved: rope.is_interleaved,
        scaling: reference::rope_scaling::Scaling::None,
    };
    let mut parts = split_qkv(qkv, layout);
    reference::rope::rope(&mut parts[0], positions, layout.heads as usize, &settings);
    reference::rope::rope(&mut parts[1], positions, layout.kv_heads as usize, &settings);
    if let Some(QueryScaling { beta, original }) = growth {
        let growth = reference::query_scaling::QueryScaling { beta, original };
        growth.scale(&mut parts[0], positions, layout.q_cols() as usize);
    }
    let storage = match element {
        F16 => Storage::F16,
        Bf16 => Storage::Bf16,
        _ => Storage::Exact,
    };
    pack_qkv(&parts, layout).into_iter().map(|value| storage.round(value)).collect()
}

/// The first token that a query at `position` attends to.
fn first_seen(position: u32, window: Option<u32>) -> u32 {
    (position + 1).saturating_sub(window.unwrap_or(u32::MAX))
}

/// One query attending to the cached rows of its sequence, token t in row t modulo their number.
fn attend(
    query: &[f64],
    cached: &[f64],
    position: u32,
    (head, sink): (u32, Option<f64>),
    shape: &Decode,
) -> Vec<f64> {
    let Decode { layout, scale, soft_cap, window, has_alibi, .. } = *shape;
    let slope = reference::attention::alibi_slope(head as usize, layout.heads as usize);
    let slope = if has_alibi { slope } else { 0.0 };
    let kv_head = (head / layout.group()) as usize;
    let (d, v, cols) = (layout.head_dim as usize, layout.value_dim as usize, shape.cache_cols() as usize);
    let row = |token: u32| &cached[token as usize % (cached.len() / cols) * cols..][..cols];
    let seen = (first_seen(position, window)..=position).map(row);
    let keys: Vec<f64> = seen.clone().flat_map(|row| row[kv_head * d..][..d].to_vec()).collect();
    let values: Vec<f64> =
        seen.flat_map(|row| row[layout.k_cols() as usize + kv_head * v..][..v].to_vec()).collect();
    let soft_cap = soft_cap.map(f64::from);
    let head =
        reference::decode::Head { head_dim: d, value_dim: v, scale: scale as f64, soft_cap, slope, sink };
    reference::decode::decode(query, &keys, &values, &head)
}
