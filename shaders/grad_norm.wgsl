// Global gradient norm, overflow detection, and the StepState that the optimizer reads
//
//   square_sum    per row of blocks · BLOCK groups of 4 of one arena segment: partial = (√Σ (g · weight / loss_scale)²,
//                 non-finite groups)
//   finish_step   one workgroup reduces all partials and writes norm, overflow flag, clip factor / loss_scale, learning
//                 rate and bias corrections to the step's state; advances global_step unless the step overflowed, its
//                 norm reached spike_norm, or the run is halted
//
//   gradients (4 · count4) f32, partials (P, 2) f32, schedule (schedule_rows, 4 · schedule_stride4) f32
//
// square_sum: one workgroup per row; software tier: one invocation (lib/reduce). Reductions have a fixed order that
// does not depend on tensor boundaries, so the norm is the same from run to run. Large models have several blocks in a
// row, which keeps the partials few. Each block is summed separately, as accurately as in small models.
// Numerics: gradients are unscaled before squaring, and no square overflows or vanishes (lib/squares). So is_overflow
// means only that a gradient is not finite, or would not be once unscaled. It is tested on gradients as loaded
// (lib/bits).
// weight is 1, or tokens / (targets of the step that are not ignored) if every token of the step counts the same: the
// loss of each micro-batch was divided by all its tokens, since the targets of the other micro-batches were not known
// yet.
// Clipping: factor = min(1, max_norm / (norm + 1e-6)), as in PyTorch's clip_grad_norm_.

import package::lib::bits::{INFINITY, LARGEST_WORD, is_any_beyond, is_beyond};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum4};
import package::lib::squares::{LARGEST, SMALLEST, Squares, norm_of, squares_of};
import package::lib::step_state::{HALTED, LossState, SKIPPED, StepState};
import package::tile::{BLOCK, LANES};

struct Params {
    count4: u32, // groups of 4 in the segment
    offset4: u32, // of the first one in its binding
    rows: u32, // square_sum: rows; finish_step: number of partials
    blocks: u32, // square_sum: blocks of BLOCK groups in a row
    first_partial: u32,
    max_norm: f32, // 0: no clipping
    schedule_rows: u32,
    schedule_stride4: u32,
    spike_norm: f32, // a step with this norm or more is skipped; 0: none
    halts_on_nan: u32, // 1: a gradient or loss that is not finite halts the run
    // Tokens of the step, including ignored ones, if all others count the same; 0: the mean is over micro-batches
    tokens: f32,
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
    let unscale = token_weight() / state.loss_scale;
    // Less than the largest f32 by more than rounding could add.
    let bound = select(LARGEST_WORD, bitcast<u32>(0.999999 * LARGEST / unscale), unscale > 1.0);
    var sums = Squares(0.0);
    for (var block = 0u; block < params.blocks; block++) {
        let start = (row * params.blocks + block) * BLOCK;
        let end = min(start + BLOCK, params.count4);
        var of_block = Squares(0.0);
        for (var i = start + first; i < end; i += STEP) {
            let gradient = gradients[params.offset4 + i];
            of_block += squares_of(gradient * unscale, is_any_beyond(bitcast<vec4<u32>>(gradient), bound));
        }
        sums += of_block;
    }
    let total = row_sum4(sums, lane);
    if (first == 0u) {
        partials[params.first_partial + row] = vec2<f32>(norm_of(total), total.w);
    }
}

@compute @workgroup_size(LANES)
fn finish_step(@builtin(local_invocation_index) lane: u32) {
    var sums = Squares(0.0);
    for (var i = lane; i < params.rows; i += LANES) {
        let partial = partials_in[i];
        sums += squares_of(vec4<f32>(partial.x, 0.0, 0.0, 0.0), false) + Squares(0.0, 0.0, 0.0, partial.y);
    }
    let total = row_sum4(sums, lane);
    if (lane != 0u) {
        return;
    }
    let overflow = total.w > 0.0;
    let norm = norm_of(total); // meaningless after an overflow
    var clip = 1.0;
    if (params.max_norm > 0.0) {
        clip = min(1.0, params.max_norm / (norm + 1e-6));
    }
    let row = schedule[min(state_out.global_step, params.schedule_rows - 1u) * params.schedule_stride4];
    state_out.is_overflow = select(0u, 1u, overflow);
    state_out.overflows += select(0u, 1u, overflow);
    state_out.grad_norm = bitcast<f32>(select(bitcast<u32>(norm), INFINITY, overflow));
    // If the factor vanished, a step whose gradients are huge would become a step without gradients.
    state_out.grad_factor = max(clip * token_weight() / state_out.loss_scale, SMALLEST);
    state_out.learning_rate = row.x;
    state_out.bias_correction1 = row.y;
    state_out.bias_correction2 = row.z;
    state_out.loss = select(loss.mean_sum, loss.loss_sum / max(loss.token_sum, 1.0), params.tokens > 0.0);
    let loss_word = select(bitcast<u32>(loss.mean_sum), bitcast<u32>(loss.loss_sum), params.tokens > 0.0);
    state_out.step += 1u;
    state_out.halt = halt_of(norm, overflow, overflow || is_beyond(loss_word, LARGEST_WORD));
    if (!overflow && state_out.halt == 0u) {
        state_out.global_step += 1u;
    }
}

fn halt_of(norm: f32, overflow: bool, has_nan: bool) -> u32 {
    if (state_out.halt == HALTED || (params.halts_on_nan != 0u && has_nan)) {
        return HALTED;
    }
    let spikes = params.spike_norm > 0.0 && norm >= params.spike_norm;
    return select(0u, SKIPPED, spikes && !overflow);
}

fn token_weight() -> f32 {
    return select(1.0, params.tokens / max(loss.token_sum, 1.0), params.tokens > 0.0);
}
