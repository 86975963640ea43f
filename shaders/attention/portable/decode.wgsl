// Attention decoding, one new token per sequence against its KV cache, portable tier (tensors in attention/cache.wgsl):
//
//   out (B, heads · 4 V4) = softmax(scale · q kᵀ) v   over keys 0 to position, the last `window` of them at most
//
// capped, alibi, sinks: as in attention/software/forward.wgsl. ring: as in attention/cache.wgsl.
// A workgroup serves `part_keys` keys of one head of one sequence, and walks them LANES at a time: SHARE invocations
// share a key and each multiplies every SHARE-th group of it, so that they load neighbouring groups; each adds the terms
// of one key; then invocation (group, column) adds every GROUPS-th weighted value to its 4 columns. The sums of the
// groups are added at the end, in a fixed order. The new token comes last, and belongs to the first part.
//
// split: several workgroups serve a head, and leave their maxima and sums in `sums` (heads, parts, V4 + 1) vec4<f32>,
// which attention/portable/decode_join adds up.
//
// Numerics: f32; scores are scaled by log2 e so that exp2 can be used. The initial maximum is finite.
// Sources: Dao, "FlashAttention-2", 2023, algorithm 1; Pope et al., "Efficiently Scaling Transformer Inference", 2022.

import package::attention::cache::{cache, params, place_of, qkv, rotated_group, row_before};
@if(sinks) import package::attention::sinks::sink_of;
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::attention::{LOWEST, MASKED, add_dot};
import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{row_max, row_sum};
@if(capped) import package::lib::soft_cap::soft_capped;
import package::tile::{COLUMNS, D4, LANES, SHARE, V4};

@if(!split) @group(0) @binding(4) var<storage, read_write> out: array<Packed>;
@if(split) @group(0) @binding(4) var<storage, read_write> sums: array<vec4<f32>>;

const GROUPS: u32 = LANES / COLUMNS; // COLUMNS is V4 rounded up to a power of two

var<workgroup> query: array<vec4<f32>, D4>;
var<workgroup> newest: array<vec4<f32>, D4>; // the new token's key
var<workgroup> terms: array<f32, LANES * (SHARE + 1u)>; // of the scores of the tile; one word apart for the banks
var<workgroup> weights: array<f32, LANES>; // of the keys of the tile
var<workgroup> parts: array<vec4<f32>, LANES>;

@compute @workgroup_size(LANES)
fn decode(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let served = min(index, params.sequences * params.heads * params.parts - 1u); // a folded grid has surplus workgroups
    let item = served / params.parts;
    let part = served % params.parts;
    let sequence = item / params.heads;
    let head = item % params.heads;
    let place = place_of(sequence, head);
    let appended = row_before(place, 0u);
    for (var c = lane; c < D4; c += LANES) {
        query[c] = params.scale * load4(rotated_group(place.query, c, place.angles + params.query_angles));
        let key = rotated_group(place.key, c, place.angles);
        newest[c] = load4(key);
        if (place.appends && part == 0u) {
            cache[place.keys + appended + c] = key;
        }
    }
    workgroupBarrier();

    let seen = min(place.position + 1u, params.window);
    let first = 1u + part * params.part_keys;
    let end = min(seen, first + params.part_keys);
    let column = lane % COLUMNS;
    let group = lane / COLUMNS;
    @if(alibi) let slope = alibi_slope(head, params.heads);
    var highest = LOWEST;
    var total = 0.0; // Σ p over this invocation's keys
    @if(sinks) {
        if (part == 0u) {
            highest = sink_of(head);
            total = select(0.0, 1.0, lane == 0u);
        }
    }
    var sum: vec4<f32>; // Σ p v over the keys of the invocation's group, in its columns
    for (var tile = first; tile < end; tile += LANES) {
        for (var key = lane / SHARE; key < LANES; key += LANES / SHARE) {
            var term = 0.0;
            if (tile + key < end) {
                let row = place.keys + row_before(place, tile + key);
                for (var c = lane % SHARE; c < D4; c += SHARE) {
                    term = add_dot(term, query[c], load4(cache[row + c]));
                }
            }
            terms[key * (SHARE + 1u) + lane % SHARE] = term;
        }
        workgroupBarrier();
        var score = MASKED;
        if (tile + lane < end) {
            score = 0.0;
            for (var share = 0u; share < SHARE; share++) {
                score += terms[lane * (SHARE + 1u) + share];
            }
            @if(capped) { score = soft_capped(score, params.cap, params.inverse_cap); }
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
            for (var i = group; i < min(LANES, end - tile); i += GROUPS) {
                let row = place.values + row_before(place, tile + i);
                sum = fma(vec4<f32>(weights[i]), load4(cache[row + column]), sum);
            }
        }
        // The next weights are written two barriers from here.
    }

    var score = 0.0;
    for (var c = 0u; c < D4; c++) {
        score = add_dot(score, query[c], newest[c]);
    }
    @if(capped) { score = soft_capped(score, params.cap, params.inverse_cap); }
    let has_newest = part == 0u;
    let top = max(highest, select(LOWEST, score, has_newest));
    let decay = exp2(highest - top);
    let p = select(0.0, exp2(score - top), has_newest);
    let all = row_sum(total * decay, lane) + p;
    parts[lane] = sum * decay;
    workgroupBarrier();
    @if(split) let base = served * (V4 + 1u);
    if (index == served && lane < V4) {
        let value = qkv[place.value + lane];
        var joined = p * load4(value);
        for (var i = 0u; i < GROUPS; i++) {
            joined += parts[i * COLUMNS + lane];
        }
        @if(split) { sums[base + lane] = joined; }
        @if(!split) { out[params.out_offset + sequence * params.out_stride + head * V4 + lane] = store4(joined / all); }
        if (place.appends && has_newest) {
            cache[place.values + appended + lane] = value;
        }
    }
    @if(split) {
        if (index == served && lane == 0u) {
            sums[base + V4] = vec4<f32>(top, all, 0.0, 0.0);
        }
    }
}
