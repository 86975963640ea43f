//! The keys of a schedule.
//!
//! Letters: T steps in the schedule; lr the highest rate.

use crate::settings::engine::*;

rows! {
    /// `lr_schedule`: the learning rate of every step.
    pub struct Schedule in "lr_schedule" {
        /// How the rate changes after warm-up.
        kind "type": ScheduleType = Numbers.optional().read_by(|reader, key| reader.kind(key, PLANNED))
            .example("linear"),
        /// The highest rate; by default that of the optimizer.
        learning_rate: Option<f64> = Numbers.optional().within(ABOVE_ZERO).example("0.5"),
        /// The highest rate; for `LearningRateWiseLayer` a section with the schedule to scale.
        base_lr: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(ANNEALING).example("0.5"),
        /// Steps over which the rate rises; 0 by default.
        warmup_steps: Option<u64> = Numbers.optional().of(WITH_WARMUP).example("3"),
        /// The same as a share of `total_steps`, rounded down.
        warmup_ratio: Option<f64> = Numbers.optional().within(SHARE).of(WITH_WARMUP).example("0.25"),
        /// The same in epochs. A ratio wins over epochs, epochs over steps.
        warmup_epochs: Option<u64> = Numbers.optional().of(WITH_WARMUP).example("1"),
        /// The rate of the very first step; 0 by default.
        warmup_lr_init: Option<f64> = Numbers.optional().within(FROM_ZERO).of(WITH_WARMUP).example("1e-6"),
        /// Steps in the schedule; -1 or absent: all steps of the run.
        total_steps: Option<i64> = Numbers.optional().within(FROM_MINUS_ONE).of(WITH_WARMUP).example("900"),
        /// Every rate of the schedule in `base_lr` is multiplied by this.
        lr_scale: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("LearningRateWiseLayer").example("0.5"),
    }
    by
    /// How the rate changes after warm-up, with the numbers of that.
    decay: Decay
}

rows! {
    /// How the rate changes after warm-up.
    pub enum Decay {
        /// Stays.
        Constant = "ConstantWarmUpLR LearningRateWiseLayer" => {}
        /// Goes down to `lr_end` as a cosine.
        Cosine = "CosineWithWarmUpLR" => {
            /// The rate at the end.
            lr_end: f64 = Numbers.default(0.0).within(FROM_ZERO).example("1e-9"),
            /// Cycles of the cosine; half a cycle goes down once.
            num_cycles: f64 = Numbers.default(0.5).within(ABOVE_ZERO).example("2.5"),
            /// From this step on the rate is `lr_end`; by default from T.
            decay_steps: Option<u64> = Numbers.optional().example("30"),
        }
        /// Goes down to `lr_end` and back up to lr at once, again and again.
        CosineWithRestarts = "CosineWithRestartsAndWarmUpLR" => {
            /// The rate at the end.
            lr_end: f64 = Numbers.default(0.0).within(FROM_ZERO).example("1e-9"),
            /// How often it goes down.
            num_cycles: f64 = Numbers.default(1.0).within(ABOVE_ZERO).example("2.5"),
            /// From this step on the rate is `lr_end`; by default from T.
            decay_steps: Option<u64> = Numbers.optional().example("30"),
        }
        /// Goes down to 0 in a straight line.
        Linear = "LinearWithWarmUpLR" => {}
        /// Goes down to `lr_end` as (1 - progress)^power.
        Polynomial = "PolynomialWithWarmUpLR" => {
            /// The rate at the end, below the highest.
            lr_end: f64 = Numbers.default(1e-7).within(FROM_ZERO).example("1e-9"),
            /// Exponent of the decay.
            power: f64 = Numbers.default(1.0).within(ABOVE_ZERO).example("2.0"),
            /// Steps of the way down; by default all that are left.
            decay_steps: Option<u64> = Numbers.optional().example("30"),
        }
        /// Stays, goes down as a cosine to `lr_end1`, stays, and drops to `lr_end2`.
        CoolDown = "ConstantWithCoolDownLR" => {
            /// The rate after the cool-down.
            lr_end1: f64 = Numbers.default(0.0).within(FROM_ZERO).example("1e-5"),
            /// The rate after `final_steps`; by default `lr_end1`.
            lr_end2: Option<f64> = Numbers.optional().within(FROM_ZERO).example("1e-6"),
            /// Cycles of the cosine; half a cycle goes down once.
            num_cycles: f64 = Numbers.default(0.5).within(ABOVE_ZERO).example("2.5"),
            /// Steps of the way down; by default what warm-up, `keep_steps` and `final_steps` leave.
            decay_steps: Option<u64> = Numbers.optional().example("30"),
            /// The same as a share of `total_steps`, rounded down.
            decay_ratio: Option<f64> = Numbers.optional().within(SHARE).example("0.5"),
            /// Steps at the highest rate before the cool-down.
            keep_steps: u64 = Numbers.default(0).example("5"),
            /// Steps at `lr_end1`.
            final_steps: u64 = Numbers.default(0).example("7"),
        }
        /// Stays, then goes down in a straight line to `lr_end` at T.
        StableDecay = "WarmUpStableDecayLR" => {
            /// The rate at the end.
            lr_end: f64 = Numbers.default(1e-7).within(FROM_ZERO).example("1e-9"),
            /// Step at which the decay starts.
            decay_start_steps: Option<u64> = Numbers.optional().example("40"),
            /// The same as a share of `total_steps`, rounded down.
            decay_start_ratio: Option<f64> = Numbers.optional().within(SHARE).example("0.5"),
        }
        /// Without warm-up: a cosine between lr and `eta_min`, down and up.
        Annealing = "CosineAnnealingLR" => {
            /// The lowest rate.
            eta_min: f64 = Numbers.default(0.0).within(FROM_ZERO).example("1e-5"),
            /// Steps from the highest rate to the lowest, and as many back.
            t_max: u64 = Numbers.required().within(COUNT).example("11"),
        }
        /// Without warm-up (Loshchilov and Hutter, "SGDR", 2017): a cosine down to `eta_min`, again and again.
        AnnealingWithRestarts = "CosineAnnealingWarmRestarts" => {
            /// The lowest rate.
            eta_min: f64 = Numbers.default(0.0).within(FROM_ZERO).example("1e-5"),
            /// Steps to the first restart.
            t_0: u64 = Numbers.required().within(COUNT).example("11"),
            /// Factor by which each cycle is longer than the one before.
            t_mult: u64 = Numbers.default(1).within(COUNT),
        }
    }
}

