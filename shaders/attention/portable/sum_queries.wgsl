// Attention backward, after attention/portable/backward_kv.wgsl with `split`:   dq = scale Σ_p parts[p]
//
//   parts (P, N, heads · 4 D4) f32 read: of each row, only the parts in which the query sees a block of keys; the
//   others were not written. starts (1, N) u32 read
//   the first heads · 4 D4 columns of dqkv (N, columns) written
//
// One invocation computes 4 elements of dq. Numerics: the parts are added in f32 in ascending order, so results are the
// same from run to run.

@if(windowed || segmented) import package::attention::bounds::first_seen;
import package::attention::params::params;
import package::attention::portable::parts::next_block;
import package::lib::element::{Packed, store4};
import package::lib::grid::linear_index;
import package::tile::{BLOCK, D4, LANES};

@group(0) @binding(2) var<storage, read> parts: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> dqkv: array<Packed>;

@compute @workgroup_size(LANES)
fn attention_sum_queries(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let width = params.heads * D4;
    let row = index / width;
    if (row >= params.rows) {
        return;
    }
    let token = row % params.tokens;
    @if(windowed || segmented) let first = first_seen(row - token, token) / BLOCK;
    @if(!windowed && !segmented) let first = 0u;
    @if(causal) let last = token / BLOCK;
    @if(!causal) let last = (params.tokens - 1u) / BLOCK;
    var sum: vec4<f32>;
    for (var part = 0u; part < params.parts; part++) {
        if (next_block(part, first) <= last) {
            sum += parts[part * params.rows * width + index];
        }
    }
    dqkv[params.dqkv_offset + row * params.dqkv_stride + index % width] = store4(params.scale * sum);
}
