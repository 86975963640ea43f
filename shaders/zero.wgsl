// Zeros:   y = 0                                                                                    y (rows, 4 · cols4)
//
// For sums that begin within a recording; the host clears those that outlive it. One invocation writes 4 elements.

import package::lib::element::{Packed, store4};
import package::lib::grid::linear_index;
import package::tile::LANES;

struct Params {
    rows: u32,
    cols4: u32,
    offset: u32, // offset and stride count groups of 4
    stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Packed>;

@compute @workgroup_size(LANES)
fn zero(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let row = index / params.cols4;
    if (row < params.rows) {
        y[params.offset + row * params.stride + index % params.cols4] = store4(vec4<f32>(0.0));
    }
}
