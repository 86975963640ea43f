//! The learning rate as a pure function of the optimizer's step count.
//!
//! Letters: t updates done before, W of warm-up, T in the schedule; lr the highest rate.

use crate::settings::{CoolDown, Decay, DecayStart, ScheduleConfig, Warmup};
use std::f64::consts::{PI, TAU};

/// A schedule with its length decided.
///
/// The first step of a warm-up has the rate `warmup_lr_init`, 0 by default, as in MindFormers:
/// the first update then changes nothing but the moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    config: ScheduleConfig,
    warmup_steps: u64,
    total_steps: u64,
}

impl Schedule {
    /// Decides the length of `config`: a run takes `run_steps` in epochs of `steps_per_epoch`.
    pub fn new(config: &ScheduleConfig, run_steps: u64, steps_per_epoch: u64) -> Self {
        let total_steps = config.total_steps.unwrap_or(run_steps);
        let warmup_steps = match config.warmup {
            Warmup::Steps(steps) => steps,
            Warmup::Ratio(ratio) => (total_steps as f64 * ratio) as u64,
            Warmup::Epochs(epochs) => epochs.saturating_mul(steps_per_epoch),
        };
        Self { config: config.clone(), warmup_steps, total_steps }
    }

    /// The rate of the update that `global_step` updates went before.
    pub fn lr_at(&self, global_step: u64) -> f64 {
        let ScheduleConfig { learning_rate: lr, warmup_lr_init, scale, .. } = self.config;
        if global_step < self.warmup_steps {
            let done = global_step as f64 / self.warmup_steps as f64;
            return scale * (warmup_lr_init + (lr - warmup_lr_init) * done);
        }
        scale * self.after_warmup(global_step)
    }

    fn after_warmup(&self, step: u64) -> f64 {
        let ScheduleConfig { learning_rate: lr, lr_end, .. } = self.config;
        let (since, total) = (step - self.warmup_steps, self.total_steps);
        let decaying = total.saturating_sub(self.warmup_steps).max(1);
        let progress = since as f64 / decaying as f64;
        let between = |share: f64| lr_end + (lr - lr_end) * share;
        match self.config.decay {
            Decay::Constant => lr,
            Decay::Linear => lr * ((total as f64 - step as f64) / decaying as f64).max(0.0),
            Decay::Cosine { decay_steps, .. } | Decay::CosineWithRestarts { decay_steps, .. }
                if step >= decay_steps.unwrap_or(total) =>
            {
                lr_end
            }
            Decay::Cosine { num_cycles, .. } => between(half_cosine(TAU * num_cycles * progress)),
            Decay::CosineWithRestarts { .. } if progress >= 1.0 => lr_end,
            Decay::CosineWithRestarts { num_cycles, .. } => {
                between(half_cosine(PI * (num_cycles * progress).fract()))
            }
            Decay::Polynomial { .. } if step > total => lr_end,
            Decay::Polynomial { power, decay_steps } => {
                let steps = decay_steps.unwrap_or(decaying).max(1);
                between((1.0 - since as f64 / steps as f64).max(0.0).powf(power))
            }
            Decay::CoolDown { keep_steps, ref length, num_cycles, final_steps, lr_end2 } => {
                let steps = match *length {
                    CoolDown::Steps(steps) => steps,
                    CoolDown::Ratio(ratio) => (total as f64 * ratio) as u64,
                    CoolDown::Rest => decaying.saturating_sub(keep_steps).saturating_sub(final_steps),
                };
                let Some(since) = since.checked_sub(keep_steps) else { return lr };
                match since.checked_sub(steps) {
                    None => between(half_cosine(TAU * num_cycles * since as f64 / steps as f64)),
                    Some(since) if since < final_steps => lr_end,
                    Some(_) => lr_end2,
                }
            }
            Decay::StableDecay(ref start) => {
                let start = match *start {
                    DecayStart::Step(step) => step,
                    DecayStart::Ratio(ratio) => (total as f64 * ratio) as u64,
                };
                let Some(since) = step.checked_sub(start) else { return lr };
                between((1.0 - since as f64 / total.saturating_sub(start).max(1) as f64).max(0.0))
            }
            // A whole cycle is taken off first: far out the cosine of a huge number would be noise.
            Decay::Annealing { t_max } => {
                between(half_cosine(PI * (step % t_max.saturating_mul(2)) as f64 / t_max as f64))
            }
            Decay::AnnealingWithRestarts { t_0, t_mult } => {
                let (since, length) = since_restart(step, t_0, t_mult);
                between(half_cosine(PI * since as f64 / length as f64))
            }
        }
    }

    /// Whether rates depend on [`total_steps`](Self::total_steps) after the warm-up.
    pub(crate) fn depends_on_length(&self) -> bool {
        match &self.config.decay {
            Decay::Constant | Decay::Annealing { .. } | Decay::AnnealingWithRestarts { .. } => false,
            Decay::CoolDown { length: CoolDown::Steps(_), .. } => false,
            Decay::CoolDown { .. } | Decay::Linear | Decay::StableDecay(_) => true,
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

#[cfg(test)]
mod tests;
