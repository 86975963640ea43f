// The gradient of attention's sinks, in sums of blocks:   dsinks (P, heads) = −Σ over each block of ROWS rows of
//
//   exp(sink − lse) · delta,   delta = Σ dout · out of a row and head,   P = ceil(N / ROWS)
//
//   sinks (heads), lse and delta (N, heads) f32 read, partials (P, heads) f32 written
//
// scaled: delta is in units of the powers that bring qkv and dout into the range of f16 (attention/matrix/scales).
// The softmax has ∂p_j/∂sink = −p_j p_sink, and delta is Σ_j p_j ∂L/∂p_j, dropout included. A workgroup has the rows of
// a block and some columns (lib/reduce). Numerics: f32, rows in a fixed order. exp(sink − lse) is a share of the
// softmax and at most 1; the padding of lse and delta is zero.
// Source: OpenAI, "gpt-oss", 2025, whose softmax this is the gradient of.

import package::lib::element::{Packed, load4};
@if(scaled) import package::lib::half_scale::undone;
import package::lib::reduce::{ROW_STEP, column_block, down};
@if(scaled) import package::tile::PARTS;
import package::tile::{LANES, ROWS};

@if(scaled) enable f16;

struct Params {
    rows: u32,
    columns4: u32, // groups of 4 heads
    lse_offset4: u32,
    lse_stride4: u32,
    delta_stride4: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> sinks: array<Packed>;
@group(0) @binding(2) var<storage, read> lse: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> delta: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> partials: array<vec4<f32>>;
@if(scaled) @group(0) @binding(5) var<storage, read> qkv_largest: array<vec4<u32>>; // (PARTS), see largest.wgsl
@if(scaled) @group(0) @binding(6) var<storage, read> dout_largest: array<vec4<u32>>;

@compute @workgroup_size(LANES)
fn attention_sinks_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let own = column_block(workgroup, lane, ROWS, params.rows, params.columns4);
    let sink = load4(sinks[min(own.column4, params.columns4 - 1u)]);
    var sum = vec4<f32>(0.0);
    for (var row = own.first; row < own.end; row += ROW_STEP) {
        let share = exp(sink - lse[params.lse_offset4 + row * params.lse_stride4 + own.column4]);
        sum -= share * delta[row * params.delta_stride4 + own.column4];
    }
    @if(scaled) {
        let factors = undone(largest());
        sum *= factors.x;
        sum *= factors.y;
    }
    sum = down(sum, lane);
    if (own.is_writer) {
        partials[workgroup.y * params.columns4 + own.column4] = sum;
    }
}

// Of qkv and of dout.
@if(scaled)
fn largest() -> vec2<u32> {
    var qkv = vec4<u32>();
    var dout = vec4<u32>();
    for (var i = 0u; i < PARTS / 4u; i++) {
        qkv = max(qkv, qkv_largest[i]);
        dout = max(dout, dout_largest[i]);
    }
    let halves = max(vec4<u32>(qkv.xy, dout.xy), vec4<u32>(qkv.zw, dout.zw));
    return max(halves.xz, halves.yw);
}
