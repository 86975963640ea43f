// Attention decoding, one new token per sequence against its KV cache, portable tier (tensors in attention/cache.wgsl):
//
//   out (B, heads · 4 V4) = softmax(scale · q kᵀ) v   over keys 0 to position, the last `window` of them at most
//
// alibi: a score loses slope · (position − key), as in attention/software/forward.wgsl.
// A workgroup serves one head of one sequence and walks the keys LANES at a time: each invocation computes the score of
// one key; then invocation (group, column) adds every GROUPS-th weighted value to its 4 columns. The sums of the groups
// are added at the end, in a fixed order. The new token comes last.
// Numerics: f32; scores are scaled by log2 e so that exp2 can be used. The initial maximum is finite.
// Sources: Dao, "FlashAttention-2", 2023, algorithm 1; Pope et al., "Efficiently Scaling Transformer Inference", 2022.

import package::attention::cache::{cache, params, place_of, qkv, rotated_group};
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::attention::{LOWEST, MASKED, add_dot};
import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{row_max, row_sum};
import package::tile::{COLUMNS, D4, LANES, V4};

@group(0) @binding(4) var<storage, read_write> out: array<Packed>;

const GROUPS: u32 = LANES / COLUMNS; // COLUMNS is V4 rounded up to a power of two

var<workgroup> query: array<vec4<f32>, D4>;
var<workgroup> newest: array<vec4<f32>, D4>; // the new token's key
var<workgroup> weights: array<f32, LANES>; // of the keys of the tile
var<workgroup> parts: array<vec4<f32>, LANES>;

@compute @workgroup_size(LANES)
fn decode(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let item = min(index, params.sequences * params.heads - 1u); // a folded grid has surplus workgroups
    let sequence = item / params.heads;
    let head = item % params.heads;
    let place = place_of(sequence, head);
    let appended = place.position * params.cache_stride;
    for (var c = lane; c < D4; c += LANES) {
        query[c] = params.scale * load4(rotated_group(place.query, c, place.angles));
        let key = rotated_group(place.key, c, place.angles);
        newest[c] = load4(key);
        if (place.appends) {
            cache[place.keys + appended + c] = key;
        }
    }
    workgroupBarrier();

    let seen = min(place.position + 1u, params.window);
    let column = lane % COLUMNS;
    let group = lane / COLUMNS;
    @if(alibi) let slope = alibi_slope(head, params.heads);
    var highest = LOWEST;
    var total = 0.0; // Σ p over this invocation's keys
    var sum: vec4<f32>; // Σ p v over the keys of the invocation's group, in its columns
    for (var tile = 1u; tile < seen; tile += LANES) {
        var score = MASKED;
        if (tile + lane < seen) {
            score = score_of(place.keys + (place.position - tile - lane) * params.cache_stride);
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
                let row = place.values + (place.position - tile - i) * params.cache_stride;
                sum = fma(vec4<f32>(weights[i]), load4(cache[row + column]), sum);
            }
        }
        workgroupBarrier();
    }

    var score = 0.0;
    for (var c = 0u; c < D4; c++) {
        score = add_dot(score, query[c], newest[c]);
    }
    let top = max(highest, score);
    let decay = exp2(highest - top);
    let p = exp2(score - top);
    let all = row_sum(total * decay, lane) + p;
    parts[lane] = sum * decay;
    workgroupBarrier();
    if (index == item && lane < V4) {
        let value = qkv[place.value + lane];
        var joined = p * load4(value);
        for (var i = 0u; i < GROUPS; i++) {
            joined += parts[i * COLUMNS + lane];
        }
        out[params.out_offset + sequence * params.out_stride + head * V4 + lane] = store4(joined / all);
        if (place.appends) {
            cache[place.values + appended + lane] = value;
        }
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
