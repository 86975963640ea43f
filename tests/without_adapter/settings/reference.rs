//! `configs/README.md` and `gristmill explain` say what the rows say.
//!
//! `UPDATE_GOLDEN=1 cargo test --release --test without_adapter settings::reference` writes the former again.

use gristmill::settings::{RunConfig, explain, reference};
use std::fs;
use std::path::{Path, PathBuf};

const INTRODUCTION: &str = "\
# Configurations

`cargo run --release --example train_gpt -- configs/tiny.yaml` trains. Files without data train as they stand; the others need what
their row names, and their first lines say how to make it. Any key can be set on the command line too, `--section.key=value`
behind the file, and `gristmill explain KEY` says what it does.

";

const SETTINGS: &str = "\
## Settings

The keys are those of MindSpore Transformers, section by section, and a few of our own. A key decides the *shape* of the
model, the *numbers* of a run, or only what the *host* does: a run resumes only with the same shape and numbers. Keys that
are not listed are unknown, which is an error. This page is generated from the rows in `src/settings/sections`;
`UPDATE_GOLDEN=1 cargo test --release --test without_adapter settings::reference` writes it anew.

";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("configs")
}

/// The first paragraph of a file's comment.
fn purpose(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().map_while(|line| line.strip_prefix("# "));
    lines.collect::<Vec<_>>().join(" ")
}

/// What must be there before a file trains.
fn needs(file: &Path) -> String {
    let settings = RunConfig::outline(file, &[], None).unwrap().plan.settings.resolved();
    let of = |path: &str| settings.iter().find(|setting| setting.path == path).map(|setting| &setting.value);
    if let Some(weights) = of("load_checkpoint") {
        return format!("the weights {}", weights.as_str().unwrap());
    }
    let loader = "train_dataset.data_loader";
    if of(&format!("{loader}.type")).unwrap() == "CargoRegistryDataLoader" {
        return "nothing".to_string();
    }
    let places =
        ["dataset_dir", "dataset_files", "config.data_path"].map(|key| of(&format!("{loader}.{key}")));
    let data: Vec<String> = places
        .into_iter()
        .flatten()
        .flat_map(|value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]))
        .filter_map(|value| value.as_str().map(str::to_string))
        .collect();
    assert!(!data.is_empty(), "{}: where is its data?", file.display());
    format!("the data {}", data.join(", "))
}

fn expected() -> String {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    files.sort();
    let mut text = format!("{INTRODUCTION}| file | needs | |\n|---|---|---|\n");
    for file in &files {
        let name = file.file_name().unwrap().to_string_lossy();
        text += &format!("| [{name}]({name}) | {} | {} |\n", needs(file), purpose(file));
    }
    format!("{text}\n{SETTINGS}{}", reference())
}

#[test]
fn the_reference_is_generated_from_the_rows() {
    let path = folder().join("README.md");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, expected()).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected(),
        "configs/README.md is not what the rows say; write it anew with UPDATE_GOLDEN=1"
    );
}

#[test]
fn explains_keys_sections_and_what_is_not_built() {
    let of = |name: &str| explain(Some(name)).unwrap();
    assert!(explain(None).unwrap().lines().count() > 20);
    let heads = of("n_head");
    assert!(heads.contains("in model.model_config\nnum_heads: a whole number from 1 to"), "{heads}");
    assert!(heads.contains("Also `num_attention_heads`, `n_head`."), "{heads}");
    assert!(of("optimizer.eps").starts_with("in optimizer\neps: a number above 0"));
    for path in [
        "eval_dataset.seed",
        "callbacks.0.per_print_times",
        "grouped_lr_schedule.default.lr_end",
        "model.model_config.expert_num",
    ] {
        assert!(of(path).contains(path.rsplit('.').next().unwrap()), "{path}");
    }
    assert!(of("runner_config").contains("\nbatch_size: "));
    assert!(of("recompute").contains("recompute: True, False, or how many layers of each pipeline stage"));
    assert!(of("swap").contains("accepted only as `False`"));
    assert!(of("sink_mode").contains("ignored with a notice"));
    // A list of sections, a section by the last part of its name, and a value.
    assert!(of("callbacks").lines().count() > 5 && of("callbacks").contains("callbacks.CheckpointMonitor"));
    assert_eq!(of("callback"), of("callbacks"));
    assert!(of("MFLossMonitor").contains("\nper_print_times: "));
    assert!(of("LlamaConfig").starts_with("model.model_config (LlamaConfig)\n"));
    assert_eq!(of("pet_config"), of("model.model_config.pet_config"));
    assert!(of("lora").contains("in model.model_config.pet_config\npet_type: lora"));
    assert!(of("AdamW").contains("in optimizer\ntype: "));
    // Other forms of a section's keys come with it.
    let recompute = of("recompute_config");
    assert!(recompute.contains("\nrecompute ") || recompute.contains("select_recompute"), "{recompute}");
    assert!(recompute.contains("feed_forward.mul"), "{recompute}");
    let wrong = explain(Some("num_haeds")).unwrap_err().to_string();
    assert_eq!(wrong, "num_haeds: no such key or section; did you mean `num_heads`?");
}
