//! The configuration that a command line makes, without a device: steps are divided as the command line says.

use super::division::{Memory, fitted};
use super::flags::naming;
use super::names::{NAMES, Ours};
use super::{Arguments, beside};
use crate::cli::parse::parse;
use crate::cli::{Arguments as Program, Command};
use crate::error::{Error, Result};
use crate::kernels::Tier;
use crate::settings::{Override, RunConfig};
use crate::train::recordings::assumed_capabilities;
use clap::CommandFactory;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TEXT: &str = "tests/data/mill.txt";

fn arguments(flags: &[&str]) -> Result<Arguments> {
    arguments_on(TEXT, flags)
}

fn arguments_on(data: &str, flags: &[&str]) -> Result<Arguments> {
    let folder = ["gristmill", "finetune", "tests/data/folders/mistral", data];
    let words = folder.iter().chain(flags).map(ToString::to_string);
    match parse::<Program>(words)?.command {
        Command::Finetune(arguments) => Ok(arguments),
        _ => unreachable!("`finetune` was asked for"),
    }
}

/// The configuration with `flags`, for single windows of 16 tokens.
fn configured(flags: &[&str]) -> Result<String> {
    configured_on(TEXT, flags)
}

fn configured_on(data: &str, flags: &[&str]) -> Result<String> {
    let arguments = arguments_on(data, flags)?;
    let written = arguments.written()?;
    let named = |error| naming(error, &written, &beside(&arguments.output()));
    arguments.configuration(&written).map_err(named)
}

const SINGLE: &str = "--runner_config.batch_size=1";
const SHORT: &str = "--max-length=16";

