//! A learning-rate schedule: the section `lr_schedule`, and every other section that holds one.

mod written;

pub(super) use written::to_node;

use super::document::Document;
use super::keys::Keys;
use super::known_keys;
use super::node::Node;
use super::section::{Notes, Section};
use super::training::check_kind;
use crate::error::Result;
use crate::train::schedule::{CoolDown, Decay, DecayStart, ScheduleConfig, Warmup};

/// The types: the original's class, its short name if it has one, and what it reads beside type, rate and warm-up.
const KINDS: [(&str, Option<&str>, &str); 9] = [
    ("CosineWithWarmUpLR", Some("cosine"), "lr_end total_steps num_cycles decay_steps"),
    (
        "CosineWithRestartsAndWarmUpLR",
        Some("cosine_with_restarts"),
        "lr_end total_steps num_cycles decay_steps",
    ),
    ("LinearWithWarmUpLR", Some("linear"), "total_steps"),
    ("PolynomialWithWarmUpLR", Some("polynomial"), "lr_end total_steps power decay_steps"),
    ("ConstantWarmUpLR", Some("constant_with_warmup"), "total_steps"),
    (
        "ConstantWithCoolDownLR",
        None,
        "total_steps num_cycles keep_steps decay_steps decay_ratio lr_end1 final_steps lr_end2",
    ),
    ("WarmUpStableDecayLR", None, "lr_end total_steps decay_start_steps decay_start_ratio"),
    ("CosineAnnealingLR", Some("cosine_annealing"), "base_lr t_max eta_min"),
    ("CosineAnnealingWarmRestarts", Some("cosine_annealing_warm_restarts"), "base_lr t_0 t_mult eta_min"),
];

/// What wraps another schedule.
const WISE: &str = "LearningRateWiseLayer";

/// Types of files of the original that ship with one model's code.
const PLANNED: [&str; 2] = ["MegatronLR", "WarmUpDecayLR"];

/// Keys that say how the rate rises.
const WARMUP: &str = "warmup_steps warmup_ratio warmup_epochs warmup_lr_init";

/// Reads the schedule at `path`, a section with `keys`; the optimizer may have named a rate.
pub(super) fn read(
    document: &Document,
    path: &str,
    keys: &'static Keys,
    optimizer_rate: Option<f64>,
    notes: &mut Notes,
) -> Result<ScheduleConfig> {
    let kind_path = format!("{path}.type");
    let names: Vec<&str> =
        KINDS.iter().flat_map(|(name, short, _)| [Some(*name), *short]).flatten().chain([WISE]).collect();
    check_kind(document, &kind_path, &names, &PLANNED)?;
    let section = Section::open(document, path, keys, notes)?;
    let kind = document.word(&kind_path).unwrap_or("ConstantWarmUpLR");
    if kind == WISE {
        return read_wise(document, &section, optimizer_rate, notes);
    }
    let of_kind = |(name, short, _): &&(&str, Option<&str>, &str)| *name == kind || *short == Some(kind);
    let (name, _, keys) = KINDS.iter().find(of_kind).unwrap_or(&KINDS[4]);
    let has_warmup = !keys.contains("base_lr");
    note_idle_keys(&section, name, keys, has_warmup, notes);
    let schedule = ScheduleConfig {
        decay: read_decay(&section, name)?,
        learning_rate: read_rate(&section, optimizer_rate, notes)?,
        lr_end: read_end(&section, name)?,
        warmup: if has_warmup { read_warmup(&section, notes)? } else { Warmup::Steps(0) },
        warmup_lr_init: section.number("warmup_lr_init", 0.0, "a number from 0", from_zero)?,
        total_steps: read_total(&section)?.filter(|_| keys.contains("total_steps")),
        scale: 1.0,
    };
    if let Decay::Polynomial { .. } = schedule.decay
        && schedule.lr_end >= schedule.learning_rate
    {
        let message =
            format!("{} is not below the learning rate {}", schedule.lr_end, schedule.learning_rate);
        return Err(section.error("lr_end", message)); // as in the original
    }
    Ok(schedule)
}

