// Scale per expert:   y_j = g_j · s(e_j)   for each choice j of a token      g, y, dy, dg (N, k), s, ds (E), all f32
//
//   scale_gates             writes y, and with dy in the place of g the gradient dg_j = dy_j · s(e_j)
//   expert_scale_gradient   ds(e) += Σ over the choices of expert e of dy · g
//
// `ids` (N·k): the expert of each choice. Gates: one invocation per token, which writes their padding. Scales: one
// workgroup per expert, software tier: one invocation (lib/reduce); its lanes share the choices.
// Numerics: f32; the sums of lanes run in the order of choices and are added in a fixed order.
// Source: the router of Gemma 4 (Google, 2026).

import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum};
import package::tile::LANES;

struct Params {
    tokens: u32, // N
    chosen: u32, // k
    experts: u32, // E
    stride: u32, // of gates and their gradients, in elements
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read> scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> scaled: array<f32>;

@group(0) @binding(3) var<storage, read> d_scaled: array<f32>;
@group(0) @binding(4) var<storage, read_write> d_scale: array<f32>;

@compute @workgroup_size(LANES)
fn scale_gates(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let token = linear_index(workgroup) * LANES + lane;
    if (token >= params.tokens) {
        return;
    }
    for (var j = 0u; j < params.stride; j++) {
        var value = 0.0;
        if (j < params.chosen) {
            value = gates[token * params.stride + j] * scale[ids[token * params.chosen + j]];
        }
        scaled[token * params.stride + j] = value;
    }
}

@compute @workgroup_size(LANES)
fn expert_scale_gradient(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let expert = row_of(linear_index(workgroup), lane);
    if (expert >= params.experts) {
        return;
    }
    var sum = 0.0;
    for (var choice = first_of(lane); choice < params.tokens * params.chosen; choice += STEP) {
        if (ids[choice] == expert) {
            let at = choice / params.chosen * params.stride + choice % params.chosen;
            sum += d_scaled[at] * gates[at];
        }
    }
    let total = row_sum(sum, lane);
    if (first_of(lane) == 0u) {
        d_scale[expert] += total;
    }
}
