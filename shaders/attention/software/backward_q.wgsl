// Attention backward, queries, from the saved log-sum-exp:
//
//   p = exp(scale · q·k − lse),   delta = dout · out,   dp = dout · v,   ds = p (dp − delta),   dq = scale Σ ds k
//
//   qkv (N, columns), out, dout (N, heads · 4 V4), lse (N, heads) f32   read
//   delta (N, heads) f32, the first heads · 4 D4 columns of dqkv (N, columns)   written
//
// Work assignment, `windowed`, `segmented`, `capped`, `alibi` and `shuffled` as in attention/software/forward.wgsl: an invocation
// owns ROWS queries of one head and walks the keys, STEP at a time. delta, which equals Σ p dp, is stored for
// backward_kv.
// capped: ds has the cap's derivative as a factor.
// dropout: dp = mask dout · v / (1 − p_drop) with the mask of the forward pass; delta includes it already, through out.
// Numerics: f32; p is recomputed from lse without a running maximum, and set to zero where masked.
// Source: Dao, "FlashAttention-2", 2023, algorithm 2.

import package::attention::heads::{gradients_of, keys_of, queries_of, results_of, values_of};
@if(dropout) import package::attention::params::mask_index;
@if(alibi) import package::attention::params::slope;
import package::attention::params::{params, qkv};
import package::attention::software::queries::BLOCK;
import package::attention::software::queries::{is_seen, key_part, load_tile, value_part};
@if(dropout) import package::attention::software::queries::{draw_words, mask_row, words_of};
@if(windowed || segmented) import package::attention::bounds::first_seen;
@if(windowed || segmented) import package::attention::software::queries::first_of;
import package::attention::software::spread::place_of;
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::attention::{LOG2_E, add_dot};
import package::lib::element::{Packed, load4, store4};
@if(capped) import package::lib::soft_cap::{soft_cap_slope, soft_capped};
import package::tile::{D4, STEP, LANES, ROWS, TILE, V4};

@group(0) @binding(2) var<storage, read> out: array<Packed>;
@group(0) @binding(3) var<storage, read> dout: array<Packed>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read_write> delta: array<f32>;
@group(0) @binding(6) var<storage, read_write> dqkv: array<Packed>;

var<private> q: array<array<vec4<f32>, D4>, ROWS>; // times scale · log2 e
var<private> dy: array<array<vec4<f32>, V4>, ROWS>;
var<private> dq: array<array<vec4<f32>, D4>, ROWS>;
var<private> lse_of: array<f32, ROWS>; // times log2 e
var<private> delta_of: array<f32, ROWS>;

@compute @workgroup_size(LANES)
fn attention_backward_q(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = workgroup.y;
    let kv_head = head / params.group;
    let sequence = workgroup.z * params.tokens;
    // Last blocks first, as in the forward pass.
    let block = ((params.tokens - 1u) / BLOCK - workgroup.x) * BLOCK;
    let token = block + lane;
    @if(alibi) { slope = alibi_slope(params.first_head + head, params.all_heads); }
    for (var r = 0u; r < ROWS; r++) {
        let query = min(token + r * LANES, params.tokens - 1u);
        load_query(r, sequence + query, head);
        @if(dropout) { mask_row[r] = mask_index(sequence + query, head); }
        @if(windowed || segmented) { first_of[r] = first_seen(sequence, query); }
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
                gather_from(token, keys, values, key, place_of(key, tile));
            }
        }
    }

    for (var r = 0u; r < ROWS; r++) {
        if (token + r * LANES < params.tokens) {
            let row = sequence + token + r * LANES;
            let at = params.dqkv_offset + row * params.dqkv_stride + head * D4;
            for (var c = 0u; c < D4; c++) {
                dqkv[at + c] = store4(params.scale * dq[r][c]);
            }
            delta[row * params.delta_stride + head] = delta_of[r];
            // Constant bound: an inner loop that is not unrolled keeps the loop over r, and so its arrays, in memory.
            for (var pad = 1u; pad < 4u; pad++) {
                if (head == params.heads - 1u && head + pad < params.delta_stride) {
                    delta[row * params.delta_stride + head + pad] = 0.0;
                }
            }
        }
    }
}

fn load_query(r: u32, row: u32, head: u32) {
    let at = queries_of(row, head);
    for (var c = 0u; c < D4; c++) {
        q[r][c] = (params.scale * LOG2_E) * load4(qkv[at + c]);
    }
    let out_at = results_of(row, head);
    let dout_at = gradients_of(row, head);
    for (var c = 0u; c < V4; c++) {
        dy[r][c] = load4(dout[dout_at + c]);
        delta_of[r] = add_dot(delta_of[r], dy[r][c], load4(out[out_at + c]));
    }
    lse_of[r] = LOG2_E * lse[params.lse_offset + row * params.lse_stride + head];
}

// Adds the contribution of STEP keys starting at `key`; `place` is the index of the first one in its tile.
fn gather_from(token: u32, keys: u32, values: u32, key: u32, place: u32) {
    var ds: array<array<f32, STEP>, ROWS>; // holds dp first
    for (var c = 0u; c < V4; c++) {
        for (var j = 0u; j < STEP; j++) {
            let v = value_part(values, key + j, place + j, c);
            for (var r = 0u; r < ROWS; r++) {
                ds[r][j] = add_dot(ds[r][j], dy[r][c], v);
            }
        }
    }

    var s: array<array<f32, STEP>, ROWS>;
    for (var c = 0u; c < D4; c++) {
        for (var j = 0u; j < STEP; j++) {
            let k = key_part(keys, key + j, place + j, c);
            for (var r = 0u; r < ROWS; r++) {
                s[r][j] = add_dot(s[r][j], q[r][c], k);
            }
        }
    }

    for (var r = 0u; r < ROWS; r++) {
        for (var j = 0u; j < STEP; j++) {
            @if(capped) { s[r][j] = soft_capped(s[r][j], params.cap, params.inverse_cap); }
            @if(capped) let slope_of_cap = soft_cap_slope(s[r][j], params.inverse_cap);
            @if(alibi) { s[r][j] += slope * (f32(key + j) - f32(token + r * LANES)); }
            let p = select(0.0, exp2(s[r][j] - lse_of[r]), is_seen(r, token + r * LANES, key + j));
            @if(dropout) { ds[r][j] = select(0.0, params.factor * ds[r][j], words_of[r][(key + j) % 4u] >= params.threshold); }
            ds[r][j] = p * (ds[r][j] - delta_of[r]);
            @if(capped) { ds[r][j] *= slope_of_cap; }
        }
    }

    for (var c = 0u; c < D4; c++) {
        for (var j = 0u; j < STEP; j++) {
            let k = key_part(keys, key + j, place + j, c);
            for (var r = 0u; r < ROWS; r++) {
                dq[r][c] = fma(vec4<f32>(ds[r][j]), k, dq[r][c]);
            }
        }
    }
}
