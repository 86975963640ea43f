// Attention backward, queries, portable tier (formulas, tensors and masks as in attention/software/backward_q.wgsl):
//
//   p = exp(scale · q·k − lse),   delta = dout · out,   dp = dout · v,   ds = p (dp − delta),   dq = scale Σ ds k
//
// A workgroup owns BLOCK queries of one head and walks the keys, TILE at a time (attention/portable/tiles.wgsl): two
// tiles of scores, q·k and dout·v, give the weights ds of the sum. delta is stored for backward_kv.
// Numerics: f32; p is recomputed from lse without a running maximum, and set to zero where masked.
// Source: Dao, "FlashAttention-2", 2023, algorithm 2.

import package::attention::heads::{gradients_of, keys_of, queries_of, results_of, values_of};
import package::attention::params::mask_index;
import package::attention::params::params;
@if(alibi) import package::attention::params::slope;
@if(dropout) import package::attention::portable::kept_weights::{is_kept_key, kept_of_queries};
import package::attention::portable::owned_queries::{first_key, is_seen, keys_end, load_bounds};
import package::attention::portable::staging::{Rows, add_rows, dout, scores_of};
import package::attention::portable::tiles::{BLOCK, LANES, OWNED, Place, Sums, TILE, WEIGHTS, columns_of, group_sum, place_of};
import package::attention::portable::tiles::{put_weights, row_of_share, sum_of, weight_of};
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::attention::{LOG2_E, add_dot};
import package::lib::element::{Packed, load4, store4};
@if(capped) import package::lib::soft_cap::{soft_cap_slope4, soft_capped4};
import package::tile::{D4, SHARE, V4, WIDTH};

@group(0) @binding(2) var<storage, read> out: array<Packed>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read_write> delta: array<f32>;
@group(0) @binding(6) var<storage, read_write> dqkv: array<Packed>;

const_assert OWNED >= WEIGHTS; // scores wait in the memory of the weights

const COLUMNS: u32 = (D4 + WIDTH - 1u) / WIDTH; // vec4s of a row of dq that an invocation sums

var<private> lse_of: vec4<f32>; // times log2 e
var<private> delta_of: vec4<f32>;

@compute @workgroup_size(LANES)
fn attention_backward_q(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let place = place_of(lane);
    let head = workgroup.x;
    let kv_head = head / params.group;
    let sequence = workgroup.y * params.tokens;
    // Last blocks first, as in the forward pass.
    let block = ((params.tokens - 1u) / BLOCK - workgroup.z) * BLOCK;
    let token = block + 4u * place.group;
    load_bounds(sequence, token);
    @if(alibi) { slope = alibi_slope(params.first_head + head, params.all_heads); }
    load_statistics(place, sequence, token, head);

    let queries = Rows(queries_of(sequence, head), D4, false);
    let gradients = Rows(gradients_of(sequence, head), V4, true);
    let keys = Rows(keys_of(sequence, kv_head), D4, false);
    let values = Rows(values_of(sequence, kv_head), V4, false);
    let end = keys_end(block);
    var dq: Sums;
    for (var tile = first_key(sequence, block); tile < end; tile += TILE) {
        // The scores q · k wait in the memory of the weights while the other scores are computed, which saves
        // registers.
        put_weights(place, scores_of(lane, place, queries, block, keys, tile, params.d4), 0u);
        let dp = scores_of(lane, place, gradients, block, values, tile, params.v4);
        weigh(dp, place, mask_index(sequence + token, head), token, tile);
        dq = add_rows(dq, lane, place, keys, tile, 0u, end, COLUMNS);
    }

    for (var r = 0u; r < 4u; r++) {
        if (token + r < params.tokens) {
            write_row(dq, place, sequence + token + r, head, r);
        }
    }
}

// Reads lse and computes delta of the 4 queries; the invocations of the group share the columns.
fn load_statistics(place: Place, sequence: u32, token: u32, head: u32) {
    var part: vec4<f32>;
    for (var r = 0u; r < 4u; r++) {
        let row = sequence + min(token + r, params.tokens - 1u);
        let out_at = results_of(row, head);
        let dout_at = gradients_of(row, head);
        for (var c = place.column; c < V4; c += WIDTH) {
            part[r] = add_dot(part[r], load4(dout[dout_at + c]), load4(out[out_at + c]));
        }
        lse_of[r] = LOG2_E * lse[params.lse_offset + row * params.lse_stride + head];
    }
    delta_of = group_sum(part, place, WIDTH);
}

// Turns the published scores into the weights ds; `index` numbers the first of the 4 queries and the head, for dropout.
fn weigh(dp: array<vec4<f32>, SHARE>, place: Place, index: u32, token: u32, tile: u32) {
    var ds: array<vec4<f32>, SHARE>;
    @if(dropout) let kept = kept_of_queries(index, token, tile + row_of_share(place.column, 0u));
    for (var j = 0u; j < SHARE; j++) {
        let key = tile + row_of_share(place.column, j);
        @if(!capped) var score = (params.scale * LOG2_E) * weight_of(place, j) - lse_of;
        @if(capped) let capped =
            soft_capped4((params.scale * LOG2_E) * weight_of(place, j), params.cap, params.inverse_cap);
        @if(capped) var score = capped - lse_of;
        @if(alibi) { score += slope * (f32(key) - vec4<f32>(token + vec4<u32>(0u, 1u, 2u, 3u))); }
        let p = select(vec4<f32>(), exp2(score), is_seen(token, key));
        var weighted = dp[j];
        @if(dropout) { weighted = select(vec4<f32>(), params.factor * weighted, is_kept_key(kept, j)); }
        ds[j] = p * (weighted - delta_of);
        @if(capped) { ds[j] *= soft_cap_slope4(capped, params.inverse_cap); }
    }
    put_weights(place, ds, 0u);
}

// Writes query r of the invocation; `row` is its row of `dqkv`.
fn write_row(dq: Sums, place: Place, row: u32, head: u32, r: u32) {
    let at = params.dqkv_offset + row * params.dqkv_stride + head * D4;
    for (var i = 0u; i < COLUMNS; i++) {
        let column = place.column + i * WIDTH;
        if (column < D4) {
            dqkv[at + column] = store4(params.scale * sum_of(dq, i, r));
        }
    }
    // The last head also clears the padding of the row of delta.
    let heads = select(1u, params.delta_stride - head, head == params.heads - 1u);
    if (place.column < heads) {
        delta[row * params.delta_stride + head + place.column] = select(0.0, delta_of[r], place.column == 0u);
    }
}
