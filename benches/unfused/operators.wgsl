// Unfused baselines, one pass over memory per operator                                      x, y (rows, 4 · columns4)
//
//   silu          y = x · s(x),   s(x) = 1 / (1 + e^-x)
//   multiply      y = x · factors; factors (factor_rows, 4 · factor_columns4) repeat down and across, as a rotary table
//                 does over sequences and heads
//   rotate_half   y = (−b, a) where a head of x is (a, b)
//   softmax       y = softmax(scale · y) in place, per row of a square score matrix, causally masked
//
// silu, multiply, rotate_half: one invocation per 4 elements. softmax: one workgroup per row; software tier: one
// invocation per row (lib/reduce). Numerics: f32 between load and store.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_max, row_of, row_sum};
import package::tile::LANES;

struct Params {
    rows: u32,
    columns4: u32, // columns, offsets and strides count groups of 4 elements
    x_offset: u32,
    x_stride: u32,
    y_offset: u32,
    y_stride: u32,
    factor_rows: u32,
    factor_columns4: u32,
    half4: u32, // half a head
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> y: array<Packed>;
@group(0) @binding(3) var<storage, read> factors: array<Packed>;

@compute @workgroup_size(LANES)
fn silu(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.row < params.rows) {
        let value = load4(x[x_at(place)]);
        y[y_at(place)] = store4(value / (1.0 + exp(-value)));
    }
}

@compute @workgroup_size(LANES)
fn multiply(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.row < params.rows) {
        let row = place.row % params.factor_rows;
        let factor = load4(factors[row * params.factor_columns4 + place.column % params.factor_columns4]);
        y[y_at(place)] = store4(load4(x[x_at(place)]) * factor);
    }
}

@compute @workgroup_size(LANES)
fn rotate_half(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.row < params.rows) {
        let is_first = place.column / params.half4 % 2u == 0u;
        let partner = select(place.column - params.half4, place.column + params.half4, is_first);
        let value = load4(x[x_at(Place(place.row, partner))]);
        y[y_at(place)] = store4(select(value, -value, is_first));
    }
}

@compute @workgroup_size(LANES)
fn softmax(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    let row = min(item, params.rows - 1u);
    var largest = vec4<f32>(-1e30);
    for (var column = first; column < params.columns4; column += STEP) {
        largest = max(largest, score(row, column));
    }
    let top = row_max(max(max(largest.x, largest.y), max(largest.z, largest.w)), lane);
    var sum = vec4<f32>(0.0);
    for (var column = first; column < params.columns4; column += STEP) {
        sum += exp(score(row, column) - top);
    }
    let total = row_sum(dot(sum, vec4<f32>(1.0)), lane);
    if (item < params.rows) {
        for (var column = first; column < params.columns4; column += STEP) {
            y[y_at(Place(row, column))] = store4(exp(score(row, column) - top) / total);
        }
    }
}

// Masked scores are finite, and low enough that their exponential is zero.
fn score(row: u32, column: u32) -> vec4<f32> {
    let index = vec4<u32>(4u * column) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(-1e30), params.scale * load4(y[y_at(Place(row, column))]), index <= vec4<u32>(row));
}

struct Place {
    row: u32,
    column: u32, // in groups of 4
}

fn place_of(workgroup: vec3<u32>, lane: u32) -> Place {
    let index = linear_index(workgroup) * LANES + lane;
    return Place(index / params.columns4, index % params.columns4);
}

fn x_at(place: Place) -> u32 {
    return params.x_offset + place.row * params.x_stride + place.column;
}

fn y_at(place: Place) -> u32 {
    return params.y_offset + place.row * params.y_stride + place.column;
}
