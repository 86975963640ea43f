//! `gristmill finetune`: what it decides, that `train` takes what it prints, and what comes of it.

use crate::launch::{Ended, gristmill, in_repository, run};
use crate::runs::metrics;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
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
    let (made_by, settings): (Vec<&str>, Vec<&str>) =
        printed.lines().partition(|line| line.starts_with("# "));
    assert!(made_by.len() == 1 && settings.len() <= 31, "{printed}");

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
#[ignore = "long; accumulation is compared in `tests/training`"]
fn memory_changes_no_number() {
    let work = Work::new();
    let talks = work.talks(60);
    let template = format!("--chat-template={}", work.path("template.jinja").display());
    let rounded = |name: &str, more: &[&str]| {
        let flags = [template.as_str(), "--steps=2", "--model.model_config.seq_length=512"];
        work.finetune_into(name, "qwen3", &talks, &[&flags, more].concat()).succeeded();
        let lines = metrics(&work.path(name));
        lines.iter().map(|line| (line.loss, line.global_norm, line.eval_loss)).collect::<Vec<_>>()
    };
    let whole = rounded("whole", &["--memory=1GB"]);
    assert!(whole[1].2.is_some(), "{whole:?}");
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
            assert_eq!(one.2.is_some(), other.2.is_some());
            assert!(one.2.zip(other.2).is_none_or(|(one, other)| near(one, other)), "{one:?} {other:?}");
        }
    }
}

