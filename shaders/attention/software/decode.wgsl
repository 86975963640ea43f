// Attention decoding, one new token per sequence against its KV cache, software tier (tensors in attention/cache.wgsl):
//
//   out (B, heads · 4 V4) = softmax(scale · q kᵀ) v   over keys 0 to position, the last `window` of them at most
//
// capped, alibi, sinks: as in attention/software/forward.wgsl. ring: as in attention/cache.wgsl.
// A workgroup serves one head of one sequence. Its invocations take the keys in turns, each with its own online
// softmax; at the end their sums are rescaled to the common maximum and added (lib/reduce). The first invocation starts
// with the new token.
//
// prefetched: each line of the keys and values that the lanes take next is loaded once in advance, as in
// matmul/gathered.
//
// Numerics: f32; scores are scaled by log2 e so that exp2 can be used. The initial maximum is finite, and the maximum
// of an invocation without keys is so far below any score that its empty sums count nothing.
// Sources: Dao, "FlashAttention-2", 2023, algorithm 1; Pope et al., "Efficiently Scaling Transformer Inference", 2022.

import package::attention::cache::{cache, params, place_of, qkv, rotated_group, row_before};
@if(prefetched) import package::attention::cache::Place;
@if(sinks) import package::attention::sinks::sink_of;
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::attention::{MASKED, add_dot};
import package::lib::element::{Packed, load4, store4};
@if(prefetched) import package::lib::element::LINE4;
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_max, row_of, row_sum, row_sum4};
@if(capped) import package::lib::soft_cap::soft_capped;
import package::tile::{D4, LANES, V4};

@group(0) @binding(4) var<storage, read_write> out: array<Packed>;

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
    let place = place_of(sequence, head);
    let appended = row_before(place, 0u);
    let appends = place.appends && first_of(lane) == 0u;
    var score = 0.0; // of the new token
    for (var c = 0u; c < D4; c++) {
        q[c] = params.scale * load4(rotated_group(place.query, c, place.angles + params.query_angles));
        let key = rotated_group(place.key, c, place.angles);
        score = add_dot(score, q[c], load4(key));
        if (appends) {
            cache[place.keys + appended + c] = key;
        }
    }
    @if(capped) { score = soft_capped(score, params.cap, params.inverse_cap); }
    let has_newest = first_of(lane) == 0u;
    var highest = select(MASKED, score, has_newest);
    var total = select(0.0, 1.0, has_newest);
    for (var c = 0u; c < V4; c++) {
        let value = qkv[place.value + c];
        sums[c] = select(vec4<f32>(0.0), load4(value), has_newest);
        if (appends) {
            cache[place.values + appended + c] = value;
        }
    }

    let seen = min(place.position + 1u, params.window);
    @if(alibi) let slope = alibi_slope(head, params.heads);
    @if(prefetched) var touched = 0u;
    for (var base = 1u; base < seen; base += STEP) {
        @if(prefetched) {
            for (var next = base + STEP; next < base + 2u * STEP; next++) {
                touched |= touch(place, row_before(place, min(next, seen - 1u)));
            }
        }
        let i = base + first_of(lane);
        if (i >= seen) {
            continue;
        }
        let row = row_before(place, i);
        score = 0.0;
        for (var c = 0u; c < D4; c++) {
            score = add_dot(score, q[c], load4(cache[place.keys + row + c]));
        }
        @if(capped) { score = soft_capped(score, params.cap, params.inverse_cap); }
        @if(alibi) { score -= slope * f32(i); }
        let top = max(highest, score);
        let decay = exp2(highest - top); // rescales the sums to the new maximum
        let p = exp2(score - top);
        for (var c = 0u; c < V4; c++) {
            sums[c] = fma(vec4<f32>(p), load4(cache[place.values + row + c]), sums[c] * decay);
        }
        total = total * decay + p;
        highest = top;
    }

    // `touched` is below 2^31, which no compiler can know; otherwise it would drop the loads.
    @if(prefetched) let is_writer = lane == 0u && touched < params.heads + 0x80000000u;
    @if(!prefetched) let is_writer = lane == 0u;
    @if(!sinks) let share = exp2(highest - row_max(highest, lane));
    @if(!sinks) let all = row_sum(total * share, lane);
    @if(sinks) let sink = sink_of(head);
    @if(sinks) let top = max(row_max(highest, lane), sink);
    @if(sinks) let share = exp2(highest - top);
    @if(sinks) let all = row_sum(total * share, lane) + exp2(sink - top);
    let to = params.out_offset + sequence * params.out_stride + head * V4;
    for (var c = 0u; c < V4; c++) {
        let sum = row_sum4(sums[c] * share, lane);
        if (is_writer) {
            out[to + c] = store4(sum / all);
        }
    }
}

// Loads 31 bits of each line of a key and its value.
@if(prefetched)
fn touch(place: Place, row: u32) -> u32 {
    var touched = 0u;
    for (var c = 0u; c < D4; c += LINE4) {
        touched |= first_word(cache[place.keys + row + c]);
    }
    for (var c = 0u; c < V4; c += LINE4) {
        touched |= first_word(cache[place.values + row + c]);
    }
    return touched >> 1u;
}

@if(prefetched && f32) fn first_word(packed: Packed) -> u32 { return bitcast<u32>(packed.x); }
@if(prefetched && !f32) fn first_word(packed: Packed) -> u32 { return packed.x; }
