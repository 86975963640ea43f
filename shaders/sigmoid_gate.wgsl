// Gate per element:   y = x · s(g),   s(g) = 1 / (1 + e^-g)         x, y, dy, dx (N, D); g and dg (N, D), or column ranges
//
//   sigmoid_gate            writes y
//   sigmoid_gate_backward   dx = dy · s(g);   dg = dy · x · s (1 − s), with `accumulate` added to dg
//
// An invocation computes 4 elements.
// Numerics: f32 between load and store; g is clamped to at least -80 (lib/silu).
// Source: the output gate of Qwen3-Next's softmax attention; Qiu et al., "Gated Attention for Large Language Models", 2025.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::silu::{bounded, sigmoid};
import package::tile::LANES;

struct Params {
    rows: u32,
    cols4: u32, // groups of 4 of a row; offsets and strides count them, too
    g_offset: u32,
    g_stride: u32,
    dg_offset: u32,
    dg_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read> g: array<Packed>;
@group(0) @binding(3) var<storage, read_write> y: array<Packed>;

@group(0) @binding(3) var<storage, read> dy: array<Packed>;
@group(0) @binding(4) var<storage, read_write> dx: array<Packed>;
@group(0) @binding(5) var<storage, read_write> dg: array<Packed>;

@compute @workgroup_size(LANES)
fn sigmoid_gate(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = linear_index(workgroup) * LANES + lane;
    let row = at / params.cols4;
    if (row >= params.rows) {
        return;
    }
    let gate = load4(g[params.g_offset + row * params.g_stride + at % params.cols4]);
    y[at] = store4(load4(x[at]) * sigmoid(bounded(gate)));
}

@compute @workgroup_size(LANES)
fn sigmoid_gate_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = linear_index(workgroup) * LANES + lane;
    let row = at / params.cols4;
    if (row >= params.rows) {
        return;
    }
    let s = sigmoid(bounded(load4(g[params.g_offset + row * params.g_stride + at % params.cols4])));
    let slope = load4(dy[at]) * s;
    var of_gate = slope * load4(x[at]) * (1.0 - s);
    let to = params.dg_offset + row * params.dg_stride + at % params.cols4;
    @if(accumulate) { of_gate += load4(dg[to]); }
    dx[at] = store4(slope);
    dg[to] = store4(of_gate);
}
