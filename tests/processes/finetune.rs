//! `gristmill finetune`: what it decides, that `train` takes what it prints, and what comes of it.

use crate::launch::{Ended, gristmill, run};
use crate::runs::metrics;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
    {% if add_generation_prompt %}assistant: {% endif %}";

struct Work {
    home: TempDir,
}

impl Work {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a folder");
        fs::write(home.path().join("template.jinja"), TEMPLATE).expect("a file");
        Self { home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A file of `count` records.
    fn records(&self, name: &str, count: usize, record: impl Fn(usize) -> Value) -> PathBuf {
        let lines: Vec<String> = (0..count).map(|number| record(number).to_string()).collect();
        fs::write(self.path(name), lines.join("\n")).expect("a file");
        self.path(name)
    }

    /// Conversations, the last of which is the longest.
    fn talks(&self, count: usize) -> PathBuf {
        self.records("talks.jsonl", count, |number| {
            let answer = if number + 1 == count { "long ".repeat(9) } else { format!("number {}", number % 7) };
            json!({"messages": [{"role": "user", "content": "which?"}, {"role": "assistant", "content": answer}]})
        })
    }

    fn finetune(&self, family: &str, data: &Path, flags: &[&str]) -> Ended {
        let mut command = gristmill(["finetune"]);
        command.arg(Path::new("tests/data/folders").join(family)).arg(data);
        command.arg(format!("--output={}", self.path("tuned").display())).args(flags);
        run(&mut command)
    }
}

/// The value that a line of a configuration gives to `key`.
fn value<'a>(config: &'a str, key: &str) -> Option<&'a str> {
    config.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "))
}

