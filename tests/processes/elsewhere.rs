//! Models that are used elsewhere than where they were trained: with the tokenizer, the chat template and the weights
//! that a checkpoint keeps, and in as many positions as the base has.

use crate::launch::{Ended, assert_refused, gristmill, run};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Not that of the folder, and with a token that its vocabulary lacks.
const TEMPLATE: &str = "{% for message in messages %}<|turn|>{{ message.role }}: {{ message.content }}\n{% endfor %}\
    {% if add_generation_prompt %}<|turn|>assistant: {% endif %}";

struct Work {
    home: tempfile::TempDir,
}

impl Work {
    /// With a base, conversations to train on, and one that is longer than any of them.
    fn new() -> Self {
        let work = Self { home: tempfile::tempdir().expect("a folder") };
        fs::create_dir(work.path("base")).expect("a folder");
        for entry in fs::read_dir("tests/data/folders/qwen2").expect("a folder") {
            let file = entry.expect("an entry").path();
            fs::copy(&file, work.path("base").join(file.file_name().expect("a name"))).expect("a file");
        }
        fs::write(work.path("template.jinja"), TEMPLATE).expect("a file");
        let talk = |answer: &str| {
            json!({"messages": [{"role": "user", "content": "which?"}, {"role": "assistant", "content": answer}]}).to_string()
        };
        let short: Vec<String> = (0..32).map(|number| talk(&format!("number {}", number % 5))).collect();
        fs::write(work.path("talks.jsonl"), short.join("\n")).expect("a file");
        fs::write(work.path("long.jsonl"), talk(&"one ".repeat(12))).expect("a file");
        work
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Trains the run `name` on its own template.
    fn finetune(&self, name: &str, flags: &[&str]) -> Ended {
        let mut command = gristmill(["finetune", "--memory=1GB"]);
        command.arg(self.path("base")).arg(self.path("talks.jsonl")).args(flags);
        command.arg(format!("--output={}", self.path(name).display()));
        run(command.arg(format!("--chat-template={}", self.path("template.jinja").display()))).succeeded()
    }

    /// The loss of the long conversation and its tokens, judged from another folder, and what is said meanwhile.
    fn judged(&self, model: &Path, flags: &[&str]) -> (f64, u64, String) {
        let mut command = gristmill(["eval", "--json"]);
        command.arg(model).arg(self.path("long.jsonl")).args(flags).current_dir("/");
        let ended = run(&mut command).succeeded();
        let judged: Value = serde_json::from_str(&ended.stdout).expect("JSON");
        (judged["loss"].as_f64().expect("a loss"), judged["tokens"].as_u64().expect("a number"), ended.stderr)
    }
}

#[test]
fn a_run_is_judged_by_the_tokens_of_its_base_from_anywhere() {
    let work = Work::new();
    let said = work.finetune("run", &["--full"]).stderr;
    assert!(said.contains("has no token for, and spells out: `<|turn|>` ("), "{said}");
    let template = format!("--chat-template={}", work.path("template.jinja").display());
    let (_, of_base, _) = work.judged(&work.path("base"), &[&template]);
    let (loss, of_run, said) = work.judged(&work.path("run"), &[]);
    // All of them: training cut its samples at fewer.
    assert_eq!(of_run, of_base);
    assert!(!said.contains("judged by their start"), "{said}");
    assert!(said.contains("the checkpoint holds float32") && said.contains("--type f32"), "{said}");
    for (flags, dtype) in [(vec![], "bfloat16"), (vec!["--type=f32"], "float32")] {
        let out = work.path(dtype);
        run(gristmill(["export"]).args(&flags).arg(work.path("run")).arg(work.path("base")).arg(&out))
            .succeeded();
        assert_eq!(fs::read_to_string(out.join("chat_template.jinja")).expect("a file"), TEMPLATE);
        let config: Value =
            serde_json::from_slice(&fs::read(out.join("config.json")).expect("a file")).expect("JSON");
        assert_eq!(config.get("dtype").or(config.get("torch_dtype")), Some(&json!(dtype)));
        assert_eq!(work.judged(&out, &[]).1, of_base);
    }
    for gone in ["base", "template.jinja", "talks.jsonl"] {
        let gone = work.path(gone);
        if gone.is_dir() { fs::remove_dir_all(gone) } else { fs::remove_file(gone) }.expect("it was there");
    }
    fs::rename(work.path("run"), work.path("moved")).expect("a folder");
    assert_eq!(work.judged(&work.path("moved"), &[]).0, loss);
}

#[test]
#[ignore = "long; `a_base_that_moved_is_named_and_another_one_refused`"]
fn adapters_say_where_their_base_was_and_take_it_by_one_flag() {
    let work = Work::new();
    work.finetune("run", &["--lora=4", "--base=nf4"]);
    let (loss, _, said) = work.judged(&work.path("run"), &[]);
    assert!(said.contains("the base is used as it is stored, in nf4"), "{said}");
    fs::rename(work.path("base"), work.path("moved")).expect("a folder");
    let mut command = gristmill(["generate", "--prompt=which?"]);
    let ended = run(command.arg(work.path("run")));
    assert_refused("generate", &ended, &["/base: is not there", "--base-model"]);
    let base = format!("--base-model={}", work.path("moved").display());
    assert_eq!(work.judged(&work.path("run"), &[&base]).0, loss);
    // The adapter by itself, and a checkpoint that was copied out of its run, on the base in full: the template is
    // still that of training.
    let checkpoints = work.path("run").join("checkpoint");
    let best: Value =
        serde_json::from_slice(&fs::read(checkpoints.join("best.json")).expect("a file")).expect("JSON");
    let checkpoint = checkpoints.join(format!("step_{:07}", best["step"].as_u64().expect("a step")));
    let copied = work.path("copied");
    fs::create_dir_all(copied.join("adapter")).expect("a folder");
    for file in ["chat_template.jinja", "tokenizer.json", "config.json", "generation_config.json"] {
        let from = checkpoint.join(file);
        if from.is_file() {
            fs::copy(from, copied.join(file)).expect("a file");
        }
    }
    for file in ["adapter_config.json", "adapter_model.safetensors", "base.json"] {
        fs::copy(checkpoint.join("adapter").join(file), copied.join("adapter").join(file)).expect("a file");
    }
    let (of_copy, _, _) = work.judged(&copied, &[&base]);
    let adapter = format!("--adapter={}", checkpoint.join("adapter").display());
    assert_eq!(work.judged(&work.path("moved"), &[&adapter]).0, of_copy);
    let (bare, _, _) = work.judged(&work.path("moved"), &[]);
    let (templated, _, _) = work.judged(
        &work.path("moved"),
        &[&format!("--chat-template={}", work.path("template.jinja").display())],
    );
    assert!(
        (of_copy - templated).abs() > 1e-4 && (of_copy - bare).abs() > 1e-4,
        "{of_copy}, {templated}, {bare}"
    );
    let out = work.path("merged");
    run(gristmill(["merge"]).arg(work.path("moved")).arg(work.path("run")).arg(&out)).succeeded();
    assert_eq!(fs::read_to_string(out.join("chat_template.jinja")).expect("a file"), TEMPLATE);
}

/// The window of training is no limit, and the model's positions are one.
#[test]
fn positions_are_those_of_the_model() {
    let work = Work::new();
    work.finetune("run", &["--lora=4"]);
    let generate = |flags: &[&str]| {
        run(gristmill(["generate", "--temperature=0", "--ignore-eod"]).arg(work.path("run")).args(flags))
    };
    let said = generate(&["--prompt=which?", "--tokens=80"]).succeeded().stderr;
    assert!(said.contains("80 tokens"), "{said}");
    let mut notices = said.lines().filter(|line| line.contains("notice"));
    assert!(notices.all(|line| line.contains("is used, the best by its eval_loss")), "{said}");
    assert_refused(
        "too long",
        &generate(&["--context=97"]),
        &["--context: expected from 1 to 96, the positions of the model"],
    );
    let mut command = gristmill(["eval", "--max-length=97"]);
    let ended = run(command.arg(work.path("run")).arg(work.path("long.jsonl")));
    assert_refused("too long", &ended, &["--max-length: expected at most 96"]);
    let (_, whole, _) = work.judged(&work.path("run"), &[]);
    let (_, cut, said) = work.judged(&work.path("run"), &["--max-length=48"]);
    assert!(cut < whole && said.contains("longer than 48 tokens"), "{cut} of {whole}: {said}");
}

#[test]
fn a_conversation_begins_again_and_ends_by_a_word() {
    let work = Work::new();
    let mut command = gristmill(["generate", "--chat", "--tokens=4", "--temperature=0"]);
    command.arg(work.path("base")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program");
    let mut input = child.stdin.take().expect("its input");
    input.write_all(b"which?\n/reset\nwhich?\n/exit\nnever\n").expect("lines");
    drop(input);
    let output = child.wait_with_output().expect("its output");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let (first, second) = text.split_once("> /reset\n").expect("the line that begins again");
    assert!(first.starts_with("> which?\n"), "{text}");
    assert_eq!(first, second, "the same message begins the same conversation: {text}");
}

#[test]
fn what_is_no_folder_or_lacks_a_tokenizer_says_what_to_do() {
    let work = Work::new();
    let hub = "Qwen/Qwen2.5-0.5B";
    let data = work.path("talks.jsonl").display().to_string();
    for arguments in [
        vec!["eval", hub, &data],
        vec!["generate", hub],
        vec!["finetune", hub, &data],
        vec!["merge", hub, "adapter", "out"],
    ] {
        let expected = if arguments[0] == "merge" {
            "holds no adapter"
        } else {
            "`hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B`"
        };
        assert_refused(arguments[0], &run(&mut gristmill(&arguments)), &[expected]);
    }
    // Metadata that begins with an underscore is no key of a class.
    let file = work.path("base").join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).expect("a file")).expect("JSON");
    config["_model_name_or_path"] = "x".into();
    fs::write(&file, config.to_string()).expect("a file");
    work.judged(&work.path("base"), &[]);

