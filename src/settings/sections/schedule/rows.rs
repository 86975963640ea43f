//! The keys of a schedule.

use crate::settings::engine::*;

rows! {
    /// `lr_schedule`: the learning rate of every step.
    pub struct Schedule in "lr_schedule" {
        /// How the rate changes after warm-up.
        kind "type": ScheduleType = Numbers.optional().read_by(|reader, key| reader.kind(key, PLANNED)).example("linear"),
        /// The highest rate; by default that of the optimizer.
        learning_rate: Option<f64> = Numbers.optional().within(ABOVE_ZERO).example("0.5"),
        /// The highest rate; for `LearningRateWiseLayer` a section with the schedule to scale.
        base_lr: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(ANNEALING).example("0.5"),
        /// The rate at the end; 1e-7 unless written for the types `polynomial` and `WarmUpStableDecayLR`, otherwise 0.
        lr_end: Option<f64> = Numbers.optional().within(FROM_ZERO).of(WITH_LR_END).example("1e-9"),
        /// The rate after the cool-down.
        lr_end1: Option<f64> = Numbers.optional().within(FROM_ZERO).of("ConstantWithCoolDownLR").example("1e-5"),
        /// The rate after `final_steps`; by default `lr_end1`.
        lr_end2: Option<f64> = Numbers.optional().within(FROM_ZERO).of("ConstantWithCoolDownLR").example("1e-6"),
        /// The lowest rate.
        eta_min: Option<f64> = Numbers.optional().within(FROM_ZERO).of(ANNEALING).example("1e-5"),
        /// Steps over which the rate rises.
        warmup_steps: Option<u64> = Numbers.optional().of(WITH_WARMUP).example("3"),
        /// The same as a share of `total_steps`, rounded down.
        warmup_ratio: Option<f64> = Numbers.optional().within(SHARE).of(WITH_WARMUP).example("0.25"),
        /// The same in epochs. A ratio wins over epochs, epochs over steps.
        warmup_epochs: Option<u64> = Numbers.optional().of(WITH_WARMUP).example("1"),
        /// The rate of the very first step.
        warmup_lr_init: Option<f64> = Numbers.optional().within(FROM_ZERO).of(WITH_WARMUP).example("1e-6"),
        /// Steps in the schedule; -1 or absent: all steps of the run.
        total_steps: Option<i64> = Numbers.optional().within(FROM_MINUS_ONE).of(WITH_TOTAL).example("900"),
        /// Cycles of the cosine. 0.5, the default, decays once; with restarts the default is 1.
        num_cycles: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(WITH_CYCLES).example("2.5"),
        /// Steps until the rate is `lr_end`, or (polynomial, cool-down) that the way down takes; by default all that are left.
        decay_steps: Option<u64> = Numbers.optional().of(WITH_DECAY_STEPS).example("30"),
        /// The way down as a share of `total_steps`.
        decay_ratio: Option<f64> = Numbers.optional().within(SHARE).of("ConstantWithCoolDownLR").example("0.5"),
        /// Exponent of the decay.
        power: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("PolynomialWithWarmUpLR").example("2.0"),
        /// Steps at the highest rate before the cool-down.
        keep_steps: Option<u64> = Numbers.optional().of("ConstantWithCoolDownLR").example("5"),
        /// Steps at `lr_end1`.
        final_steps: Option<u64> = Numbers.optional().of("ConstantWithCoolDownLR").example("7"),
        /// Step at which the decay starts.
        decay_start_steps: Option<u64> = Numbers.optional().of("WarmUpStableDecayLR").example("40"),
        /// The same as a share of `total_steps`.
        decay_start_ratio: Option<f64> = Numbers.optional().within(SHARE).of("WarmUpStableDecayLR").example("0.5"),
        /// Steps from the highest rate to the lowest.
        t_max: Option<u64> = Numbers.optional().within(COUNT).of("CosineAnnealingLR").example("11"),
        /// Steps to the first restart.
        t_0: Option<u64> = Numbers.optional().within(COUNT).of("CosineAnnealingWarmRestarts").example("11"),
        /// Factor by which each cycle is longer than the one before; 1 by default.
        t_mult: Option<u64> = Numbers.optional().within(COUNT).of("CosineAnnealingWarmRestarts").example("2"),
        /// Every rate of the schedule in `base_lr` is multiplied by this.
        lr_scale: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("LearningRateWiseLayer").example("0.5"),
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
const WITH_TOTAL: &str = WITH_WARMUP;
const WITH_LR_END: &str =
    "CosineWithWarmUpLR CosineWithRestartsAndWarmUpLR PolynomialWithWarmUpLR WarmUpStableDecayLR";
const WITH_CYCLES: &str = "CosineWithWarmUpLR CosineWithRestartsAndWarmUpLR ConstantWithCoolDownLR";
const WITH_DECAY_STEPS: &str =
    "CosineWithWarmUpLR CosineWithRestartsAndWarmUpLR PolynomialWithWarmUpLR ConstantWithCoolDownLR";

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

/// Types of files of MindFormers that ship with one model's code.
pub(super) const PLANNED: &str = "MegatronLR WarmUpDecayLR";
