// Dropout in the portable attention kernels: a bit for each weight of an invocation, set if the weight is kept. The
// random words of all its weights would take 16 or 32 registers. The words are drawn in a loop whose length compilers
// do not know: otherwise they would interleave the draws, each of ten rounds, and run out of registers on Intel.

import package::attention::params::{mask_words, params};
import package::attention::portable::tiles::{Place, RUN, row_of_share};
import package::tile::{SHARE, WIDTH};

// The bits of the 4 owned queries from `token` on and the walked keys of an invocation, the first of which is `key`:
// bit SHARE r + j for query r and key j. `index` numbers the first query and its head.
fn kept_of_queries(index: u32, token: u32, key: u32) -> u32 {
    var kept = 0u;
    let queries = min(4u, params.tokens - min(token, params.tokens));
    for (var r = 0u; r < queries; r++) {
        for (var j = 0u; j < SHARE; j += RUN) {
            kept |= kept_run(index + r * params.all_heads, key + j * WIDTH) << (SHARE * r + j);
        }
    }
    return kept;
}

// The bits of RUN keys from `key` on, which lie within one group of 4.
fn kept_run(index: u32, key: u32) -> u32 {
    return (kept_keys(index, key / 4u) >> (key % 4u)) & ((1u << RUN) - 1u);
}

// Whether the weight of key j is kept, for each of the 4 queries.
fn is_kept_key(kept: u32, j: u32) -> vec4<bool> {
    return (vec4<u32>(kept >> j) & (vec4<u32>(1u) << vec4<u32>(0u, SHARE, 2u * SHARE, 3u * SHARE))) != vec4<u32>();
}

// The bits of the 4 owned keys from `key` on and the SHARE walked queries of an invocation in the tile from `tile` on:
// bit 4 j + r for query j and key r. `index` numbers the first query of the tile and its head; `end` is past the last
// query.
fn kept_of_keys(index: u32, place: Place, tile: u32, end: u32, key: u32) -> u32 {
    var kept = 0u;
    // May be more than there are; this hides their number from compilers.
    let walked = min(SHARE, end - min(tile + row_of_share(place.column, 0u), end));
    for (var j = 0u; j < walked; j++) {
        kept |= kept_keys(index + row_of_share(place.column, j) * params.all_heads, key / 4u) << (4u * j);
    }
    return kept;
}

// Whether the weight of query j is kept, for each of the 4 keys.
fn is_kept_query(kept: u32, j: u32) -> vec4<bool> {
    return (vec4<u32>(kept >> (4u * j)) & vec4<u32>(1u, 2u, 4u, 8u)) != vec4<u32>();
}

// Bit i: whether the weight of key 4 four + i is kept.
fn kept_keys(index: u32, four: u32) -> u32 {
    let is_kept = mask_words(index, four) >= vec4<u32>(params.threshold);
    let bits = select(vec4<u32>(), vec4<u32>(1u, 2u, 4u, 8u), is_kept);
    return bits.x | bits.y | bits.z | bits.w;
}
