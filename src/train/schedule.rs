//! The learning rate as a pure function of the optimizer's step count.

use std::f64::consts::TAU;

/// What the `lr_schedule` section says.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleConfig {
    /// The course after warm-up.
    pub decay: Decay,
    /// The highest rate.
    pub learning_rate: f64,
    /// The rate that cosine decay ends at.
    pub lr_end: f64,
    /// How long the rate rises.
    pub warmup: Warmup,
    /// The rate of the very first step.
    pub warmup_lr_init: f64,
    /// Length of the schedule; that of the whole run where absent.
    pub total_steps: Option<u64>,
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
    /// `LinearWithWarmUpLR`: down to 0.
    Linear,
    /// `ConstantWarmUpLR`: stays.
    Constant,
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
        let ScheduleConfig { learning_rate: lr, lr_end, warmup_lr_init, .. } = self.config;
        let (step, warmup) = (global_step as f64, self.warmup_steps as f64);
        if global_step < self.warmup_steps {
            return warmup_lr_init + (lr - warmup_lr_init) * step / warmup;
        }
        let decaying = self.total_steps.saturating_sub(self.warmup_steps).max(1) as f64;
        match self.config.decay {
            Decay::Constant => lr,
            Decay::Linear => lr * ((self.total_steps as f64 - step) / decaying).max(0.0),
            Decay::Cosine { decay_steps, .. } if global_step >= decay_steps.unwrap_or(self.total_steps) => {
                lr_end
            }
            Decay::Cosine { num_cycles, .. } => {
                let phase = TAU * num_cycles * (step - warmup) / decaying;
                lr_end + (lr - lr_end) * (0.5 * (1.0 + phase.cos())).max(0.0)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(decay: Decay, warmup: Warmup) -> Schedule {
        let (learning_rate, lr_end, warmup_lr_init) = (1e-3, 1e-4, 0.0);
        ScheduleConfig { decay, learning_rate, lr_end, warmup, warmup_lr_init, total_steps: None }
            .resolve(100, 25)
    }

    fn cosine(decay_steps: Option<u64>) -> Decay {
        Decay::Cosine { num_cycles: 0.5, decay_steps }
    }

    fn rates(schedule: &Schedule, steps: [u64; 5]) -> [f64; 5] {
        steps.map(|step| (schedule.lr_at(step) * 1e9).round() / 1e9)
    }

    #[test]
    fn courses() {
        let steps = [0, 5, 10, 55, 100];
        let course = |decay| rates(&schedule(decay, Warmup::Steps(10)), steps);
        assert_eq!(course(cosine(None)), [0.0, 5e-4, 1e-3, 5.5e-4, 1e-4]);
        assert_eq!(course(cosine(Some(55))), [0.0, 5e-4, 1e-3, 1e-4, 1e-4]);
        assert_eq!(course(Decay::Linear), [0.0, 5e-4, 1e-3, 5e-4, 0.0]);
        assert_eq!(course(Decay::Constant), [0.0, 5e-4, 1e-3, 1e-3, 1e-3]);
    }

    #[test]
    fn warmup_lengths() {
        let steps = |warmup| schedule(Decay::Constant, warmup).warmup_steps();
        assert_eq!(steps(Warmup::Ratio(0.029)), 2);
        assert_eq!(steps(Warmup::Epochs(2)), 50);
        assert_eq!(schedule(Decay::Constant, Warmup::Steps(0)).lr_at(0), 1e-3);
    }

    #[test]
    fn stays_finite_past_the_end_and_with_warmup_longer_than_the_run() {
        for decay in [cosine(None), Decay::Linear, Decay::Constant] {
            let schedule = schedule(decay, Warmup::Steps(200));
            for step in [0, 99, 100, 150, 200, 1000, u64::MAX] {
                assert!((0.0..=1e-3).contains(&schedule.lr_at(step)), "{step}");
            }
        }
    }
}
