// SwiGLU activation:   out = silu(gate) · up,   silu(x) = x · s(x),   s(x) = 1 / (1 + e^-x)
//
//   swiglu             reads packed (N, 2 F), writes out (N, F)
//   swiglu_backward    reads packed (N, 2 F) and dout (N, F), writes d_packed (N, 2 F):
//                      d_up = dout · silu(gate),   d_gate = dout · up · (s + silu(gate) · (1 - s))
//
// A row of `packed` is gate, then up, which starts at the next multiple of 4 columns. With `two_tensors` gate and up
// are separate (N, F) tensors, and so are their gradients. One invocation computes 4 columns of one row of out; a
// workgroup stays within a row, so finding the row costs one scalar division.
// Numerics: f32 between load and store. gate is clamped to at least -80, so that e^-x stays finite; |silu| is below
// 1.5e-33 there. Padding needs no mask: both formulas map zeros to zeros.
// Source: Shazeer, "GLU Variants Improve Transformer", 2020.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::LANES;

struct Params {
    rows: u32,
    columns4: u32, // groups of 4 in a row of out
    chunks: u32, // workgroups per row
    gate_offset: u32, // offsets and strides count groups of 4 elements
    gate_stride: u32,
    up_offset: u32,
    up_stride: u32,
    y_offset: u32, // out or dout
    y_stride: u32,
    d_gate_offset: u32,
    d_gate_stride: u32,
    d_up_offset: u32,
    d_up_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gates: array<Packed>; // packed, or gate alone
@group(0) @binding(2) var<storage, read_write> out: array<Packed>;
@group(0) @binding(3) var<storage, read> dout: array<Packed>;
@group(0) @binding(4) var<storage, read_write> d_gates: array<Packed>;
@if(two_tensors) @group(0) @binding(5) var<storage, read> ups: array<Packed>;
@if(two_tensors) @group(0) @binding(6) var<storage, read_write> d_ups: array<Packed>;

@compute @workgroup_size(LANES)
fn swiglu(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let row = index / params.chunks;
    let column = index % params.chunks * LANES + lane;
    if (row >= params.rows || column >= params.columns4) {
        return;
    }
    let gate = load_gate(row, column);
    let up = load_up(row, column);
    out[params.y_offset + row * params.y_stride + column] = store4(gate * sigmoid(gate) * up);
}

@compute @workgroup_size(LANES)
fn swiglu_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let row = index / params.chunks;
    let column = index % params.chunks * LANES + lane;
    if (row >= params.rows || column >= params.columns4) {
        return;
    }
    let gate = load_gate(row, column);
    let up = load_up(row, column);
    let dy = load4(dout[params.y_offset + row * params.y_stride + column]);
    let s = sigmoid(gate);
    let silu = gate * s;
    d_gates[params.d_gate_offset + row * params.d_gate_stride + column] = store4(dy * up * (s + silu * (1.0 - s)));
    let d_up_at = params.d_up_offset + row * params.d_up_stride + column;
    @if(two_tensors) { d_ups[d_up_at] = store4(dy * silu); }
    @if(!two_tensors) { d_gates[d_up_at] = store4(dy * silu); }
}

fn load_gate(row: u32, column: u32) -> vec4<f32> {
    return bounded(load4(gates[params.gate_offset + row * params.gate_stride + column]));
}

@if(two_tensors)
fn load_up(row: u32, column: u32) -> vec4<f32> {
    return load4(ups[params.up_offset + row * params.up_stride + column]);
}

@if(!two_tensors)
fn load_up(row: u32, column: u32) -> vec4<f32> {
    return load4(gates[params.up_offset + row * params.up_stride + column]);
}

fn sigmoid(x: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp(-x));
}

// max may replace a NaN by -80, which would hide an overflow; select keeps it.
fn bounded(gate: vec4<f32>) -> vec4<f32> {
    return select(gate, vec4<f32>(-80.0), gate < vec4<f32>(-80.0));
}