/// A run that ended early goes on by the same command, and is refused where other numbers are asked for.
#[test]
fn a_run_goes_on_by_the_same_command() {
    let work = Work::new();
    let talks = work.talks(60);
    let template = format!("--chat-template={}", work.path("template.jinja").display());
    let of = |more: &[&str]| {
        let epochs = ["--epochs=2"].into_iter().filter(|_| !more.iter().any(|one| one.contains("--steps")));
        let flags = [template.as_str()].into_iter().chain(epochs).chain(more.iter().copied());
        work.finetune("qwen3", &talks, &flags.collect::<Vec<_>>())
    };
    let shell = |line: &str| {
        let mut shell = Command::new("sh");
        in_repository(shell.args(["-c", line]));
        run(&mut shell)
    };
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
    let line = |flags: &[&str]| {
        let refused = of(flags);
        assert_eq!((refused.code, refused.stderr.lines().count()), (Some(2), 1), "{}", refused.stderr);
        refused.stderr
    };
    for (flags, said) in [
        (["--resume", "--batch-size=4"], "samples of a step 8 there and 4 here"),
        (["--resume", "--seed=7"], "seed 0 there and 7 here"),
        (["--extend", "--seed=7"], "seed 0 there and 7 here"),
    ] {
        let refused = line(&flags);
        assert!(refused.contains(said) && refused.contains("--load_checkpoint="), "{refused}");
    }
    // Another rate or length is a command, which works as it is printed.
    let command = |said: &str| said.trim_end().rsplit_once(" by ").expect("a command").1.to_string();
    let rate = line(&["--resume", "--learning-rate=1e-3"]);
    assert!(rate.contains("--learning-rate 0.0002 there and 0.001 here"), "{rate}");
    assert!(rate.contains("train on longer than these say, since step 12 is done, by "), "{rate}");
    let more = line(&["--resume", "--steps=20"]);
    assert!(more.contains("or train on with these by ") && more.ends_with("--steps=20 --extend\n"), "{more}");
    assert!(command(&rate).ends_with("--learning-rate=1e-3 --extend --epochs 4"), "{rate}");
    let complete = complete.stderr.lines().find_map(|line| line.split_once("; to train on: "));
    assert!(complete.expect("a command").1.ends_with("--extend --epochs 4"), "{complete:?}");
    let extended = shell(&command(&rate)).succeeded().stderr;
    assert!(extended.contains("extended after step 12: 24 steps in place of 12, "), "{extended}");
    assert!(extended.contains("lr_schedule.learning_rate 0.001 in place of 0.0002"), "{extended}");
    assert_eq!(steps(), 24);
    assert!(shell(&command(&rate)).succeeded().stderr.contains("this run is complete"));
    let more = ["--extend", "--learning-rate=1e-3", "--steps=30"];
    of(&more).succeeded();
    assert_eq!(steps(), 30);
    let config = fs::read_to_string(work.path("tuned.yaml")).expect("a file");
    assert!(config.starts_with("# gristmill finetune tests/data/folders/qwen3 "), "{config}");
    assert!(config.lines().next().is_some_and(|line| line.ends_with("--steps=30")), "{config}");

    // What is refused leaves the configuration of the run as it is.
    let refused = of(&["--extend", "--learning-rate=1e-3", "--steps=20"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("give more epochs or steps to extend it"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(work.path("tuned.yaml")).expect("a file"), config);
    assert!(
        !work.path("tuned.yaml.tmp").exists() && !refused.stderr.contains("tuned.yaml"),
        "{}",
        refused.stderr
    );

    // More epochs, as the line says: from the weights of the run, with its adapters.
    let said = of(&["--resume", "--seed=7", "--learning-rate=1e-3"]).stderr;
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
    let trained = work.finetune("gpt2", text, &["--full", "--steps=4"]).succeeded();
    let (base, tuned, out) = ("tests/data/folders/gpt2", work.path("tuned"), work.path("out"));
    let next = format!(" export {} {base} OUT", tuned.display());
    assert!(
        trained.stderr.lines().any(|line| line.starts_with("next: ") && line.ends_with(&next)),
        "{}",
        trained.stderr
    );
    let refused = run(gristmill(["merge", base]).args([&tuned, &out]));
    let export = format!("by `gristmill export {} {base} {}`", tuned.display(), out.display());
    assert!(refused.stderr.trim_end().ends_with(&export), "{}", refused.stderr);

    let mixture = of("qwen3_moe", text, &[]);
    assert_eq!(value(&mixture, "target_modules"), Some("[k_proj, o_proj, q_proj, v_proj]"));
    let texts = work.records("texts.jsonl", 7, |number| json!({"text": "mill ".repeat(number + 1)}));
    let ended =
        work.finetune("llama", &texts, &["--memory=1GB", "--print-config", "--packing=off"]).succeeded();
    assert!(!ended.stdout.contains("eval"), "{}", ended.stdout);
    assert_eq!(value(&ended.stdout, "batch_size"), Some("7"));
    assert!(ended.stderr.contains("a step takes 7 samples in place of 8"), "{}", ended.stderr);
    let none = "of 7 samples none is held out, so nothing is evaluated and no checkpoint is the best";
    assert!(ended.stderr.contains(none), "{}", ended.stderr);
    let asked = work.finetune("llama", &texts, &["--memory=1GB", "--print-config", "--eval-fraction=0"]);
    assert!(!asked.succeeded().stderr.contains("held out"));
}

#[test]
fn what_is_wrong_is_one_line() {
    let work = Work::new();
    let talks = work.talks(3);
    let mill = Path::new("tests/data/mill.txt");
    let questions = work.records("q.jsonl", 2, |_| json!({"ctx": "a", "endings": ["b", "c"], "label": 0}));
    for (family, data, flags, expected) in [
        ("qwen3", talks.as_path(), vec![], "name a Jinja file: by --chat-template"),
        ("qwen3", &questions, vec![], "holds questions with answers to choose from, which `eval` takes"),
        ("none", &talks, vec![], "no such folder; name one of Hugging Face's"),
        ("qwen3", Path::new("/nowhere.jsonl"), vec![], "/nowhere.jsonl: no such file"),
        ("qwen3", Path::new("tests/data/mill.txt"), vec!["--tier=warp"], "--tier: expected one of"),
        ("qwen3", Path::new("tests/data/mill.txt"), vec!["--lora=0"], "--lora"),
        ("qwen3", &talks, vec!["--num_train_epochs=3"], "--num_train_epochs: is --epochs 3 here"),
        (
            "mistral",
            mill,
            vec!["--targets=query"],
            "--targets: `query` is no linear layer of this model; it has down_proj,",
        ),
        ("mistral", mill, vec!["--targets=q_proj,proj"], "--targets: `proj` is no linear layer"),
        ("mistral", mill, vec!["--extend"], "has no checkpoint to train on from; leave --extend out"),
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
    let left = "no sample is left of 92 to 92 tokens (8 dropped with nothing to predict within seq_length); raise --max-length, or name other data";
    assert!(refused.stderr.contains(left), "{}", refused.stderr);
    // Too little memory: what is left to do is a flag of this command.
    let pairs = work.records("pairs.jsonl", 8, |_| json!({"prompt": "a", "completion": "b".repeat(4100)}));
    for (flags, remedies) in [
        (
            &["--full"][..],
            "recomputed; train adapters, by --lora 16 in place of --full, or lower --max-length",
        ),
        (&[], "recomputed; lower --max-length"),
    ] {
        let flags = [flags, &["--memory=1MB", "--max-length=4096", "--eval-fraction=0"]].concat();
        let refused = work.finetune_into("small", "mistral", &pairs, &flags);
        assert!(
            refused.stderr.contains(remedies) && !refused.stderr.contains("num_layers"),
            "{}",
            refused.stderr
        );
        assert_eq!((refused.code, refused.stderr.lines().count()), (Some(2), 1), "{}", refused.stderr);
    }
    // Shorter samples do not help where the weights alone are too large.
    let wide = ["--lora=512", "--memory=1MB", "--eval-fraction=0"];
    let refused = work.finetune_into("small", "mistral", &pairs, &wide).stderr;
    assert!(refused.contains("of it for weights, gradients and moments, whatever its length"), "{refused}");
    assert!(refused.trim_end().ends_with("lower --lora") && !refused.contains("max-length"), "{refused}");
}

/// The same samples are held out and judged, each as if it were alone, whatever rows they are in and however positions
/// are counted.
#[test]
#[ignore = "long; packing is compared in `tests/training`"]
fn short_samples_share_rows() {
    let work = Work::new();
    let talks = work.records("short.jsonl", 60, |number| {
        let answer = if number % 12 == 5 { "long ".repeat(7) } else { format!("{number}") };
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]})
    });
    // Families of tests have 48 positions.
    let brief = "{% for m in messages %}{{ m.role[0] }}{{ m.content }};{% endfor %}{% if add_generation_prompt %}a{% endif %}";
    fs::write(work.path("brief.jinja"), brief).expect("a file");
    let template = format!("--chat-template={}", work.path("brief.jinja").display());
    let precise = "--model.model_config.compute_dtype=float32";
    for family in ["qwen3", "gpt2"] {
        let mut losses = Vec::new();
        for (name, packing, flags) in [
            ("shared", "best_fit", &[][..]),
            ("alone", "", &["--packing=off"]),
            ("in_order", "pack", &["--train_dataset.data_loader.packing=pack"]),
        ] {
            let name = format!("{family}_{name}");
            let flags = [&[&template, precise, "--memory=1GB", "--epochs=1"][..], flags].concat();
            let ended = work.finetune_into(&name, family, &talks, &flags).succeeded();
            let config = fs::read_to_string(work.path(&format!("{name}.yaml"))).expect("a file");
            assert_eq!(value(&config, "packing").unwrap_or_default(), packing, "{config}");
            let rows: usize =
                value(&config, "batch_size").and_then(|rows| rows.parse().ok()).expect("a number");
            let said = format!("and a step takes {rows} row{}, about ", if rows == 1 { "" } else { "s" });
            assert_eq!(ended.stderr.contains(&said), !packing.is_empty(), "{}", ended.stderr);
            let drawn = "evaluation data: 12 samples, drawn by the seed, in ";
            assert_eq!(ended.stderr.contains(drawn), !packing.is_empty(), "{}", ended.stderr);
            assert!(if packing.is_empty() { rows == 8 } else { (1..8).contains(&rows) }, "{rows} rows");
            let before = ended.stderr.lines().find_map(|line| line.split("step 0: eval_loss ").nth(1));
            let before = before.and_then(|rest| rest.split([' ', ',']).next()?.parse::<f64>().ok());
            losses.push(before.unwrap_or_else(|| panic!("a loss in {}", ended.stderr)));
            let steps = metrics(&work.path(&name));
            // As many steps for as many samples, about.
            assert!((4..=9).contains(&steps.len()), "{} steps of {name}", steps.len());
            let text = fs::read_to_string(work.path(&name).join("metrics.jsonl")).expect("metrics");
            let padded = |line: &str| {
                let step: serde_json::Value = serde_json::from_str(line).expect("a line of metrics");
                let rate = |key: &str| step[key].as_f64();
                rate("computed_tokens_per_second").zip(rate("tokens_per_second")).map(|(all, own)| all / own)
            };
            let most = text.lines().filter_map(padded).fold(1.0, f64::max);
            assert_eq!(most > 2.0, packing.is_empty(), "{most} of the tokens of {name}");
        }
        assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-4), "{family}: {losses:?}");
    }
}