/// `base_lr` is a whole schedule, and `lr_scale` multiplies its rates.
fn read_wise(
    document: &Document,
    section: &Section,
    optimizer_rate: Option<f64>,
    notes: &mut Notes,
) -> Result<ScheduleConfig> {
    let path = section.path("base_lr");
    if !matches!(document.get(&path), Some(Node::Map(_))) {
        let message = "expected a section that holds a schedule with its own `type`";
        return Err(section.error("base_lr", message));
    }
    note_idle_keys(section, WISE, "base_lr lr_scale", false, notes);
    let scale: f64 = section.require("lr_scale")?;
    if scale <= 0.0 {
        return Err(section.error("lr_scale", format!("expected a number above 0, found `{scale}`")));
    }
    let base = read(document, &path, &known_keys::SCHEDULE, optimizer_rate, notes)?;
    Ok(ScheduleConfig { scale: base.scale * scale, ..base })
}

/// Says which of the given keys this type does not read; the original takes them in silence.
fn note_idle_keys(section: &Section, kind: &str, keys: &str, has_warmup: bool, notes: &mut Notes) {
    let reads = |key: &str| {
        let lists = ["type learning_rate params weight_decay", keys, if has_warmup { WARMUP } else { "" }];
        lists.iter().flat_map(|list| list.split_whitespace()).any(|name| name == key)
    };
    // -1 and 0 say what an absent length says.
    let says_nothing = |node: &Node| node.is_off() || *node == Node::Int(-1);
    for (key, node) in section.entries().iter().filter(|(key, _)| !reads(key)) {
        if !says_nothing(node) {
            notes.add(format!("{}: `{kind}` does not read it", section.path(key)));
        }
    }
}

fn read_decay(section: &Section, kind: &str) -> Result<Decay> {
    let cycles = |default| section.number("num_cycles", default, "a number above 0", above_zero);
    let share = |key: &str| match section.get::<f64>(key)? {
        Some(ratio) if !(0.0..=1.0).contains(&ratio) => {
            Err(section.error(key, format!("expected a share in [0, 1], found `{ratio}`")))
        }
        found => Ok(found),
    };
    let decay_steps = || section.get::<u64>("decay_steps");
    Ok(match kind {
        "CosineWithWarmUpLR" => Decay::Cosine { num_cycles: cycles(0.5)?, decay_steps: decay_steps()? },
        "CosineWithRestartsAndWarmUpLR" => {
            Decay::CosineWithRestarts { num_cycles: cycles(1.0)?, decay_steps: decay_steps()? }
        }
        "LinearWithWarmUpLR" => Decay::Linear,
        "PolynomialWithWarmUpLR" => Decay::Polynomial {
            power: section.number("power", 1.0, "a number above 0", above_zero)?,
            decay_steps: decay_steps()?,
        },
        "ConstantWithCoolDownLR" => Decay::CoolDown {
            keep_steps: section.or("keep_steps", 0)?,
            length: match (share("decay_ratio")?, decay_steps()?) {
                (Some(_), Some(_)) => return Err(section.error("decay_ratio", beside("decay_steps"))),
                (Some(ratio), None) => CoolDown::Ratio(ratio),
                (None, Some(steps)) => CoolDown::Steps(steps),
                (None, None) => CoolDown::Rest,
            },
            num_cycles: cycles(0.5)?,
            final_steps: section.or("final_steps", 0)?,
            lr_end2: section.number("lr_end2", read_end(section, kind)?, "a number from 0", from_zero)?,
        },
        "WarmUpStableDecayLR" => {
            Decay::StableDecay(match (share("decay_start_ratio")?, section.get("decay_start_steps")?) {
                (Some(_), Some(_)) => {
                    return Err(section.error("decay_start_ratio", beside("decay_start_steps")));
                }
                (Some(ratio), None) => DecayStart::Ratio(ratio),
                (None, Some(step)) => DecayStart::Step(step),
                (None, None) => return Err(missing_start(section)),
            })
        }
        "CosineAnnealingLR" => Decay::Annealing { t_max: steps(section, "t_max")? },
        "CosineAnnealingWarmRestarts" => Decay::AnnealingWithRestarts {
            t_0: steps(section, "t_0")?,
            t_mult: section.positive("t_mult", 1)?,
        },
        _ => Decay::Constant,
    })
}

