// Attention decoding, one new token per sequence against its KV cache, software tier (tensors in attention/cache.wgsl):
//
//   out (B, heads · 4 V4) = softmax(scale · q kᵀ) v   over keys 0 to position, the last `window` of them at most
//
// alibi: a score loses slope · (position − key), as in attention/software/forward.wgsl.
// A workgroup serves one head of one sequence. Its invocations take the keys in turns, each with an online softmax of its
// own; at the end their sums are rescaled to the common maximum and added (lib/reduce).
// Numerics: f32; scores are scaled by log2 e so that exp2 can be used. The initial maximum is finite, and that of an
// invocation without keys is so far below any score that its empty sums count nothing.
// Sources: Dao, "FlashAttention-2", 2023, algorithm 1; Pope et al., "Efficiently Scaling Transformer Inference", 2022.

import package::attention::cache::{params, position_of, qkv};
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::attention::{MASKED, add_dot};
import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_max, row_of, row_sum, row_sum4};
import package::tile::{D4, LANES, V4};

@group(0) @binding(4) var<storage, read> cache: array<Packed>;
@group(0) @binding(5) var<storage, read_write> out: array<Packed>;

var<private> q: array<vec4<f32>, D4>;
var<private> sums: array<vec4<f32>, V4>; // Σ p v

@compute @workgroup_size(LANES)
fn decode(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = row_of(linear_index(workgroup), lane);
    if (item >= params.sequences * params.heads) {
        return;
    }
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
    @if(alibi) let slope = alibi_slope(head, params.heads);
    var highest = MASKED;
    var total = 0.0;
    for (var i = first_of(lane); i < seen; i += STEP) {
        let row = (position - i) * params.cache_stride;
        var score = 0.0;
        for (var c = 0u; c < D4; c++) {
            score = add_dot(score, q[c], load4(cache[keys + row + c]));
        }
        @if(alibi) { score -= slope * f32(i); }
        let top = max(highest, score);
        let decay = exp2(highest - top); // rescales the sums to the new maximum
        let p = exp2(score - top);
        for (var c = 0u; c < V4; c++) {
            sums[c] = fma(vec4<f32>(p), load4(cache[values + row + c]), sums[c] * decay);
        }
        total = total * decay + p;
        highest = top;
    }

    let share = exp2(highest - row_max(highest, lane));
    let all = row_sum(total * share, lane);
    let to = params.out_offset + sequence * params.out_stride + head * V4;
    for (var c = 0u; c < V4; c++) {
        let sum = row_sum4(sums[c] * share, lane);
        if (lane == 0u) {
            out[to + c] = store4(sum / all);
        }
    }
}
