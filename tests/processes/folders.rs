//! Small Hugging Face folders of many families: evaluated and trained as transformers evaluates and trains them, whose
//! losses `tests/transformers/folders.py` wrote.

use crate::launch::{gristmill, run};
use crate::runs::{FolderRun, Setup, is_long, metrics};
use gristmill::device::list_adapters;
use pollster::block_on;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const FAMILIES: [&str; 37] = [
    "llama",
    "mistral",
    "qwen3",
    "qwen3_moe",
    "deepseek_v3",
    "mimo_v2_flash",
    "smollm3",
    "ministral3",
    "minicpm3",
    "granitemoeshared",
    "hyperclovax",
    "gemma",
    "glm4",
    "exaone4",
    "olmo2",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "minimax_m2",
    "gemma2",
    "gemma3_text",
    "nemotron",
    "starcoder2",
    "apertus",
    "stablelm",
    "cohere",
    "gpt_neox",
    "gemma4_text",
    "ernie4_5_moe",
    "phimoe",
    "gpt_oss",
    "qwen3_next",
    "lfm2_moe",
    "qwen3_5_text",
    "gptj",
    "nanochat",
    "opt",
    "gpt2",
];
/// Without GRISTMILL_LONG a family is evaluated on one of these and trained on the other.
static TIERS: [&str; 2] = ["software", "portable"];
const TEXT: &str = "tests/data/mill.txt";
/// Bytes of a window, and windows of a step.
const WINDOW: usize = 48;
const BATCH: usize = 4;

fn folder(family: &str) -> PathBuf {
    Path::new("tests/data/folders").join(family)
}

fn losses(family: &str) -> Value {
    let text = fs::read_to_string("tests/data/folders/losses.json").expect("a file");
    serde_json::from_str::<Value>(&text).expect("JSON")[family].clone()
}

fn eval(model: &Path, data: &Path, flags: &[&str]) -> Value {
    let ended = run(gristmill(["eval"]).arg(model).arg(data).arg("--json").args(flags)).succeeded();
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", ended.stdout))
}

fn assert_near(what: &str, got: f64, want: f64, allowed: f64) {
    assert!((got - want).abs() <= allowed * want.abs(), "{what}: {got} instead of {want}");
}

/// Where the family of this number is evaluated, and where it is trained: on other kernels, those of GPUs for one family
/// in four, as a run on them takes llvmpipe five times as long.
fn tiers(number: usize) -> [&'static [&'static str]; 2] {
    match number % 4 {
        _ if is_long() => [&TIERS; 2],
        0 => [&TIERS[..1], &TIERS[1..]],
        _ => [&TIERS[1..], &TIERS[..1]],
    }
}

#[test]
fn the_loss_of_a_text_is_that_of_transformers() {
    let bytes = fs::read(TEXT).expect("a file").len() as f64;
    for (number, family) in FAMILIES.into_iter().enumerate() {
        let want = losses(family)["evaluation"].as_f64().expect("a loss");
        for tier in tiers(number)[0] {
            let got = eval(&folder(family), Path::new(TEXT), &[&format!("--tier={tier}")]);
            let number = |key: &str| got[key].as_f64().unwrap_or_else(|| panic!("{key} in {got}"));
            assert_near(family, number("loss"), want, 1e-6);
            assert_near(family, number("perplexity"), want.exp(), 1e-5);
            assert_near(family, number("bits_per_byte"), want / 2.0_f64.ln(), 1e-6);
            assert_eq!((number("tokens"), number("sequences")), (bytes, (bytes / WINDOW as f64).ceil()));
        }
    }
}

#[test]
fn training_goes_as_in_torch() {
    let home = tempfile::tempdir().expect("a folder");
    let text = home.path().join("text");
    fs::write(&text, &fs::read(TEXT).expect("a file")[..=WINDOW * BATCH]).expect("a file");
    let on = |(number, family)| tiers(number)[1].iter().map(move |tier| (family, tier));
    for (family, tier) in FAMILIES.into_iter().enumerate().flat_map(on) {
        let file = home.path().join("run.yaml");
        let config = json!({
            "output_dir": home.path(), "run_name": format!("{family}_{tier}"), "load_checkpoint": folder(family),
            "train_dataset": {"data_loader": {"type": "TextDataLoader", "dataset_files": [&text]}},
            "runner_config": {"epochs": 5, "batch_size": BATCH},
            "optimizer": {"type": "AdamW", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0},
            "lr_schedule": {"type": "ConstantWarmUpLR", "learning_rate": 3e-3},
            "runner_wrapper": {"use_clip_grad": false},
        });
        fs::write(&file, config.to_string()).expect("a file");
        let ended = run(gristmill(["train"]).arg(&file).arg(format!("--tier={tier}"))).succeeded();
        let loaded = ended.stderr.lines().find(|line| line.starts_with("loaded: "));
        let end = format!(" parameters in float32 from tests/data/folders/{family}, ");
        assert!(loaded.is_some_and(|line| line.contains(&end)), "{}", ended.stderr);
        let got = metrics(&home.path().join(format!("{family}_{tier}")));
        let want = losses(family)["training"].clone();
        let want = want.as_array().expect("losses");
        assert_eq!(got.len(), want.len());
        for (line, want) in got.iter().zip(want) {
            assert_near(family, f64::from(line.loss), want.as_f64().expect("a loss"), 1e-5);
        }
    }
}