fn missing_start(section: &Section) -> crate::error::Error {
    match section.require::<u64>("decay_start_steps") {
        Err(error) => error,
        Ok(_) => section.error("decay_start_steps", "expected a whole number from 0"),
    }
}

fn beside(other: &str) -> String {
    format!("given beside `{other}`; keep one of them")
}

/// A number of steps that must be there and above 0.
fn steps(section: &Section, key: &str) -> Result<u64> {
    section.require::<u64>(key)?;
    section.positive(key, 1)
}

/// The highest rate. Annealing calls it `base_lr`.
fn read_rate(section: &Section, optimizer_rate: Option<f64>, notes: &mut Notes) -> Result<f64> {
    let key = if section.node("base_lr").is_some() { "base_lr" } else { "learning_rate" };
    let rate: Option<f64> = section.get(key)?;
    if rate.zip(optimizer_rate).is_some_and(|(rate, other)| rate != other) {
        notes.add(format!("optimizer.learning_rate: {} is used instead", section.path(key)));
    }
    match rate.or(optimizer_rate) {
        Some(rate) if rate > 0.0 => Ok(rate),
        Some(rate) => Err(section.error(key, format!("expected a number above 0, found `{rate}`"))),
        None => section.require("learning_rate"),
    }
}

/// The rate at the end, under the name and with the default that it has for this type.
fn read_end(section: &Section, kind: &str) -> Result<f64> {
    let (key, default) = match kind {
        "PolynomialWithWarmUpLR" | "WarmUpStableDecayLR" => ("lr_end", 1e-7),
        "ConstantWithCoolDownLR" => ("lr_end1", 0.0),
        "CosineAnnealingLR" | "CosineAnnealingWarmRestarts" => ("eta_min", 0.0),
        _ => ("lr_end", 0.0),
    };
    section.number(key, default, "a number from 0", from_zero)
}

/// -1 and 0 stand for the length of the run, as in files of the original.
fn read_total(section: &Section) -> Result<Option<u64>> {
    match section.get::<i64>("total_steps")? {
        Some(steps) if steps < -1 => {
            let message = format!("expected a whole number, or -1 for the whole run, found `{steps}`");
            Err(section.error("total_steps", message))
        }
        steps => Ok(steps.and_then(|steps| u64::try_from(steps).ok()).filter(|steps| *steps > 0)),
    }
}

/// A ratio wins over epochs, epochs over steps, as in the original.
fn read_warmup(section: &Section, notes: &mut Notes) -> Result<Warmup> {
    let steps: u64 = section.or("warmup_steps", 0)?;
    let epochs: Option<u64> = section.get("warmup_epochs")?;
    let ratio: Option<f64> = section.get("warmup_ratio")?;
    if ratio.is_some_and(|ratio| !(0.0..=1.0).contains(&ratio)) {
        return Err(section.error("warmup_ratio", "expected a share in [0, 1]"));
    }
    let (warmup, winner) = match (ratio, epochs) {
        (Some(ratio), _) => (Warmup::Ratio(ratio), "warmup_ratio"),
        (None, Some(epochs)) => (Warmup::Epochs(epochs), "warmup_epochs"),
        (None, None) => (Warmup::Steps(steps), "warmup_steps"),
    };
    if (steps > 0 && winner != "warmup_steps") || (epochs.is_some() && winner == "warmup_ratio") {
        notes.add(format!(
            "{}: of several warm-up lengths {winner} is used",
            section.path("").trim_end_matches('.')
        ));
    }
    Ok(warmup)
}

fn above_zero(number: f64) -> bool {
    number > 0.0
}

fn from_zero(number: f64) -> bool {
    number >= 0.0
}
