// The gates of the gated delta rule, from their projections and two learned vectors (H):
//
//   delta_gates                   log_decay = −e^a_log · softplus(a + bias),   beta = s(b),   s(x) = 1 / (1 + e^-x);
//                                 with `ended` both are zero after row last_rows[b] of sequence b, so states stay
//   delta_gates_backward          da = −dlog_decay · e^a_log · s(a + bias),   db = dbeta · beta (1 − beta)
//   delta_gates_backward_weight   da_log = Σ dlog_decay · log_decay and dbias = Σ da over tokens, for each block of ROWS
//                                 of them one row of partials (ceil(N / ROWS), 2 · 4 h4) f32, which column_sum reduces
//
//   x (N, 2 · 4 h4): b, then a;   gates (N, 2 · 4 h4) f32: log_decay, then beta;   padding between them is zero
//
// An invocation computes 4 heads of a token, or of a block of tokens.
// Numerics: f32; nothing overflows that is not infinite itself: x is clamped for s as in lib/silu.
// Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024; the decay is that of Mamba 2.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{ROW_STEP, column_block, down};
import package::lib::row::keep_inside;
import package::lib::silu::{bounded, sigmoid};
import package::tile::{LANES, ROWS};

struct Params {
    rows: u32,
    heads: u32,
    h4: u32, // groups of 4 heads
    x_offset: u32, // offsets and strides count groups of 4
    x_stride: u32,
    dx_offset: u32,
    dx_stride: u32,
    tokens: u32, // of a sequence
    last_offset: u32, // in elements
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read> a_log: array<Packed>; // (1, H)
@group(0) @binding(3) var<storage, read> bias: array<Packed>; // (1, H)
@group(0) @binding(4) var<storage, read_write> gates: array<vec4<f32>>;
@if(ended) @group(0) @binding(5) var<storage, read> last_rows: array<u32>;
@group(0) @binding(4) var<storage, read> dgates: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> dx: array<Packed>; // as x
@group(0) @binding(5) var<storage, read_write> partials: array<vec4<f32>>;

// Four gates of a token. a_log and bias are zero in their padding.
struct Gates {
    pace: vec4<f32>, // e^a_log
    x: vec4<f32>, // a + bias
    beta: vec4<f32>,
}

fn gates_at(row: u32, column4: u32) -> Gates {
    let at = params.x_offset + row * params.x_stride + column4;
    let beta = sigmoid(bounded(load4(x[at])));
    return Gates(exp(load4(a_log[column4])), load4(x[at + params.h4]) + load4(bias[column4]), beta);
}

// max(x, 0) + log(1 + y), y = e^-|x|. WGSL's log may be wrong by 2^-21 near 1, which is more than a small y; so log(1 + y)
// is 2 artanh(z), z = y / (2 + y) <= 1/3, by its series.
fn softplus(x: vec4<f32>) -> vec4<f32> {
    let y = exp(-abs(x));
    let z = y / (2.0 + y);
    let w = z * z;
    let tail = 1.0 / 7.0 + w * (1.0 / 9.0 + w * (1.0 / 11.0 + w * (1.0 / 13.0)));
    return max(x, vec4<f32>(0.0)) + 2.0 * z * (1.0 + w * (1.0 / 3.0 + w * (1.0 / 5.0 + w * tail)));
}

@compute @workgroup_size(LANES)
fn delta_gates(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = linear_index(workgroup) * LANES + lane;
    let row = item / params.h4;
    let column4 = item % params.h4;
    if (row >= params.rows) {
        return;
    }
    let to = row * 2u * params.h4 + column4;
    @if(ended) {
        if (row > last_rows[params.last_offset + row / params.tokens]) {
            gates[to] = vec4<f32>(0.0);
            gates[to + params.h4] = vec4<f32>(0.0);
            return;
        }
    }
    let own = gates_at(row, column4);
    gates[to] = keep_inside(-own.pace * softplus(own.x), 4u * column4, params.heads);
    gates[to + params.h4] = keep_inside(own.beta, 4u * column4, params.heads);
}

@compute @workgroup_size(LANES)
fn delta_gates_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = linear_index(workgroup) * LANES + lane;
    let row = item / params.h4;
    let column4 = item % params.h4;
    if (row >= params.rows) {
        return;
    }
    let own = gates_at(row, column4);
    let source = row * 2u * params.h4 + column4;
    let to = params.dx_offset + row * params.dx_stride + column4;
    let db = dgates[source + params.h4] * own.beta * (1.0 - own.beta);
    dx[to] = store4(keep_inside(db, 4u * column4, params.heads));
    dx[to + params.h4] = store4(keep_inside(da_of(own, dgates[source]), 4u * column4, params.heads));
}

fn da_of(own: Gates, slope: vec4<f32>) -> vec4<f32> {
    return -slope * own.pace * sigmoid(bounded(own.x));
}

@compute @workgroup_size(LANES)
fn delta_gates_backward_weight(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let own = column_block(workgroup, lane, ROWS, params.rows, params.h4);
    var of_log: vec4<f32>;
    var of_bias: vec4<f32>;
    for (var row = own.first; row < own.end; row += ROW_STEP) {
        let gates = gates_at(row, own.column4);
        let slope = dgates[row * 2u * params.h4 + own.column4];
        of_log -= slope * gates.pace * softplus(gates.x);
        of_bias += da_of(gates, slope);
    }
    of_log = down(of_log, lane);
    of_bias = down(of_bias, lane);
    if (own.is_writer) {
        let to = workgroup.y * 2u * params.h4 + own.column4;
        partials[to] = keep_inside(of_log, 4u * own.column4, params.heads);
        partials[to + params.h4] = keep_inside(of_bias, 4u * own.column4, params.heads);
    }
}
