// The loss scale of the next step, if it adapts: an overflow divides it by `factor`, and a whole window of steps
// without overflow multiplies it by `factor`.
//
//   s ← max(s / factor, 1) on overflow;   s ← min(factor · s, 2^64) once the window has passed since the last change
//
// The windows are a list. The third increase under a window moves on to the next one; the third decrease without an
// increase in between leaves the list for a window of one step, and from there it begins again. With a list of one
// window this is MindSpore's DynamicLossScaleUpdateCell, otherwise AdaptiveLossScaleUpdateCell of MindSpore
// Transformers. Neither has an upper bound.
//
//   state: StepState              is_overflow is read; loss_scale becomes that of the next step
//   scaler: LossScaleState        the state machine, which also keeps the scale that the step used
//   windows (params.windows) u32  steps, none of them 0
//
// One invocation. Numerics: products of f32, exact where factor is a power of two. The division is a product with 1 /
// factor, as in MindFormers. Increases and decreases are counted modulo 4, also as there: at either end of the list
// they go on.

import package::lib::step_state::{HALTED, StepState};
import package::tile::LANES;

struct Params {
    windows: u32,
    factor: f32,
    inverse_factor: f32,
}

struct LossScaleState {
    loss_scale: f32, // of the next step
    window: u32,
    index: i32, // of the window; -1: one step, not in the list
    increases: u32, // modulo 4
    decreases: u32, // modulo 4
    step: u32, // number of the next step, from 1
    last_change: u32, // step that last completed a window or overflowed
    used: f32, // scale of the step that has ended
}

const SMALLEST = 1.0;
const LARGEST = 18446744073709551616.0; // 2^64

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> windows: array<u32>;
@group(0) @binding(2) var<storage, read_write> state: StepState;
@group(0) @binding(3) var<storage, read_write> scaler: LossScaleState;

@compute @workgroup_size(LANES)
fn loss_scale() {
    scaler.used = scaler.loss_scale;
    if (state.halt == HALTED) {
        return;
    }
    let overflow = state.is_overflow != 0u;
    let is_complete = scaler.window <= scaler.step - scaler.last_change;
    if (overflow || is_complete) {
        scaler.last_change = scaler.step;
    }
    scaler.step += 1u;
    if (overflow) {
        scaler.loss_scale = max(scaler.loss_scale * params.inverse_factor, SMALLEST);
    } else if (is_complete) {
        scaler.loss_scale = min(scaler.loss_scale * params.factor, LARGEST);
        scaler.increases = (scaler.increases + 1u) % 4u;
        scaler.decreases = 0u;
    }
    // In every step, because increases counted at the end of the list count once the list begins again.
    if (scaler.increases == 3u && scaler.index != i32(params.windows) - 1) {
        scaler.index += 1;
        scaler.increases = 0u;
        scaler.window = windows[scaler.index];
    }
    if (overflow) {
        scaler.decreases = (scaler.decreases + 1u) % 4u;
        if (scaler.decreases == 3u && scaler.index > 0) {
            scaler.index = -1;
            scaler.window = 1u;
            scaler.decreases = 0u;
            scaler.increases = 0u;
        }
    }
    state.loss_scale = scaler.loss_scale;
}
