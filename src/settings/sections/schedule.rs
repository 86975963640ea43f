//! A learning-rate schedule: `lr_schedule`, and every other section that holds one.

mod fill;
mod rows;

pub use rows::{Decay, GroupKeys, Schedule, ScheduleType};

use crate::settings::engine::*;

/// `grouped_lr_schedule.grouped.N`: parameters with a schedule of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The parameters of the group, and their weight decay.
    pub keys: GroupKeys,
    /// The schedule of these parameters.
    pub schedule: Schedule,
}

pub(crate) const GROUPED: &str = "grouped_lr_schedule";

/// The table of `grouped_lr_schedule` itself.
pub(crate) fn grouped_table() -> (TableId, Table) {
    let table = Table::unused(
        "`grouped_lr_schedule`: the schedule `default` for all parameters but those that an item of `grouped` names.",
        [sections("default grouped")],
    );
    (TableId::of(GROUPED), table)
}

/// The sections that read back as `base` and `groups`.
pub(crate) fn placed(base: &Schedule, groups: &[Group]) -> Vec<Placed> {
    if groups.is_empty() {
        return place("lr_schedule".to_string(), base);
    }
    let mut placed = place(format!("{GROUPED}.default"), base);
    for (number, group) in groups.iter().enumerate() {
        let path = format!("{GROUPED}.grouped.{number}");
        placed.push(group.keys.placed(&path));
        placed.extend(place(path, &group.schedule));
    }
    placed
}

/// The section of one schedule and, if its rates are scaled, the section of the scaled schedule in it.
fn place(path: String, schedule: &Schedule) -> Vec<Placed> {
    if schedule.lr_scale.is_none() {
        return vec![schedule.placed(path)];
    }
    let outer =
        Schedule { kind: ScheduleType::WiseLayer, lr_scale: schedule.lr_scale, ..Schedule::default() };
    let inner = Schedule { lr_scale: None, ..schedule.clone() };
    vec![outer.placed(&path), inner.placed(format!("{path}.base_lr"))]
}

/// Reads the base schedule, from `lr_schedule` or `grouped_lr_schedule.default`, and the groups.
pub(crate) fn read(source: &Source) -> (Schedule, Vec<Group>) {
    let section = Reader::open(source, GROUPED, &[TableId::of(GROUPED)]);
    if !section.is_written() {
        return (read_at(source, "lr_schedule", false).1, Vec::new());
    }
    if source.node("lr_schedule").is_some() {
        source.note("lr_schedule: grouped_lr_schedule is used instead, as in MindFormers");
    }
    let base = if section.has("default") {
        read_at(source, &format!("{GROUPED}.default"), false).1
    } else {
        section.missing("default", "the schedule of all other parameters");
        Schedule::default()
    };
    if let Some(node) = section.node("grouped").filter(|node| !matches!(node, Node::List(_))) {
        section.fault("grouped", format!("expected a list of schedules, each with `params`, found {node}"));
    }
    let groups = source.items(&section.path("grouped")).into_iter().map(|path| {
        let (reader, schedule) = read_at(source, &path, true);
        let keys = GroupKeys::read(&reader);
        if reader.has("params") && reader.is_sound("params") && keys.params.is_empty() {
            reader.fault("params", "is empty; give patterns of parameter names");
        }
        Group { keys, schedule }
    });
    (base, groups.collect())
}

fn read_at<'a>(source: &'a Source, path: &str, is_group: bool) -> (Reader<'a>, Schedule) {
    let tables = if is_group { &[Schedule::ID, GroupKeys::ID][..] } else { &[Schedule::ID] };
    let reader = Reader::open(source, path, tables);
    let kind = match reader.node("type") {
        None => Some(ScheduleType::default()),
        Some(_) => reader.kind("type", Schedule::ID),
    };
    let Some(kind) = kind else { return (reader, Schedule::default()) };
    let reader = reader.of_type(kind.word());
    let mut schedule = Schedule::read(&reader);
    note_idle(&reader, kind);
    if kind == ScheduleType::WiseLayer {
        schedule = read_wise(&reader, schedule);
    } else {
        fill::fill(&mut schedule, &reader);
    }
    (reader, schedule)
}

/// Reads the schedule in the section `base_lr`, whose rates `lr_scale` multiplies.
fn read_wise(reader: &Reader<'_>, outer: Schedule) -> Schedule {
    if !matches!(reader.node("base_lr"), Some(Node::Map(_))) {
        reader.fault("base_lr", "expected a section that holds a schedule with its own `type`");
        return outer;
    }
    let Some(scale) = outer.lr_scale.filter(|_| reader.is_sound("lr_scale")) else {
        reader.missing("lr_scale", "a number");
        return outer;
    };
    let base = read_at(reader.source, &reader.path("base_lr"), false).1;
    Schedule { lr_scale: Some(base.lr_scale.unwrap_or(1.0) * scale), ..base }
}

/// Notes which of the given keys the type does not read.
fn note_idle(reader: &Reader<'_>, kind: ScheduleType) {
    // -1 and 0 mean the same as an absent length.
    let says_nothing = |node: &Node| node.is_off() || *node == Node::Int(-1);
    for (key, _) in reader.foreign::<Schedule>() {
        let is_scaled_schedule = key == "base_lr" && kind == ScheduleType::WiseLayer;
        if !is_scaled_schedule && reader.node(key).is_some_and(|node| !says_nothing(node)) {
            reader.note(key, format!("`{}` does not read it", kind.word()));
        }
    }
}
