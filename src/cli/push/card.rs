//! The card of a model: what it was trained from and on, how, and with which losses.

use crate::error::Result;
use crate::store::trainer_state::TrainerState;
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Settings that the card names first, where they are written.
const FIRST: [(&str, &str); 8] = [
    ("learning rate", "lr_schedule.learning_rate"),
    ("schedule", "lr_schedule.type"),
    ("optimizer", "optimizer.type"),
    ("samples of a micro-batch", "runner_config.batch_size"),
    ("micro-batches of a step", "runner_config.gradient_accumulation_steps"),
    ("tokens of a sample at most", "model.model_config.seq_length"),
    ("computed in", "model.model_config.compute_dtype"),
    ("seed", "seed"),
];

/// What is known of a model.
pub struct Card {
    name: String,
    base: Option<String>,
    /// The adapter's description.
    adapter: Option<Value>,
    state: Option<TrainerState>,
    /// The lines of `metrics.jsonl` of the evaluation before training, and of the step of the checkpoint.
    metrics: [Option<Value>; 2],
}

impl Card {
    /// The card of the model `name` in `checkpoint`, of `run` if it has one.
    ///
    /// # Errors
    /// A state of the trainer that is damaged.
    pub fn of(
        name: &str,
        checkpoint: &Path,
        run: Option<&Path>,
        adapter: Option<&Path>,
        base: Option<&str>,
    ) -> Result<Self> {
        let state = checkpoint.join("trainer_state.json");
        let state = state.is_file().then(|| TrainerState::load(&state)).transpose()?;
        let text = run.and_then(|run| fs::read_to_string(run.join("metrics.jsonl")).ok()).unwrap_or_default();
        let line = |step: u64| {
            let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.rfind(|line| line["step"].as_u64() == Some(step))
        };
        let description = adapter.and_then(|adapter| fs::read(adapter.join("adapter_config.json")).ok());
        Ok(Self {
            name: name.to_owned(),
            base: base.map(str::to_owned),
            adapter: description.and_then(|bytes| serde_json::from_slice(&bytes).ok()),
            metrics: [line(0), state.as_ref().and_then(|state| line(state.step))],
            state,
        })
    }

    /// The card in Markdown, with what the Hub reads of it before.
    pub fn text(&self) -> String {
        let Self { name, base, adapter, .. } = self;
        let library = if adapter.is_some() { "peft" } else { "transformers" };
        let mut text = String::from("---\n");
        base.iter().for_each(|base| text += &format!("base_model: {base}\n"));
        text += &format!("library_name: {library}\npipeline_tag: text-generation\ntags:\n- gristmill\n");
        text += if adapter.is_some() { "- lora\n---\n\n" } else { "---\n\n" };
        let what = if adapter.is_some() { "A low-rank adapter" } else { "A language model" };
        let of = base
            .as_ref()
            .map_or_else(String::new, |base| format!(" of [{base}](https://huggingface.co/{base})"));
        let model = name.rsplit('/').next().unwrap_or(name);
        let _ =
            writeln!(text, "# {model}\n\n{what}{of}, trained by gristmill {}.", env!("CARGO_PKG_VERSION"));
        let rows = self.rows();
        if !rows.is_empty() {
            text += "\n| | |\n|---|---|\n";
            rows.iter().for_each(|(what, value)| text += &format!("| {what} | {value} |\n"));
        }
        if let Some(state) = &self.state {
            text += "\n<details><summary>All settings that decide its numbers</summary>\n\n```yaml\n";
            state.decisions.iter().for_each(|(key, value)| text += &format!("{key}: {value}\n"));
            text += "```\n\n</details>\n";
        }
        text
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = Vec::new();
        let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.base.iter().for_each(|base| rows.push(("base", base.clone())));
        if let Some(adapter) = &self.adapter {
            let modules = match &adapter["target_modules"] {
                Value::Array(modules) => modules.iter().map(plain).collect::<Vec<_>>().join(", "),
                other => plain(other),
            };
            rows.push((
                "adapters",
                format!("rank {}, alpha {}, of {modules}", adapter["r"], adapter["lora_alpha"]),
            ));
        }
        let Some(state) = &self.state else { return rows };
        let hash = |hash: Option<u64>| hash.map(|hash| format!("XXH3 `{hash:016x}`"));
        hash(state.data_hash).into_iter().for_each(|hash| rows.push(("training data", hash)));
        hash(state.eval_data_hash).into_iter().for_each(|hash| rows.push(("evaluation data", hash)));
        let total = state.total_steps.map_or_else(String::new, |total| format!(" of {total}"));
        rows.push(("steps", format!("{}{total}", state.step)));
        for (what, key) in FIRST {
            state.decisions.get(key).into_iter().for_each(|value| rows.push((what, plain(value))));
        }
        let [before, after] = &self.metrics;
        for (what, line, key) in [
            ("evaluation loss before training", before, "eval_loss"),
            ("training loss", after, "loss"),
            ("evaluation loss", after, "eval_loss"),
        ] {
            let value = line.as_ref().and_then(|line| line[key].as_f64());
            value.into_iter().for_each(|value| rows.push((what, format!("{value:.4}"))));
        }
        rows
    }
}
