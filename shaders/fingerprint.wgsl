// Fingerprint of the bits of a tensor: two sums of hashes of its words with their places, modulo 2^32
//
//   fingerprint   sums[4 index] += Σ_i h(words[i] ^ a (first + i)),
//                 sums[4 index + 1] += Σ_i h(words[i] ^ b (first + i) ^ c)
//
//   words (W) of 32 bits, whatever they mean; sums (S, 4), of which each row has only two sums; h is the finaliser of
//   MurmurHash3 (Appleby, 2011), a permutation of the 32-bit numbers: no change of a single word keeps a sum.
//
// An invocation hashes EACH words, LANES apart, and adds its sums to those of the tensor. Sums of integers do not
// depend on their order, so atomic additions give the same bits in every run and on every adapter.

import package::lib::grid::linear_index;
import package::tile::{EACH, LANES};

struct Params {
    words: u32,
    offset: u32, // words before the first in the binding
    first: u32, // place of the first word, for tensors of several parts
    index: u32, // row of the sums
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> words: array<u32>;
@group(0) @binding(2) var<storage, read_write> sums: array<atomic<u32>>;

@compute @workgroup_size(LANES)
fn fingerprint(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let start = linear_index(workgroup) * (LANES * EACH) + lane;
    var low = 0u;
    var high = 0u;
    for (var k = 0u; k < EACH; k++) {
        let i = start + k * LANES;
        if (i < params.words) {
            let word = words[params.offset + i];
            let place = params.first + i;
            low += hash(word ^ (place * 0x9e3779b1u));
            high += hash(word ^ (place * 0x7feb352du) ^ 0x5bd1e995u);
        }
    }
    if (start < params.words) {
        atomicAdd(&sums[4u * params.index], low);
        atomicAdd(&sums[4u * params.index + 1u], high);
    }
}

fn hash(word: u32) -> u32 {
    var h = word;
    h = (h ^ (h >> 16u)) * 0x85ebca6bu;
    h = (h ^ (h >> 13u)) * 0xc2b2ae35u;
    return h ^ (h >> 16u);
}
