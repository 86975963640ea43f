//! Text from a trained model: with its keys and values kept it writes what it would without, alone as among others.

mod launch;
mod runs;

use gristmill::data::Codec;
use gristmill::data::tokenize::train_tokenizer;
use gristmill::device::{Gpu, GpuOptions};
use gristmill::generate::{Sampling, Settings};
use gristmill::kernels::Tier;
use gristmill::reference;
use gristmill::train::trained::{TrainedModel, TrainedRun};
use launch::{at_home, end, run, start};
use pollster::block_on;
use runs::{Setup, Weights};
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const GREEDY: Settings = Settings { tokens: 60, sampling: Sampling::GREEDY, seed: 0, stop: None };

/// A model that was trained for some steps, so that its likeliest tokens are far apart.
struct Trained {
    setup: Setup,
    home: TempDir,
}

impl Trained {
    fn new(setup: Setup) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let output_dir = format!("--output_dir={}", home.path().display());
        let setup = setup.with(&["--stop_step=30", "--lr_schedule.learning_rate=1.e-2", &output_dir]);
        let config = setup.write(home.path());
        let checkpoints = "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 15}]".to_string();
        let overrides = [&setup.overrides[..], &[checkpoints]].concat();
        block_on(gristmill::train::run(&config, &overrides, Arc::default()))
            .unwrap_or_else(|e| panic!("{e}"));
        Self { setup, home }
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join(self.setup.name)
    }

    fn open(&self) -> TrainedRun {
        TrainedRun::open(&self.folder(), &[]).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Continuations of `prompts`, all at once.
    fn write(&self, gpu: &Gpu, prompts: &[&str], settings: &Settings) -> Vec<Vec<u32>> {
        let run = self.open();
        let prompts: Vec<Vec<u32>> = prompts.iter().map(|p| run.codec.encode(p).expect("tokens")).collect();
        let model = block_on(TrainedModel::load(gpu, &run, prompts.len() as u32));
        let model = model.unwrap_or_else(|e| panic!("{e}"));
        block_on(model.generate(&prompts, settings, |_, _| ControlFlow::Continue(())))
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// The likeliest continuation by the f64 reference, which keeps nothing: a whole window for every token. A prompt longer
    /// than the window is read from its last tokens.
    fn by_reference(&self, prompt: &str, tokens: usize) -> Vec<u32> {
        let plan = self.setup.plan();
        let (shape, weights) = (runs::reference_shape(&plan.model), self.weights());
        let (window, vocab) = (plan.model.seq_length, plan.model.vocab_size);
        let mut text = self.open().codec.encode(prompt).expect("tokens");
        text.drain(..text.len().saturating_sub(window));
        let (prompt, mut start) = (text.len(), 0);
        for _ in 0..tokens {
            // One that outgrows the window goes on from the last half of it.
            if text.len() - start > window {
                start = text.len() - window.div_ceil(2);
            }
            let seen = &text[start..];
            let positions: Vec<u32> = (0..seen.len() as u32).collect();
            let logits = reference::gpt::logits(&shape, &weights, seen, &positions, seen.len());
            let last = &logits[logits.len() - vocab..];
            let likeliest = (0..vocab).max_by(|&a, &b| last[a].total_cmp(&last[b])).expect("tokens");
            text.push(likeliest as u32);
        }
        text.split_off(prompt)
    }

    fn weights(&self) -> Weights {
        let file = self.open().checkpoint.join("model.safetensors");
        let bytes = std::fs::read(file).expect("a checkpoint");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
        let values = |bytes: &[u8]| -> Vec<f64> {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64).collect()
        };
        tensors.tensors().iter().map(|(name, tensor)| (name.clone(), values(tensor.data()))).collect()
    }
}

/// Each shape differs in what a token's place or a layer's cache does.
fn shapes() -> Vec<Setup> {
    vec![
        Setup::new("llama", ""),
        Setup::new("qwen", "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True"),
        Setup::new("window", "sliding_window: 7"),
        Setup::gpt2("gpt2", ""),
    ]
}

