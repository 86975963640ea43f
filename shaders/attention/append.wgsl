// Copies k and v of the new tokens to their rows of the cache (tensors in attention/cache.wgsl). One invocation per group
// of 4 columns.

import package::attention::cache::{params, position_of, qkv};
import package::lib::element::Packed;
import package::lib::grid::linear_index;
import package::tile::LANES;

@group(0) @binding(3) var<storage, read_write> cache: array<Packed>;

@compute @workgroup_size(LANES)
fn append(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let sequence = index / params.copied4;
    let column = index % params.copied4;
    if (sequence < params.sequences) {
        let to = params.cache_offset + (sequence * params.tokens + position_of(sequence)) * params.cache_stride;
        cache[to + column] = qkv[params.qkv_offset + sequence * params.qkv_stride + params.k_start + column];
    }
}
