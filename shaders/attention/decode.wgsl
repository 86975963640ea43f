// Attention decoding: one new token per sequence against its KV cache
//
//   qkv (B, columns) read        a row is q (heads · 4 D4) | k (kv heads · 4 D4) | v (kv heads · 4 V4) of the new token
//   cache (B · T, columns − q)   k | v of every token so far: row b · T + t is token t of sequence b
//   positions (B) u32 read       position of the new token in its sequence
//   out (B, heads · 4 V4)        written
//
//   append    copies k and v of the new tokens to their cache rows; one invocation per group of 4 columns
//   decode    out = softmax(scale · q kᵀ) v over keys 0 to position, the last `window` of them at most
//
// decode: one workgroup (shared_tile) or one invocation (software tier) per head and sequence. Each lane walks every
// LANES-th key with its own online softmax; the partial results are then rescaled to their common maximum and added.
// Numerics: f32; scores are scaled by log2 e so that exp2 can be used. The initial maximum is finite.
// Sources: Dao, "FlashAttention-2", 2023, algorithm 1; Pope et al., "Efficiently Scaling Transformer Inference", 2022.

import package::lib::attention::{MASKED, add_dot};
import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_max, row_of, row_sum, row_sum4};
import package::tile::{D4, LANES, V4};

struct Params {
    sequences: u32, // B
    tokens: u32, // T, cache rows per sequence
    window: u32,
    heads: u32,
    group: u32, // query heads per key and value head
    copied4: u32, // columns of a cache row; columns, offsets, starts and strides count groups of 4 elements
    k_start: u32,
    qkv_offset: u32,
    qkv_stride: u32,
    cache_offset: u32,
    cache_stride: u32,
    cached_v_start: u32,
    out_offset: u32,
    out_stride: u32,
    positions_offset: u32, // in elements
    scale: f32, // times log2 e
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<Packed>;
@group(0) @binding(2) var<storage, read> positions: array<u32>;
@group(0) @binding(3) var<storage, read_write> appended: array<Packed>; // the cache, in append
@group(0) @binding(4) var<storage, read> cache: array<Packed>;
@group(0) @binding(5) var<storage, read_write> out: array<Packed>;

var<private> q: array<vec4<f32>, D4>;
var<private> sums: array<vec4<f32>, V4>; // Σ p v

@compute @workgroup_size(LANES)
fn append(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let sequence = index / params.copied4;
    let column = index % params.copied4;
    if (sequence < params.sequences) {
        let to = params.cache_offset + (sequence * params.tokens + position_of(sequence)) * params.cache_stride;
        appended[to + column] = qkv[params.qkv_offset + sequence * params.qkv_stride + params.k_start + column];
    }
}

@compute @workgroup_size(LANES)
fn decode(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let item = min(row, params.sequences * params.heads - 1u);
    let sequence = item / params.heads;
    let head = item % params.heads;
    let from_query = params.qkv_offset + sequence * params.qkv_stride + head * D4;
    for (var c = 0u; c < D4; c++) {
        q[c] = params.scale * load4(qkv[from_query + c]);
    }

    let position = position_of(sequence);
    let seen = min(position + 1u, params.window);
    let start = params.cache_offset + sequence * params.tokens * params.cache_stride;
    let keys = start + head / params.group * D4;
    let values = start + params.cached_v_start + head / params.group * V4;
    var highest = MASKED;
    var total = 0.0;
    for (var i = first_of(lane); i < seen; i += STEP) {
        let row = (position - i) * params.cache_stride;
        var score = 0.0;
        for (var c = 0u; c < D4; c++) {
            score = add_dot(score, q[c], load4(cache[keys + row + c]));
        }
        let top = max(highest, score);
        let decay = exp2(highest - top); // rescales the sums to the new maximum
        let p = exp2(score - top);
        for (var c = 0u; c < V4; c++) {
            sums[c] = fma(vec4<f32>(p), load4(cache[values + row + c]), sums[c] * decay);
        }
        total = total * decay + p;
        highest = top;
    }

    let top = row_max(highest, lane);
    let decay = exp2(highest - top);
    let sum = row_sum(total * decay, lane);
    let to = params.out_offset + sequence * params.out_stride + head * V4;
    for (var c = 0u; c < V4; c++) {
        let joined = row_sum4(sums[c] * decay, lane) / sum;
        if (first_of(lane) == 0u && row == item) {
            out[to + c] = store4(joined);
        }
    }
}

// Clamped: a position past the end of the cache would address another sequence's rows.
fn position_of(sequence: u32) -> u32 {
    return min(positions[params.positions_offset + sequence], params.tokens - 1u);
}
