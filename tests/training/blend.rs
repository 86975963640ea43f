//! A run on a blend of two tokenized sources: stopped and resumed it equals, bit for bit, the run that was never
//! stopped.
//!
//! The source of a sample depends on its number alone.

use crate::runs::{Setup, metrics, newest_checkpoint};
use gristmill::data::tokenize::train_tokenizer;
use gristmill::report::metrics::StepMetrics;
use gristmill::train::run::Summary;
use std::path::PathBuf;
use std::sync::Arc;

const STEPS: u64 = 12;

/// A folder with a tokenizer and a second text, for runs on the blend of both texts.
struct Blend(tempfile::TempDir);

impl Blend {
    fn new() -> Self {
        let blend = Self(tempfile::tempdir().expect("a folder"));
        let lines: String = (0..120).map(|i| format!("stone {} turns {}\n\n", i % 7, i * i % 11)).collect();
        std::fs::write(blend.path("stones.txt"), lines).expect("a file");
        let texts = ["tests/data/mill.txt".to_string(), blend.path("stones.txt").display().to_string()];
        train_tokenizer(&texts, &blend.path("tokenizer.json"), 320, 2, false)
            .unwrap_or_else(|e| panic!("{e}"));
        blend
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn setup(&self, name: &'static str, weights: [f64; 2], others: &[&str]) -> Setup {
        let [a, b] = weights;
        let stones = self.path("stones.txt").display().to_string();
        let data = format!(
            "--train_dataset.data_loader={{type: TextDataLoader, documents: blank_line, data_path: [{a}, tests/data/mill.txt, {b}, '{stones}']}}"
        );
        Setup::new(name, "")
            .with(&[
                &data,
                &format!("--train_dataset.tokenizer={}", self.path("tokenizer.json").display()),
                "--train_dataset.reset_position_ids=True",
                "--train_dataset.eod_mask_loss=True",
                "--model.model_config.vocab_size=320",
                "--sample={prompt: 'The mill', tokens: 12}",
                &format!("--output_dir={}", self.0.path().display()),
                "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 1000}]",
            ])
            .with(others)
    }

    fn train(&self, setup: Setup, stop_step: u64) -> Result<Summary, String> {
        let config = setup.write(self.0.path());
        let setup = setup.with(&[&format!("--stop_step={stop_step}")]);
        pollster::block_on(gristmill::train::run(&config, &setup.overrides, Arc::default()))
            .map_err(|error| error.to_string())
    }

    /// Metrics and the newest checkpoint's weights.
    fn left(&self, name: &str) -> (Vec<StepMetrics>, Vec<u8>) {
        let (step, checkpoint) = newest_checkpoint(&self.path(name)).expect("a checkpoint");
        assert_eq!(step, STEPS);
        let weights = std::fs::read(checkpoint.join("model.safetensors")).expect("weights");
        (metrics(&self.path(name)), weights)
    }
}

#[test]
fn a_blend_resumes_exactly_and_its_sample_is_text() {
    let blend = Blend::new();
    let weights = [0.7, 0.3];
    let whole = blend.train(blend.setup("whole", weights, &[]), STEPS).unwrap_or_else(|e| panic!("{e}"));
    let resume = ["--resume_training=True"];
    for (name, resumed, stop) in [("parts", false, 5), ("parts", true, 6), ("parts", true, STEPS)] {
        let setup = blend.setup(name, weights, if resumed { &resume } else { &[] });
        let part = blend.train(setup, stop).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(part.steps, stop);
    }
    let ((got, got_weights), (want, want_weights)) = (blend.left("parts"), blend.left("whole"));
    assert_eq!(want.iter().map(|metrics| metrics.step).collect::<Vec<_>>(), (1..=STEPS).collect::<Vec<_>>());
    assert_eq!(got, want, "a resumed run saw other samples");
    assert!(got_weights == want_weights, "the weights differ");
    let sample = whole.sample.expect("a sample");
    assert!(sample.starts_with("The mill") && sample.len() > "The mill".len(), "{sample}");

    let error = blend.train(blend.setup("parts", [0.5, 0.5], &resume), STEPS + 1).expect_err("another blend");
    assert!(
        error.contains("train_dataset.data_loader.data_path is [0.7,0.3] there, [0.5,0.5] here: "),
        "{error}"
    );
    let file = blend.path("tokenizer.json").display().to_string();
    let small = ["--model.model_config.vocab_size=319"];
    let error = blend.train(blend.setup("small", weights, &small), 1).expect_err("too many tokens");
    assert!(error.starts_with(&format!("{file}: has tokens up to 319, outside vocab_size 319: ")), "{error}");
}
