//! Trained models and the tokens they generate.

use super::{FolderRun, Setup};
use gristmill::data::tokenize::train_tokenizer;
use gristmill::device::Gpu;
use gristmill::infer::InferenceModel;
use gristmill::infer::{GenerationSettings, Sampling};
use pollster::block_on;
use std::ops::ControlFlow;
use std::path::Path;

/// More tokens than a window of 24 and another half of it, so the caches are refilled twice on the way.
pub const GREEDY: GenerationSettings =
    GenerationSettings { tokens: 40, sampling: Sampling::GREEDY, seed: 0, stops: Vec::new() };

/// A model after 30 steps at a high rate, which separates its likeliest tokens.
pub fn trained_model(setup: Setup) -> FolderRun {
    let run = FolderRun::new(setup.with(&[
        "--lr_schedule.learning_rate=1.e-2",
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 15}]",
    ]));
    run.train(30);
    run
}

/// A trained model whose tokenizer lies in `home`.
pub fn trained_model_with_tokenizer(home: &Path) -> FolderRun {
    let file = home.join("tokenizer.json");
    train_tokenizer(&["tests/data/mill.txt".into()], &file, 300, 2, false).unwrap_or_else(|e| panic!("{e}"));
    let tokenizer = format!("--train_dataset.tokenizer={}", file.display());
    trained_model(Setup::new("tokens", "").with(&["--model.model_config.vocab_size=300", &tokenizer]))
}

impl FolderRun {
    /// The tokens of each prompt.
    pub fn encode(&self, prompts: &[&str]) -> Vec<Vec<u32>> {
        let codec = self.open().codec;
        prompts.iter().map(|prompt| codec.encode(prompt).expect("tokens")).collect()
    }

    /// The model on `gpu`, for so many prompts at once.
    pub fn load<'gpu>(&self, gpu: &'gpu Gpu, batch: u32) -> InferenceModel<'gpu> {
        self.load_for(gpu, batch, self.setup.plan().model.seq_length)
    }

    /// The model on `gpu`, for so many prompts of up to `window` tokens with their continuations.
    pub fn load_for<'gpu>(&self, gpu: &'gpu Gpu, batch: u32, window: usize) -> InferenceModel<'gpu> {
        let run = self.open();
        block_on(InferenceModel::load(gpu, &run, batch, window)).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Continuations of `prompts`, generated as one batch.
    pub fn generate(&self, gpu: &Gpu, prompts: &[&str], settings: &GenerationSettings) -> Vec<Vec<u32>> {
        continuations(&mut self.load(gpu, prompts.len() as u32), &self.encode(prompts), settings)
    }
}

/// Continuations of `prompts`, of which there are as many as `model` was loaded for.
pub fn continuations(
    model: &mut InferenceModel<'_>,
    prompts: &[Vec<u32>],
    settings: &GenerationSettings,
) -> Vec<Vec<u32>> {
    block_on(model.generate(prompts, settings, |_, _| ControlFlow::Continue(())))
        .unwrap_or_else(|e| panic!("{e}"))
}