/// The line of the error that refuses `flags`.
fn refused(flags: &[&str]) -> String {
    let line = configured(flags).expect_err("refused").to_string();
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

#[test]
fn what_other_programs_flags_are_here_is_taken() {
    let program = Program::command();
    let own: Vec<&str> = program
        .find_subcommand("finetune")
        .expect("a command")
        .get_arguments()
        .filter_map(|argument| argument.get_long())
        .collect();
    // For flags that depend on their value: the values, and an answer that is a form.
    let asked = [
        ("lr_scheduler_type", "cosine", "--lr_schedule.type=cosine"),
        ("lr_scheduler_type", "constant_with_warmup", "--lr_schedule.type=constant_with_warmup"),
        ("lr_scheduler_type", "inverse_sqrt", "--lr_schedule.type=TYPE, one of CosineWithWarmUpLR, "),
        ("optim", "sgd", "--optimizer.type=SGD"),
        ("optim", "adamw_torch", "--optimizer.type=AdamW"),
        ("optim", "paged_adamw_8bit", "--optimizer.type=TYPE, one of AdamW, "),
        ("torch_dtype", "float32", "--model.model_config.compute_dtype=float32"),
        ("dtype", "auto", "--model.model_config.compute_dtype=TYPE, one of float32, "),
        ("adam_beta1", "0.8", "--optimizer.betas=[0.8,BETA2]"),
        ("adam_beta2", "0.95", "--optimizer.betas=[BETA1,0.95]"),
        ("fp16", "True", "--model.model_config.compute_dtype=float16"),
        ("bf16", "False", "--model.model_config.compute_dtype=float32"),
        ("fp16", "False", "left out"),
        ("load_in_4bit", "false", "left out"),
        ("quantization_bit", "8", "--base int8"),
        ("quantization_bit", "3", "--base nf4, of 4 bits, or --base int8"),
        ("neat_packing", "False", "--packing off"),
        ("fine_tune_type", "full", "--full"),
        ("finetuning_type", "lora", "--lora RANK"),
        ("fine_tune_type", "dora", "--lora RANK --dora"),
        ("use_dora", "True", "--dora"),
        ("loraplus_lr_ratio", "16", "--loraplus 16"),
        ("fine_tune_type", "bitfit", "--full, or --lora RANK"),
        ("full_finetuning", "True", "--full"),
        ("max_steps", "-1", "left out"),
        ("max_steps", "30", "--steps 30"),
        ("val_size", "0.1", "--eval-fraction 0.1"),
        ("test_size", "2", "--train_dataset.eval_samples=2"),
        ("load_best_model_at_end", "False", "--keep_best=False"),
        ("resume_from_checkpoint", "checkpoint-10", "--resume"),
    ];
    let answered = asked.map(|(theirs, value, expected)| {
        let (_, ours) = NAMES
            .iter()
            .find(|(names, _)| names.split(' ').any(|name| name == theirs))
            .unwrap_or_else(|| panic!("{theirs} is known"));
        let ours = ours.with(Some(value));
        assert!(
            ours.starts_with(expected) && (ours == expected || ours.contains("TYPE")),
            "{theirs}: {ours}"
        );
        (theirs, ours.replace("BETA1", "0.9").replace("BETA2", "0.99"))
    });
    let always = NAMES.iter().filter(|(_, ours)| !matches!(ours, Ours::By(_)));
    let always = always.map(|(theirs, ours)| (*theirs, ours.with(None)));
    let always = always.map(|(theirs, ours)| (theirs, ours.replace("BETA1", "0.9").replace("BETA2", "0.99")));
    // The data configured here are text, which has no samples to count, and no pairs of answers.
    for (theirs, ours) in always
        .chain(answered)
        .filter(|(_, ours)| !["TYPE", "eval_samples", "preference."].iter().any(|of| ours.contains(of)))
    {
        let words =
            ours.split(' ').map(|word| word.trim_end_matches(',')).filter(|word| word.starts_with("--"));
        let (keys, flags): (Vec<&str>, Vec<&str>) = words.partition(|word| word.contains('='));
        assert!(flags.iter().all(|flag| own.contains(&&flag[2..])), "{theirs}: {ours}");
        if !keys.is_empty() {
            let config = configured(&[&[SINGLE, SHORT][..], &keys].concat());
            assert!(config.is_ok(), "{theirs}: {ours}: {config:?}");
        }
    }
}

#[test]
fn pairs_of_answers_need_a_loss_and_a_loss_of_pairs_needs_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pairs.jsonl");
    let pair = |number| format!("{{\"prompt\": \"a\", \"chosen\": \"b{number}\", \"rejected\": \"c\"}}\n");
    std::fs::write(&file, (0..8).map(pair).collect::<String>()).expect("a file");
    let file = file.display().to_string();
    let of_pairs = |flags: &[&str]| configured_on(&file, &[&["--raw", SINGLE], flags].concat());
    let refused = of_pairs(&[]).expect_err("refused").to_string();
    assert!(
        refused.contains("has `chosen` and `rejected`") && refused.contains("--preference dpo"),
        "{refused}"
    );
    let refused = configured(&[SHORT, SINGLE, "--preference=dpo"]).expect_err("refused").to_string();
    assert!(refused.contains("has no pairs of answers"), "{refused}");
    let text = of_pairs(&["--preference=simpo", "--beta=1.5"]).expect("a configuration");
    assert!(
        text.contains("preference: { type: simpo, beta: 1.5 }") && text.contains("learning_rate: 2e-5"),
        "{text}"
    );
}

