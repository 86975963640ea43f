// The gated delta rule token by token, software tier (tensors in gated_delta_rule/params.wgsl):
//
//   S ← e^g S,   d = beta (v − Sᵀk),   S ← S + k dᵀ,   out = scale Sᵀq
//
//   walk            writes out; with `final_state` also S after the last token, into final_state
//   written         the same for the backward pass: writes d, and S before each chunk
//   walk_backward   from the last token: dS ← dS + scale q doutᵀ,  r = dSᵀk,  dS ← e^g (dS − beta k rᵀ);
//                   writes r = dwritten, and dS after each chunk
//
// An invocation walks one sequence with 4 columns of the state of a head, which it holds. A document starts with a
// state of zeros.
// Numerics: f32.
// Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024, equation 10.

import package::gated_delta_rule::params::{chunk_of, params, scratch, start_of, state_of, values_of};
import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::{D4, LANES};

@group(0) @binding(3) var<storage, read> qk: array<Packed>; // (N, columns): queries, and keys from k_start on
@group(0) @binding(4) var<storage, read> v: array<Packed>; // (N, heads · 4 v4)
@group(0) @binding(5) var<storage, read> gates: array<f32>; // (N, 2 beta_start): log_decay, beta
@group(0) @binding(6) var<storage, read_write> out: array<Packed>; // (N, heads · 4 v4)
@if(final_state) @group(0) @binding(7) var<storage, read_write> final_state: array<vec4<f32>>; // (heads · 4 d4, 4 v4)

@group(0) @binding(4) var<storage, read> dout: array<Packed>; // (N, heads · 4 v4)

var<private> state: array<vec4<f32>, 4u * D4>; // or its gradient

// The columns of an invocation.
struct Walk {
    sequence: u32,
    head: u32,
    column: u32, // group of 4
}

fn walk_of(item: u32) -> Walk {
    let column = item % params.v4;
    let head = item / params.v4 % params.heads;
    return Walk(item / params.v4 / params.heads, head, column);
}

fn queries_of(row: u32, head: u32) -> u32 {
    return params.qk_offset + row * params.qk_stride + head / params.group * params.d4;
}

fn gate_of(row: u32, head: u32) -> u32 {
    return params.gate_offset + row * params.gate_stride + head;
}

// Decay and write of one token; returns what it writes.
fn advance(walk: Walk, row: u32) -> vec4<f32> {
    if (row % params.tokens == start_of(row)) {
        state = array<vec4<f32>, 4u * D4>();
    }
    let decay = exp(gates[gate_of(row, walk.head)]);
    let keys = queries_of(row, walk.head) + params.k_start;
    var missing = load4(v[params.v_offset + row * params.v_stride + walk.head * params.v4 + walk.column]);
    for (var i = 0u; i < D4; i++) {
        let key = load4(qk[keys + i]);
        for (var r = 0u; r < 4u; r++) {
            state[4u * i + r] *= decay;
            missing -= key[r] * state[4u * i + r];
        }
    }
    let written = gates[gate_of(row, walk.head) + params.beta_start] * missing;
    for (var i = 0u; i < D4; i++) {
        let key = load4(qk[keys + i]);
        for (var r = 0u; r < 4u; r++) {
            state[4u * i + r] += key[r] * written;
        }
    }
    return written;
}

@compute @workgroup_size(LANES)
fn gated_delta_rule_walk(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = linear_index(workgroup) * LANES + lane;
    let walk = walk_of(item);
    if (walk.sequence * params.tokens >= params.rows) {
        return;
    }
    for (var token = 0u; token < params.tokens; token++) {
        let row = walk.sequence * params.tokens + token;
        let written = advance(walk, row);
        let queries = queries_of(row, walk.head);
        var sum: vec4<f32>;
        for (var i = 0u; i < D4; i++) {
            let query = load4(qk[queries + i]);
            for (var r = 0u; r < 4u; r++) {
                sum += query[r] * state[4u * i + r];
            }
        }
        let to = params.out_offset + row * params.out_stride + walk.head * params.v4 + walk.column;
        out[to] = store4(params.scale * sum);
    }
    @if(final_state) {
        let to = params.state_offset + (walk.sequence * params.all_heads + walk.head) * 4u * D4 * params.v4;
        for (var k = 0u; k < 4u * D4; k++) {
            final_state[to + k * params.v4 + walk.column] = state[k];
        }
    }
}

@compute @workgroup_size(LANES)
fn gated_delta_rule_written(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = linear_index(workgroup) * LANES + lane;
    let walk = walk_of(item);
    if (walk.sequence * params.tokens >= params.rows) {
        return;
    }
    for (var i = 0u; i < params.chunks; i++) {
        let chunk = chunk_of(walk.sequence * params.chunks + i);
        put_state(state_of(params.states, chunk.index, 0u, walk.head) + walk.column);
        for (var token = 0u; token < chunk.tokens; token++) {
            let to = values_of(params.written, chunk.index, token, walk.head) + walk.column;
            scratch[to] = advance(walk, chunk.row + token);
        }
    }
    put_state(state_of(params.states, (walk.sequence + 1u) * params.chunks - 1u, 1u, walk.head) + walk.column);
}

fn put_state(to: u32) {
    for (var k = 0u; k < 4u * D4; k++) {
        scratch[to + k * params.v4] = state[k];
    }
}

@compute @workgroup_size(LANES)
fn gated_delta_rule_walk_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = linear_index(workgroup) * LANES + lane;
    let walk = walk_of(item);
    if (walk.sequence * params.tokens >= params.rows) {
        return;
    }
    for (var i = params.chunks; i > 0u; i--) {
        let chunk = chunk_of(walk.sequence * params.chunks + i - 1u);
        put_state(state_of(params.dstates, chunk.index, 0u, walk.head) + walk.column);
        for (var left = chunk.tokens; left > 0u; left--) {
            let to = values_of(params.dwritten, chunk.index, left - 1u, walk.head) + walk.column;
            scratch[to] = retreat(walk, chunk.row + left - 1u);
        }
    }
}

// One token, from the gradient of the state after it to that of the state before it; returns that of what it writes.
fn retreat(walk: Walk, row: u32) -> vec4<f32> {
    let queries = queries_of(row, walk.head);
    let gradient = load4(dout[params.dout_offset + row * params.dout_stride + walk.head * params.v4 + walk.column]);
    var dwritten: vec4<f32>;
    for (var i = 0u; i < D4; i++) {
        let query = params.scale * load4(qk[queries + i]);
        let key = load4(qk[queries + params.k_start + i]);
        for (var r = 0u; r < 4u; r++) {
            state[4u * i + r] += query[r] * gradient;
            dwritten += key[r] * state[4u * i + r];
        }
    }
    let is_start = row % params.tokens == start_of(row);
    let decay = select(exp(gates[gate_of(row, walk.head)]), 0.0, is_start);
    let strength = gates[gate_of(row, walk.head) + params.beta_start];
    for (var i = 0u; i < D4; i++) {
        let key = load4(qk[queries + params.k_start + i]);
        for (var r = 0u; r < 4u; r++) {
            state[4u * i + r] = decay * (state[4u * i + r] - strength * key[r] * dwritten);
        }
    }
    return dwritten;
}
