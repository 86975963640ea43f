// The gates of the gated delta rule, and their gradients (tensors in gated_delta_rule/params.wgsl):
//
//   gates           c, beta, before and after of every token and head, from their log_decay and beta
//   products        p = Σ S · dS over the state after a chunk and its gradient, for each chunk and head
//   gates_backward  dbeta[t] = v[t]·r[t] − k[t]·y[t], with r = dwritten
//                   dlog_decay[t] = Σ_s (q[s]·x[s] − k[s]·(z[s] + beta[s] y[s])) + p over the tokens s >= t of its
//                   document in its chunk, with p if the document goes on; 0 for the first token of a document
//
// q·x, k·(z + beta y) and k·y come from `dots`, in blocks of columns (gated_delta_rule/chunks). What weighs a token
// is exp of a difference of two c; x has all terms in which c[t] is the first, y and z those in which it is the second.
// An invocation computes the gates of a chunk, or the gradients of a token, of one head; `products` is a reduction.
// Numerics: sums in f32, in a fixed order. Terms of dlog_decay cancel: its error is relative to their sizes.

import package::gated_delta_rule::params::{all_chunks, chunk_of, dots_of, gates_of, params, scratch, start_of};
import package::gated_delta_rule::params::{state_of, values_of};
import package::lib::element::{Packed, load4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum};
import package::tile::{CHUNK, LANES};

// (N, 2 beta_start): log_decay of all heads, at most 0, and from beta_start on beta, from 0 to 1
@group(0) @binding(3) var<storage, read> gates: array<f32>;

@group(0) @binding(3) var<storage, read> v: array<Packed>; // (N, heads · 4 v4)
@group(0) @binding(4) var<storage, read_write> dgates: array<f32>; // (N, 2 beta_start), as gates

@compute @workgroup_size(LANES)
fn gated_delta_rule_gates(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = linear_index(workgroup) * LANES + lane;
    let head = item % params.heads;
    if (item / params.heads >= all_chunks()) {
        return;
    }
    let chunk = chunk_of(item / params.heads);
    let last_start = start_of(chunk.row + chunk.tokens - 1u);
    var total = 0.0;
    for (var i = 0u; i < chunk.tokens; i++) {
        total += gates[params.gate_offset + (chunk.row + i) * params.gate_stride + head];
    }
    var sum = 0.0;
    for (var i = 0u; i < chunk.tokens; i++) {
        let row = chunk.row + i;
        let at = params.gate_offset + row * params.gate_stride + head;
        sum += gates[at];
        let before = select(0.0, exp(sum), start_of(row) < chunk.begin);
        let after = select(0.0, exp(total - sum), chunk.begin + i >= last_start);
        scratch[gates_of(chunk.index, i, head)] = vec4<f32>(sum, gates[at + params.beta_start], before, after);
    }
}

@compute @workgroup_size(LANES)
fn gated_delta_rule_products(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    let index = item / params.heads;
    if (index >= all_chunks()) {
        return;
    }
    let head = item % params.heads;
    let states = state_of(params.states, index, 1u, head);
    let dstates = state_of(params.dstates, index, 0u, head);
    var sum = 0.0;
    for (var i = first; i < 4u * params.d4 * params.v4; i += STEP) {
        sum += dot(scratch[states + i], scratch[dstates + i]);
    }
    let total = row_sum(sum, lane);
    if (first == 0u) {
        scratch[params.products + item] = vec4<f32>(total, 0.0, 0.0, 0.0);
    }
}

@compute @workgroup_size(LANES)
fn gated_delta_rule_gates_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = linear_index(workgroup) * LANES + lane;
    let place = item / params.gate_columns;
    let head = item % params.gate_columns;
    if (place / CHUNK >= all_chunks()) {
        return;
    }
    let chunk = chunk_of(place / CHUNK);
    let token = place % CHUNK;
    if (token >= chunk.tokens) {
        return;
    }
    let row = chunk.row + token;
    let to = params.gate_offset + row * params.gate_stride + head;
    if (head >= params.heads) {
        dgates[to] = 0.0; // padding
        dgates[to + params.beta_start] = 0.0;
        return;
    }
    let start = start_of(row);
    let halves = 2u * ((params.d4 + params.block - 1u) / params.block); // those of dq and of dk
    var strength = 0.0;
    for (var c = 0u; c < params.v4; c++) {
        let value = load4(v[params.v_offset + row * params.v_stride + head * params.v4 + c]);
        strength += dot(value, scratch[values_of(params.dwritten, chunk.index, token, head) + c]);
    }
    var sum = 0.0;
    for (var s = token; s < chunk.tokens; s++) {
        if (start_of(chunk.row + s) == start) {
            for (var half = 0u; half < halves; half++) {
                let dots = scratch[dots_of(half, chunk.index, s, head)];
                sum += dots.x;
                if (s == token) {
                    strength -= dots.y;
                }
            }
        }
    }
    if (start_of(chunk.row + chunk.tokens - 1u) == start) {
        sum += scratch[params.products + chunk.index * params.heads + head].x;
    }
    dgates[to] = select(sum, 0.0, chunk.begin + token == start);
    dgates[to + params.beta_start] = strength;
}
