//! From a folder and conversations to merged weights, by the commands of the README: a Qwen2, and a Phi-3 on a base of
//! 4 bits, whose projections are fused. Both folders have a tokenizer of their own, and their weights are random.

use crate::launch::{gristmill, run};
use crate::runs::{metrics, newest_checkpoint, read_tensors};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Relative difference allowed between the loss of adapters and that of weights that they were merged into, in
/// bfloat16.
const ALLOWED_OF_MERGED: f64 = 2e-3;

struct Work {
    home: tempfile::TempDir,
    folder: PathBuf,
}

impl Work {
    fn new(family: &str) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        Self { home, folder: Path::new("tests/data/folders").join(family) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn talks(&self, name: &str, numbers: std::ops::Range<usize>) -> PathBuf {
        let talk = |number: usize| {
            let question = json!({"role": "user", "content": format!("which stone, {number}?")});
            let answer = json!({"role": "assistant", "content": format!("the stone turns {}", number % 5)});
            json!({"messages": [question, answer]}).to_string()
        };
        fs::write(self.path(name), numbers.map(talk).collect::<Vec<_>>().join("\n")).expect("a file");
        self.path(name)
    }

    fn loss(&self, model: &Path, talks: &Path) -> f64 {
        let ended = run(gristmill(["eval", "--json"]).arg(model).arg(talks)).succeeded();
        let judged: Value =
            serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {}", ended.stdout));
        judged["loss"].as_f64().expect("a loss")
    }

    /// Holds a conversation of two turns.
    fn chat(&self, model: &Path) {
        let mut command = gristmill(["generate", "--chat", "--tokens=4", "--temperature=0"]);
        command.arg(model).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        let mut input = child.stdin.take().expect("its input");
        input.write_all(b"which stone?\nand then?\n").expect("two lines");
        drop(input);
        let output = child.wait_with_output().expect("its output");
        let (text, faults) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{faults}");
        assert!(text.len() > 2 && !faults.contains("error"), "{text}{faults}");
    }
}

/// The five commands; returns the loss with adapters and that of the merged weights.
fn from_conversations_to_merged_weights(family: &str, flags: &[&str]) -> [f64; 2] {
    let work = Work::new(family);
    let (talks, others) = (work.talks("talks.jsonl", 0..100), work.talks("others.jsonl", 100..110));
    let (tuned, merged) = (work.path("tuned"), work.path("merged"));
    let output = format!("--output={}", tuned.display());
    let ended =
        run(gristmill(["finetune", &output, "--memory=2GB"]).arg(&work.folder).arg(&talks).args(flags));
    ended.succeeded();
    let config = fs::read_to_string(work.path("tuned.yaml")).expect("the configuration");
    assert_eq!(config.contains("base_dtype: nf4"), !flags.is_empty(), "{config}");
    let losses: Vec<f32> = metrics(&tuned).iter().map(|line| line.loss).collect();
    assert!(losses.last() < losses.first(), "{losses:?}");

    let with_adapters = work.loss(&tuned, &others);
    work.chat(&tuned);
    let (_, checkpoint) = newest_checkpoint(&tuned).expect("a checkpoint");
    let base = work.folder.canonicalize().expect("a folder").display().to_string();
    let adapter = checkpoint.join("adapter");
    let about: Value =
        serde_json::from_slice(&fs::read(adapter.join("adapter_config.json")).expect("a file"))
            .expect("JSON");
    assert_eq!(about["base_model_name_or_path"], base.as_str());
    let modules = read_tensors(&adapter.join("adapter_model.safetensors"));
    let fused = modules.keys().filter(|name| name.contains(".qkv_proj.lora_A.")).count();
    assert_eq!(fused, if family == "phi3" { 2 } else { 0 }, "one A for each fused projection of two layers");

    run(gristmill(["merge"]).arg(&work.folder).arg(&tuned).arg(&merged)).succeeded();
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ] {
        assert!(merged.join(file).is_file(), "{file} is missing");
    }
    let class = |folder: &Path| -> Value {
        serde_json::from_slice::<Value>(&fs::read(folder.join("config.json")).expect("a file")).expect("JSON")
            ["architectures"]
            .clone()
    };
    assert_eq!(class(&merged), class(&work.folder));
    work.chat(&merged);
    [with_adapters, work.loss(&merged, &others)]
}

#[test]
fn a_qwen2_is_tuned_judged_and_merged() {
    let [with_adapters, merged] = from_conversations_to_merged_weights("qwen2", &[]);
    assert!(
        (merged - with_adapters).abs() <= ALLOWED_OF_MERGED * with_adapters,
        "{merged} and {with_adapters}"
    );
}

/// The merged weights are the folder's own and not the quantised ones, so their loss is only near.
#[test]
#[ignore = "long; `a_qwen2_is_tuned_judged_and_merged` has a folder of another family"]
fn a_phi3_is_tuned_on_four_bits() {
    let [with_adapters, merged] = from_conversations_to_merged_weights("phi3", &["--base=nf4"]);
    assert!((merged - with_adapters).abs() <= 0.1 * with_adapters, "{merged} and {with_adapters}");
    assert!(merged != with_adapters);
}

#[test]
fn what_is_learned_can_be_seen() {
    let work = Work::new("qwen2");
    let folder = work.folder.display().to_string();
    let show = |data: &Path| {
        let mut command = gristmill(["tokenize", "--show", "1"]);
        run(command.arg(data).arg(&folder)).succeeded().stdout
    };
    let shown = show(&work.talks("talks.jsonl", 0..3));
    let (head, text) = shown.split_once('\n').expect("lines");
    assert!(head.starts_with("sample 1: ") && head.ends_with(" of them learned"), "{head}");
    assert!(!shown.contains("sample 2"), "{shown}");
    let (before, learned) = text.split_once('⟦').expect("something is learned");
    assert!(before.contains("which stone, 0?"), "{before}");
    let (learned, after) = learned.split_once('⟧').expect("it ends");
    assert!(
        learned.starts_with("the stone turns 0") && learned.len() > "the stone turns 0".len(),
        "{learned}"
    );
    assert!(!after.contains('⟦'), "{after}");
    let pairs = work.path("pairs.jsonl");
    let pair = json!({"prompt": "which?", "chosen": " this", "rejected": " that"});
    fs::write(&pairs, format!("{pair}\n{pair}")).expect("a file");
    let shown = show(&pairs);
    for (name, answer) in [("chosen", "⟦ this"), ("rejected", "⟦ that")] {
        assert!(shown.contains(&format!("pair 1, {name}: ")) && shown.contains(answer), "{shown}");
    }
}
