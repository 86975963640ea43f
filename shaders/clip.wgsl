// Clipping:   y = min(max(x, −limit), limit)                                            x, y (rows, 4 · cols4)
//
//   clip            writes y
//   clip_backward   dy becomes dx in place: 0 where x was beyond the limit, as it is elsewhere
//
// One invocation computes 4 elements. Numerics: exact but for the rounding of the limit to the storage type.
// Source: clip_qkv of MPT (MosaicML, 2023), OLMo and OLMoE.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::LANES;

struct Params {
    rows: u32,
    cols4: u32,
    x_offset: u32, // offsets and strides count groups of 4
    y_offset: u32, // y or dy
    x_stride: u32,
    y_stride: u32,
    limit: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> y: array<Packed>;
@group(0) @binding(3) var<storage, read_write> gradient: array<Packed>;

@compute @workgroup_size(LANES)
fn clip(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let row = index / params.cols4;
    let column4 = index % params.cols4;
    if (row >= params.rows) {
        return;
    }
    let value = load4(x[params.x_offset + row * params.x_stride + column4]);
    let limit = vec4<f32>(params.limit);
    // By comparisons, so that a NaN stays one.
    let bounded = select(value, limit, value > limit);
    y[params.y_offset + row * params.y_stride + column4] = store4(select(bounded, -limit, value < -limit));
}

@compute @workgroup_size(LANES)
fn clip_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let row = index / params.cols4;
    let column4 = index % params.cols4;
    if (row >= params.rows) {
        return;
    }
    let value = load4(x[params.x_offset + row * params.x_stride + column4]);
    let at = params.y_offset + row * params.y_stride + column4;
    let is_beyond = abs(value) > vec4<f32>(params.limit);
    gradient[at] = store4(select(load4(gradient[at]), vec4<f32>(0.0), is_beyond));
}