/// What is written says whether samples share rows, in every way that it can be written; what is said of them counts
/// what is learned.
#[test]
fn packing_is_as_written() {
    let work = Work::new();
    // Of every three, one has nothing to predict.
    let ids = work.records("ids.jsonl", 60, |number| {
        let labels = if number % 3 == 0 { [-100; 5] } else { [3, 4, 5, 6, 7] };
        json!({"input_ids": [3, 4, 5, 6, 7], "labels": labels})
    });
    let one = work.records("one.jsonl", 1, |_| json!({"input_ids": [3, 4, 5, 6, 7]}));
    let text = Path::new("tests/data/mill.txt");
    let packs = "--train_dataset.data_loader.handler=[{type: PackingHandler}]";
    let pack = "--train_dataset.data_loader.packing=pack";
    // 40 are learned from or judged, of which 12 are held out; a row has 16 tokens.
    let shared = "notice: 28 samples share 10 rows, in which none sees another, and a step takes 3 rows, about 9 samples";
    let (way, own, none) = ("; --packing off keeps each in its own", "packing: best_fit", "");
    for (data, flags, said, is_advised, key) in [
        (&*ids, &[][..], shared, true, own),
        (&ids, &["--packing=on"], shared, false, own),
        (&ids, &["--packing=off"], none, false, none),
        (&ids, &["--train_dataset.data_loader.packing=null"], none, false, "packing: null"),
        (&ids, &[pack], shared, false, "packing: pack"),
        (&ids, &[packs], shared, false, "PackingHandler"),
        (&ids, &["--packing=on", packs], shared, false, "PackingHandler"),
        // Twenty of these thirty.
        (
            &ids,
            &["--train_dataset.data_loader.handler=[{type: take, n: 30}]"],
            "notice: 8 samples share 3 rows, ",
            true,
            own,
        ),
        (&one, &["--packing=on"], "notice: 1 sample shares 1 row, ", false, own),
        (&one, &["--packing=on"], "notice: a step takes 1 row in place of 8, ", false, own),
        (&one, &[], "notice: of 1 sample none is held out, ", false, none),
        (
            text,
            &["--packing=on"],
            "notice: --packing on changes nothing: the rows of a text are full",
            false,
            none,
        ),
    ] {
        let flags = [&["--memory=1GB", "--print-config"], flags].concat();
        let ended = work.finetune("qwen3", data, &flags).succeeded();
        let all = format!("{flags:?}: {}{}", ended.stderr, ended.stdout);
        let config = ended.stdout.split_once('\n').map_or("", |(_, config)| config);
        assert!(ended.stderr.contains(said), "{said} in {all}");
        let shares = said.contains(" share") || said.contains("takes 1 row");
        assert_eq!(ended.stderr.contains(" none sees another"), shares, "{all}");
        assert_eq!(ended.stderr.contains(way), is_advised, "{all}");
        assert_eq!(
            config.to_lowercase().contains("pack") && !config.contains("packing: null"),
            !["", "packing: null"].contains(&key),
            "{all}"
        );
        assert!(config.contains(key), "{all}");
    }
    for (flags, line) in [
        (["--packing=on", pack], "--packing: decides"),
        (
            ["--packing=off", packs],
            "--packing: is off, and the PackingHandler of --train_dataset.data_loader.handler packs",
        ),
    ] {
        let refused =
            work.finetune("qwen3", &ids, &[&flags[..], &["--memory=1GB", "--print-config"]].concat());
        assert_eq!(refused.code, Some(2));
        assert!(refused.stderr.contains(line), "{}", refused.stderr);
    }
}
