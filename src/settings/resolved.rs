//! Every setting of a run with its default, for people to read.

use super::Settings;
use super::engine::{Node, join, to_json};
use super::explain::row_at;
use serde_json::Value;

/// A setting of a run.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Resolved {
    /// The dotted path of the setting.
    pub path: String,
    /// The value of the setting.
    pub value: Value,
    /// The default; `None` if the setting must be written or follows from other keys.
    pub default: Option<Value>,
    /// Whether value and default differ, or there is no default.
    pub differs: bool,
    /// The documentation of the setting.
    pub about: String,
}

impl Settings {
    /// Every setting with its default, in the order of a written file. Settings that are empty, and empty by default,
    /// have no entry.
    pub fn resolved(&self) -> Vec<Resolved> {
        let mut resolved = Vec::new();
        for section in self.placed() {
            let kind = section.entries.iter().find(|entry| entry.key == "type");
            let kind = kind.and_then(|entry| entry.written.as_ref()).and_then(Node::word);
            for entry in &section.entries {
                let Some(value) = &entry.written else { continue };
                resolve(&section.path, entry.key, kind, value, &mut resolved);
            }
        }
        resolved
    }
}

/// Adds the setting `key` of the section at `path`. If the setting is a section itself, such as adapters, its keys are
/// added instead.
fn resolve(path: &str, key: &str, kind: Option<&str>, value: &Node, resolved: &mut Vec<Resolved>) {
    let below = join(path, key);
    if let Node::Map(keys) = value
        && keys.iter().any(|(key, _)| row_at(&below, key, None).is_some())
    {
        return keys.iter().for_each(|(key, value)| resolve(&below, key, None, value, resolved));
    }
    let row = row_at(path, key, kind);
    let default = row.and_then(|row| row.default_in(kind));
    resolved.push(Resolved {
        path: below,
        value: to_json(value),
        default: default.map(to_json),
        differs: default.is_none_or(|default| !is_same(value, default)),
        about: row.map_or_else(String::new, |row| row.about.clone()),
    });
}

/// Whether two values mean the same, however a number is written.
fn is_same(one: &Node, other: &Node) -> bool {
    match (one, other) {
        (Node::Int(_) | Node::Float(_), Node::Int(_) | Node::Float(_)) => one.numbers() == other.numbers(),
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::{Override, RunConfig};
    use std::path::Path;

    const TEXT: &str = "
model:
  model_config: { vocab_size: 256, hidden_size: 64, num_layers: 2, num_heads: 4, seq_length: 32 }
lr_schedule: { learning_rate: 1e-3 }
train_dataset: { data_loader: { type: CargoRegistryDataLoader } }
eval_dataset: { data_loader: { type: TextDataLoader, dataset_files: LICENSE-MIT } }
do_eval: True
callbacks: [{ type: MFLossMonitor, per_print_times: 7 }]
";

    #[test]
    fn settings_know_what_they_are_by_default() {
        let overrides = Override::parse_all(["--batch_size", "8", "--epochs=1"]).unwrap();
        let plan = RunConfig::parse(TEXT, Path::new("small.yaml"), &overrides).unwrap().plan;
        let resolved = plan.settings.resolved();
        let find =
            |path: &str| resolved.iter().find(|one| one.path == path).unwrap_or_else(|| panic!("{path}"));
        let lines = find("callbacks.0.per_print_times");
        assert!(lines.differs && lines.value == 7 && lines.default.as_ref().is_some_and(|value| value == 1));
        assert!(!lines.about.is_empty());
        assert!(find("runner_config.batch_size").value == 8);
        assert!(!find("seed").differs && find("seed").default.is_some());
        let required = find("model.model_config.hidden_size");
        assert!(required.differs && required.default.is_none());
        let adapters =
            ["--model.model_config.pet_config={pet_type: lora, lora_rank: 4, target_modules: ['.*wq'], \
             random_base: True}"];
        let plan = RunConfig::parse(TEXT, Path::new("small.yaml"), &Override::parse_all(adapters).unwrap());
        let adapted = plan.unwrap().plan.settings.resolved();
        let rank =
            adapted.iter().find(|one| one.path == "model.model_config.pet_config.lora_rank").expect("a rank");
        assert!(rank.differs && rank.value == 4 && rank.default.as_ref().is_some_and(|rank| rank == 8));
        let undescribed: Vec<&str> =
            resolved.iter().filter(|one| one.about.is_empty()).map(|one| one.path.as_str()).collect();
        assert_eq!(undescribed, ["callbacks.0.type"], "only the kind of a callback has no row");
        let groups =
            "--grouped_lr_schedule={default: {learning_rate: 1}, grouped: [{params: [a], learning_rate: 2}]}";
        let overrides = Override::parse_all([groups]).unwrap();
        let plan = RunConfig::parse(TEXT, Path::new("small.yaml"), &overrides).unwrap().plan;
        let resolved = plan.settings.resolved();
        let of_group = resolved.iter().filter(|one| one.path.starts_with("grouped_lr_schedule.grouped.0."));
        let undescribed = of_group.filter(|one| one.about.is_empty()).count();
        assert_eq!(undescribed, 0, "a group has the keys of a schedule and its own");
    }
}
