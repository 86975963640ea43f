// Softplus:   y = ln(1 + e^x),   dx = dy / (1 + e^-x)                                         x, y, dy, dx (rows, cols)
//
//   softplus            writes y
//   softplus_backward   writes dx
//
// One invocation computes 4 elements. Numerics: f32 between load and store; e^-|x| cannot overflow.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::row::keep_inside;
import package::tile::LANES;

struct Params {
    rows: u32,
    cols: u32,
    stride4: u32, // in groups of 4 elements
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> y: array<Packed>;

@group(0) @binding(2) var<storage, read> dy: array<Packed>;
@group(0) @binding(3) var<storage, read_write> dx: array<Packed>;

@compute @workgroup_size(LANES)
fn softplus(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = linear_index(workgroup) * LANES + lane;
    if (at >= params.rows * params.stride4) {
        return;
    }
    let value = load4(x[at]);
    let result = max(value, vec4<f32>(0.0)) + log(1.0 + exp(-abs(value)));
    y[at] = store4(keep_inside(result, 4u * (at % params.stride4), params.cols));
}

@compute @workgroup_size(LANES)
fn softplus_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = linear_index(workgroup) * LANES + lane;
    if (at >= params.rows * params.stride4) {
        return;
    }
    let value = load4(x[at]);
    let small = exp(-abs(value));
    let slope = select(small, vec4<f32>(1.0), value >= vec4<f32>(0.0)) / (1.0 + small);
    dx[at] = store4(keep_inside(load4(dy[at]) * slope, 4u * (at % params.stride4), params.cols));
}
