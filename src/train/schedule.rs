//! The learning rate as a pure function of the optimizer's step count, and the table of rates on the device.
//!
//! Letters: t updates done before, W steps of warm-up, T steps in the schedule; lr the highest rate.

use crate::element::stride_of;
use crate::ops::grad_norm::rate_column;
use crate::settings::{self, Decay};
use std::f64::consts::{PI, TAU};

/// A schedule with its length decided.
///
/// The first step of a warm-up has the rate `warmup_lr_init`, 0 by default, as in MindFormers:
/// the first update then changes nothing but the moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    keys: settings::Schedule,
    warmup_steps: u64,
    total_steps: u64,
    /// Factor of all rates.
    factor: f64,
}

impl Schedule {
    /// Determines the length of the schedule that `keys` describe, for a run of `run_steps` in epochs of
    /// `steps_per_epoch`.
    pub fn new(keys: &settings::Schedule, run_steps: u64, steps_per_epoch: u64) -> Self {
        let total_steps = keys.total_steps.and_then(|steps| steps.try_into().ok()).unwrap_or(run_steps);
        let warmup_steps = match (keys.warmup_ratio, keys.warmup_epochs) {
            (Some(ratio), _) => share(total_steps, ratio),
            (None, Some(epochs)) => epochs.saturating_mul(steps_per_epoch),
            (None, None) => keys.warmup_steps.unwrap_or(0),
        };
        Self { keys: keys.clone(), warmup_steps, total_steps, factor: 1.0 }
    }

    /// The schedule of rates `factor` times as high.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    /// The rate of the update that follows `global_step` earlier updates.
    pub fn lr_at(&self, global_step: u64) -> f64 {
        let scale = self.factor * self.keys.scale();
        if global_step < self.warmup_steps {
            let done = global_step as f64 / self.warmup_steps as f64;
            let first = self.keys.warmup_lr_init.unwrap_or(0.0);
            return scale * (first + (self.keys.rate() - first) * done);
        }
        scale * self.after_warmup(global_step)
    }

    fn after_warmup(&self, step: u64) -> f64 {
        let lr = self.keys.rate();
        let (since, total) = (step - self.warmup_steps, self.total_steps);
        let decaying = total.saturating_sub(self.warmup_steps).max(1);
        let progress = since as f64 / decaying as f64;
        let between = |end: f64, share: f64| end + (lr - end) * share;
        match self.keys.decay {
            Decay::Constant {} => lr,
            Decay::Linear {} => lr * ((total as f64 - step as f64) / decaying as f64).max(0.0),
            Decay::Cosine { decay_steps, lr_end, .. }
            | Decay::CosineWithRestarts { decay_steps, lr_end, .. }
                if step >= decay_steps.unwrap_or(total) =>
            {
                lr_end
            }
            Decay::Cosine { num_cycles, lr_end, .. } => {
                between(lr_end, half_cosine(TAU * num_cycles * progress))
            }
            Decay::CosineWithRestarts { lr_end, .. } if progress >= 1.0 => lr_end,
            Decay::CosineWithRestarts { num_cycles, lr_end, .. } => {
                between(lr_end, half_cosine(PI * (num_cycles * progress).fract()))
            }
            Decay::Polynomial { lr_end, .. } if step > total => lr_end,
            Decay::Polynomial { lr_end, power, decay_steps } => {
                let steps = decay_steps.unwrap_or(decaying).max(1);
                between(lr_end, (1.0 - since as f64 / steps as f64).max(0.0).powf(power))
            }
            Decay::CoolDown {
                lr_end1,
                lr_end2,
                num_cycles,
                decay_steps,
                decay_ratio,
                keep_steps,
                final_steps,
            } => {
                let steps = match (decay_ratio, decay_steps) {
                    (Some(ratio), _) => share(total, ratio),
                    (None, Some(steps)) => steps,
                    (None, None) => decaying.saturating_sub(keep_steps).saturating_sub(final_steps),
                };
                let Some(since) = since.checked_sub(keep_steps) else { return lr };
                match since.checked_sub(steps) {
                    None => between(lr_end1, half_cosine(TAU * num_cycles * since as f64 / steps as f64)),
                    Some(since) if since < final_steps => lr_end1,
                    Some(_) => lr_end2.unwrap_or(lr_end1),
                }
            }
            Decay::StableDecay { lr_end, decay_start_steps, decay_start_ratio } => {
                let start = match decay_start_ratio {
                    Some(ratio) => share(total, ratio),
                    None => decay_start_steps.unwrap_or(0),
                };
                let Some(since) = step.checked_sub(start) else { return lr };
                between(lr_end, (1.0 - since as f64 / total.saturating_sub(start).max(1) as f64).max(0.0))
            }
            // Whole cycles are subtracted first: far out, the cosine of a huge number would be noise.
            Decay::Annealing { eta_min, t_max } => {
                between(eta_min, half_cosine(PI * (step % t_max.saturating_mul(2)) as f64 / t_max as f64))
            }
            Decay::AnnealingWithRestarts { eta_min, t_0, t_mult } => {
                let (since, length) = since_restart(step, t_0, t_mult);
                between(eta_min, half_cosine(PI * since as f64 / length as f64))
            }
        }
    }

    /// Whether rates depend on [`total_steps`](Self::total_steps) after the warm-up.
    pub(crate) fn depends_on_length(&self) -> bool {
        match self.keys.decay {
            Decay::Constant {} | Decay::Annealing { .. } | Decay::AnnealingWithRestarts { .. } => false,
            Decay::CoolDown { decay_steps, decay_ratio, .. } => {
                decay_ratio.is_some() || decay_steps.is_none()
            }
            Decay::Linear {} | Decay::StableDecay { .. } => true,
            Decay::Cosine { .. } | Decay::CosineWithRestarts { .. } | Decay::Polynomial { .. } => true,
        }
    }

    /// Number of steps over which the rate changes.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// Number of steps over which the rate rises.
    pub fn warmup_steps(&self) -> u64 {
        self.warmup_steps
    }
}

/// A share of `steps`, rounded down.
fn share(steps: u64, ratio: f64) -> u64 {
    (steps as f64 * ratio) as u64
}

/// 1 at phase 0, 0 at π.
fn half_cosine(phase: f64) -> f64 {
    (0.5 * (1.0 + phase.cos())).max(0.0)
}

/// Steps since the last restart, and steps from it to the next.
fn since_restart(step: u64, t_0: u64, t_mult: u64) -> (u64, u64) {
    if t_mult == 1 {
        return (step % t_0, t_0);
    }
    let (mut since, mut length) = (step, t_0);
    while since >= length {
        since -= length;
        length = length.saturating_mul(t_mult);
    }
    (since, length)
}

/// The rows of [`StepTensors::schedule`], computed in f64. `rates` gives each parameter group's learning rate by step;
/// without `betas` the moments are not corrected for starting at 0.
///
/// [`StepTensors::schedule`]: crate::ops::grad_norm::StepTensors::schedule
pub(crate) fn schedule_table(steps: u64, rates: &[&dyn Fn(u64) -> f64], betas: Option<[f64; 2]>) -> Vec<f32> {
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
pub(crate) const fn schedule_columns(groups: usize) -> u32 {
    2 + groups as u32
}

#[cfg(test)]
mod tests;
