//! A schedule as the trainer needs it.
//!
//! Letters: t updates done before, W of warm-up, T in the schedule; lr the highest rate.

/// What a schedule's section says.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleConfig {
    /// How it changes after warm-up.
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

/// How the rate changes after warm-up.
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