rows! {
    /// `grouped_lr_schedule.grouped`: items with the keys of a schedule for some of the parameters, and these.
    pub struct GroupKeys in "grouped_lr_schedule.grouped" {
        /// Patterns of parameters: regular expressions, found anywhere in a name.
        params: Vec<String> = Numbers.required().example("['embed']"),
        /// Their weight decay; by default the optimizer's.
        weight_decay: Option<f64> = Numbers.optional().within(FROM_ZERO).example("0.01"),
    }
}

const FROM_MINUS_ONE: Range =
    Range::new("a whole number, or -1 for the whole run", |steps| steps >= -1.0, -2.0);

const WITH_WARMUP: &str = "CosineWithWarmUpLR CosineWithRestartsAndWarmUpLR LinearWithWarmUpLR PolynomialWithWarmUpLR \
    ConstantWarmUpLR ConstantWithCoolDownLR WarmUpStableDecayLR";
const ANNEALING: &str = "CosineAnnealingLR CosineAnnealingWarmRestarts";
words! {
    /// `type`.
    pub enum ScheduleType {
        /// `CosineWithWarmUpLR`.
        Cosine = "CosineWithWarmUpLR" "cosine",
        /// `CosineWithRestartsAndWarmUpLR`.
        CosineWithRestarts = "CosineWithRestartsAndWarmUpLR" "cosine_with_restarts",
        /// `LinearWithWarmUpLR`.
        Linear = "LinearWithWarmUpLR" "linear",
        /// `PolynomialWithWarmUpLR`.
        Polynomial = "PolynomialWithWarmUpLR" "polynomial",
        /// `ConstantWarmUpLR`.
        #[default]
        Constant = "ConstantWarmUpLR" "constant_with_warmup",
        /// `ConstantWithCoolDownLR`.
        CoolDown = "ConstantWithCoolDownLR",
        /// `WarmUpStableDecayLR`.
        StableDecay = "WarmUpStableDecayLR",
        /// `CosineAnnealingLR`.
        Annealing = "CosineAnnealingLR" "cosine_annealing",
        /// `CosineAnnealingWarmRestarts`.
        AnnealingWithRestarts = "CosineAnnealingWarmRestarts" "cosine_annealing_warm_restarts",
        /// `LearningRateWiseLayer`: another schedule in `base_lr`, scaled.
        WiseLayer = "LearningRateWiseLayer",
    }
}

/// Types that are known and not built.
pub(super) const PLANNED: &str = "MegatronLR WarmUpDecayLR";
