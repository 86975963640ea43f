// Layer normalisation:   y = x̂ · w + b,   x̂ = (x − mean(x)) · rstd,   rstd = 1 / sqrt(var(x) + eps)
//                                                             x, y, dy, dx (N, D); w, b (D); mean, rstd (N) f32
// Backward, with h = dy · w:   dx = rstd · (h − mean(h) − x̂ · mean(h · x̂)),   dw = Σ_rows dy · x̂,   db = Σ_rows dy
//
//   layer_norm                   writes y, mean and rstd
//   layer_norm_backward          writes dx; with `accumulate` adds to it (it holds the residual's gradient)
//   layer_norm_backward_weight   sums each block of ROWS rows into one row of partials each for w and b,
//                                (ceil(N / ROWS), D) f32; column_sum reduces them
//
// One workgroup per row; software tier: one invocation per row (lib/reduce). In the weight pass an invocation owns 4
// columns of one block of rows; otherwise the lanes of a workgroup share the rows. `zero_centered`: 1 + w for w;
// `unbiased`: there is no b.
// Numerics: statistics and sums in f32, in a fixed order. The variance takes a second pass over x − mean: the
// difference mean(x²) − mean(x)² would cancel where the mean is large.
// Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::norm::norm_factors;
import package::lib::reduce::{ROW_STEP, STEP, column_block, down, first_of, row_of, row_sum};
import package::lib::row::keep_inside;
import package::tile::{LANES, ROWS};

struct Params {
    rows: u32,
    cols: u32,
    stride4: u32, // row stride of x, y, dy and dx, in groups of 4
    epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>; // (N, D)
@group(0) @binding(2) var<storage, read> w: array<Packed>; // (D)
@if(!unbiased) @group(0) @binding(3) var<storage, read> b: array<Packed>; // (D)
@group(0) @binding(4) var<storage, read_write> y: array<Packed>; // (N, D)
@group(0) @binding(5) var<storage, read_write> mean_out: array<f32>; // (N)
@group(0) @binding(6) var<storage, read_write> rstd_out: array<f32>; // (N)

@group(0) @binding(4) var<storage, read> dy: array<Packed>; // (N, D)
@group(0) @binding(5) var<storage, read> mean: array<f32>; // (N)
@group(0) @binding(6) var<storage, read> rstd: array<f32>; // (N)
@group(0) @binding(7) var<storage, read_write> dx: array<Packed>; // (N, D)
@group(0) @binding(7) var<storage, read_write> w_partials: array<vec4<f32>>; // (N / ROWS, D)
@if(!unbiased) @group(0) @binding(8) var<storage, read_write> b_partials: array<vec4<f32>>; // (N / ROWS, D)

@compute @workgroup_size(LANES)
fn layer_norm(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let start = row * params.stride4;
    var values = 0.0;
    for (var i = first; i < params.stride4; i += STEP) {
        values += dot(load4(x[start + i]), vec4<f32>(1.0)); // padding is zero
    }
    let center = row_sum(values, lane) / f32(params.cols);
    var squares = 0.0;
    for (var i = first; i < params.stride4; i += STEP) {
        let value = keep_inside(load4(x[start + i]) - center, 4u * i, params.cols);
        squares += dot(value, value);
    }
    let scale = inverseSqrt(row_sum(squares, lane) / f32(params.cols) + params.epsilon);
    if (first == 0u) {
        mean_out[row] = center;
        rstd_out[row] = scale;
    }
    for (var i = first; i < params.stride4; i += STEP) {
        var value = (load4(x[start + i]) - center) * scale * norm_factors(w[i]);
        @if(!unbiased) { value += load4(b[i]); }
        y[start + i] = store4(keep_inside(value, 4u * i, params.cols));
    }
}

@compute @workgroup_size(LANES)
fn layer_norm_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let start = row * params.stride4;
    let center = mean[row];
    let scale = rstd[row];
    var sums = 0.0; // Σ h; the padding of dy and w is zero
    var products = 0.0; // Σ h · x̂
    for (var i = first; i < params.stride4; i += STEP) {
        let h = load4(dy[start + i]) * norm_factors(w[i]);
        sums += dot(h, vec4<f32>(1.0));
        products += dot(h, (load4(x[start + i]) - center) * scale);
    }
    let shift = row_sum(sums, lane) / f32(params.cols);
    let pull = row_sum(products, lane) / f32(params.cols);
    for (var i = first; i < params.stride4; i += STEP) {
        let h = load4(dy[start + i]) * norm_factors(w[i]);
        var value = scale * (h - shift - (load4(x[start + i]) - center) * scale * pull);
        @if(accumulate) { value += load4(dx[start + i]); }
        dx[start + i] = store4(keep_inside(value, 4u * i, params.cols));
    }
}

@compute @workgroup_size(LANES)
fn layer_norm_backward_weight(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let own = column_block(workgroup, lane, ROWS, params.rows, params.stride4);
    var w_sum = vec4<f32>(0.0);
    @if(!unbiased) var b_sum = vec4<f32>(0.0);
    for (var row = own.first; row < own.end; row += ROW_STEP) {
        let at = row * params.stride4 + own.column4;
        let gradient = load4(dy[at]);
        w_sum += gradient * (load4(x[at]) - mean[row]) * rstd[row];
        @if(!unbiased) { b_sum += gradient; }
    }
    w_sum = down(w_sum, lane);
    @if(!unbiased) { b_sum = down(b_sum, lane); }
    if (own.is_writer) {
        w_partials[workgroup.y * params.stride4 + own.column4] = w_sum;
        @if(!unbiased) b_partials[workgroup.y * params.stride4 + own.column4] = b_sum;
    }
}
