//! `grouped_lr_schedule`: a schedule for all parameters and others for some.

use super::document::Document;
use super::known_keys;
use super::node::Node;
use super::schedule;
use super::section::{Notes, Section};
use crate::error::Result;
use crate::train::optimizer::GroupConfig;
use crate::train::schedule::ScheduleConfig;

const PATH: &str = "grouped_lr_schedule";

/// Reads the base schedule, from there or from `lr_schedule`, and the groups.
pub(super) fn read(
    document: &Document,
    optimizer_rate: Option<f64>,
    notes: &mut Notes,
) -> Result<(ScheduleConfig, Vec<GroupConfig>)> {
    let read_base = |path: &str, notes: &mut Notes| {
        schedule::read(document, path, &known_keys::SCHEDULE, optimizer_rate, notes)
    };
    let section = Section::open(document, PATH, &known_keys::GROUPED, notes)?;
    if section.is_empty() {
        return Ok((read_base("lr_schedule", notes)?, Vec::new()));
    }
    if document.get("lr_schedule").is_some_and(|node| !node.is_none()) {
        notes.add("lr_schedule: grouped_lr_schedule is used instead, as in the original");
    }
    if section.node("default").is_none() {
        let message = "`default` is missing; give it the schedule of all other parameters";
        return Err(document.error(PATH, message));
    }
    let base = read_base(&section.path("default"), notes)?;
    let count = match section.node("grouped") {
        None => 0,
        Some(Node::List(items)) => items.len(),
        Some(node) => {
            let message = format!("expected a list of schedules, each with `params`, found {node}");
            return Err(section.error("grouped", message));
        }
    };
    let groups = (0..count).map(|number| read_group(document, number, optimizer_rate, notes));
    Ok((base, groups.collect::<Result<_>>()?))
}

fn read_group(
    document: &Document,
    number: usize,
    optimizer_rate: Option<f64>,
    notes: &mut Notes,
) -> Result<GroupConfig> {
    let path = format!("{PATH}.grouped.{number}");
    let section = Section::open(document, &path, &known_keys::GROUP, notes)?;
    let params: Vec<String> = section.require("params")?;
    if params.is_empty() {
        return Err(section.error("params", "is empty; give patterns of parameter names"));
    }
    let weight_decay: Option<f64> = section.get("weight_decay")?;
    if weight_decay.is_some_and(|decay| decay < 0.0) {
        return Err(section.error("weight_decay", "expected a number from 0"));
    }
    let schedule = schedule::read(document, &path, &known_keys::GROUP, optimizer_rate, notes)?;
    Ok(GroupConfig { params, schedule, weight_decay })
}

/// The section that reads back as these.
pub(super) fn to_node(base: &ScheduleConfig, groups: &[GroupConfig]) -> Node {
    let group = |group: &GroupConfig| {
        let patterns = group.params.iter().map(|pattern| pattern.as_str().into()).collect();
        let mut entries = vec![("params".to_string(), Node::List(patterns))];
        entries.extend(group.weight_decay.map(|decay| ("weight_decay".to_string(), decay.into())));
        if let Node::Map(schedule) = schedule::to_node(&group.schedule) {
            entries.extend(schedule);
        }
        Node::Map(entries)
    };
    Node::Map(vec![
        ("default".to_string(), schedule::to_node(base)),
        ("grouped".to_string(), Node::List(groups.iter().map(group).collect())),
    ])
}