#[test]
fn conversations_become_adapters() {
    let work = Work::new();
    let talks = work.talks(200);
    let template = format!("--chat-template={}", work.path("template.jinja").display());
    let flags = [template.as_str(), "--memory=1GB"];
    let printed =
        work.finetune("qwen3", &talks, &[&flags[..], &["--print-config"]].concat()).succeeded().stdout;
    assert!(!work.path("tuned.yaml").exists());
    for (key, want) in [
        ("seq_length", "48"),
        ("compute_dtype", "bfloat16"),
        ("lora_rank", "16"),
        ("lora_alpha", "32"),
        ("lora_dropout", "0.0"),
        ("target_modules", r#"["down_proj","gate_proj","k_proj","o_proj","q_proj","up_proj","v_proj"]"#),
        ("eval_samples", "8"),
        ("batch_size", "8"),
        ("gradient_accumulation_steps", "2"),
        ("weight_decay", "0.0"),
        ("learning_rate", "2e-4"),
        ("lr_end", "2e-5"),
        ("warmup_ratio", "0.03"),
        ("epochs", "1"),
    ] {
        assert_eq!(value(&printed, key), Some(want), "{key} in\n{printed}");
    }

    let ended = work.finetune("qwen3", &talks, &flags).succeeded();
    assert!(ended.stdout.starts_with(&printed), "{}", ended.stdout);
    assert_eq!(fs::read_to_string(work.path("tuned.yaml")).expect("a file"), printed);
    assert!(ended.stderr.contains("; 1 cut"), "{}", ended.stderr);
    let lines = metrics(&work.path("tuned"));
    assert_eq!(lines.len(), 192 / 16);
    assert!(lines[11].eval_loss.is_some() && lines[11].loss < lines[0].loss);

    // What is printed is what `train` takes.
    let again = work.path("again.yaml");
    fs::write(&again, &printed).expect("a file");
    run(gristmill(["train"]).arg(&again).args(["--run_name=again", "--stop_step=3"])).succeeded();
    let losses = |name: &str| metrics(&work.path(name)).iter().map(|line| line.loss).collect::<Vec<_>>();
    assert_eq!(losses("again"), losses("tuned")[..3]);
    let config = work.path("again/config.yaml");
    run(gristmill(["train"]).arg(config).args(["--resume_training", "--stop_step=0"])).succeeded();
    assert_eq!(losses("again"), losses("tuned"));
}

/// From folder and records to a merged folder that is judged and continues a prompt.
#[test]
fn what_was_trained_is_judged_and_merged() {
    let work = Work::new();
    let pairs = work.records(
        "pairs.jsonl",
        64,
        |number| json!({"prompt": format!("{number} times"), "completion": " is a number"}),
    );
    work.finetune("mistral", &pairs, &["--memory=1GB", "--lora=4"]).succeeded();
    let loss = |model: &Path| {
        let judged = run(gristmill(["eval"]).arg(model).arg(&pairs).arg("--json")).succeeded().stdout;
        serde_json::from_str::<Value>(&judged).expect("JSON")["loss"].as_f64().expect("a loss")
    };
    let (tuned, base) = (work.path("tuned"), Path::new("tests/data/folders/mistral"));
    let after = loss(&tuned);
    assert!(after < loss(base), "{after}");
    let checkpoint = tuned.join("checkpoint/step_0000003");
    let merged = work.path("merged");
    run(gristmill(["merge"]).arg(base).arg(&checkpoint).arg(&merged)).succeeded();
    // The merged weights are rounded to bfloat16 or computed in float32, the run's adapters beside them.
    assert!((loss(&merged) - after).abs() < 5e-3 * after, "{} and {after}", loss(&merged));
    let prompt = ["--prompt=3 times", "--tokens=4"];
    let text = run(gristmill(["generate"]).arg(&merged).args(prompt)).succeeded().stdout;
    assert!(text.starts_with("3 times"), "{text}");
}

#[test]
fn all_weights_and_mixtures() {
    let work = Work::new();
    let text = Path::new("tests/data/mill.txt");
    let of = |family, data: &Path, more: &[&str]| {
        let flags = ["--memory=1GB", "--print-config"];
        work.finetune(family, data, &[&flags, more].concat()).succeeded().stdout
    };
    let full = of("gpt2", text, &["--full"]);
    assert_eq!(value(&full, "learning_rate"), Some("1e-5"));
    assert_eq!((value(&full, "eval_fraction"), value(&full, "batch_size")), (Some("0.04228"), Some("1")));
    assert!(!full.contains("pet_config"), "{full}");
    work.finetune("gpt2", text, &["--full"]).succeeded();

    let mixture = of("qwen3_moe", text, &[]);
    assert_eq!(value(&mixture, "target_modules"), Some(r#"["k_proj","o_proj","q_proj","v_proj"]"#));
    let texts = work.records("texts.jsonl", 19, |number| json!({"text": "mill ".repeat(number + 1)}));
    let texts = of("llama", &texts, &[]);
    assert!(!texts.contains("eval"), "{texts}");
    assert_eq!((value(&texts, "batch_size"), value(&texts, "seq_length")), (Some("16"), Some("48")));
}

#[test]
fn what_is_wrong_is_one_line() {
    let work = Work::new();
    let talks = work.talks(3);
    let questions = work.records("q.jsonl", 2, |_| json!({"ctx": "a", "endings": ["b", "c"], "label": 0}));
    for (family, data, flags, expected) in [
        ("qwen3", talks.as_path(), vec![], "name a Jinja file: by --chat-template"),
        ("qwen3", &questions, vec![], "holds questions with answers to choose from, which `eval` takes"),
        ("none", &talks, vec![], "has no config.json; name a folder of Hugging Face's"),
        ("qwen3", Path::new("/nowhere.jsonl"), vec![], "/nowhere.jsonl: no such file"),
        ("qwen3", Path::new("tests/data/mill.txt"), vec!["--tier=warp"], "--tier: expected one of"),
        ("qwen3", Path::new("tests/data/mill.txt"), vec!["--lora=0"], "--lora"),
        ("qwen3", Path::new("tests/data/mill.txt"), vec!["--lora=4", "--full"], "cannot be used with"),
    ] {
        let refused = work.finetune(family, data, &flags);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    }
}
