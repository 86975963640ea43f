// Columns times factors:   y = residual + factor · (f · x + bias)       x, y, residual (N, D); bias (D)
// Gradient of m:           partial sums (P, D) f32 = Σ over blocks of rows of dy · x · f / m
//
//   f (D) = m, with `normed` m / √s, 1 where s is 0       m, s (D) f32, the sums of squares of row_squares
//
// With `residual`, `bias` and `scaled` the terms and the factor of y that there are. The gradient of x is the forward
// pass on dy, since DoRA's paper takes √s for a constant. The columns of no map have m = s = 0: of those f is 1, and
// that gradient 0.
// One invocation per group of 4 columns of a row; the sums go down the rows in a fixed order (lib/reduce).
// Numerics: f32.
// Source: Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", 2024, equations 5 and 11.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{ROW_STEP, column_block, down};
import package::tile::LANES;

struct Params {
    rows: u32,
    cols4: u32,
    x_stride: u32, // strides count groups of 4
    y_stride: u32,
    residual_stride: u32,
    block: u32, // rows of x summed into one row of y
    factor: f32, // with `scaled`
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read> m: array<vec4<f32>>;
@if(normed) @group(0) @binding(3) var<storage, read> s: array<vec4<f32>>;
@if(bias) @group(0) @binding(4) var<storage, read> bias: array<Packed>;
@if(residual) @group(0) @binding(5) var<storage, read> residual: array<Packed>;
@group(0) @binding(6) var<storage, read_write> y: array<Packed>;
@group(0) @binding(4) var<storage, read> dy: array<Packed>;
@group(0) @binding(6) var<storage, read_write> partials: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn column_scale(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = linear_index(workgroup) * LANES + lane;
    let row = at / params.cols4;
    let column4 = at % params.cols4;
    if (row >= params.rows) {
        return;
    }
    var value = factors(column4) * load4(x[row * params.x_stride + column4]);
    @if(bias) { value += load4(bias[column4]); }
    @if(scaled) { value *= params.factor; }
    @if(residual) { value += load4(residual[row * params.residual_stride + column4]); }
    y[row * params.y_stride + column4] = store4(value);
}

@if(!normed) fn factors(column4: u32) -> vec4<f32> { return m[column4]; }
@if(normed)
fn factors(column4: u32) -> vec4<f32> {
    let squares = s[column4];
    return select(vec4<f32>(1.0), m[column4] / sqrt(squares), squares > vec4<f32>(0.0));
}

@if(normed)
@compute @workgroup_size(LANES)
fn column_scale_backward_weight(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let own = column_block(workgroup, lane, params.block, params.rows, params.cols4);
    var sum = vec4<f32>(0.0);
    for (var row = own.first; row < own.end; row += ROW_STEP) {
        sum += load4(x[row * params.x_stride + own.column4]) * load4(dy[row * params.y_stride + own.column4]);
    }
    sum = down(sum, lane);
    if (own.is_writer) {
        let squares = s[own.column4];
        let inverse = select(vec4<f32>(0.0), inverseSqrt(squares), squares > vec4<f32>(0.0));
        partials[workgroup.y * params.cols4 + own.column4] = inverse * sum;
    }
}
