// The output of attention decoding from the parts in which attention/portable/decode walks the keys:
//
//   out (B, heads · 4 V4) = Σ_p 2^(m_p − m) s_p / Σ_p 2^(m_p − m) t_p,   m = max_p m_p
//
//   sums (B · heads, parts, V4 + 1) vec4<f32>   read: s_p of each part, then its maximum m_p and total t_p
//
// An invocation adds up 4 columns of a head, part after part, so results are the same from run to run. Numerics: f32.

import package::lib::element::{Packed, store4};
import package::lib::grid::linear_index;
import package::tile::{LANES, V4};

struct Params {
    items: u32, // B · heads
    heads: u32,
    parts: u32,
    out_offset: u32, // in groups of 4, like the stride
    out_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> sums: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<Packed>;

@compute @workgroup_size(LANES)
fn decode_join(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let item = index / V4;
    let column = index % V4;
    if (item >= params.items) {
        return;
    }
    let first = item * params.parts * (V4 + 1u);
    var top = sums[first + V4].x;
    for (var part = 1u; part < params.parts; part++) {
        top = max(top, sums[first + part * (V4 + 1u) + V4].x);
    }
    var sum = vec4<f32>(0.0);
    var total = 0.0;
    for (var part = 0u; part < params.parts; part++) {
        let at = first + part * (V4 + 1u);
        let share = exp2(sums[at + V4].x - top);
        sum = fma(vec4<f32>(share), sums[at + column], sum);
        total = fma(share, sums[at + V4].y, total);
    }
    let to = params.out_offset + item / params.heads * params.out_stride + item % params.heads * V4;
    out[to + column] = store4(sum / total);
}
