//! What a step decides, as it lies on the device: the same structs as in `shaders/lib/step_state.wgsl`.

use bytemuck::{Pod, Zeroable};

/// The step's decisions and the counters that outlive it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct StepState {
    /// What the loss was multiplied with.
    pub loss_scale: f32,
    /// Optimizer steps done; an overflow does not advance it.
    pub global_step: u32,
    /// 1 if a gradient was not finite.
    pub is_overflow: u32,
    /// Norm of the unscaled gradients, before clipping.
    pub grad_norm: f32,
    /// What AdamW multiplied gradients with.
    pub grad_factor: f32,
    /// The learning rate of the step.
    pub learning_rate: f32,
    /// 1 / (1 - beta1^t)
    pub bias_correction1: f32,
    /// 1 / (1 - beta2^t)
    pub bias_correction2: f32,
    /// Mean loss over the step's micro-batches.
    pub loss: f32,
    /// 1 stops updates.
    pub is_halted: u32,
    /// Steps whose gradients were not finite, since the start of this process.
    pub overflows: u32,
    /// Steps done, overflowed ones included.
    pub step: u32,
}

/// Sums of the loss since they were cleared.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct LossState {
    /// Gradient of the objective with respect to each token's loss.
    pub seed: f32,
    /// Tokens that count in the last micro-batch.
    pub count: f32,
    /// Loss summed over tokens.
    pub loss_sum: f32,
    /// Tokens that counted.
    pub token_sum: f32,
    /// Micro-batch means, each divided by the number of micro-batches.
    pub mean_sum: f32,
}

/// The schedule as the device reads it: learning rate and bias corrections by global step, computed in f64.
pub fn schedule_table(steps: u64, lr_at: impl Fn(u64) -> f64, beta1: f64, beta2: f64) -> Vec<[f32; 4]> {
    let correction = |beta: f64, t: u64| 1.0 / -f64::exp_m1(t as f64 * beta.ln());
    let row = |step: u64| {
        let t = step + 1;
        [lr_at(step) as f32, correction(beta1, t) as f32, correction(beta2, t) as f32, 0.0]
    };
    (0..steps.max(1)).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrections_are_those_of_the_paper() {
        let table = schedule_table(3, |step| step as f64, 0.9, 0.95);
        for (i, row) in table.iter().enumerate() {
            let t = i as i32 + 1;
            let want = [i as f64, 1.0 / (1.0 - 0.9f64.powi(t)), 1.0 / (1.0 - 0.95f64.powi(t))];
            assert!(
                row.iter().zip(want).all(|(&got, want)| (got as f64 - want).abs() <= 1e-6 * want),
                "{row:?}"
            );
        }
    }
}
