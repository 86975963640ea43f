//! The state of a step on the device: the same structs as in `shaders/lib/step_state.wgsl`.

use bytemuck::{Pod, Zeroable};

use crate::element::stride_of;
use crate::ops::grad_norm::rate_column;

/// The decisions of a step and the counters that persist from step to step.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct StepState {
    /// What the loss is multiplied by before the backward pass.
    pub loss_scale: f32,
    /// Optimizer steps done; an overflow does not advance it.
    pub global_step: u32,
    /// 1 if a gradient of the step was not finite.
    pub is_overflow: u32,
    /// L2 norm of the unscaled gradients, before clipping.
    pub grad_norm: f32,
    /// The optimizer's factor for gradients: unscaling times clipping.
    pub grad_factor: f32,
    /// The learning rate of the step, for parameters outside of groups with their own.
    pub learning_rate: f32,
    /// 1 / (1 - beta1^t), or 1 where the optimizer does not correct its moments.
    pub bias_correction1: f32,
    /// 1 / (1 - beta2^t), or 1.
    pub bias_correction2: f32,
    /// Mean loss over the step's micro-batches in nats per token.
    pub loss: f32,
    /// While 1, updates are skipped.
    pub is_halted: u32,
    /// Steps whose gradients were not finite, since the start of this process.
    pub overflows: u32,
    /// Steps done, overflowed ones included.
    pub step: u32,
}

/// Sums of the loss since the host cleared them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct LossState {
    /// Gradient of the objective with respect to each token's loss.
    pub seed: f32,
    /// Tokens of the last micro-batch that are not ignored.
    pub count: f32,
    /// Sum of the losses of tokens that are not ignored, in nats.
    pub loss_sum: f32,
    /// Number of these tokens.
    pub token_sum: f32,
    /// Sum of the mean losses of micro-batches, each divided by their number.
    pub mean_sum: f32,
}

impl StepState {
    /// Size in 32-bit words.
    pub const WORDS: u32 = (size_of::<Self>() / 4) as u32;
}

impl LossState {
    /// Size in 32-bit words.
    pub const WORDS: u32 = (size_of::<Self>() / 4) as u32;
}

/// The rows of [`StepTensors::schedule`], computed in f64. `rates` gives each parameter group's learning rate by
/// step; without `betas` the moments are not corrected for their start at 0.
///
/// [`StepTensors::schedule`]: crate::ops::grad_norm::StepTensors::schedule
pub fn schedule_table(steps: u64, rates: &[&dyn Fn(u64) -> f64], betas: Option<[f64; 2]>) -> Vec<f32> {
    let stride = stride_of(schedule_columns(rates.len())) as usize;
    let mut table = vec![0.0; steps.max(1) as usize * stride];
    for (step, row) in (0..).zip(table.chunks_exact_mut(stride)) {
        let correction = |beta: f64| 1.0 / -f64::exp_m1((step + 1) as f64 * beta.ln());
        let corrections = betas.map_or([1.0; 2], |betas| betas.map(correction));
        row[1..3].copy_from_slice(&corrections.map(|correction| correction as f32));
        for (group, lr_at) in rates.iter().enumerate() {
            row[rate_column(group) as usize] = lr_at(step) as f32;
        }
    }
    table
}

/// Columns of a schedule for `groups` parameter groups.
pub const fn schedule_columns(groups: usize) -> u32 {
    2 + groups as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_rates_and_the_corrections_of_the_paper() {
        let rates: [&dyn Fn(u64) -> f64; 3] = [&|step| step as f64, &|_| 7.0, &|step| 8.0 + step as f64];
        let table = schedule_table(3, &rates, Some([0.9, 0.95]));
        assert_eq!(table.len(), 3 * 8, "5 columns take 8");
        for (i, row) in table.chunks(8).enumerate() {
            let t = i as i32 + 1;
            let corrections = [0.9f64, 0.95].map(|beta| 1.0 / (1.0 - beta.powi(t)));
            let want = [i as f64, corrections[0], corrections[1], 7.0, 8.0 + i as f64, 0.0, 0.0, 0.0];
            assert!(
                row.iter().zip(want).all(|(&got, want)| (got as f64 - want).abs() <= 1e-6 * want),
                "{row:?}"
            );
        }
        let uncorrected = schedule_table(2, &[&|_| 0.5], None);
        assert_eq!(uncorrected, [0.5, 1.0, 1.0, 0.0, 0.5, 1.0, 1.0, 0.0]);
    }
}