/// A model of tokens that a tokenizer made, which lies in `home`.
fn of_tokens(home: &Path) -> Trained {
    let file = home.join("tokenizer.json");
    train_tokenizer(&["tests/data/mill.txt".into()], &file, 300, 2, false).unwrap_or_else(|e| panic!("{e}"));
    let tokenizer = format!("--train_dataset.tokenizer={}", file.display());
    Trained::new(Setup::new("tokens", "").with(&["--model.model_config.vocab_size=300", &tokenizer]))
}

fn on(tier: Tier) -> Gpu {
    let options = GpuOptions { tier: Some(tier), ..GpuOptions::default() };
    block_on(Gpu::request(&options)).unwrap_or_else(|e| panic!("{e}"))
}

/// 60 tokens are more than two windows of 24: the caches are filled again on the way.
#[test]
fn cached_tokens_are_those_of_the_reference() {
    let home = tempfile::tempdir().expect("a folder");
    let prompts = ["the mill", "a", "stones that grind slowly grind fine, says the miller"];
    for trained in shapes().into_iter().map(Trained::new).chain([of_tokens(home.path())]) {
        let name = trained.setup.name;
        let wanted = prompts.map(|prompt| trained.by_reference(prompt, GREEDY.tokens));
        for tier in Tier::ALL {
            let gpu = on(tier);
            for (prompt, want) in prompts.iter().zip(&wanted) {
                let got = trained.write(&gpu, &[prompt], &GREEDY).remove(0);
                assert_eq!(got.len(), GREEDY.tokens);
                assert_eq!(got, *want, "{name}, {}: {prompt}", tier.name());
            }
        }
    }
}

#[test]
fn four_at_once_write_what_each_writes_alone() {
    for trained in shapes().into_iter().map(Trained::new) {
        Tier::ALL.into_iter().for_each(|tier| together_and_alone(&trained, tier));
    }
}

fn together_and_alone(trained: &Trained, tier: Tier) {
    let gpu = on(tier);
    let prompts = ["the mill", "a", "stones that grind slowly", "water "];
    let drawn =
        Settings { sampling: Sampling { temperature: 0.7, top_k: 20, ..Sampling::default() }, ..GREEDY };
    for settings in [GREEDY, drawn] {
        let together = trained.write(&gpu, &prompts, &settings);
        for (number, prompt) in prompts.iter().enumerate() {
            // Draws differ from place to place: alone, a text has the seed of its place.
            let alone = Settings { seed: settings.seed + number as u64, ..settings.clone() };
            let alone = trained.write(&gpu, &[prompt], &alone).remove(0);
            assert_eq!(together[number], alone, "{}, {}: {prompt}", trained.setup.name, tier.name());
        }
    }
}

#[test]
fn a_text_ends_where_it_is_told_to() {
    let trained = Trained::new(Setup::new("ends", ""));
    let gpu = trained.setup.gpu();
    let whole = trained.write(&gpu, &["the mill"], &GREEDY).remove(0);
    let stop = whole[5];
    let first = whole.iter().position(|token| *token == stop).expect("it is there");
    let ended = trained.write(&gpu, &["the mill"], &Settings { stop: Some(stop), ..GREEDY }).remove(0);
    assert_eq!(ended, whole[..=first]);
    assert!(trained.write(&gpu, &["the mill"], &Settings { tokens: 0, ..GREEDY }).remove(0).is_empty());
}

fn gristmill(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    command.arg("generate").arg(folder).args(arguments);
    at_home(&mut command);
    command
}

#[test]
fn the_command_prints_prompt_and_continuation() {
    let trained = Trained::new(Setup::new("command", ""));
    let greedy = ["--prompt", "the mill", "--tokens", "60", "--temperature", "0", "--ignore-eod"];
    let printed = run(&mut gristmill(&trained.folder(), &greedy)).succeeded().stdout;
    let want = trained.write(&trained.setup.gpu(), &["the mill"], &GREEDY).remove(0);
    assert_eq!(printed, format!("the mill{}\n", Codec::Bytes { eod: 0 }.decode(&want)));

    let several =
        ["--prompt", "a", "--prompt", "b", "--samples", "2", "--top-k=5", "--top-p=0.9", "--seed=3"];
    let several = run(&mut gristmill(&trained.folder(), &several)).succeeded().stdout;
    assert!(
        ["--- 1\na", "--- 2\na", "--- 3\nb", "--- 4\nb"].iter().all(|text| several.contains(text)),
        "{several}"
    );

    let checkpoint = trained.folder().join("checkpoint/step_0000015");
    run(&mut gristmill(&checkpoint, &["--tokens=3"])).succeeded();
}

