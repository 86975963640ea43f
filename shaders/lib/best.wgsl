// A total order on (key, index) pairs for top-k selection, and integer reductions over the invocations that share a row
// (see lib/reduce).
//
// A pair precedes another if its key is larger, or if the keys are equal and its index is smaller. Repeatedly taking
// the first pair after the one taken last yields the top k without a list of what was taken.

import package::lib::bits::{INFINITY, is_beyond, order_of};
import package::tile::LANES;

struct Best {
    key: u32,
    index: u32,
}

const FIRST: Best = Best(0xffffffffu, 0u); // precedes every pair: key_of never returns this key
const LAST: Best = Best(0u, 0xffffffffu); // follows every pair: key_of never returns this key

const KEY_OF_NAN: u32 = 0xfffffffeu;

// An integer with the order of the scores. If `loaded`, the word that `score` was computed from, is a NaN, the key is
// the largest, so that the NaN is chosen and becomes visible.
fn key_of(score: f32, loaded: u32) -> u32 {
    return select(order_of(score), KEY_OF_NAN, is_beyond(loaded, INFINITY));
}

fn is_before(a: Best, b: Best) -> bool {
    return a.key > b.key || (a.key == b.key && a.index < b.index);
}

fn better(a: Best, b: Best) -> Best {
    let first = is_before(a, b);
    return Best(select(b.key, a.key, first), select(b.index, a.index, first));
}

@if(shared_tile) var<workgroup> shared_best: array<Best, LANES>;
@if(shared_tile) var<workgroup> shared_counts: array<u32, LANES>;

@if(shared_tile)
fn row_best(value: Best, lane: u32) -> Best {
    shared_best[lane] = value;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            shared_best[lane] = better(shared_best[lane], shared_best[lane + half]);
        }
    }
    workgroupBarrier();
    let best = shared_best[0];
    workgroupBarrier(); // the next reduction writes the same memory
    return best;
}

@if(shared_tile)
fn row_count(value: u32, lane: u32) -> u32 {
    shared_counts[lane] = value;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            shared_counts[lane] += shared_counts[lane + half];
        }
    }
    workgroupBarrier();
    let total = shared_counts[0];
    workgroupBarrier();
    return total;
}

@if(!shared_tile) fn row_best(value: Best, lane: u32) -> Best { return value; }
@if(!shared_tile) fn row_count(value: u32, lane: u32) -> u32 { return value; }
