//! The defaults of each type of schedule, what of it must fit together, and what becomes of it.

use super::description::{CoolDown, Decay, DecayStart, ScheduleConfig, Warmup};
use super::rows::{Schedule, ScheduleType};
use crate::settings::engine::Reader;

/// Fills in what the type of `schedule` leaves open.
pub(super) fn fill(schedule: &mut Schedule, reader: &Reader<'_>) {
    let kind = schedule.kind;
    fill_rate(schedule, reader);
    match kind {
        ScheduleType::Cosine | ScheduleType::CosineWithRestarts => {
            schedule.lr_end.get_or_insert(0.0);
            let cycles = if kind == ScheduleType::Cosine { 0.5 } else { 1.0 };
            schedule.num_cycles.get_or_insert(cycles);
        }
        ScheduleType::Polynomial => {
            schedule.power.get_or_insert(1.0);
            let end = *schedule.lr_end.get_or_insert(1e-7);
            let rate = schedule.learning_rate.unwrap_or(f64::INFINITY);
            // As in MindFormers.
            let message = format!("{end} is not below the learning rate {rate}");
            reader.require(&["lr_end", "learning_rate"], end < rate, message);
        }
        ScheduleType::CoolDown => fill_cool_down(schedule, reader),
        ScheduleType::StableDecay => {
            schedule.lr_end.get_or_insert(1e-7);
            match (schedule.decay_start_ratio, schedule.decay_start_steps) {
                (Some(_), Some(_)) => reader.fault("decay_start_ratio", beside("decay_start_steps")),
                (None, None) if !reader.has("decay_start_ratio") => {
                    reader.missing("decay_start_steps", "a whole number from 0");
                }
                _ => {}
            }
        }
        ScheduleType::Annealing | ScheduleType::AnnealingWithRestarts => {
            schedule.eta_min.get_or_insert(0.0);
            let (key, length) = match kind {
                ScheduleType::Annealing => ("t_max", schedule.t_max),
                _ => ("t_0", schedule.t_0),
            };
            if length.is_none() {
                reader.missing(key, "a whole number above 0");
            }
            if kind == ScheduleType::AnnealingWithRestarts {
                schedule.t_mult.get_or_insert(1);
            }
        }
        ScheduleType::Linear | ScheduleType::Constant | ScheduleType::WiseLayer => {}
    }
    if !schedule.is_annealing() {
        fill_warmup(schedule, reader);
    }
    // -1 and 0 mean the whole run, as in files of MindFormers.
    schedule.total_steps = schedule.total_steps.filter(|steps| *steps > 0);
}

impl Schedule {
    /// The schedule as the trainer needs it, of a section that was filled.
    pub(crate) fn config(&self) -> ScheduleConfig {
        let or_zero = |rate: Option<f64>| rate.unwrap_or(0.0);
        let (num_cycles, decay_steps) = (self.num_cycles.unwrap_or(0.5), self.decay_steps);
        let decay = match self.kind {
            ScheduleType::Cosine => Decay::Cosine { num_cycles, decay_steps },
            ScheduleType::CosineWithRestarts => Decay::CosineWithRestarts { num_cycles, decay_steps },
            ScheduleType::Linear => Decay::Linear,
            ScheduleType::Polynomial => Decay::Polynomial { power: self.power.unwrap_or(1.0), decay_steps },
            ScheduleType::Constant | ScheduleType::WiseLayer => Decay::Constant,
            ScheduleType::CoolDown => Decay::CoolDown {
                keep_steps: self.keep_steps.unwrap_or(0),
                length: match (self.decay_ratio, decay_steps) {
                    (Some(ratio), _) => CoolDown::Ratio(ratio),
                    (None, Some(steps)) => CoolDown::Steps(steps),
                    (None, None) => CoolDown::Rest,
                },
                num_cycles,
                final_steps: self.final_steps.unwrap_or(0),
                lr_end2: or_zero(self.lr_end2),
            },
            ScheduleType::StableDecay => Decay::StableDecay(match self.decay_start_ratio {
                Some(ratio) => DecayStart::Ratio(ratio),
                None => DecayStart::Step(self.decay_start_steps.unwrap_or(0)),
            }),
            ScheduleType::Annealing => Decay::Annealing { t_max: self.t_max.unwrap_or(1) },
            ScheduleType::AnnealingWithRestarts => {
                Decay::AnnealingWithRestarts { t_0: self.t_0.unwrap_or(1), t_mult: self.t_mult.unwrap_or(1) }
            }
        };
        ScheduleConfig {
            decay,
            learning_rate: or_zero(self.learning_rate.or(self.base_lr)),
            lr_end: or_zero(self.lr_end.or(self.lr_end1).or(self.eta_min)),
            warmup: match (self.warmup_ratio, self.warmup_epochs) {
                (Some(ratio), _) => Warmup::Ratio(ratio),
                (None, Some(epochs)) => Warmup::Epochs(epochs),
                (None, None) => Warmup::Steps(self.warmup_steps.unwrap_or(0)),
            },
            warmup_lr_init: or_zero(self.warmup_lr_init),
            total_steps: self.total_steps.and_then(|steps| u64::try_from(steps).ok()),
            scale: self.lr_scale.unwrap_or(1.0),
        }
    }

