//! Defaults of a schedule that follow from other keys, and checks of keys that must fit together.

use super::rows::{Decay, Schedule, ScheduleType};
use crate::settings::engine::Reader;

/// Fills in values that follow from other keys, and checks that the keys fit together.
pub(super) fn fill(schedule: &mut Schedule, reader: &Reader<'_>) {
    fill_rate(schedule, reader);
    let rate = schedule.learning_rate.unwrap_or(f64::INFINITY);
    match &mut schedule.decay {
        Decay::Polynomial { lr_end, .. } => {
            // `lr_end` must be below the rate, as in MindFormers.
            let message = format!("{lr_end} is not below the learning rate {rate}");
            reader.require(&["lr_end", "learning_rate"], *lr_end < rate, message);
        }
        Decay::CoolDown { lr_end1, lr_end2, decay_steps, decay_ratio, .. } => {
            lr_end2.get_or_insert(*lr_end1);
            if decay_ratio.is_some() && decay_steps.is_some() {
                reader.fault("decay_ratio", beside("decay_steps"));
            }
        }
        Decay::StableDecay { decay_start_steps, decay_start_ratio, .. } => {
            match (decay_start_ratio, decay_start_steps) {
                (Some(_), Some(_)) => reader.fault("decay_start_ratio", beside("decay_start_steps")),
                (None, None) if !reader.has("decay_start_ratio") => {
                    reader.missing("decay_start_steps", "a whole number from 0");
                }
                _ => {}
            }
        }
        _ => {}
    }
    if !schedule.is_annealing() {
        fill_warmup(schedule, reader);
    }
    // -1 and 0 mean the whole run.
    schedule.total_steps = schedule.total_steps.filter(|steps| *steps > 0);
}

impl Schedule {
    /// The highest rate.
    pub fn rate(&self) -> f64 {
        self.learning_rate.or(self.base_lr).unwrap_or(0.0)
    }

    /// The factor of every rate.
    pub fn scale(&self) -> f64 {
        self.lr_scale.unwrap_or(1.0)
    }

    fn is_annealing(&self) -> bool {
        matches!(self.kind, ScheduleType::Annealing | ScheduleType::AnnealingWithRestarts)
    }
}

/// Fills in the highest rate: the schedule's own, or else the optimizer's. An annealing schedule calls it `base_lr`,
/// and accepts `learning_rate`, too.
fn fill_rate(schedule: &mut Schedule, reader: &Reader<'_>) {
    let rate = schedule.base_lr.or(schedule.learning_rate);
    // If the optimizer's rate is at fault, that fault explains why the rate is missing.
    if rate.is_none() && reader.source.is_sound("optimizer.learning_rate") {
        let key = if schedule.is_annealing() && reader.has("base_lr") { "base_lr" } else { "learning_rate" };
        reader.missing(key, "a number");
    }
    (schedule.learning_rate, schedule.base_lr) =
        if schedule.is_annealing() { (None, rate) } else { (rate, None) };
}

/// Decides the length of the warm-up: a ratio goes before epochs, and epochs go before steps.
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
