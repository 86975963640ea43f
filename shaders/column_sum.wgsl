// Sum over rows:   y (P, D) [+]= Σ over each block of `block` consecutive rows of x (N, D),   P = ceil(N / block)
//
// A bias gradient takes two launches: rows to partials, then the partials (as one block) to the gradient. The rows of a
// block are added in a fixed order (lib/reduce), so results are the same from run to run.
// With `grouped` the rows of x are sorted by expert, and row e of y (E, D) is the sum of the rows of expert e, in one
// launch.
// With `scaled` the sums are multiplied by a factor.
// y is f32. x is f32 with `gradient` (it holds partials), otherwise it has the storage type.

import package::lib::element::{Packed, load4};
import package::lib::reduce::{ROW_STEP, down};
@if(!grouped) import package::lib::reduce::column_block;
@if(grouped) import package::lib::reduce::columns_of;
import package::tile::LANES;

struct Params {
    rows: u32,
    block: u32, // rows of x summed into one row of y
    x_offset4: u32, // groups of 4 before x in its binding
    x_stride4: u32,
    y_stride4: u32,
    factor: f32, // with `scaled`
}

@if(gradient) alias Input = vec4<f32>;
@if(!gradient) alias Input = Packed;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Input>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;
@if(grouped) @group(0) @binding(3) var<storage, read> offsets: array<u32>; // (E + 1), rows by expert

@if(gradient) fn load_x(at: u32) -> vec4<f32> { return x[at]; }
@if(!gradient) fn load_x(at: u32) -> vec4<f32> { return load4(x[at]); }

@compute @workgroup_size(LANES)
fn column_sum(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    @if(!grouped) let own = column_block(workgroup, lane, params.block, params.rows, params.y_stride4);
    @if(grouped) let own = columns_of(workgroup, lane, offsets[workgroup.y], offsets[workgroup.y + 1u], params.y_stride4);
    var sum = vec4<f32>(0.0);
    for (var row = own.first; row < own.end; row += ROW_STEP) {
        sum += load_x(params.x_offset4 + row * params.x_stride4 + own.column4);
    }
    sum = down(sum, lane);
    if (own.is_writer) {
        @if(scaled) { sum *= params.factor; }
        let at = workgroup.y * params.y_stride4 + own.column4;
        @if(accumulate) { sum += y[at]; }
        y[at] = sum;
    }
}
