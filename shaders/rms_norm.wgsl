// Root mean square normalisation:   y = x · rstd · w,   rstd = 1 / sqrt(mean(x²) + eps)
//                                                                          x, y, dy, dx (N, D); w (D); rstd (N) f32
// Backward, with h = dy · w:   dx = rstd · (h − x · rstd² · mean(h · x)),   dw = Σ_rows dy · x · rstd
//
//   rms_norm                   writes y and rstd; with `residual` y is the residual plus the norm
//   rms_norm_backward          writes dx; with `accumulate` adds to it (it holds the residual's gradient)
//   rms_norm_backward_weight   sums each block of ROWS rows into one row of partials (ceil(N / ROWS), D) f32, which
//                              column_sum reduces
//
// One workgroup per row; software tier: one invocation per row (lib/reduce). In the weight pass an invocation owns 4
// columns of one block of rows; otherwise the lanes of a workgroup share the rows. `zero_centered`: 1 + w for w; `scaled`:
// the norm times a factor, and so both gradients.
// Numerics: statistics and sums in f32, in a fixed order: weight gradients are the same from run to run.
// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::norm::norm_factors;
import package::lib::reduce::{ROW_STEP, STEP, column_block, down, first_of, row_of, row_sum};
import package::lib::row::keep_inside;
import package::tile::{LANES, ROWS};

struct Params {
    rows: u32,
    cols: u32,
    cols4: u32, // groups of 4 in a row, and the row stride of the residual; others may be column ranges of larger tensors
    epsilon: f32,
    x_offset: u32, // in groups of 4, like all offsets and strides
    x_stride: u32,
    dx_offset: u32,
    dx_stride: u32,
    y_offset: u32, // of y and of dy
    y_stride: u32,
    factor: f32, // read if `scaled`
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>; // (N, D)
@group(0) @binding(2) var<storage, read> w: array<Packed>; // (D)
@group(0) @binding(3) var<storage, read_write> y: array<Packed>; // (N, D)
@group(0) @binding(4) var<storage, read_write> rstd_out: array<f32>; // (N)
@if(residual) @group(0) @binding(5) var<storage, read> residual: array<Packed>; // (N, D)

@group(0) @binding(3) var<storage, read> dy: array<Packed>; // (N, D)
@group(0) @binding(4) var<storage, read> rstd: array<f32>; // (N)
@group(0) @binding(5) var<storage, read_write> dx: array<Packed>; // (N, D)
@group(0) @binding(5) var<storage, read_write> partials: array<vec4<f32>>; // (N / ROWS, D)

@compute @workgroup_size(LANES)
fn rms_norm(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let y_row = params.y_offset + row * params.y_stride;
    let x_row = params.x_offset + row * params.x_stride;
    var squares = 0.0;
    for (var i = first; i < params.cols4; i += STEP) {
        let value = load4(x[x_row + i]);
        squares += dot(value, value); // padding is zero
    }
    let scale = inverseSqrt(row_sum(squares, lane) / f32(params.cols) + params.epsilon);
    if (first == 0u) {
        rstd_out[row] = scale;
    }
    for (var i = first; i < params.cols4; i += STEP) {
        var value = load4(x[x_row + i]) * scale * norm_factors(w[i]);
        @if(scaled) { value *= params.factor; }
        @if(residual) { value += load4(residual[row * params.cols4 + i]); }
        y[y_row + i] = store4(keep_inside(value, 4u * i, params.cols));
    }
}

@compute @workgroup_size(LANES)
fn rms_norm_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let dy_row = params.y_offset + row * params.y_stride;
    let x_row = params.x_offset + row * params.x_stride;
    let dx_row = params.dx_offset + row * params.dx_stride;
    var products = 0.0;
    for (var i = first; i < params.cols4; i += STEP) {
        products += dot(load4(dy[dy_row + i]) * norm_factors(w[i]), load4(x[x_row + i]));
    }
    let scale = rstd[row];
    let pull = scale * scale * row_sum(products, lane) / f32(params.cols);
    for (var i = first; i < params.cols4; i += STEP) {
        let h = load4(dy[dy_row + i]) * norm_factors(w[i]);
        var value = scale * (h - load4(x[x_row + i]) * pull);
        @if(scaled) { value *= params.factor; }
        @if(accumulate) { value += load4(dx[dx_row + i]); }
        dx[dx_row + i] = store4(keep_inside(value, 4u * i, params.cols));
    }
}

@compute @workgroup_size(LANES)
fn rms_norm_backward_weight(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let own = column_block(workgroup, lane, ROWS, params.rows, params.cols4);
    var sum = vec4<f32>(0.0);
    for (var row = own.first; row < own.end; row += ROW_STEP) {
        let value = load4(x[params.x_offset + row * params.x_stride + own.column4]);
        sum += load4(dy[params.y_offset + row * params.y_stride + own.column4]) * value * rstd[row];
    }
    sum = down(sum, lane);
    @if(scaled) { sum *= params.factor; }
    if (own.is_writer) {
        partials[workgroup.y * params.cols4 + own.column4] = sum;
    }
}
