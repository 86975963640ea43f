// AdamW over one arena segment, regardless of the tensors in it:
//
//   g = gradient · grad_factor (unscaled and clipped)
//   m ← β1 m + (1 − β1) g,   v ← β2 v + (1 − β2) g²,   m̂ = m / (1 − β1^t),   v̂ = v / (1 − β2^t)
//   p ← p (1 − lr · decay) − lr · m̂ / (sqrt(v̂) + ε)
//
//   gradients (4 · count4)                                     read
//   weights, first_moments, second_moments (4 · count4)        updated in place
//   state: StepState                                           read: grad_factor, bias corrections, flags
//   schedule (schedule_rows, schedule_stride)                  read: column rate_column is this segment's learning rate
//
// With `corrects_epsilon` the divisor is (sqrt(v) + ε) / sqrt(1 − β2^t). An optimizer without bias correction has
// corrections of 1 in its schedule.
// On overflow, or while the run is halted, weights and moments are left unchanged.
// One invocation updates 4 parameters. Padding is zero and stays zero. Numerics: f32 throughout; weights that are
// stored in bfloat16 are rounded stochastically (lib/rounding.wgsl).
// Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.

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
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    corrects_epsilon: u32,
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
@group(0) @binding(3) var<storage, read_write> first_moments: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> second_moments: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> state: StepState;
@group(0) @binding(6) var<storage, read> schedule: array<f32>;

@compute @workgroup_size(LANES)
fn adamw(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = linear_index(workgroup) * LANES + lane;
    if (i >= params.count4 || state.is_overflow != 0u || state.halt != 0u) {
        return;
    }
    let at = params.offset + i;
    let of_weights = params.weights_offset + i;
    let g = gradients[at] * state.grad_factor;
    let m = mix(g, first_moments[at], params.beta1);
    let v = mix(g * g, second_moments[at], params.beta2);
    first_moments[at] = m;
    second_moments[at] = v;
    let correction = sqrt(state.bias_correction2);
    let epsilon = params.epsilon * select(1.0, correction, params.corrects_epsilon != 0u);
    let update = m * state.bias_correction1 / (sqrt(v * state.bias_correction2) + epsilon);
    let row = schedule_row(state.global_step, params.schedule_rows);
    let lr = schedule[row * params.schedule_stride + params.rate_column];
    let p = load4(weights[of_weights]) * (1.0 - lr * params.decay) - lr * update;
    let places = Places(params.first4, params.skipped4, params.run4, params.gap4);
    weights[of_weights] = round4(p, i, places, state.global_step, vec2<u32>(params.seed_low, params.seed_high));
}
