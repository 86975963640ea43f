// Rows divided by their length:   y = x · r,   r = 1 / sqrt(Σ x² + eps)                  x, y (N, D); dy, dx (N, D) f32
// Backward:                       dx += r · (dy − x · r² · (dy · x))
//
// For the table of an output head, whose rows are directions (the NormHead of Baichuan 2). r is computed again in the
// backward pass.
// One workgroup per row; software tier: one invocation per row (lib/reduce).
// Numerics: sums in f32, in a fixed order. Gradients are f32, as for all parameters.
// Source: Yang et al., "Baichuan 2", 2023, section 2.3.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum};
import package::lib::row::keep_inside;
import package::tile::LANES;

struct Params {
    rows: u32,
    cols: u32,
    stride4: u32, // row stride of x, y, dy and dx, in groups of 4
    x_offset: u32, // offsets count groups of 4
    y_offset: u32,
    dx_offset: u32,
    epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> y: array<Packed>;
@group(0) @binding(2) var<storage, read> dy: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> dx: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn l2_norm(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let start = row * params.stride4;
    var squares = 0.0;
    for (var i = first; i < params.stride4; i += STEP) {
        let value = load4(x[params.x_offset + start + i]);
        squares += dot(value, value); // padding is zero
    }
    let scale = inverseSqrt(row_sum(squares, lane) + params.epsilon);
    for (var i = first; i < params.stride4; i += STEP) {
        let value = load4(x[params.x_offset + start + i]) * scale;
        y[params.y_offset + start + i] = store4(keep_inside(value, 4u * i, params.cols));
    }
}

@compute @workgroup_size(LANES)
fn l2_norm_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let start = row * params.stride4;
    var squares = 0.0;
    var products = 0.0;
    for (var i = first; i < params.stride4; i += STEP) {
        let value = load4(x[params.x_offset + start + i]);
        squares += dot(value, value);
        products += dot(value, keep_inside(dy[params.y_offset + start + i], 4u * i, params.cols));
    }
    let scale = inverseSqrt(row_sum(squares, lane) + params.epsilon);
    let pull = scale * scale * row_sum(products, lane);
    for (var i = first; i < params.stride4; i += STEP) {
        let gradient = dy[params.y_offset + start + i] - load4(x[params.x_offset + start + i]) * pull;
        let at = params.dx_offset + start + i;
        dx[at] = keep_inside(dx[at] + scale * gradient, 4u * i, params.cols);
    }
}
