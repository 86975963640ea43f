// Global gradient norm, overflow detection, and the StepState that the optimizer reads
//
//   square_sum    per row of BLOCK groups of 4 of one arena segment: partial = (Σ (g / loss_scale)², non-finite groups)
//   finish_step   one workgroup reduces all partials and writes norm, overflow flag, clip factor / loss_scale, learning
//                 rate and bias corrections to the step's state; advances global_step unless the step overflowed or the
//                 run is halted
//
//   gradients (4 · count4) f32, partials (P, 2) f32, schedule (schedule_rows, 4 · schedule_stride4) f32
//
// square_sum: one workgroup per row; software tier: one invocation (lib/reduce). Reductions have a fixed order that
// does not depend on tensor boundaries, so the norm is the same from run to run.
// Numerics: gradients are unscaled before squaring, so the loss scale cannot make the squares overflow. Overflow is
// tested on the raw bits (exponent all ones): shader compilers may assume that no value is NaN and drop `g != g`.
// Clipping: factor = min(1, max_norm / (norm + 1e-6)), as in PyTorch's clip_grad_norm_.

import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum};
import package::lib::step_state::{LossState, StepState};
import package::tile::{BLOCK, LANES};

struct Params {
    count4: u32, // groups of 4 in the segment
    rows: u32, // square_sum: rows of BLOCK groups; finish_step: number of partials
    first_partial: u32,
    max_norm: f32, // 0: no clipping
    schedule_rows: u32,
    schedule_stride4: u32,
}

// By global_step: learning rate, 1 / (1 - beta1^t), 1 / (1 - beta2^t), learning rate of parameter group 1, ...
alias ScheduleRow = vec4<f32>;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gradients: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> partials: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> state: StepState;

@group(0) @binding(1) var<storage, read> schedule: array<ScheduleRow>;
@group(0) @binding(2) var<storage, read> partials_in: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> state_out: StepState;
@group(0) @binding(4) var<storage, read> loss: LossState;

@compute @workgroup_size(LANES)
fn square_sum(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let unscale = 1.0 / state.loss_scale;
    let end = min(BLOCK, params.count4 - row * BLOCK);
    var squares = 0.0;
    var overflows = 0.0;
    for (var i = first; i < end; i += STEP) {
        let g = gradients[row * BLOCK + i];
        let unscaled = g * unscale;
        squares += dot(unscaled, unscaled);
        overflows += select(0.0, 1.0, any(is_overflow(g)));
    }
    let total = vec2<f32>(row_sum(squares, lane), row_sum(overflows, lane));
    if (first == 0u) {
        partials[params.first_partial + row] = total;
    }
}

@compute @workgroup_size(LANES)
fn finish_step(@builtin(local_invocation_index) lane: u32) {
    var sums = vec2<f32>(0.0);
    for (var i = lane; i < params.rows; i += LANES) {
        sums += partials_in[i];
    }
    let squares = row_sum(sums.x, lane);
    let overflows = row_sum(sums.y, lane);
    if (lane != 0u) {
        return;
    }
    let norm = sqrt(squares);
    var clip = 1.0;
    if (params.max_norm > 0.0) {
        clip = min(1.0, params.max_norm / (norm + 1e-6));
    }
    let overflow = overflows > 0.0;
    let row = schedule[min(state_out.global_step, params.schedule_rows - 1u) * params.schedule_stride4];
    state_out.is_overflow = select(0u, 1u, overflow);
    state_out.overflows += select(0u, 1u, overflow);
    state_out.grad_norm = norm;
    state_out.grad_factor = clip / state_out.loss_scale;
    state_out.learning_rate = row.x;
    state_out.bias_correction1 = row.y;
    state_out.bias_correction2 = row.z;
    state_out.loss = loss.mean_sum;
    state_out.step += 1u;
    if (!overflow && state_out.is_halted == 0u) {
        state_out.global_step += 1u;
    }
}

fn is_overflow(value: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(value) & vec4<u32>(0x7f800000u)) == vec4<u32>(0x7f800000u);
}
