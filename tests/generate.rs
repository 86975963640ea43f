//! Text from a trained model: with its keys and values kept it writes what it would without, alone as among others.

mod launch;
mod runs;

use gristmill::data::Codec;
use gristmill::device::Gpu;
use gristmill::generate::{Sampling, Settings};
use gristmill::reference;
use gristmill::train::trained::{TrainedModel, TrainedRun};
use launch::{at_home, run};
use pollster::block_on;
use runs::{Setup, Weights};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
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
        block_on(model.generate(&prompts, settings, |_, _| {})).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The likeliest continuation by the f64 reference, which keeps nothing: a whole window for every token.
    fn by_reference(&self, prompt: &str, tokens: usize) -> Vec<u32> {
        let plan = self.setup.plan();
        let (shape, weights) = (runs::reference_shape(&plan.model), self.weights());
        let (window, vocab) = (plan.model.seq_length, plan.model.vocab_size);
        let mut text: Vec<u32> = prompt.bytes().map(u32::from).collect();
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

/// 60 tokens are more than two windows of 24: the caches are filled again on the way.
#[test]
fn cached_tokens_are_those_of_the_reference() {
    for setup in shapes() {
        let trained = Trained::new(setup);
        let gpu = trained.setup.gpu();
        for prompt in ["the mill", "a", "stones that grind slowly grind fine, says the miller"] {
            // A prompt longer than the window is read from its last tokens.
            let window = trained.setup.plan().model.seq_length;
            let seen = &prompt[prompt.len().saturating_sub(window)..];
            let got = trained.write(&gpu, &[prompt], &GREEDY).remove(0);
            assert_eq!(got.len(), GREEDY.tokens);
            assert_eq!(got, trained.by_reference(seen, GREEDY.tokens), "{}: {prompt}", trained.setup.name);
        }
    }
}

#[test]
fn four_at_once_write_what_each_writes_alone() {
    for setup in shapes() {
        let trained = Trained::new(setup);
        let gpu = trained.setup.gpu();
        let prompts = ["the mill", "a", "stones that grind slowly", "water "];
        let drawn =
            Settings { sampling: Sampling { temperature: 0.7, top_k: 20, ..Sampling::default() }, ..GREEDY };
        for settings in [GREEDY, drawn] {
            let together = trained.write(&gpu, &prompts, &settings);
            for (number, prompt) in prompts.iter().enumerate() {
                // Draws differ from place to place: alone, a text has the seed of its place.
                let alone = Settings { seed: settings.seed + number as u64, ..settings.clone() };
                let alone = trained.write(&gpu, &[prompt], &alone).remove(0);
                assert_eq!(together[number], alone, "{}: {prompt}", trained.setup.name);
            }
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

#[test]
fn what_is_wrong_is_one_line() {
    let trained = Trained::new(Setup::new("wrong", ""));
    let folder = trained.folder();
    let small = Trained::new(Setup::new("small", "").with(&["--model.model_config.vocab_size=128"]));
    let small = small.folder();
    let cases: [(&Path, &[&str], &str); 6] = [
        (&small, &["--prompt=\u{e9}"], "error: the prompt `\u{e9}` has the token 195, outside"),
        (Path::new("/nowhere"), &[], "error: /nowhere: neither the folder of a run"),
        (&folder, &["--temperature=-1"], "error: --temperature: expected a number from 0 up"),
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