#[test]
fn what_is_written_twice_is_refused() {
    for (given, expected) in [
        (
            &["--learning-rate=1e-3", "--lr_schedule.learning_rate=1e-4"][..],
            "--learning-rate: decides `lr_schedule.learning_rate` too, which --lr_schedule.learning_rate sets; keep one",
        ),
        (&["--batch-size=4", "--runner_config.gradient_accumulation_steps=2"], "--batch-size: decides"),
        (&["--accumulate=1", "--runner_config={batch_size: 2}"], "--accumulate: decides"),
        (&["--memory=1GB", SINGLE], "--memory: decides"),
        (&["--lora=16", "--model.model_config.pet_config={lora_rank: 8}"], "--lora: decides"),
        (&["--full", "--model.model_config.pet_config.lora_rank=8"], "--full: decides"),
        (&["--eval-fraction=0.1", "--train_dataset={eval_samples: 2}"], "--eval-fraction: decides"),
        (&["--steps=3", "--runner_config=[]"], "--steps: decides `runner_config` too"),
        (&["--run_name=x"], "--run_name: is --output x here"),
        (&["--options", "run_name=x"], "--run_name: is --output x here"),
        (&["--train_dataset.data_loader={dataset_files: [x]}"], "is the second argument here"),
        (&["--learning-rate=-1"], "expected a number above 0, found `-1`"),
        (&["--lora-alpha=nan"], "expected a number above 0, found `nan`"),
        (&["--lora-dropout=nan"], "expected a share from 0 to below 1, found `nan`"),
        (&["--eval-fraction=1"], "expected a share from 0 to below 1, found `1`"),
    ] {
        let line = refused(given);
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn defaults_follow_what_is_written_and_fill_sections() {
    let of = |key: &str| configured(&[SINGLE, SHORT, key]).expect("a configuration");
    for (key, expected) in [
        ("--lr_schedule.learning_rate=1e-4", &["lr_end: 1e-5", "CosineWithWarmUpLR"][..]),
        ("--lr_schedule={learning_rate: 1e-4}", &["lr_end: 1e-5", "CosineWithWarmUpLR"]),
        ("--runner_config={epochs: 2}", &["epochs: 2", "batch_size: 1"]),
        (
            "--model.model_config.pet_config={lora_rank: 4}",
            &["pet_type: lora", "lora_rank: 4", "lora_alpha: 8", "q_proj"],
        ),
        ("--train_dataset.eval_fraction=0", &["eval_fraction: 0"]),
    ] {
        let config = of(key);
        expected.iter().for_each(|expected| assert!(config.contains(expected), "{expected} in\n{config}"));
    }
    assert!(!of("--train_dataset.eval_fraction=0").contains("do_eval"));
    // As on the command line that makes a run longer.
    let longer = ["--runner_config={epochs: 1}", "--extend", "--runner_config.epochs", "2"];
    let config = configured(&[&[SINGLE, SHORT][..], &longer].concat()).expect("a configuration");
    assert!(config.contains("epochs: 2"), "{config}");
}

/// The advice depends on the source of the number: a flag, the adapter, or an assumption.
#[test]
fn too_little_memory_is_answered_by_the_flag_that_gives_more() {
    let small = "num_layers: 1, num_heads: 1, hidden_size: 16";
    // Weights, gradients and moments need more bytes than are assumed.
    let large = "num_layers: 64, num_heads: 4, hidden_size: 1024";
    for (shape, memory, way) in [
        (small, Memory::Asked(9_000), "; train adapters, by "),
        (
            small,
            Memory::Reported(9_000),
            "; give --memory more, if the device has more than that, or train adapters, by ",
        ),
        (
            large,
            Memory::Assumed,
            "; give --memory what the device has, if that is more, or train adapters, by ",
        ),
    ] {
        let text = format!(
            "model: {{model_config: {{vocab_size: 64, seq_length: 16, {shape}}}}}\n\
             runner_config: {{batch_size: 8}}\nlr_schedule: {{learning_rate: 1.0e-3}}\n"
        );
        let plan = RunConfig::in_memory(&text, &[]).expect("a plan").plan;
        let arguments = arguments(&["--full"]).expect("arguments");
        let refused = fitted(&arguments, &plan, 10, assumed_capabilities(Tier::Portable), &memory);
        let line = refused.expect_err("refused").to_string();
        assert!(line.starts_with("nothing fits ") && line.contains(way), "{line}");
    }
}

#[test]
fn errors_name_flags_and_no_line_of_a_file_that_is_not_there() {
    let zero = refused(&[SINGLE, "--model.model_config.seq_length=0"]);
    assert!(zero.starts_with("--model.model_config.seq_length: "), "{zero}");
    let misspelt = refused(&[SINGLE, SHORT, "--lr_schedule.learning_rat=1"]);
    assert!(misspelt.starts_with("--lr_schedule.learning_rat: "), "{misspelt}");
    let file = Path::new("output/m.yaml");
    let named = |key: &str, written: &[Override]| {
        let error = Error::config(format!("output/m.yaml:17: {key}"), "is wrong");
        naming(Error::Several(vec![error]), written, file).to_string()
    };
    for (key, flag) in [
        ("seed", "--seed"),
        ("runner_config.stop_step", "--steps"),
        ("model.model_config.pet_config.lora_alpha", "--lora-alpha"),
        ("model.model_config.pet_config.pet_type", "--model.model_config.pet_config.pet_type"),
        ("optimizer.eps", "--optimizer.eps"),
    ] {
        assert_eq!(named(key, &[]), format!("{flag}: is wrong"));
    }
    let written = Override::parse_all(["--runner_config.epochs=0"]).expect("a key");
    assert_eq!(named("runner_config.epochs", &written), "--runner_config.epochs: is wrong");
    let folder = Error::file("out", "choose another --output_dir or --run_name");
    assert_eq!(naming(folder, &[], file).to_string(), "out: choose another --output");
}

/// A configuration is made again if its inputs may have changed, whatever their times.
#[test]
fn a_configuration_is_taken_again_only_of_what_it_was_made_of() {
    let tick = || std::thread::sleep(Duration::from_millis(30)); // longer than a clock tick of file systems
    let files = [
        ("data.jsonl", true),
        ("eval.jsonl", true),
        ("config.json", true),
        ("tokenizer.json", true),
        ("tokenizer_config.json", true),
        ("special_tokens_map.json", true),
        ("chat_template.jinja", true),
        ("generation_config.json", true),
        ("model.safetensors", false), // no part of it is read
        ("", false),
    ];
    let changes = [("written", false), ("removed", true)];
    for ((name, is_read), (how, removes)) in
        files.iter().flat_map(|file| changes.iter().map(move |change| (*file, *change)))
    {
        if !is_read && removes {
            continue; // the folder lost a name, which may be any name
        }
        let home = tempfile::tempdir().expect("a folder");
        let of =
            |name: &str| home.path().join(if name.starts_with(['d', 'e']) { "" } else { "model" }).join(name);
        let write = |path: PathBuf| std::fs::write(path, "{}").expect("a file");
        std::fs::create_dir(home.path().join("model")).expect("a folder");
        files.iter().filter(|(name, _)| !name.is_empty()).for_each(|(name, _)| write(of(name)));
        let checkpoint = home.path().join("tuned/checkpoint/step_0000001");
        std::fs::create_dir_all(&checkpoint).expect("a folder");
        write(checkpoint.join("trainer_state.json"));
        tick();
        let (file, made_by) = (home.path().join("tuned.yaml"), "# gristmill finetune\n");
        std::fs::write(&file, format!("{made_by}seed: 1\n")).expect("a file");
        tick();
        let mut arguments = arguments(&["--resume"]).expect("arguments");
        (arguments.model, arguments.data) = (home.path().join("model"), of("data.jsonl"));
        (arguments.eval, arguments.output) = (Some(of("eval.jsonl")), Some(home.path().join("tuned")));
        match (name, removes) {
            ("", _) => {}
            (name, true) => std::fs::remove_file(of(name)).expect("it is there"),
            (name, false) => write(of(name)),
        }
        let is_begun = arguments.is_begun(&file, made_by).expect("checkpoints");
        assert_eq!(is_begun, !is_read, "{name} is {how}");
        assert!(!arguments.is_begun(&file, "# gristmill finetune --seed=2\n").expect("checkpoints"));
    }
}
