//! The keys of a schedule.
//!
//! Letters: T steps in the schedule; lr the highest rate.

use crate::settings::engine::*;

rows! {
    /// `lr_schedule`: the learning rate of every step.
    pub struct Schedule in "lr_schedule" {
        /// How the rate changes after warm-up.
        kind "type": ScheduleType = Numbers.optional().read_by(|reader, key| reader.kind(key, Self::ID))
            .example("linear"),
        /// Highest learning rate; by default `optimizer.learning_rate`.
        learning_rate: Option<f64> = Numbers.optional().within(ABOVE_ZERO).example("0.5"),
        /// Highest learning rate; for `LearningRateWiseLayer`, a section with the schedule to scale.
        base_lr: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(ANNEALING).example("0.5"),
        /// Steps of warm-up, over which the rate rises; 0 by default.
        warmup_steps: Option<u64> = Numbers.optional().of(WITH_WARMUP).example("3"),
        /// Steps of warm-up as a share of `total_steps`, rounded down.
        warmup_ratio: Option<f64> = Numbers.optional().within(SHARE).of(WITH_WARMUP).example("0.25"),
        /// Length of the warm-up in epochs. If several lengths are written, the ratio takes precedence over the epochs,
        /// and the epochs over the steps.
        warmup_epochs: Option<u64> = Numbers.optional().of(WITH_WARMUP).example("1"),
        /// Learning rate of the very first step, from which the warm-up rises; 0 by default.
        warmup_lr_init: Option<f64> = Numbers.optional().within(FROM_ZERO).of(WITH_WARMUP).example("1e-6"),
        /// Steps in the schedule; -1 or absent: all steps of the run.
        total_steps: Option<i64> = Numbers.optional().within(FROM_MINUS_ONE).of(WITH_WARMUP).example("900"),
        /// Factor by which every rate of the schedule in `base_lr` is multiplied.
        lr_scale: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("LearningRateWiseLayer").example("0.5"),
    }
    by
    /// How the rate changes after warm-up, with the numbers of that decay.
    decay: Decay
}

rows! {
    /// How the rate changes after warm-up.
    pub enum Decay {
        /// The rate stays at lr.
        Constant = "ConstantWarmUpLR LearningRateWiseLayer" => {}
        /// The rate goes down to `lr_end` as a cosine.
        Cosine = "CosineWithWarmUpLR" => {
            /// Learning rate at the end of the decay.
            lr_end: f64 = Numbers.default(0.0).within(FROM_ZERO).example("1e-9"),
            /// Cycles of the cosine; 0.5 goes down once.
            num_cycles: f64 = Numbers.default(0.5).within(ABOVE_ZERO).example("2.5"),
            /// Step from which on the rate is `lr_end`; by default `total_steps`.
            decay_steps: Option<u64> = Numbers.optional().example("30"),
        }
        /// The rate goes down to `lr_end` as a cosine and back up to lr at once, again and again.
        CosineWithRestarts = "CosineWithRestartsAndWarmUpLR" => {
            /// Learning rate at the end of the decay.
            lr_end: f64 = Numbers.default(0.0).within(FROM_ZERO).example("1e-9"),
            /// How often the rate goes down to `lr_end`.
            num_cycles: f64 = Numbers.default(1.0).within(ABOVE_ZERO).example("2.5"),
            /// Step from which on the rate is `lr_end`; by default `total_steps`.
            decay_steps: Option<u64> = Numbers.optional().example("30"),
        }
        /// The rate goes down to 0 in a straight line.
        Linear = "LinearWithWarmUpLR" => {}
        /// The rate goes down to `lr_end` as (1 - progress)^power.
        Polynomial = "PolynomialWithWarmUpLR" => {
            /// Learning rate at the end of the decay; must be below the highest rate.
            lr_end: f64 = Numbers.default(1e-7).within(FROM_ZERO).example("1e-9"),
            /// Exponent of the decay.
            power: f64 = Numbers.default(1.0).within(ABOVE_ZERO).example("2.0"),
            /// Length of the decay in steps; by default all steps after the warm-up.
            decay_steps: Option<u64> = Numbers.optional().example("30"),
        }
        /// The rate stays at lr, goes down as a cosine to `lr_end1`, stays there, and drops to `lr_end2`.
        CoolDown = "ConstantWithCoolDownLR" => {
            /// Learning rate after the cool-down.
            lr_end1: f64 = Numbers.default(0.0).within(FROM_ZERO).example("1e-5"),
            /// Learning rate after `final_steps`; by default `lr_end1`.
            lr_end2: Option<f64> = Numbers.optional().within(FROM_ZERO).example("1e-6"),
            /// Cycles of the cosine; 0.5 goes down once.
            num_cycles: f64 = Numbers.default(0.5).within(ABOVE_ZERO).example("2.5"),
            /// Length of the cool-down in steps; by default the steps that warm-up, `keep_steps` and `final_steps`
            /// leave.
            decay_steps: Option<u64> = Numbers.optional().example("30"),
            /// Length of the cool-down as a share of `total_steps`, rounded down.
            decay_ratio: Option<f64> = Numbers.optional().within(SHARE).example("0.5"),
            /// Steps at the highest rate before the cool-down.
            keep_steps: u64 = Numbers.default(0).example("5"),
            /// Steps at `lr_end1`.
            final_steps: u64 = Numbers.default(0).example("7"),
        }
        /// The rate stays at lr, then goes down in a straight line to `lr_end` at T.
        StableDecay = "WarmUpStableDecayLR" => {
            /// Learning rate at the end of the decay.
            lr_end: f64 = Numbers.default(1e-7).within(FROM_ZERO).example("1e-9"),
            /// Step at which the decay starts.
            decay_start_steps: Option<u64> = Numbers.optional().example("40"),
            /// Step at which the decay starts, as a share of `total_steps`, rounded down.
            decay_start_ratio: Option<f64> = Numbers.optional().within(SHARE).example("0.5"),
        }
        /// Without warm-up: a cosine between lr and `eta_min`, down and up.
        Annealing = "CosineAnnealingLR" => {
            /// Lowest learning rate.
            eta_min: f64 = Numbers.default(0.0).within(FROM_ZERO).example("1e-5"),
            /// Steps from the highest rate to the lowest; the way back takes as many.
            t_max: u64 = Numbers.required().within(COUNT).example("11"),
        }
        /// Without warm-up (Loshchilov and Hutter, "SGDR", 2017): a cosine down to `eta_min`, again and again.
        AnnealingWithRestarts = "CosineAnnealingWarmRestarts" => {
            /// Lowest learning rate.
            eta_min: f64 = Numbers.default(0.0).within(FROM_ZERO).example("1e-5"),
            /// Steps to the first restart.
            t_0: u64 = Numbers.required().within(COUNT).example("11"),
            /// Factor by which each cycle is longer than the one before.
            t_mult: u64 = Numbers.default(1).within(COUNT),
        }
    }
}

rows! {
    /// `grouped_lr_schedule.grouped`: schedules for groups of parameters. An item of the list has the keys of a
    /// schedule and the keys below.
    pub struct GroupKeys in "grouped_lr_schedule.grouped" {
        /// Parameters of the group: regular expressions, found anywhere in a parameter's name.
        params: Vec<String> = Numbers.required().example("['embed']"),
        /// Weight decay of the group's matrices; by default the optimizer's.
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