    fn is_annealing(&self) -> bool {
        matches!(self.kind, ScheduleType::Annealing | ScheduleType::AnnealingWithRestarts)
    }
}

/// The highest rate: the schedule's own, or else the optimizer's. Annealing calls it `base_lr`, and takes `learning_rate` too.
fn fill_rate(schedule: &mut Schedule, reader: &Reader<'_>) {
    let rate = schedule.base_lr.or(schedule.learning_rate);
    // A rate of the optimizer that is at fault is what is missing here.
    if rate.is_none() && reader.source.is_sound("optimizer.learning_rate") {
        let key = if schedule.is_annealing() && reader.has("base_lr") { "base_lr" } else { "learning_rate" };
        reader.missing(key, "a number");
    }
    (schedule.learning_rate, schedule.base_lr) =
        if schedule.is_annealing() { (None, rate) } else { (rate, None) };
}

fn fill_cool_down(schedule: &mut Schedule, reader: &Reader<'_>) {
    schedule.keep_steps.get_or_insert(0);
    schedule.final_steps.get_or_insert(0);
    schedule.num_cycles.get_or_insert(0.5);
    let end = *schedule.lr_end1.get_or_insert(0.0);
    schedule.lr_end2.get_or_insert(end);
    if schedule.decay_ratio.is_some() && schedule.decay_steps.is_some() {
        reader.fault("decay_ratio", beside("decay_steps"));
    }
}

/// A ratio wins over epochs, epochs over steps, as in MindFormers.
fn fill_warmup(schedule: &mut Schedule, reader: &Reader<'_>) {
    schedule.warmup_lr_init.get_or_insert(0.0);
    let has_steps = schedule.warmup_steps.is_some_and(|steps| steps > 0);
    let winner = match (schedule.warmup_ratio, schedule.warmup_epochs) {
        (Some(_), _) => "warmup_ratio",
        (None, Some(_)) => "warmup_epochs",
        (None, None) => "warmup_steps",
    };
    let loses = (has_steps && winner != "warmup_steps")
        || (schedule.warmup_epochs.is_some() && winner == "warmup_ratio");
    if loses {
        let section = reader.path("").trim_end_matches('.').to_string();
        reader.source.note(format!("{section}: of several warm-up lengths {winner} is used"));
    }
    match winner {
        "warmup_ratio" => (schedule.warmup_steps, schedule.warmup_epochs) = (None, None),
        "warmup_epochs" => schedule.warmup_steps = None,
        _ => {
            schedule.warmup_steps.get_or_insert(0);
        }
    }
}

fn beside(other: &str) -> String {
    format!("given beside `{other}`; keep one of them")
}
