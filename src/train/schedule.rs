//! The learning rate as a pure function of the optimizer's step count.
//!
//! Letters: t updates done before, W of warm-up, T in the schedule; lr the highest rate.

use std::f64::consts::{PI, TAU};

/// What a schedule's section says.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleConfig {
    /// The course after warm-up.
    pub decay: Decay,
    /// The highest rate.
    pub learning_rate: f64,
    /// The rate that decay ends at, where it does not end at 0.
    pub lr_end: f64,
    /// How long the rate rises.
    pub warmup: Warmup,
    /// The rate of the very first step.
    pub warmup_lr_init: f64,
    /// Length of the schedule; that of the whole run where absent.
    pub total_steps: Option<u64>,
    /// `LearningRateWiseLayer`: every rate is multiplied by this; 1 for all other types.
    pub scale: f64,
}

/// The course of the rate after warm-up.
#[derive(Clone, Debug, PartialEq)]
pub enum Decay {
    /// `CosineWithWarmUpLR`: down to `lr_end`.
    Cosine {
        /// Half a cycle (0.5) goes down once.
        num_cycles: f64,
        /// From this step on the rate is `lr_end`; the length of the schedule where absent.
        decay_steps: Option<u64>,
    },
    /// `CosineWithRestartsAndWarmUpLR`: down to `lr_end` and back up to lr at once, again and again.
    CosineWithRestarts {
        /// How often it goes down.
        num_cycles: f64,
        /// From this step on the rate is `lr_end`; the length of the schedule where absent.
        decay_steps: Option<u64>,
    },
    /// `LinearWithWarmUpLR`: down to 0.
    Linear,
    /// `PolynomialWithWarmUpLR`: down to `lr_end` as (1 - progress)^power.
    Polynomial {
        /// The exponent.
        power: f64,
        /// How many steps it takes after warm-up; all that are left where absent.
        decay_steps: Option<u64>,
    },
    /// `ConstantWarmUpLR`: stays.
    Constant,
    /// `ConstantWithCoolDownLR`: stays, goes down as a cosine to `lr_end`, stays, and drops to another rate.
    CoolDown {
        /// Steps at lr.
        keep_steps: u64,
        /// Steps on the way down.
        length: CoolDown,
        /// Half a cycle (0.5) goes down once.
        num_cycles: f64,
        /// Steps at `lr_end`.
        final_steps: u64,
        /// The rate after those.
        lr_end2: f64,
    },
    /// `WarmUpStableDecayLR`: stays, then goes down in a straight line to `lr_end` at T.
    StableDecay(DecayStart),
    /// `CosineAnnealingLR`, without warm-up: a cosine between lr and `lr_end` that takes `t_max` steps each way.
    Annealing {
        /// Steps from lr to `lr_end`.
        t_max: u64,
    },
    /// `CosineAnnealingWarmRestarts`, without warm-up (Loshchilov and Hutter, "SGDR", 2017).
    AnnealingWithRestarts {
        /// Steps from lr to the first restart.
        t_0: u64,
        /// Each way down is this many times as long as the one before.
        t_mult: u64,
    },
}

/// How long a cool-down takes.
#[derive(Clone, Debug, PartialEq)]
pub enum CoolDown {
    /// This many steps.
    Steps(u64),
    /// This share of the schedule, rounded down to steps.
    Ratio(f64),
    /// What warm-up, the steps before and those after leave of the schedule.
    Rest,
}

/// Where the decay of a stable schedule starts.
#[derive(Clone, Debug, PartialEq)]
pub enum DecayStart {
    /// At this step.
    Step(u64),
    /// After this share of the schedule, rounded down to steps.
    Ratio(f64),
}

/// Length of the warm-up.
#[derive(Clone, Debug, PartialEq)]
pub enum Warmup {
    /// This many steps.
    Steps(u64),
    /// This share of the schedule, rounded down to steps.
    Ratio(f64),
    /// This many epochs.
    Epochs(u64),
}

/// A schedule with its length decided.
///
/// The first step of a warm-up has the rate `warmup_lr_init`, 0 by default, as in the original:
/// the first update then changes nothing but the moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    config: ScheduleConfig,
    warmup_steps: u64,
    total_steps: u64,
}

impl ScheduleConfig {
    /// Decides the length: a run takes `run_steps` in epochs of `steps_per_epoch`.
    pub fn resolve(&self, run_steps: u64, steps_per_epoch: u64) -> Schedule {
        let total_steps = self.total_steps.unwrap_or(run_steps);
        let warmup_steps = match self.warmup {
            Warmup::Steps(steps) => steps,
            Warmup::Ratio(ratio) => (total_steps as f64 * ratio) as u64,
            Warmup::Epochs(epochs) => epochs.saturating_mul(steps_per_epoch),
        };
        Schedule { config: self.clone(), warmup_steps, total_steps }
    }
}

impl Schedule {
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
