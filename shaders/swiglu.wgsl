// Gated activation:   out = act(gate) · up,   act silu (SwiGLU) or with `gelu_gate` gelu (GeGLU), or its clamped form:
// lib/gate
//
//   swiglu             reads packed (N, 2 F), writes out (N, F)
//   swiglu_backward    reads packed (N, 2 F) and dout (N, F), writes d_packed (N, 2 F):
//                      d_up = dout · act(gate),   d_gate = dout · up · act'(gate)
//
// A row of `packed` is gate, then up, which starts at the next multiple of 4 columns. One invocation computes 4 columns
// of one row of out; a workgroup stays within a row, so finding the row costs one scalar division.
// Numerics: f32 between load and store. Padding needs no mask: both formulas map zeros to zeros.
// Source: Shazeer, "GLU Variants Improve Transformer", 2020.

import package::lib::element::{Packed, load4, store4};
import package::lib::gate::{gate_slopes, gated};
import package::lib::grid::linear_index;
import package::tile::LANES;

struct Params {
    rows: u32,
    columns4: u32, // groups of 4 in a row of out
    chunks: u32, // workgroups per row
    packed_offset: u32, // offsets and strides count groups of 4 elements
    packed_stride: u32,
    y_offset: u32, // out or dout
    y_stride: u32,
    d_packed_offset: u32,
    d_packed_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packed: array<Packed>; // gate and up
@group(0) @binding(2) var<storage, read_write> out: array<Packed>;
@group(0) @binding(3) var<storage, read> dout: array<Packed>;
@group(0) @binding(4) var<storage, read_write> d_packed: array<Packed>;

@compute @workgroup_size(LANES)
fn swiglu(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let row = index / params.chunks;
    let column = index % params.chunks * LANES + lane;
    if (row >= params.rows || column >= params.columns4) {
        return;
    }
    let at = params.packed_offset + row * params.packed_stride + column;
    let gate = load4(packed[at]);
    let up = load4(packed[at + params.columns4]);
    out[params.y_offset + row * params.y_stride + column] = store4(gated(gate, up));
}

@compute @workgroup_size(LANES)
fn swiglu_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let row = index / params.chunks;
    let column = index % params.chunks * LANES + lane;
    if (row >= params.rows || column >= params.columns4) {
        return;
    }
    let at = params.packed_offset + row * params.packed_stride + column;
    let dy = load4(dout[params.y_offset + row * params.y_stride + column]);
    let slopes = gate_slopes(load4(packed[at]), load4(packed[at + params.columns4]), dy);
    let d_at = params.d_packed_offset + row * params.d_packed_stride + column;
    d_packed[d_at] = store4(slopes.gate);
    d_packed[d_at + params.columns4] = store4(slopes.up);
}
