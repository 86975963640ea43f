// One token of the gated delta rule for each sequence, in decoding:
//
//   S ← e^g S,   d = beta (v − Sᵀk),   S ← S + k dᵀ,   out = scale Sᵀq
//
//   qk (B, columns), v (B, heads · 4 v4), gates (B, 2 beta_start) f32: log_decay, beta   read
//   state (B · heads · 4 d4, 4 v4) f32   updated in place;   out (B, heads · 4 v4)   written
//
// An invocation owns 4 columns of the state of a head and walks its rows. shared_tile: a workgroup has the head, and
// LANES / COLUMNS invocations share the rows of the same columns, four at a time, and add up what they find.
// Numerics: f32; sums over rows have a fixed order.
// Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024, equation 10.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::{COLUMNS, LANES};

struct Params {
    sequences: u32, // B
    heads: u32,
    group: u32,
    d4: u32,
    v4: u32,
    qk_offset: u32, // in groups of 4, like all that are not said to count elements
    qk_stride: u32,
    k_start: u32,
    v_offset: u32,
    v_stride: u32,
    out_offset: u32,
    out_stride: u32,
    gate_offset: u32, // in elements, like the next two
    gate_stride: u32,
    beta_start: u32,
    state_offset: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qk: array<Packed>;
@group(0) @binding(2) var<storage, read> v: array<Packed>;
@group(0) @binding(3) var<storage, read> gates: array<f32>;
@group(0) @binding(4) var<storage, read_write> state: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<Packed>;

@if(shared_tile) const PARTS: u32 = LANES / COLUMNS; // invocations that share the rows of a column
@if(!shared_tile) const PARTS: u32 = 1u;

@compute @workgroup_size(LANES)
fn gated_delta_rule_step(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    @if(shared_tile) let item = linear_index(workgroup);
    @if(shared_tile) let column = lane % COLUMNS;
    @if(shared_tile) let part = lane / COLUMNS;
    @if(!shared_tile) let index = linear_index(workgroup) * LANES + lane;
    @if(!shared_tile) let item = index / COLUMNS;
    @if(!shared_tile) let column = index % COLUMNS;
    @if(!shared_tile) let part = 0u;
    if (item >= params.sequences * params.heads) {
        return;
    }
    let sequence = item / params.heads;
    let head = item % params.heads;
    let is_column = column < params.v4;
    let queries = params.qk_offset + sequence * params.qk_stride + head / params.group * params.d4;
    let keys = queries + params.k_start;
    let gate = params.gate_offset + sequence * params.gate_stride + head;
    let decay = exp(gates[gate]);
    let first = params.state_offset + item * 4u * params.d4 * params.v4 + column;
    var held: vec4<f32>;
    if (is_column) {
        for (var i = part; i < params.d4; i += PARTS) {
            let key = load4(qk[keys + i]);
            let at = first + 4u * i * params.v4;
            for (var r = 0u; r < 4u; r++) {
                held += key[r] * state[at + r * params.v4];
            }
        }
    }
    held = decay * over_parts(held, lane);
    var sum: vec4<f32>;
    if (is_column) {
        let value = load4(v[params.v_offset + sequence * params.v_stride + head * params.v4 + column]);
        let written = gates[gate + params.beta_start] * (value - held);
        for (var i = part; i < params.d4; i += PARTS) {
            let key = load4(qk[keys + i]);
            let query = load4(qk[queries + i]);
            let at = first + 4u * i * params.v4;
            for (var r = 0u; r < 4u; r++) {
                let next = fma(vec4<f32>(key[r]), written, decay * state[at + r * params.v4]);
                state[at + r * params.v4] = next;
                sum += query[r] * next;
            }
        }
    }
    sum = over_parts(sum, lane);
    if (is_column && part == 0u) {
        out[params.out_offset + sequence * params.out_stride + head * params.v4 + column] = store4(params.scale * sum);
    }
}

@if(shared_tile) var<workgroup> sums: array<vec4<f32>, LANES>;

@if(shared_tile)
fn over_parts(value: vec4<f32>, lane: u32) -> vec4<f32> {
    sums[lane] = value;
    workgroupBarrier();
    var total = sums[lane % COLUMNS];
    for (var i = 1u; i < PARTS; i++) {
        total += sums[lane % COLUMNS + i * COLUMNS];
    }
    workgroupBarrier(); // the next sum writes the same memory
    return total;
}

@if(!shared_tile) fn over_parts(value: vec4<f32>, lane: u32) -> vec4<f32> { return value; }
