// xIELU, an activation with two learned numbers in each layer
//   α_p · x² + β · x   for x > 0,        α_n · (expm1(min(x, ε)) − x) + β · x   otherwise;
//   α_p = softplus(a),  α_n = β + softplus(b)                                       x, y, dy, dx (N, F)
//
//   xielu                   writes y
//   xielu_backward          writes dx
//   xielu_backward_weight   the gradients of a and b, summed over each row into one row of partials (N, 4) f32, which
//                           column_sum reduces
//
// alphas (1, 2) f32: a, b; constants (1, 2) f32: β, ε. One invocation computes 4 columns of one row; in the weight pass
// a row is shared as lib/reduce says.
// Numerics: f32 between load and store. expm1(x) − x is a polynomial near 0, where a difference would cancel.
// Source: Huang and Schlag, "Deriving Activation Functions Using Integration", 2024; ε as in transformers.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum4};
import package::tile::LANES;

struct Params {
    rows: u32,
    columns: u32,
    chunks: u32, // workgroups per row
    x_offset: u32, // offsets and strides count groups of 4 elements
    x_stride: u32,
    y_offset: u32, // y or dy
    y_stride: u32,
    dx_offset: u32,
    dx_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> y: array<Packed>;
@group(0) @binding(3) var<storage, read> dy: array<Packed>;
@group(0) @binding(4) var<storage, read_write> dx: array<Packed>;
@group(0) @binding(5) var<storage, read> alphas: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> constants: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> partials: array<vec4<f32>>;

struct Factors {
    positive: f32, // α_p
    negative: f32, // α_n
    linear: f32, // β
    epsilon: f32,
}

fn softplus(x: f32) -> f32 {
    return max(x, 0.0) + log(1.0 + exp(-abs(x)));
}

fn factors() -> Factors {
    let beta = constants[0].x;
    return Factors(softplus(alphas[0].x), beta + softplus(alphas[0].y), beta, constants[0].y);
}

// expm1(x) − x for x ≤ 0; its series from -1 on, with a relative error of at most 6e-8.
fn curve(x: vec4<f32>) -> vec4<f32> {
    var series = vec4<f32>(1.0 / 39916800.0);
    series = series * x + 1.0 / 3628800.0;
    series = series * x + 1.0 / 362880.0;
    series = series * x + 1.0 / 40320.0;
    series = series * x + 1.0 / 5040.0;
    series = series * x + 1.0 / 720.0;
    series = series * x + 1.0 / 120.0;
    series = series * x + 1.0 / 24.0;
    series = series * x + 1.0 / 6.0;
    series = series * x + 0.5;
    return select(exp(x) - 1.0 - x, series * x * x, x > vec4<f32>(-1.0));
}

// What α_n multiplies.
fn tail(x: vec4<f32>, epsilon: f32) -> vec4<f32> {
    let bounded = min(x, vec4<f32>(epsilon));
    return curve(bounded) + (bounded - x);
}

@compute @workgroup_size(LANES)
fn xielu(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let row = index / params.chunks;
    let column4 = index % params.chunks * LANES + lane;
    if (row >= params.rows || 4u * column4 >= params.columns) {
        return;
    }
    let own = factors();
    let value = load4(x[params.x_offset + row * params.x_stride + column4]);
    let curved = select(
        own.negative * tail(value, own.epsilon),
        own.positive * value * value,
        value > vec4<f32>(0.0),
    );
    // A zero is no zero behind ε.
    let is_column = 4u * column4 + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.columns);
    let result = select(vec4<f32>(0.0), curved + own.linear * value, is_column);
    y[params.y_offset + row * params.y_stride + column4] = store4(result);
}

@compute @workgroup_size(LANES)
fn xielu_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let row = index / params.chunks;
    let column4 = index % params.chunks * LANES + lane;
    if (row >= params.rows || 4u * column4 >= params.columns) {
        return;
    }
    let own = factors();
    let value = load4(x[params.x_offset + row * params.x_stride + column4]);
    let gradient = load4(dy[params.y_offset + row * params.y_stride + column4]);
    let bounded = min(value, vec4<f32>(own.epsilon));
    // Between ε and 0 the exponential stands still.
    let slope = select(vec4<f32>(-1.0), curve(bounded) + bounded, value < vec4<f32>(own.epsilon));
    let curved = select(own.negative * slope, 2.0 * own.positive * value, value > vec4<f32>(0.0));
    dx[params.dx_offset + row * params.dx_stride + column4] = store4(gradient * (curved + own.linear));
}

@compute @workgroup_size(LANES)
fn xielu_backward_weight(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let epsilon = constants[0].y;
    var sum = vec4<f32>(0.0);
    for (var column4 = first; 4u * column4 < params.columns; column4 += STEP) {
        let value = load4(x[params.x_offset + row * params.x_stride + column4]);
        let gradient = load4(dy[params.y_offset + row * params.y_stride + column4]);
        let is_positive = value > vec4<f32>(0.0);
        let square = select(vec4<f32>(0.0), value * value, is_positive);
        let rest = select(tail(value, epsilon), vec4<f32>(0.0), is_positive);
        sum += vec4<f32>(dot(gradient, square), dot(gradient, rest), 0.0, 0.0);
    }
    let total = row_sum4(sum, lane);
    if (first == 0u) {
        // The slope of softplus is the logistic function.
        partials[row] = total / (1.0 + exp(-vec4<f32>(alphas[0].xy, 0.0, 0.0)));
    }
}
