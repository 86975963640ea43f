// Sorts the tokens of each chunk of CHUNK by their logits (tensors in draw/chunks.wgsl):
//
//   logits (B, V) f32   read; with `capped`, capped softly (lib/soft_cap); those of tokens that have occurred are
//                       penalised
//
// A workgroup sorts a chunk. The place of a token is the number of those that are not after it, which each invocation
// counts for 4 tokens at a time; the sum of weights is theirs, in the order of their numbers, so it never decreases from
// one place to the next. Nothing moves before its place is known. Places past the vocabulary are sorted as NaNs are.
//
// Without `shuffled`, keys and weights are shared in workgroup memory; with it, in registers (lib/lanes).
// Source: Keskar et al., "CTRL", 2019, section 4.1 (the penalty).

import package::draw::chunks::{LOWEST, logit_of, params, sampling, seen, sorted, weight_of};
import package::lib::bits::{INFINITY, is_beyond, order_of};
import package::lib::grid::linear_index;
import package::lib::reduce::row_max;
@if(capped) import package::lib::soft_cap::soft_capped4;
import package::tile::{CHUNK, LANES};

@group(0) @binding(4) var<storage, read> logits: array<vec4<f32>>;

const GROUPS: u32 = CHUNK / (4u * LANES); // groups of 4 tokens of an invocation

var<private> keys: array<vec4<u32>, GROUPS>;
var<private> weights: array<vec4<f32>, GROUPS>;
@if(!shuffled) var<workgroup> shared_keys: array<vec4<u32>, CHUNK / 4u>;
@if(!shuffled) var<workgroup> shared_weights: array<vec4<f32>, CHUNK / 4u>;

@compute @workgroup_size(LANES)
fn sort(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let local = index / params.chunks;
    let chunk = index % params.chunks;
    if (local >= params.sequences) {
        return;
    }
    let sequence = params.first + local;
    var top = LOWEST;
    for (var g = 0u; g < GROUPS; g++) {
        let first = CHUNK * chunk + 4u * (g * LANES + lane);
        keys[g] = vec4<u32>(0u);
        if (first < params.vocab) {
            let loaded = logits[sequence * params.logits_stride + first / 4u];
            @if(!capped) let capped = loaded;
            @if(capped) let capped = soft_capped4(loaded, params.cap, params.inverse_cap);
            let bits = seen[sequence * params.seen_stride + first / 32u] >> (first % 32u);
            for (var e = 0u; e < 4u; e++) {
                var logit = capped[e];
                if (((bits >> e) & 1u) == 1u) {
                    logit *= select(sampling.repetition_penalty, 1.0 / sampling.repetition_penalty, logit > 0.0);
                }
                if (first + e < params.vocab && !is_beyond(bitcast<u32>(loaded[e]), INFINITY)) {
                    keys[g][e] = order_of(logit);
                    top = max(top, logit);
                }
            }
        }
    }
    top = row_max(top, lane);
    for (var g = 0u; g < GROUPS; g++) {
        for (var e = 0u; e < 4u; e++) {
            let key = keys[g][e];
            weights[g][e] = select(weight_of(logit_of(key), top), 0.0, key == 0u);
        }
    }
    share(lane);
    let start = local * params.sorted_stride + CHUNK * chunk;
    let plane = CHUNK * params.chunks;
    for (var g = 0u; g < GROUPS; g++) {
        let first = 4u * (g * LANES + lane);
        for (var e = 0u; e < 4u; e++) {
            let key = keys[g][e];
            var count = vec4<u32>(0u); // of the tokens that are not after this one
            var mass = vec4<f32>(0.0);
            for (var other = 0u; other < GROUPS; other++) {
                for (var owner = 0u; owner < LANES; owner++) {
                    let theirs = keys_of(other, owner);
                    let numbers = vec4<u32>(4u * (other * LANES + owner)) + vec4<u32>(0u, 1u, 2u, 3u);
                    let is_tie = theirs == vec4<u32>(key);
                    let counts = (theirs > vec4<u32>(key)) | (is_tie & (numbers <= vec4<u32>(first + e)));
                    count += select(vec4<u32>(0u), vec4<u32>(1u), counts);
                    mass += select(vec4<f32>(0.0), weights_of(other, owner), counts);
                }
            }
            let to = start + count.x + count.y + count.z + count.w - 1u;
            sorted[to] = key;
            sorted[to + plane] = bitcast<u32>((mass.x + mass.y) + (mass.z + mass.w));
            sorted[to + 2u * plane] = CHUNK * chunk + first + e;
        }
    }
    if (lane == 0u) {
        sorted[local * params.sorted_stride + 3u * plane + chunk] = bitcast<u32>(top);
    }
}

// Keys and weights of the group `group` of the invocation `owner`, which is uniform.
@if(shuffled) fn share(lane: u32) {}
@if(shuffled) fn keys_of(group: u32, owner: u32) -> vec4<u32> { return subgroupShuffle(keys[group], owner); }
@if(shuffled) fn weights_of(group: u32, owner: u32) -> vec4<f32> { return subgroupShuffle(weights[group], owner); }
@if(!shuffled) fn keys_of(group: u32, owner: u32) -> vec4<u32> { return shared_keys[group * LANES + owner]; }
@if(!shuffled) fn weights_of(group: u32, owner: u32) -> vec4<f32> { return shared_weights[group * LANES + owner]; }

@if(!shuffled)
fn share(lane: u32) {
    for (var g = 0u; g < GROUPS; g++) {
        shared_keys[g * LANES + lane] = keys[g];
        shared_weights[g * LANES + lane] = weights[g];
    }
    workgroupBarrier();
}
