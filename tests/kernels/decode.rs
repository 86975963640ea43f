//! Decoding with a cache gives the last row of attention over the whole sequence.

use crate::lab::{allowed, check};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::decode::{Decode, append, decode};
use gristmill::ops::heads::HeadLayout;

/// Query heads, key heads, head_dim, value_dim, tokens in the cache, window.
const SHAPES: [(u32, u32, u32, u32, u32, Option<u32>); 7] = [
    (1, 1, 4, 4, 1, None),
    (4, 4, 32, 32, 33, None),
    (4, 2, 12, 20, 31, None),
    (3, 1, 64, 4, 257, None),
    (2, 2, 8, 8, 33, Some(1)),
    (2, 1, 16, 16, 257, Some(130)),
    (2, 1, 16, 16, 31, Some(100)),
];

#[test]
fn a_token_attends_to_the_cache() {
    for element in [F32, F16, Bf16] {
        for shape in SHAPES {
            check_shape(shape, false, element);
        }
        for shape in [(6, 2, 12, 20, 131, None), (1, 1, 4, 4, 33, None), (4, 4, 16, 16, 257, Some(130))] {
            check_shape(shape, true, element);
        }
    }
}

fn check_shape(row: (u32, u32, u32, u32, u32, Option<u32>), has_alibi: bool, element: Element) {
    let (heads, kv_heads, head_dim, value_dim, tokens, window) = row;
    let layout = HeadLayout { heads, kv_heads, head_dim, value_dim };
    let shape = Decode { layout, tokens, scale: 0.3, window, has_alibi };
    // One sequence each at the first, the last and a middle position.
    let positions = [0, tokens - 1, tokens / 2];
    let label = if has_alibi { " alibi" } else { "" };
    check(&format!("decode {row:?}{label} {element:?}"), |case| {
        let qkv = case.input(3, layout.cols(), element);
        let places = case.integers(&positions);
        // Only the cache before each position has been written; the rest is NaN and must not be read.
        let cols = shape.cache_cols() as usize;
        let mut cached: Vec<f64> = (0..3 * tokens as usize * cols).map(|_| case.normal()).collect();
        for (i, value) in cached.iter_mut().enumerate() {
            let (sequence, token) = (i / cols / tokens as usize, i / cols % tokens as usize);
            if token as u32 >= positions[sequence] {
                *value = f64::NAN;
            }
        }
        let cache = case.input_of(&cached, 3 * tokens, shape.cache_cols(), element);
        let out = case.output(3, layout.out_cols(), element);
        append(&mut case.rec, qkv.tensor, places, cache.tensor, &shape);
        decode(&mut case.rec, qkv.tensor, places, cache.tensor, out, &shape);

        let mut whole = cache.values;
        let new = |sequence: usize| {
            let row = &qkv.values[sequence * layout.cols() as usize..][..layout.cols() as usize];
            row[layout.k_start() as usize..].to_vec()
        };
        for (sequence, &position) in positions.iter().enumerate() {
            let at = (sequence * tokens as usize + position as usize) * cols;
            whole[at..at + cols].copy_from_slice(&new(sequence));
        }
        let mut want = Vec::new();
        for (sequence, &position) in positions.iter().enumerate() {
            for head in 0..heads {
                let query = &qkv.values[(sequence as u32 * layout.cols() + head * head_dim) as usize..];
                let rows = &whole[sequence * tokens as usize * cols..];
                want.extend(attend(&query[..head_dim as usize], rows, position, head, &shape));
            }
        }
        case.expect("out", out, want, allowed(element, head_dim + tokens));
    });
}

/// One query attending to the cached rows of its sequence.
fn attend(query: &[f64], rows: &[f64], position: u32, head: u32, shape: &Decode) -> Vec<f64> {
    let Decode { layout, scale, window, has_alibi, .. } = *shape;
    let slope = reference::attention::alibi_slope(head as usize, layout.heads as usize);
    let slope = if has_alibi { slope } else { 0.0 };
    let kv_head = (head / layout.group()) as usize;
    let (d, v, cols) = (layout.head_dim as usize, layout.value_dim as usize, shape.cache_cols() as usize);
    let first = (position + 1).saturating_sub(window.unwrap_or(u32::MAX)) as usize;
    let seen = rows.chunks(cols).skip(first).take(position as usize + 1 - first);
    let keys: Vec<f64> = seen.clone().flat_map(|row| row[kv_head * d..][..d].to_vec()).collect();
    let values: Vec<f64> =
        seen.flat_map(|row| row[layout.k_cols() as usize + kv_head * v..][..v].to_vec()).collect();
    let head = reference::decode::Head { head_dim: d, value_dim: v, scale: scale as f64, slope };
    reference::decode::decode(query, &keys, &values, &head)
}
