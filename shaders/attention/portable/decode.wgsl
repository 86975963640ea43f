// Attention decoding, one new token per sequence against its KV cache, portable tier (tensors in attention/cache.wgsl):
//
//   out (B, heads · 4 V4) = softmax(scale · q kᵀ) v   over keys 0 to position, the last `window` of them at most
//
// alibi: a score loses slope · (position − key), as in attention/software/forward.wgsl.
// A workgroup serves one head of one sequence and walks the keys LANES at a time: each invocation computes the score of
// one key; then invocation (group, column) adds every GROUPS-th weighted value to its 4 columns. The groups' sums are
// added at the end, in a fixed order.
// Numerics: f32; scores are scaled by log2 e so that exp2 can be used. The initial maximum is finite.
// Sources: Dao, "FlashAttention-2", 2023, algorithm 1; Pope et al., "Efficiently Scaling Transformer Inference", 2022.

import package::attention::cache::{params, position_of, qkv};
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::attention::{LOWEST, MASKED, add_dot};
import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{row_max, row_sum};
import package::tile::{COLUMNS, D4, LANES, V4};

@group(0) @binding(4) var<storage, read> cache: array<Packed>;
@group(0) @binding(5) var<storage, read_write> out: array<Packed>;

const GROUPS: u32 = LANES / COLUMNS; // COLUMNS is the power of two from V4 on

var<workgroup> query: array<vec4<f32>, D4>;
var<workgroup> weights: array<f32, LANES>; // of the keys of the tile
var<workgroup> parts: array<vec4<f32>, LANES>;

@compute @workgroup_size(LANES)
fn decode(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let item = min(index, params.sequences * params.heads - 1u); // a folded grid has surplus workgroups
    let sequence = item / params.heads;
    let head = item % params.heads;
    let from_query = params.qkv_offset + sequence * params.qkv_stride + head * D4;
    for (var c = lane; c < D4; c += LANES) {
        query[c] = params.scale * load4(qkv[from_query + c]);
    }
    workgroupBarrier();

    let position = position_of(sequence);
    let seen = min(position + 1u, params.window);
    let start = params.cache_offset + sequence * params.tokens * params.cache_stride;
    let keys = start + head / params.group * D4;
    let values = start + params.cached_v_start + head / params.group * V4;
    let column = lane % COLUMNS;
    let group = lane / COLUMNS;
    @if(alibi) let slope = alibi_slope(head, params.heads);
    var highest = LOWEST;
    var total = 0.0; // Σ p over this invocation's keys
    var sum: vec4<f32>; // Σ p v over the keys of its group, in its columns
    for (var tile = 0u; tile < seen; tile += LANES) {
        var score = MASKED;
        if (tile + lane < seen) {
            score = score_of(keys + (position - tile - lane) * params.cache_stride);
            @if(alibi) { score -= slope * f32(tile + lane); }
        }
        let top = max(highest, row_max(score, lane));
        let decay = exp2(highest - top); // rescales the sums to the new maximum
        let p = exp2(score - top);
        total = total * decay + p;
        highest = top;
        weights[lane] = p;
        workgroupBarrier();
        sum *= decay;
        if (column < V4) {
            for (var i = group; i < min(LANES, seen - tile); i += GROUPS) {
                let row = values + (position - tile - i) * params.cache_stride;
                sum = fma(vec4<f32>(weights[i]), load4(cache[row + column]), sum);
            }
        }
        workgroupBarrier();
    }

    let all = row_sum(total, lane);
    parts[lane] = sum;
    workgroupBarrier();
    if (index == item && lane < V4) {
        var joined = parts[lane];
        for (var i = 1u; i < GROUPS; i++) {
            joined += parts[i * COLUMNS + lane];
        }
        out[params.out_offset + sequence * params.out_stride + head * V4 + lane] = store4(joined / all);
    }
}

// The score of the key at `at`.
fn score_of(at: u32) -> f32 {
    var score = 0.0;
    for (var c = 0u; c < D4; c++) {
        score = add_dot(score, query[c], load4(cache[at + c]));
    }
    return score;
}
