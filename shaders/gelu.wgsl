// Gaussian error linear unit:   y = x · Φ(x)                                                       x, y, dy, dx (N, F)
//
//   gelu            writes y
//   gelu_backward   writes dx = dy · (Φ(x) + x · Φ'(x))
//
// Φ is one of three functions (lib/gelu). One invocation computes 4 columns of one row; a workgroup stays within a row.
// Between two layers, the matrix products that write x and dy do this in their epilogues instead (matmul/operands).
// Numerics: f32 between load and store. Padding needs no mask: zeros map to zeros.

import package::lib::element::{Packed, load4, store4};
import package::lib::gelu::{gelu_of, gelu_slope};
import package::lib::grid::linear_index;
import package::tile::LANES;

struct Params {
    rows: u32,
    columns4: u32, // groups of 4 in a row
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

@compute @workgroup_size(LANES)
fn gelu(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let row = index / params.chunks;
    let column = index % params.chunks * LANES + lane;
    if (row >= params.rows || column >= params.columns4) {
        return;
    }
    let value = load4(x[params.x_offset + row * params.x_stride + column]);
    let at = params.y_offset + row * params.y_stride + column;
    y[at] = store4(gelu_of(value));
}

@compute @workgroup_size(LANES)
fn gelu_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let row = index / params.chunks;
    let column = index % params.chunks * LANES + lane;
    if (row >= params.rows || column >= params.columns4) {
        return;
    }
    let value = load4(x[params.x_offset + row * params.x_stride + column]);
    let gradient = load4(dy[params.y_offset + row * params.y_stride + column]);
    let at = params.dx_offset + row * params.dx_stride + column;
    dx[at] = store4(gradient * gelu_slope(value));
}
