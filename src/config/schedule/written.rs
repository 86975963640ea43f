//! A schedule written out, every value in place.

use super::{KINDS, Node, WISE};
use crate::train::schedule::{CoolDown, Decay, DecayStart, ScheduleConfig, Warmup};

/// The section that reads back as `schedule`.
pub(in crate::config) fn to_node(schedule: &ScheduleConfig) -> Node {
    let mut entries: Vec<(String, Node)> = Vec::new();
    let mut set = |key: &str, value: Node| entries.push((key.to_string(), value));
    let (name, mut own) = decay_to_entries(&schedule.decay);
    let is_annealing = own.iter().any(|(key, _)| key.starts_with("t_"));
    let end = match schedule.decay {
        Decay::Constant | Decay::Linear => None,
        Decay::CoolDown { .. } => Some("lr_end1"),
        _ if is_annealing => Some("eta_min"),
        _ => Some("lr_end"),
    };
    set("type", name.into());
    set(if is_annealing { "base_lr" } else { "learning_rate" }, schedule.learning_rate.into());
    if let Some(key) = end {
        set(key, schedule.lr_end.into());
    }
    if !is_annealing {
        match schedule.warmup {
            Warmup::Steps(steps) => set("warmup_steps", steps.into()),
            Warmup::Ratio(ratio) => set("warmup_ratio", ratio.into()),
            Warmup::Epochs(epochs) => set("warmup_epochs", epochs.into()),
        }
        set("warmup_lr_init", schedule.warmup_lr_init.into());
    }
    if let Some(steps) = schedule.total_steps {
        set("total_steps", steps.into());
    }
    entries.append(&mut own);
    if schedule.scale == 1.0 {
        return Node::Map(entries);
    }
    let wise = [("type", WISE.into()), ("lr_scale", schedule.scale.into()), ("base_lr", Node::Map(entries))];
    Node::Map(wise.into_iter().map(|(key, node)| (key.to_string(), node)).collect())
}

/// The type of a course, and the keys that only it has.
fn decay_to_entries(decay: &Decay) -> (&'static str, Vec<(String, Node)>) {
    let entries = |list: &[(&str, Option<Node>)]| {
        let given = list.iter().filter_map(|(key, node)| Some((key.to_string(), node.clone()?)));
        given.collect::<Vec<_>>()
    };
    let number = |number: f64| Some(Node::from(number));
    let steps = |steps: u64| Some(Node::from(steps));
    match *decay {
        Decay::Cosine { num_cycles, decay_steps } => (
            KINDS[0].0,
            entries(&[("num_cycles", number(num_cycles)), ("decay_steps", decay_steps.and_then(steps))]),
        ),
        Decay::CosineWithRestarts { num_cycles, decay_steps } => (
            KINDS[1].0,
            entries(&[("num_cycles", number(num_cycles)), ("decay_steps", decay_steps.and_then(steps))]),
        ),
        Decay::Linear => (KINDS[2].0, Vec::new()),
        Decay::Polynomial { power, decay_steps } => {
            (KINDS[3].0, entries(&[("power", number(power)), ("decay_steps", decay_steps.and_then(steps))]))
        }
        Decay::Constant => (KINDS[4].0, Vec::new()),
        Decay::CoolDown { keep_steps, ref length, num_cycles, final_steps, lr_end2 } => {
            let (taken, ratio) = match *length {
                CoolDown::Steps(taken) => (steps(taken), None),
                CoolDown::Ratio(ratio) => (None, number(ratio)),
                CoolDown::Rest => (None, None),
            };
            let list = [
                ("keep_steps", steps(keep_steps)),
                ("decay_steps", taken),
                ("decay_ratio", ratio),
                ("num_cycles", number(num_cycles)),
                ("final_steps", steps(final_steps)),
                ("lr_end2", number(lr_end2)),
            ];
            (KINDS[5].0, entries(&list))
        }
        Decay::StableDecay(DecayStart::Step(step)) => {
            (KINDS[6].0, entries(&[("decay_start_steps", steps(step))]))
        }
        Decay::StableDecay(DecayStart::Ratio(ratio)) => {
            (KINDS[6].0, entries(&[("decay_start_ratio", number(ratio))]))
        }
        Decay::Annealing { t_max } => (KINDS[7].0, entries(&[("t_max", steps(t_max))])),
        Decay::AnnealingWithRestarts { t_0, t_mult } => {
            (KINDS[8].0, entries(&[("t_0", steps(t_0)), ("t_mult", steps(t_mult))]))
        }
    }
}
