// Scaled copy or sum:   y = factor · x,   with `accumulate` y += factor · x                    x, y (rows, 4 · cols4)
//                       with `scaled` y = factor · scalar · x                                  scalar (1)
//
// For the residuals and gradient sums that no other kernel fuses. One invocation computes 4 elements; x and y have
// their own offsets and strides. Numerics: f32 between load and store.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::LANES;

struct Params {
    rows: u32,
    cols4: u32,
    x_offset: u32, // offsets and strides count groups of 4
    y_offset: u32,
    x_stride: u32,
    y_stride: u32,
    factor: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> y: array<Packed>;
@if(scaled) @group(0) @binding(3) var<storage, read> scalar: array<Packed>; // of a group of 4 the first

@compute @workgroup_size(LANES)
fn add(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let row = index / params.cols4;
    let column4 = index % params.cols4;
    if (row >= params.rows) {
        return;
    }
    let at = params.y_offset + row * params.y_stride + column4;
    var value = params.factor * load4(x[params.x_offset + row * params.x_stride + column4]);
    @if(scaled) { value *= load4(scalar[0]).x; }
    @if(accumulate) { value += load4(y[at]); }
    y[at] = store4(value);
}
