//! Every setting of a run beside its default, for people to read.

use super::engine::{Node, Table, to_json};
use super::tables::tables;
use super::values::Settings;
use serde_json::Value;

/// A setting of a run.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Resolved {
    /// Its dotted path.
    pub path: String,
    /// Its value.
    pub value: Value,
    /// Its default; none where it must be written or follows from other keys.
    pub default: Option<Value>,
    /// Whether value and default differ, where there is a default.
    pub differs: bool,
    /// What it does.
    pub about: String,
}

impl Settings {
    /// Every setting with its default, in the order of a written file. What is empty by default and left so has no entry.
    pub fn resolved(&self) -> Vec<Resolved> {
        let mut resolved = Vec::new();
        for section in self.placed() {
            let kind = section
                .entries
                .iter()
                .find(|entry| entry.key == "type")
                .and_then(|entry| entry.written.as_ref());
            let table = table(&section.path, kind);
            for entry in &section.entries {
                let Some(value) = &entry.written else { continue };
                let row = table.and_then(|table| table.row(entry.key));
                let default = row.and_then(|row| row.default.as_ref());
                let path = match section.path.as_str() {
                    "" => entry.key.to_string(),
                    section => format!("{section}.{}", entry.key),
                };
                resolved.push(Resolved {
                    path,
                    value: to_json(value),
                    default: default.map(to_json),
                    differs: default.is_some_and(|default| !is_same(value, default)),
                    about: row.map_or_else(String::new, |row| row.about.clone()),
                });
            }
        }
        resolved
    }
}

/// The table of the section at `path`, whose `type` is `kind`.
fn table(path: &str, kind: Option<&Node>) -> Option<&'static Table> {
    let parts: Vec<&str> = path.split('.').filter(|part| part.parse::<usize>().is_err()).collect();
    let name = match parts.join(".").as_str() {
        "callbacks" => format!("callbacks.{}", kind.and_then(Node::word).unwrap_or_default()),
        path if path.starts_with("eval_dataset") => path.replacen("eval_dataset", "train_dataset", 1),
        path if path.starts_with("grouped_lr_schedule") => "lr_schedule".to_string(),
        "lr_schedule.base_lr" => "lr_schedule".to_string(),
        path => path.to_string(),
    };
    tables().iter().find(|(known, _)| *known == name).map(|(_, table)| table)
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
        assert!(!required.differs && required.default.is_none());
        let undescribed: Vec<&str> =
            resolved.iter().filter(|one| one.about.is_empty()).map(|one| one.path.as_str()).collect();
        assert_eq!(undescribed, ["callbacks.0.type"], "only the kind of a callback has no row");
    }
}
