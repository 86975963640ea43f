// Sum over rows:   y (P, D) [+]= Σ over each block of `block` consecutive rows of x (N, D),   P = ceil(N / block)
//
// A bias gradient takes two launches: rows to partials, then the partials (as one block) to the gradient. An invocation
// owns 4 columns of one block and adds its rows in ascending order, so results are the same from run to run.
// y is f32. x is f32 with `gradient` (it holds partials), otherwise it has the storage type.

import package::lib::element::{Packed, load4};
import package::lib::reduce::column_block;
import package::tile::LANES;

struct Params {
    rows: u32,
    block: u32, // rows of x summed into one row of y
    x_stride4: u32,
    y_stride4: u32,
}

@if(gradient) alias Input = vec4<f32>;
@if(!gradient) alias Input = Packed;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Input>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;

@if(gradient) fn load_x(at: u32) -> vec4<f32> { return x[at]; }
@if(!gradient) fn load_x(at: u32) -> vec4<f32> { return load4(x[at]); }

@compute @workgroup_size(LANES)
fn column_sum(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let own = column_block(workgroup, lane, params.block, params.rows);
    if (own.column4 >= params.y_stride4) {
        return;
    }
    var sum = vec4<f32>(0.0);
    for (var row = own.first; row < own.end; row++) {
        sum += load_x(row * params.x_stride4 + own.column4);
    }
    let at = workgroup.y * params.y_stride4 + own.column4;
    @if(accumulate) { sum += y[at]; }
    y[at] = sum;
}
