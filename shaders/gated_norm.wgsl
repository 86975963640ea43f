// RMSNorm of each head, gated:   y = n · w · silu(z),   n = x / sqrt(mean(x²) + eps)
//
//   x, dy, dx (N, heads · head_dim); z and dz likewise, or ranges of columns; w (head_dim), for all heads
//
//   gated_norm                   writes y
//   gated_norm_backward          dz = dy · n · w · silu'(z);   with h = dy · w · silu(z):   dx = (h − n · mean(h · n)) / rms
//   gated_norm_backward_weight   dw = Σ dy · n · silu(z) over tokens and heads, for each block of ROWS tokens in one row
//                                of partials (ceil(N / ROWS), head_dim) f32, which column_sum reduces
//
// One invocation per token and head; in the weight pass 4 columns of a block of tokens. The norm is computed again in
// the backward pass.
// Numerics: f32; sums in a fixed order.
// Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024; the norm before the gate, as in Qwen3-Next.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{ROW_STEP, column_block, down};
import package::lib::silu::{silu, swiglu_slopes};
import package::tile::{LANES, ROWS};

struct Params {
    rows: u32, // N
    heads: u32,
    head4: u32, // groups of 4 of a head
    z_offset: u32, // offsets and strides count groups of 4
    z_stride: u32,
    dz_offset: u32,
    dz_stride: u32,
    epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read> z: array<Packed>;
@group(0) @binding(3) var<storage, read> w: array<Packed>;
@group(0) @binding(4) var<storage, read_write> y: array<Packed>;

@group(0) @binding(4) var<storage, read> dy: array<Packed>;
@group(0) @binding(5) var<storage, read_write> dx: array<Packed>;
@group(0) @binding(6) var<storage, read_write> dz: array<Packed>;

@group(0) @binding(5) var<storage, read_write> partials: array<vec4<f32>>;

// Where a head of a token starts in a tensor without offset.
fn head_at(row: u32, head: u32) -> u32 {
    return (row * params.heads + head) * params.head4;
}

// 1 / rms of the head that starts at `at`.
fn scale_of(at: u32) -> f32 {
    var squares = 0.0;
    for (var i = 0u; i < params.head4; i++) {
        let value = load4(x[at + i]);
        squares += dot(value, value);
    }
    return inverseSqrt(squares / f32(4u * params.head4) + params.epsilon);
}

@compute @workgroup_size(LANES)
fn gated_norm(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = linear_index(workgroup) * LANES + lane;
    let row = item / params.heads;
    let head = item % params.heads;
    if (row >= params.rows) {
        return;
    }
    let at = head_at(row, head);
    let gate = params.z_offset + row * params.z_stride + head * params.head4;
    let scale = scale_of(at);
    for (var i = 0u; i < params.head4; i++) {
        y[at + i] = store4(scale * load4(x[at + i]) * load4(w[i]) * silu(load4(z[gate + i])));
    }
}

@compute @workgroup_size(LANES)
fn gated_norm_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = linear_index(workgroup) * LANES + lane;
    let row = item / params.heads;
    let head = item % params.heads;
    if (row >= params.rows) {
        return;
    }
    let at = head_at(row, head);
    let gate = params.z_offset + row * params.z_stride + head * params.head4;
    let to = params.dz_offset + row * params.dz_stride + head * params.head4;
    let scale = scale_of(at);
    var products = 0.0; // Σ h · n
    for (var i = 0u; i < params.head4; i++) {
        let n = scale * load4(x[at + i]);
        let weight = load4(w[i]);
        let slopes = swiglu_slopes(load4(z[gate + i]), n * weight, load4(dy[at + i]));
        products += dot(slopes.up * weight, n);
        @if(!accumulate) { dz[to + i] = store4(slopes.gate); }
        @if(accumulate) { dz[to + i] = store4(load4(dz[to + i]) + slopes.gate); }
    }
    let mean = products / f32(4u * params.head4);
    for (var i = 0u; i < params.head4; i++) {
        let n = scale * load4(x[at + i]);
        let h = load4(dy[at + i]) * silu(load4(z[gate + i])) * load4(w[i]);
        dx[at + i] = store4(scale * (h - n * mean));
    }
}

@compute @workgroup_size(LANES)
fn gated_norm_backward_weight(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let own = column_block(workgroup, lane, ROWS, params.rows, params.head4);
    var sum = vec4<f32>();
    for (var row = own.first; row < own.end; row += ROW_STEP) {
        for (var head = 0u; head < params.heads; head++) {
            let at = head_at(row, head);
            let gate = load4(z[params.z_offset + row * params.z_stride + head * params.head4 + own.column4]);
            sum += load4(dy[at + own.column4]) * silu(gate) * load4(x[at + own.column4]) * scale_of(at);
        }
    }
    sum = down(sum, lane);
    if (own.is_writer) {
        partials[workgroup.y * params.head4 + own.column4] = sum;
    }
}