/// Text comes while there is more to come, and all of it together is the text of all tokens; on any tier, through a
/// tokenizer.
#[test]
fn text_is_streamed() {
    const TOKENS: usize = 400;
    let home = tempfile::tempdir().expect("a folder");
    let trained = of_tokens(home.path());
    let codec = trained.open().codec;
    for tier in Tier::ALL {
        let count = TOKENS.to_string();
        let greedy = ["--prompt=The mill", "--tokens", &count, "--temperature=0", "--ignore-eod"];
        let mut child = start(gristmill(&trained.folder(), &greedy).args(["--tier", tier.name()]));
        let mut stdout = child.stdout.take().expect("a pipe");
        let mut printed = vec![0; "The mill".len() + 1];
        stdout.read_exact(&mut printed).expect("the prompt and the start of its continuation");
        assert!(child.try_wait().expect("a process").is_none(), "{}: all came at once", tier.name());
        stdout.read_to_end(&mut printed).expect("the rest");
        end(child).succeeded();
        let settings = Settings { tokens: TOKENS, ..GREEDY };
        let tokens = trained.write(&on(tier), &["The mill"], &settings).remove(0);
        assert_eq!(String::from_utf8_lossy(&printed), format!("The mill{}\n", codec.decode(&tokens)));
    }
}

/// `| head`: who has read enough closes the pipe, and the program ends without a word.
#[test]
fn a_closed_output_ends_it_quietly() {
    let trained = Trained::new(Setup::new("closed", ""));
    let endless = ["--prompt=the mill", "--tokens=100000000", "--ignore-eod"];
    let mut child = start(&mut gristmill(&trained.folder(), &endless));
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut [0; 20]).expect("the start of the text");
    drop(stdout);
    let patience = Instant::now() + Duration::from_secs(60);
    while child.try_wait().expect("a process").is_none() {
        if Instant::now() > patience {
            child.kill().expect("a process");
            panic!("it writes on though nobody reads");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = end(child).succeeded();
    assert_eq!(ended.stderr, "");

    let config = trained.setup.write(trained.home.path());
    let mut plan = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    at_home(plan.arg("plan").arg(config));
    let mut child = start(&mut plan);
    drop(child.stdout.take());
    let ended = end(child).succeeded();
    assert_eq!(ended.stderr, "");
}

#[test]
fn what_is_wrong_is_one_line() {
    let trained = Trained::new(Setup::new("wrong", ""));
    let folder = trained.folder();
    let small = Trained::new(Setup::new("small", "").with(&["--model.model_config.vocab_size=128"]));
    let small = small.folder();
    let cases: [(&Path, &[&str], &str); 6] = [
        (&small, &["--prompt=\u{e9}"], "error: the prompt `\u{e9}` has the token 195, outside"),
        (Path::new("/nowhere"), &[], "error: /nowhere: neither the folder of a run"),
        (&folder, &["--temperature=-1"], "error: --temperature: expected a number of at least 0"),
        (&folder, &["--top-p", "0"], "error: --top-p: expected a number above 0, at most 1"),
        (&folder, &["--tier", "warp"], "error: --tier: expected one of software, portable, found `warp`"),
        (&folder, &["--samples", "0"], "error: --samples: expected a whole number from 1 to 4096, found `0`"),
    ];
    for (folder, arguments, expected) in cases {
        let refused = run(&mut gristmill(folder, arguments));
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        let line = refused.stderr.lines().last().unwrap_or_default().to_string();
        assert!(line.starts_with(expected), "{line}");
    }
}