/// Answers are not cut where the model has the positions, unless the device refuses as many: llvmpipe binds 128 MiB at
/// once.
#[test]
#[ignore = "long; `positions_are_those_of_the_model` has the same limit on the model's side"]
fn an_answer_that_the_device_refuses_is_judged_in_part() {
    let adapters = block_on(list_adapters());
    if !adapters.iter().any(|adapter| adapter.name.contains("llvmpipe")) {
        println!("of other adapters nobody knows what they refuse");
        return;
    }
    let wide = "num_layers=1 hidden_size=24 num_heads=2 intermediate_size=8192 max_position_embeddings=4096";
    let wide: Vec<String> = wide.split(' ').map(|key| format!("--model.model_config.{key}")).collect();
    let wide: Vec<&str> = wide.iter().map(String::as_str).collect();
    let trained = FolderRun::new(Setup::new("wide", "").with(&wide).with(&["--device_name=llvmpipe"]));
    trained.train(1);
    let data = trained.home.path().join("long.jsonl");
    let judged = |answer: usize| {
        fs::write(&data, json!({"prompt": "a", "completion": "b".repeat(answer)}).to_string())
            .expect("a file");
        run(gristmill(["eval"]).arg(trained.folder()).arg(&data)).succeeded()
    };
    let whole = judged(2040);
    assert!(!whole.stderr.contains("longer than"), "{}", whole.stderr);
    let cut = judged(3000);
    assert!(
        cut.stderr.contains(
            "notice: 1 sample is longer than 2048 tokens, and judged by a part of that length (--max-length)"
        ),
        "{}",
        cut.stderr
    );
    assert!(cut.stdout.contains(" tokens of 1 samples, of at most 2048 tokens each"), "{}", cut.stdout);
}

#[test]
fn questions_are_answered() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("questions.jsonl");
    let question = |right: usize| {
        let mut endings = vec!["\u{1}\u{2}\u{3}\u{1}\u{2}\u{3}"; 3];
        endings[right] = "the the";
        json!({"ctx": "the the the", "endings": endings, "label": right.to_string()}).to_string()
    };
    let lines: Vec<String> = (0..3).map(question).collect();
    fs::write(&file, lines.join("\n")).expect("a file");
    let got = eval(&folder("llama"), &file, &["--limit=2"]);
    assert_eq!(got["questions"], 2);
    let printed = run(gristmill(["eval"]).arg(folder("llama")).arg(&file)).succeeded().stdout;
    assert!(printed.starts_with("acc  ") && printed.ends_with("3 questions\n"), "{printed}");
}

#[test]
fn what_cannot_be_judged_is_one_line() {
    let home = tempfile::tempdir().expect("a folder");
    let records = home.path().join("records.jsonl");
    fs::write(&records, "{\"title\": \"mill\"}\n").expect("a file");
    let wide = home.path().join("wide.txt");
    fs::write(&wide, "\u{e9}").expect("a file");
    for (model, data, expected) in [
        (folder("llama"), Path::new("/nowhere.txt"), "/nowhere.txt"),
        (home.path().to_path_buf(), Path::new(TEXT), "nor a folder of Hugging Face's"),
        (folder("llama"), &records, "records.jsonl: line 1: has `title`; records have `text`"),
        (folder("llama"), &wide, "token 195"),
        (folder("llama"), Path::new("tests/data"), "is a folder; name one file"),
    ] {
        let refused = run(gristmill(["eval"]).arg(model).arg(data));
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    }
}

/// A model's folder whose files are cut, huge, or contradict each other.
#[test]
fn folders_that_no_model_can_be_read_from_are_one_line() {
    let llama = |change: &dyn Fn(&Path)| {
        let home = tempfile::tempdir().expect("a folder");
        for file in fs::read_dir(folder("llama")).expect("a folder") {
            let file = file.expect("a file").path();
            fs::copy(&file, home.path().join(file.file_name().expect("a name"))).expect("a copy");
        }
        change(home.path());
        let refused = run(gristmill(["generate"]).arg(home.path()).args(["--prompt", "a"]));
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
        refused.stderr
    };
    let resized = |name: &'static str, bytes: u64| {
        llama(&|home| {
            fs::File::options()
                .write(true)
                .open(home.join(name))
                .expect("a file")
                .set_len(bytes)
                .expect("a size");
        })
    };
    let with = |name: &'static str, value: Value| {
        llama(&|home| {
            let file = home.join("config.json");
            let mut config: Value = serde_json::from_slice(&fs::read(&file).expect("a file")).expect("JSON");
            config[name] = value.clone();
            fs::write(file, config.to_string()).expect("a file");
        })
    };
    for (line, expected) in [
        (resized("config.json", 1 << 30), "has more than 256 MiB"),
        (resized("config.json", 100), "not a JSON object"),
        (resized("model.safetensors", 1000), "model.safetensors"),
        (with("hidden_size", json!(32)), "`model.embed_tokens.weight` is F32 [128, 16] there, F32 [128, 32]"),
        (with("intermediate_size", json!(7)), " is F32 [20, 16] there, F32 [7, 16]"),
        (with("num_hidden_layers", json!(40)), "holds no tensor"),
    ] {
        assert!(line.contains(expected), "`{expected}` is not in: {line}");
    }
}
