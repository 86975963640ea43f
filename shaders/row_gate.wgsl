// Gate per row:   y = [residual +] x · s(g),   s(g) = 1 / (1 + e^-g)    x, y, residual, dy, dx (N, D); g, dg (N, 1) f32
//
//   row_gate            writes y
//   row_gate_backward   dx = dy · s(g), with `accumulate` added to dx;   dg = s (1 − s) Σ_d dy · x
//
// One workgroup per row; software tier: one invocation per row (lib/reduce).
// Numerics: f32 between load and store. g is clamped to at least -80, so that e^-g stays finite.
// Source: the gate of the shared expert in Qwen2-MoE, "Qwen2 technical report", 2024.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum};
import package::lib::row::keep_inside;
import package::tile::LANES;

struct Params {
    rows: u32,
    cols: u32,
    x_stride4: u32, // strides count groups of 4 elements; g and dg have a stride of 1
    y_stride4: u32, // of y or dy
    other_stride4: u32, // of the residual or dx
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>; // (N, D)
@group(0) @binding(2) var<storage, read> g: array<vec4<f32>>; // (N, 1)
@group(0) @binding(3) var<storage, read_write> y: array<Packed>; // (N, D)
@if(residual) @group(0) @binding(4) var<storage, read> residual: array<Packed>; // (N, D)

@group(0) @binding(3) var<storage, read> dy: array<Packed>; // (N, D)
@group(0) @binding(4) var<storage, read_write> dx: array<Packed>; // (N, D)
@group(0) @binding(5) var<storage, read_write> dg: array<vec4<f32>>; // (N, 1)

@compute @workgroup_size(LANES)
fn row_gate(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let gate = logistic(g[row].x);
    for (var i = first; i < params.y_stride4; i += STEP) {
        var value = gate * load4(x[row * params.x_stride4 + i]);
        @if(residual) { value += load4(residual[row * params.other_stride4 + i]); }
        y[row * params.y_stride4 + i] = store4(keep_inside(value, 4u * i, params.cols));
    }
}

@compute @workgroup_size(LANES)
fn row_gate_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let gate = logistic(g[row].x);
    var products = 0.0;
    for (var i = first; i < params.other_stride4; i += STEP) {
        let at = row * params.other_stride4 + i;
        let slope = load4(dy[row * params.y_stride4 + i]);
        products += dot(slope, load4(x[row * params.x_stride4 + i]));
        var value = gate * slope;
        @if(accumulate) { value += load4(dx[at]); }
        dx[at] = store4(keep_inside(value, 4u * i, params.cols));
    }
    let total = row_sum(products, lane);
    if (first == 0u) {
        dg[row] = vec4<f32>(gate * (1.0 - gate) * total, 0.0, 0.0, 0.0);
    }
}

// max may replace a NaN by -80, which would hide an overflow; select keeps it. (See lib/bits.)
fn logistic(g: f32) -> f32 {
    return 1.0 / (1.0 + exp(-select(g, -80.0, g < -80.0)));
}
