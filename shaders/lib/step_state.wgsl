// What one training step decides and the next one needs, on the device. `train::StepState` is the same struct in Rust.

struct StepState {
    loss_scale: f32, // of the step under way
    global_step: u32, // optimizer steps done; does not advance on overflow
    is_overflow: u32, // 1 if a gradient of this step was not finite
    grad_norm: f32, // of the unscaled gradients, before clipping
    grad_factor: f32, // what AdamW multiplies gradients with: unscale · clip
    learning_rate: f32,
    bias_correction1: f32, // 1 / (1 - beta1^t)
    bias_correction2: f32, // 1 / (1 - beta2^t)
    loss: f32, // mean over the step's micro-batches
    is_halted: u32, // 1 stops updates until the host clears it
    overflows: u32, // so far
    step: u32, // steps done, overflowed ones included
}

// The schedule's row of the step under way, once grad_norm has advanced `global_step`; on overflow nobody asks.
fn schedule_row(global_step: u32, rows: u32) -> u32 {
    return clamp(global_step, 1u, rows) - 1u;
}

// The loss of the micro-batches since the host cleared it.
struct LossState {
    seed: f32, // gradient of the objective with respect to each token's loss
    count: f32, // tokens that count, of the current micro-batch
    loss_sum: f32, // over all micro-batches
    token_sum: f32,
    mean_sum: f32, // of each micro-batch's mean loss, divided by the number of micro-batches
}
