// Stochastic gradient descent with momentum over one arena segment, regardless of the tensors in it:
//
//   g = gradient · grad_factor + decay · p (unscaled and clipped; the decay is coupled: it passes through the momentum)
//   m ← μ m + (1 − dampening) g, in the first update m ← g
//   p ← p − lr · (g + μ m with Nesterov momentum, m without)
//
//   gradients (4 · count4)                                     read
//   weights, moments (4 · count4)                              updated in place
//   state: StepState                                           read: grad_factor, global_step, flags
//   schedule (schedule_rows, schedule_stride)                  read: column rate_column is this segment's learning rate
//
// On overflow, or while the run is halted, weights and momentum are left unchanged.
// One invocation updates 4 parameters. Padding is zero and stays zero. Numerics: f32 throughout; weights that are
// stored in bfloat16 are rounded stochastically (lib/rounding.wgsl).
// Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013, in the form of
// PyTorch and MindSpore, whose momentum is not multiplied with the learning rate.

import package::lib::element::{Packed, load4};
import package::lib::grid::linear_index;
import package::lib::rounding::{Places, round4};
import package::lib::step_state::{StepState, schedule_row};
import package::tile::LANES;

struct Params {
    count4: u32,
    offset: u32, // of gradients and moments, in groups of 4
    weights_offset: u32,
    decay: f32,
    momentum: f32,
    dampening: f32,
    is_nesterov: u32,
    rate_column: u32,
    schedule_rows: u32,
    schedule_stride: u32,
    seed_low: u32, // of the bits that round weights in bfloat16
    seed_high: u32,
    first4: u32, // places of the weights: see lib/rounding
    skipped4: u32,
    run4: u32,
    gap4: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gradients: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> weights: array<Packed>;
@group(0) @binding(3) var<storage, read_write> moments: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> state: StepState;
@group(0) @binding(5) var<storage, read> schedule: array<f32>;

@compute @workgroup_size(LANES)
fn sgd(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = linear_index(workgroup) * LANES + lane;
    if (i >= params.count4 || state.is_overflow != 0u || state.halt != 0u) {
        return;
    }
    let at = params.offset + i;
    let of_weights = params.weights_offset + i;
    let p = load4(weights[of_weights]);
    let g = gradients[at] * state.grad_factor + params.decay * p;
    // grad_norm has counted this update already.
    let is_first = state.global_step == 1u;
    let m = params.momentum * moments[at] + select(1.0 - params.dampening, 1.0, is_first) * g;
    moments[at] = m;
    let direction = select(m, g + params.momentum * m, params.is_nesterov != 0u);
    let row = schedule_row(state.global_step, params.schedule_rows);
    let updated = p - schedule[row * params.schedule_stride + params.rate_column] * direction;
    let places = Places(params.first4, params.skipped4, params.run4, params.gap4);
    weights[of_weights] = round4(updated, i, places, state.global_step, vec2<u32>(params.seed_low, params.seed_high));
}