    fs::rename(work.path("base/tokenizer.json"), work.path("base/vocab.json")).expect("a file");
    let base = work.path("base").display().to_string();
    let config = work.path("run.yaml");
    fs::write(
        &config,
        format!(
            "load_checkpoint: {base}\noutput_dir: {}\nlr_schedule: {{learning_rate: 1.0e-3}}\nrunner_config: {{epochs: 1, batch_size: 1}}\n\
             optimizer: {{type: AdamW}}\ntrain_dataset: {{data_loader: {{type: TextDataLoader, dataset_files: tests/data/mill.txt}}}}\n",
            work.path("").display()
        ),
    )
    .expect("a file");
    let config = config.display().to_string();
    for arguments in [
        vec!["finetune", &base, &data],
        vec!["eval", &base, &data],
        vec!["generate", &base],
        vec!["train", &config],
    ] {
        let expected = ["/base: has no tokenizer.json", "convert vocab.json: `python3 -c"];
        assert_refused(arguments[0], &run(&mut gristmill(&arguments)), &expected);
    }
}

#[test]
fn a_plan_of_a_folder_has_adapters_by_flags() {
    let work = Work::new();
    let base = work.path("base").display().to_string();
    let plan = |flags: &[&str]| run(gristmill(["plan"]).arg(&base).args(flags)).succeeded().stdout;
    let [whole, adapted, quantised] =
        [&[][..], &["--lora", "4"], &["--lora", "4", "--base", "nf4"]].map(plan);
    assert!(!whole.contains("adapter") && adapted.contains("adapter"), "{adapted}");
    assert!(quantised.contains("nf4") && quantised != adapted, "{quantised}");
    let refused = run(gristmill(["plan", "configs/tiny.yaml", "--lora", "4"]).args([] as [&str; 0]));
    assert_refused("a configuration", &refused, &["--lora: is of a folder of Hugging Face's"]);
}
