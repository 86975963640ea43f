// State of a training step that lives on the device and that the kernels of the step share. `ops::step_state` holds
// the same structs in Rust.

struct StepState {
    loss_scale: f32, // of the current step; after the update, of the next one
    global_step: u32, // optimizer steps done; does not advance on overflow
    is_overflow: u32, // 1 if a gradient of this step was not finite
    grad_norm: f32, // norm of the unscaled gradients, before clipping
    grad_factor: f32, // clip factor / loss_scale, which the optimizer applies to gradients
    learning_rate: f32,
    bias_correction1: f32, // 1 / (1 - beta1^t)
    bias_correction2: f32, // 1 / (1 - beta2^t)
    loss: f32, // mean over the step's micro-batches
    halt: u32, // SKIPPED or HALTED: no update is made, as on overflow
    overflows: u32, // steps that have overflowed so far
    step: u32, // steps done, overflowed ones included
}

const SKIPPED = 1u; // this step alone: its norm spiked
const HALTED = 2u; // this step and all later ones, until the host clears it

// The row of the schedule for the current step, after grad_norm has advanced `global_step`. Not used on overflow.
fn schedule_row(global_step: u32, rows: u32) -> u32 {
    return clamp(global_step, 1u, rows) - 1u;
}

// Loss over the micro-batches since the host last cleared it.
struct LossState {
    seed: f32, // gradient of the scaled objective with respect to each token's loss
    count: f32, // targets that are not ignored, in the current micro-batch
    loss_sum: f32, // over all micro-batches
    token_sum: f32, // `count` over all micro-batches
    mean_sum: f32, // sum over micro-batches of mean loss / number of micro-batches
}

// Sums over the pairs of preferences since the host last cleared them.
struct PreferenceState {
    chosen_reward: f32,
    rejected_reward: f32,
    accurate: f32, // pairs whose chosen answer has the higher reward
    chosen_log_prob: f32,
    rejected_log_prob: f32,
}
