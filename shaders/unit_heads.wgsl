// Heads divided by their length, as queries and keys of linear attention are:
//
//   unit_heads            y = x · r,   r = 1 / sqrt(Σ x² + eps), for each head of 4 head4 elements
//   unit_heads_backward   dx = r · (dy − x · r² · (dy · x))
//
//   x (N, heads · head_dim), which may be a range of columns, as dx may;  y and dy (N, heads · head_dim)
//
// One invocation per token and head. r is computed again in the backward pass.
// Numerics: sums in f32, in a fixed order.
// Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024, section 3.4.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::LANES;

struct Params {
    rows: u32,
    heads: u32,
    head4: u32,
    x_offset: u32, // offsets and strides count groups of 4
    x_stride: u32,
    y_offset: u32,
    y_stride: u32,
    dx_offset: u32,
    dx_stride: u32,
    epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> y: array<Packed>;
@group(0) @binding(2) var<storage, read> dy: array<Packed>;
@group(0) @binding(3) var<storage, read_write> dx: array<Packed>;

@compute @workgroup_size(LANES)
fn unit_heads(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = linear_index(workgroup) * LANES + lane;
    let row = item / params.heads;
    let head = item % params.heads * params.head4;
    if (row >= params.rows) {
        return;
    }
    let source = params.x_offset + row * params.x_stride + head;
    let to = params.y_offset + row * params.y_stride + head;
    let scale = inverseSqrt(squares_of(source) + params.epsilon);
    for (var i = 0u; i < params.head4; i++) {
        y[to + i] = store4(scale * load4(x[source + i]));
    }
}

@compute @workgroup_size(LANES)
fn unit_heads_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = linear_index(workgroup) * LANES + lane;
    let row = item / params.heads;
    let head = item % params.heads * params.head4;
    if (row >= params.rows) {
        return;
    }
    let source = params.x_offset + row * params.x_stride + head;
    let gradient = params.y_offset + row * params.y_stride + head;
    let to = params.dx_offset + row * params.dx_stride + head;
    var products = 0.0;
    for (var i = 0u; i < params.head4; i++) {
        products += dot(load4(dy[gradient + i]), load4(x[source + i]));
    }
    let scale = inverseSqrt(squares_of(source) + params.epsilon);
    let pull = scale * scale * products;
    for (var i = 0u; i < params.head4; i++) {
        dx[to + i] = store4(scale * (load4(dy[gradient + i]) - pull * load4(x[source + i])));
    }
}

fn squares_of(source: u32) -> f32 {
    var squares = 0.0;
    for (var i = 0u; i < params.head4; i++) {
        let value = load4(x[source + i]);
        squares += dot(value, value);
    }
    return squares;
}
