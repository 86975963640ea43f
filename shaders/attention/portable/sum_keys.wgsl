// Attention backward, after the gradients of keys and values with `key_parts`:   dk = Σ_s parts[s],   dv likewise
//
//   key_parts (S, N, columns of keys and values) f32 read, S = group / share
//   those columns of dqkv (N, columns) written
//
// One invocation computes 4 elements. Numerics: the parts are added in f32 in ascending order, so results are the same
// from run to run.

import package::attention::params::params;
import package::lib::element::{Packed, store4};
import package::lib::grid::linear_index;
import package::tile::{D4, LANES, V4};

@group(0) @binding(2) var<storage, read> key_parts: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> dqkv: array<Packed>;

@compute @workgroup_size(LANES)
fn attention_sum_keys(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let width = params.heads / params.group * (D4 + V4);
    let row = index / width;
    if (row >= params.rows) {
        return;
    }
    var sum: vec4<f32>;
    for (var part = 0u; part < params.group / params.share; part++) {
        sum += key_parts[part * params.rows * width + index];
    }
    dqkv[params.dqkv_offset + row * params.dqkv_stride + params.k_start + index % width] = store4(sum);
}
