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
        self.finetune_into("tuned", family, data, flags)
    }

    fn finetune_into(&self, name: &str, family: &str, data: &Path, flags: &[&str]) -> Ended {
        let mut command = gristmill(["finetune"]);
        command.arg(Path::new("tests/data/folders").join(family)).arg(data);
        command.arg(format!("--output={}", self.path(name).display())).args(flags);
        run(&mut command)
    }
}

/// The value that a configuration gives to `key`, in a line of its own or in that of its section.
fn value<'a>(config: &'a str, key: &str) -> Option<&'a str> {
    let name = format!("{key}: ");
    let at = config.match_indices(&name).find(|(at, _)| config[..*at].ends_with([' ', '\n']) || *at == 0)?.0;
    let rest = config[at + name.len()..].lines().next()?;
    let end =
        if rest.starts_with('[') { rest.find(']')? + 1 } else { rest.find([',', '}']).unwrap_or(rest.len()) };
    Some(rest[..end].trim())
}

#[test]
fn conversations_become_adapters() {
    let work = Work::new();
    let talks = work.talks(200);
    let template = format!("--chat-template={}", work.path("template.jinja").display());
    let flags = [template.as_str(), "--memory=1GB"];
    let of = |more: &[&str]| work.finetune("qwen3", &talks, &[&flags[..], more].concat()).succeeded().stdout;
    let printed = of(&["--print-config"]);
    assert!(!work.path("tuned.yaml").exists());
    for (key, want) in [
        ("seq_length", "48"),
        ("compute_dtype", "bfloat16"),
        ("lora_rank", "16"),
        ("lora_alpha", "32"),
        ("lora_dropout", "0.0"),
        ("target_modules", "[down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj]"),
        ("calculate_per_token_loss", "True"),
        ("eval_samples", "16"),
        ("eval_on_start", "True"),
        ("eval_step_interval", "11"),
        ("keep_best", "True"),
        ("batch_size", "8"),
        ("gradient_accumulation_steps", "1"),
        ("weight_decay", "0.0"),
        ("learning_rate", "2e-4"),
        ("lr_end", "2e-5"),
        ("warmup_ratio", "0.1"),
        ("epochs", "5"),
        ("save_checkpoint_steps", "11"),
    ] {
        assert_eq!(value(&printed, key), Some(want), "{key} in\n{printed}");
    }
    assert!(printed.lines().count() <= 30, "{printed}");

    let length = ["--epochs=1", "--learning-rate=1e-3"];
    let printed = of(&[&length[..], &["--print-config"]].concat());
    let ended = work.finetune("qwen3", &talks, &[&flags[..], &length].concat()).succeeded();
    assert!(!ended.stdout.contains("seq_length"), "{}", ended.stdout);
    assert_eq!(fs::read_to_string(work.path("tuned.yaml")).expect("a file"), printed);
    assert!(ended.stderr.contains("; 1 cut"), "{}", ended.stderr);
    assert!(ended.stderr.contains("16 of these 200 samples, drawn by the seed"), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("step 0: eval_loss") && ended.stderr.contains("before training"),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("generate") && ended.stderr.trim_end().ends_with("--chat"),
        "{}",
        ended.stderr
    );
    let lines = metrics(&work.path("tuned"));
    assert_eq!(lines.len(), 184 / 8);
    assert!(lines[22].eval_loss.is_some() && lines[22].loss < lines[0].loss);

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

/// The mean is over the tokens of a step, and the samples that are held out do not depend on how it is divided.
#[test]
fn memory_changes_no_number() {
    let work = Work::new();
    let talks = work.talks(60);
    let template = format!("--chat-template={}", work.path("template.jinja").display());
    let rounded = |name: &str, more: &[&str]| {
        let flags = [template.as_str(), "--steps=3", "--max-length=512"];
        work.finetune_into(name, "qwen3", &talks, &[&flags, more].concat()).succeeded();
        let lines = metrics(&work.path(name));
        lines.iter().map(|line| (line.loss, line.global_norm, line.eval_loss)).collect::<Vec<_>>()
    };
    let whole = rounded("whole", &["--memory=1GB"]);
    let rows = |name: &str| {
        let config = fs::read_to_string(work.path(&format!("{name}.yaml"))).expect("a file");
        (
            value(&config, "batch_size").map(str::to_string),
            value(&config, "gradient_accumulation_steps").map(str::to_string),
        )
    };
    assert_eq!(rows("whole"), (Some("8".into()), Some("1".into())));
    let single = ["--runner_config.batch_size=1", "--runner_config.gradient_accumulation_steps=8"];
    for (name, flags, division) in
        [("less", &["--memory=8MB"][..], ("4", "2")), ("single", &single, ("1", "8"))]
    {
        let parts = rounded(name, flags);
        assert_eq!(rows(name), (Some(division.0.into()), Some(division.1.into())));
        for (one, other) in whole.iter().zip(&parts) {
            let near = |a: f32, b: f32| (a - b).abs() <= 4e-3 * a.abs();
            assert!(near(one.0, other.0) && near(one.1, other.1), "{one:?} {other:?}");
            assert!(near(one.2.expect("a loss"), other.2.expect("a loss")), "{one:?} {other:?}");
        }
    }
}

/// A run that ended early goes on by the same command, and is refused where other numbers are asked for.
#[test]
fn a_run_goes_on_by_the_same_command() {
    let work = Work::new();
    let talks = work.talks(60);
    let template = format!("--chat-template={}", work.path("template.jinja").display());
    let of =
        |more: &[&str]| work.finetune("qwen3", &talks, &[&[template.as_str(), "--epochs=2"], more].concat());
    // A kill before the first checkpoint leaves this.
    fs::create_dir_all(work.path("tuned")).expect("a folder");
    fs::write(work.path("tuned/config.yaml"), "seed: 1\n").expect("a file");
    let refused = of(&[]);
    assert!(refused.stderr.contains("holds a run already: continue it with --resume"), "{}", refused.stderr);
    of(&["--resume"]).succeeded();
    let steps = || metrics(&work.path("tuned")).len();
    assert_eq!(steps(), 12);
    let complete = of(&["--resume", "--memory=900MB"]).succeeded();
    assert!(complete.stderr.contains("this run is complete"), "{}", complete.stderr);
    for (flags, said) in [
        (["--resume", "--learning-rate=1e-3"], "--learning-rate 0.0002 there and 0.001 here"),
        (["--resume", "--batch-size=4"], "samples of a step 8 there and 4 here"),
        (["--resume", "--seed=7"], "seed 0 there and 7 here"),
    ] {
        let refused = of(&flags);
        assert!(
            refused.stderr.contains(said) && refused.stderr.contains("--load_checkpoint="),
            "{}",
            refused.stderr
        );
        assert_eq!((refused.code, refused.stderr.lines().count()), (Some(2), 1), "{}", refused.stderr);
    }
    // More epochs, as the line says: from the weights of the run, with its adapters.
    let said = of(&["--resume", "--seed=7"]).stderr;
    let more = said.split_whitespace().find(|word| word.starts_with("--load_checkpoint=")).expect("a way");
    let flags = [&template, "--memory=1GB", "--steps=1", more];
    let ended = work.finetune_into("more", "qwen3", &talks, &flags).succeeded();
    let start = |name: &str| {
        let text = fs::read_to_string(work.path(name).join("metrics.jsonl")).expect("metrics");
        serde_json::from_str::<Value>(text.lines().next().expect("a line")).expect("JSON")["eval_loss"]
            .as_f64()
    };
    let best = fs::read_to_string(work.path("tuned/checkpoint/best.json")).expect("a note");
    let best = serde_json::from_str::<Value>(&best).expect("JSON")["eval_loss"].as_f64().expect("a loss");
    assert!((start("more").expect("a loss") - best).abs() < 1e-4 * best, "{best} {}", ended.stderr);
    assert!(start("tuned").expect("a loss") > best);
}

/// The flags reach the keys that they stand for, and any key can be set.
#[test]
fn flags_are_keys() {
    let work = Work::new();
    let talks = work.talks(60);
    let others = work.talks(60);
    let template = format!("--chat-template={}", work.path("template.jinja").display());
    let eval = format!("--eval={}", others.display());
    let flags = [
        "--print-config",
        "--memory=1GB",
        "--lora-alpha=8",
        "--lora-dropout=0.05",
        "--targets=q_proj,v_proj",
        "--steps",
        "30",
        "--batch-size=2",
        "--accumulate=3",
        "--max-length=32",
        "--seed=5",
        "--lr_schedule.warmup_steps=2",
        "--do_eval",
        "--optimizer.weight_decay",
        "0.1",
    ];
    let printed =
        work.finetune("qwen3", &talks, &[&flags[..], &[&template, &eval]].concat()).succeeded().stdout;
    for (key, want) in [
        ("lora_alpha", "8.0"),
        ("lora_dropout", "0.05"),
        ("target_modules", "[q_proj, v_proj]"),
        ("stop_step", "30"),
        ("total_steps", "30"),
        ("epochs", "3"),
        ("batch_size", "6"),
        ("seq_length", "32"),
        ("seed", "5"),
        ("eval_batches", "60"),
        ("warmup_steps", "2"),
        ("weight_decay", "0.1"),
    ] {
        assert_eq!(value(&printed, key), Some(want), "{key} in\n{printed}");
    }
    assert_eq!(value(&printed, "warmup_ratio"), None, "it would win over the steps");
    assert!(printed.contains("eval_dataset:") && !printed.contains("eval_samples"), "{printed}");
    let help = run(&mut gristmill(["finetune", "--help"])).succeeded().stdout;
    assert!(
        help.contains("--print-config shows the configuration, as a file that `gristmill train FILE` takes"),
        "{help}"
    );
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
    work.finetune("mistral", &pairs, &["--memory=1GB", "--lora=4", "--epochs=3"]).succeeded();
    let loss = |model: &Path| {
        let judged = run(gristmill(["eval"]).arg(model).arg(&pairs).arg("--json")).succeeded().stdout;
        serde_json::from_str::<Value>(&judged).expect("JSON")["loss"].as_f64().expect("a loss")
    };
    let (tuned, base) = (work.path("tuned"), Path::new("tests/data/folders/mistral"));
    let after = loss(&tuned);
    assert!(after < loss(base), "{after}");
    let merged = work.path("merged");
    let ended = run(gristmill(["merge"]).arg(base).arg(&tuned).arg(&merged)).succeeded();
    assert!(ended.stderr.contains(" is used, the best by its eval_loss of "), "{}", ended.stderr);
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
    assert!(value(&full, "eval_fraction").is_some(), "{full}");
    assert!(!full.contains("pet_config"), "{full}");
    work.finetune("gpt2", text, &["--full", "--steps=4"]).succeeded();

    let mixture = of("qwen3_moe", text, &[]);
    assert_eq!(value(&mixture, "target_modules"), Some("[k_proj, o_proj, q_proj, v_proj]"));
    let texts = work.records("texts.jsonl", 7, |number| json!({"text": "mill ".repeat(number + 1)}));
    let ended = work.finetune("llama", &texts, &["--memory=1GB", "--print-config"]).succeeded();
    assert!(!ended.stdout.contains("eval"), "{}", ended.stdout);
    assert_eq!(value(&ended.stdout, "batch_size"), Some("7"));
    assert!(ended.stderr.contains("a step takes 7 samples in place of 8"), "{}", ended.stderr);
}

#[test]
fn what_is_wrong_is_one_line() {
    let work = Work::new();
    let talks = work.talks(3);
    let questions = work.records("q.jsonl", 2, |_| json!({"ctx": "a", "endings": ["b", "c"], "label": 0}));
    for (family, data, flags, expected) in [
        ("qwen3", talks.as_path(), vec![], "name a Jinja file: by --chat-template"),
        ("qwen3", &questions, vec![], "holds questions with answers to choose from, which `eval` takes"),
        ("none", &talks, vec![], "no such folder; name one of Hugging Face's"),
        ("qwen3", Path::new("/nowhere.jsonl"), vec![], "/nowhere.jsonl: no such file"),
        ("qwen3", Path::new("tests/data/mill.txt"), vec!["--tier=warp"], "--tier: expected one of"),
        ("qwen3", Path::new("tests/data/mill.txt"), vec!["--lora=0"], "--lora"),
        ("qwen3", &talks, vec!["--num_train_epochs=3"], "--num_train_epochs: is --epochs here"),
        ("qwen3", &talks, vec!["--per-device-train-batch-size", "3"], "is --batch-size here"),
        ("qwen3", &talks, vec!["--r=8"], "--r: is --lora here"),
        ("mistral", Path::new("tests/data/mill.txt"), vec!["--lr_schedule.learning_rat=1"], "learning_rat"),
        ("qwen3", Path::new("tests/data/mill.txt"), vec!["--lora=4", "--full"], "cannot be used with"),
    ] {
        let refused = work.finetune(family, data, &flags);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    }
    // Nothing of the answers is within the length.
    let long = work.records("long.jsonl", 8, |_| json!({"prompt": "a".repeat(90), "completion": "b"}));
    let refused = work.finetune("mistral", &long, &["--max-length=16"]);
    assert!(refused.stderr.contains("raise --max-length, or name other data"), "{}", refused.stderr);
    // Too little memory: what is left to do is a flag of this command.
    let pairs = work.records("pairs.jsonl", 8, |_| json!({"prompt": "a", "completion": "b"}));
    for (flags, remedies) in [
        (
            &["--full"][..],
            "recomputed; train adapters, by --lora 16 in place of --full, or lower --max-length",
        ),
        (&[], "recomputed; lower --max-length"),
    ] {
        let flags = [flags, &["--memory=1MB", "--max-length=4096"]].concat();
        let refused = work.finetune_into("small", "mistral", &pairs, &flags);
        assert!(
            refused.stderr.contains(remedies) && !refused.stderr.contains("num_layers"),
            "{}",
            refused.stderr
        );
        assert_eq!((refused.code, refused.stderr.lines().count()), (Some(2), 1), "{}", refused.stderr);
    }
}
