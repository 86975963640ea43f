// Gates renormalised over the choices that were not dropped, so that they sum to `scaling` again       gates (N, k) f32
//
//   renormalise_gates            g'_j = scaling · g_j / (S + 1e-9) where choice j was kept, else 0;   S = Σ kept g
//   renormalise_gates_backward   dg_j = (scaling · dg'_j − Σ_i dg'_i g'_i) / (S + 1e-9) where kept, else 0
//
// `places` (N·k) is NONE for dropped choices. One invocation processes the k ≤ 16 gates of a token and writes their
// padding. It reloads gates instead of keeping an array of them in registers: they are in cache. Sums run in the order
// of j.

import package::lib::grid::linear_index;
import package::tile::LANES;

const NONE: u32 = 0xffffffffu;
const EPSILON: f32 = 1e-9;

struct Params {
    tokens: u32, // N
    chosen: u32, // k
    stride: u32, // of gates, in elements
    scaling: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read> places: array<u32>; // (N·k)
@group(0) @binding(3) var<storage, read_write> renormalised: array<f32>;

@group(0) @binding(3) var<storage, read> d_renormalised: array<f32>;
@group(0) @binding(4) var<storage, read_write> d_gates: array<f32>;

@compute @workgroup_size(LANES)
fn renormalise_gates(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let token = linear_index(workgroup) * LANES + lane;
    if (token >= params.tokens) {
        return;
    }
    let sum = kept_sum(token);
    for (var j = 0u; j < params.stride; j++) {
        renormalised[token * params.stride + j] = params.scaling * (kept_gate(token, j) / (sum + EPSILON));
    }
}

@compute @workgroup_size(LANES)
fn renormalise_gates_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let token = linear_index(workgroup) * LANES + lane;
    if (token >= params.tokens) {
        return;
    }
    let sum = kept_sum(token) + EPSILON;
    var mean = 0.0;
    for (var j = 0u; j < params.chosen; j++) {
        mean += d_renormalised[token * params.stride + j] * (kept_gate(token, j) / sum);
    }
    for (var j = 0u; j < params.stride; j++) {
        let at = token * params.stride + j;
        var gradient = 0.0;
        if (is_kept(token, j)) {
            gradient = params.scaling * (d_renormalised[at] - mean) / sum;
        }
        d_gates[at] = gradient;
    }
}

fn kept_sum(token: u32) -> f32 {
    var sum = 0.0;
    for (var j = 0u; j < params.chosen; j++) {
        sum += kept_gate(token, j);
    }
    return sum;
}

fn kept_gate(token: u32, j: u32) -> f32 {
    if (is_kept(token, j)) {
        return gates[token * params.stride + j];
    }
    return 0.0;
}

fn is_kept(token: u32, j: u32) -> bool {
    if (j >= params.chosen) {
        return false;
    }
    return places[token * params.chosen + j] != NONE;
}
