// Attention forward:   out = softmax(mask(scale · q kᵀ)) v   and   lse = log Σ exp(mask(scale · q kᵀ)),   per head
//
//   qkv (N, columns) read      a row is q (heads · 4 D4) | k (kv heads · 4 D4) | v (kv heads · 4 V4); N = B · T
//   out (N, heads · 4 V4), lse (N, heads) f32   written
//   logits (N, heads) f32      with `logits`: the largest score of each query that it sees, or its sink
//
// An invocation owns ROWS queries of one head, LANES apart, and walks the keys, STEP at a time, with the running
// maximum and sum of the online softmax; the score matrix is never stored. Each loaded key serves ROWS queries, because
// loads dominate on the software tier. Neighbouring invocations own neighbouring queries and visit the same keys
// together.
// shuffled: the lanes load a tile of keys together and share them by shuffles (attention/software/spread).
// windowed: a query sees the last `window` keys, itself included. segmented: and none before starts[token], the start
// of its document. The walk begins at the tile with the first key that the first query of the block sees.
// capped: a score s is cap · tanh(s / cap) instead, before everything else (lib/soft_cap).
// alibi: a score loses slope · (i − j) at query i and key j, where the slope depends on the head (lib/attention).
// sinks: the softmax has a logit more, the sink of the head (attention/sinks).
// dropout: a dropped weight still counts in the softmax denominator and lse, but not in out.
// Numerics: f32; scores are scaled by log2 e so that exp2 can be used; lse is a natural logarithm. Masked scores are
// finite, and lower than the initial running maximum.
// Sources: Dao, "FlashAttention-2", 2023, algorithm 1; Ainslie et al., "GQA", 2023.

import package::attention::heads::{keys_of, queries_of, results_of, values_of};
@if(dropout) import package::attention::params::mask_index;
@if(alibi) import package::attention::params::slope;
import package::attention::params::{params, qkv};
@if(sinks) import package::attention::sinks::sink_of;
import package::attention::software::queries::BLOCK;
import package::attention::software::queries::{is_seen, key_part, load_tile, value_part};
import package::attention::software::spread::place_of;
@if(dropout) import package::attention::software::queries::{draw_words, mask_row, words_of};
@if(windowed || segmented) import package::attention::bounds::first_seen;
@if(windowed || segmented) import package::attention::software::queries::first_of;
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::attention::{LN_2, LOWEST, MASKED, add_dot};
import package::lib::element::{Packed, load4, store4};
@if(capped) import package::lib::soft_cap::soft_capped;
import package::tile::{D4, STEP, LANES, ROWS, TILE, V4};

@group(0) @binding(2) var<storage, read_write> out: array<Packed>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;
@if(logits) @group(0) @binding(9) var<storage, read_write> logits: array<f32>; // laid out as lse

var<private> q: array<array<vec4<f32>, D4>, ROWS>;
var<private> sums: array<array<vec4<f32>, V4>, ROWS>; // Σ p v, to be divided by `total`
var<private> highest: array<f32, ROWS>;
var<private> total: array<f32, ROWS>; // Σ p

@compute @workgroup_size(LANES)
fn attention(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = workgroup.y;
    let kv_head = head / params.group;
    let sequence = workgroup.z * params.tokens;
    // Last blocks first: they see the most keys, and starting with the longest work balances the tail.
    let block = ((params.tokens - 1u) / BLOCK - workgroup.x) * BLOCK;
    let token = block + lane;
    @if(alibi) { slope = alibi_slope(params.first_head + head, params.all_heads); }
    for (var r = 0u; r < ROWS; r++) {
        let row = sequence + min(token + r * LANES, params.tokens - 1u);
        let at = queries_of(row, head);
        for (var c = 0u; c < D4; c++) {
            q[r][c] = params.scale * load4(qkv[at + c]);
        }
        highest[r] = LOWEST;
        @if(sinks) {
            highest[r] = sink_of(head);
            total[r] = 1.0;
        }
        @if(dropout) { mask_row[r] = mask_index(row, head); }
        @if(windowed || segmented) { first_of[r] = first_seen(sequence, row - sequence); }
    }

    let keys = keys_of(sequence, kv_head);
    let values = values_of(sequence, kv_head);
    // The walk starts at a multiple of TILE, so that sums group the same keys with a window and without.
    @if(windowed || segmented) let first = first_seen(sequence, block) / TILE * TILE;
    @if(!windowed && !segmented) let first = 0u;
    @if(causal) let end = min(params.tokens, block + BLOCK);
    @if(!causal) let end = params.tokens;
    for (var tile = first; tile < end; tile += TILE) {
        load_tile(lane, keys, values, tile);
        for (var four = tile; four < min(tile + TILE, end); four += 4u) {
            @if(dropout) { draw_words(four); }
            for (var key = four; key < min(four + 4u, end); key += STEP) {
                attend(token, keys, values, key, place_of(key, tile));
            }
        }
    }

    for (var r = 0u; r < ROWS; r++) {
        if (token + r * LANES < params.tokens) {
            let row = sequence + token + r * LANES;
            let at = results_of(row, head);
            for (var c = 0u; c < V4; c++) {
                @if(dropout) { sums[r][c] *= params.factor; }
                out[at + c] = store4(sums[r][c] / total[r]);
            }
            let lse_at = params.lse_offset + row * params.lse_stride;
            lse[lse_at + head] = (highest[r] + log2(total[r])) * LN_2;
            @if(logits) { logits[lse_at + head] = highest[r] * LN_2; }
            // Constant bound: an inner loop that is not unrolled keeps the loop over r, and so its arrays, in memory.
            for (var pad = 1u; pad < 4u; pad++) {
                if (head == params.heads - 1u && head + pad < params.lse_stride) {
                    lse[lse_at + head + pad] = 0.0;
                    @if(logits) { logits[lse_at + head + pad] = 0.0; }
                }
            }
        }
    }
}

// STEP steps of the online softmax, over the keys from `key` on; `place` is the index of the first one in its tile.
fn attend(token: u32, keys: u32, values: u32, key: u32, place: u32) {
    var p: array<array<f32, STEP>, ROWS>;
    for (var c = 0u; c < D4; c++) {
        for (var j = 0u; j < STEP; j++) {
            let k = key_part(keys, key + j, place + j, c);
            for (var r = 0u; r < ROWS; r++) {
                p[r][j] = add_dot(p[r][j], q[r][c], k);
            }
        }
    }

    for (var j = 0u; j < STEP; j++) {
        var decay: array<f32, ROWS>; // rescales the sums to the new maximum
        for (var r = 0u; r < ROWS; r++) {
            @if(capped) { p[r][j] = soft_capped(p[r][j], params.cap, params.inverse_cap); }
            @if(alibi) { p[r][j] += slope * (f32(key + j) - f32(token + r * LANES)); }
            p[r][j] = select(MASKED, p[r][j], is_seen(r, token + r * LANES, key + j));
            let top = max(highest[r], p[r][j]);
            decay[r] = exp2(highest[r] - top);
            highest[r] = top;
            p[r][j] = exp2(p[r][j] - top);
            total[r] = total[r] * decay[r] + p[r][j];
            @if(dropout) { p[r][j] = select(0.0, p[r][j], words_of[r][(key + j) % 4u] >= params.threshold); }
        }
        for (var c = 0u; c < V4; c++) {
            let v = value_part(values, key + j, place + j, c);
            for (var r = 0u; r < ROWS; r++) {
                sums[r][c] = fma(vec4<f32>(p[r][j]), v, decay[r] * sums[r][c]);
            }
        }
    }
}
