// The gradient of attention's sinks, in sums of blocks:   dsinks (P, heads) = −Σ over each block of ROWS rows of
//
//   exp(sink − lse) · delta,   delta = Σ dout · out of a row and head,   P = ceil(N / ROWS)
//
//   sinks (heads), lse and delta (N, heads) f32 read, partials (P, heads) f32 written
//
// The softmax has ∂p_j/∂sink = −p_j p_sink, and delta is Σ_j p_j ∂L/∂p_j, dropout included. A workgroup has the rows of
// a block and some columns (lib/reduce). Numerics: f32, rows in a fixed order. exp(sink − lse) is a share of the
// softmax and at most 1; the padding of lse and delta is zero.
// Source: OpenAI, "gpt-oss", 2025, whose softmax this is the gradient of.

import package::lib::element::{Packed, load4};
import package::lib::reduce::{ROW_STEP, column_block, down};
import package::tile::{LANES, ROWS};

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
    sum = down(sum, lane);
    if (own.is_writer) {
        partials[workgroup.y * params.columns4 + own.column4] = sum;
    }
}
