//! A run on two sources, encoded by a tokenizer: stopped and resumed it is, bit for bit, the run that never stopped.

mod runs;

use gristmill::data::tokenize::train_tokenizer;
use gristmill::report::metrics::StepMetrics;
use gristmill::train::run::Summary;
use runs::Setup;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const STEPS: u64 = 12;

/// A place for runs on a blend of two texts.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("a folder"));
        let lines: String = (0..120).map(|i| format!("stone {} turns {}\n\n", i % 7, i * i % 11)).collect();
        std::fs::write(place.path("stones.txt"), lines).expect("a file");
        let texts = ["tests/data/mill.txt".to_string(), place.path("stones.txt").display().to_string()];
        train_tokenizer(&texts, &place.path("tokenizer.json"), 320, 2, false)
            .unwrap_or_else(|e| panic!("{e}"));
        place
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

    fn metrics(&self, name: &str) -> Vec<StepMetrics> {
        let metrics = std::fs::read_to_string(self.path(name).join("metrics.jsonl")).expect("metrics");
        let metrics = metrics.lines().map(|line| serde_json::from_str(line).expect("a line of metrics"));
        metrics
            .map(|metrics: StepMetrics| StepMetrics { tokens_per_second: 0.0, step_ms: 0.0, ..metrics })
            .collect()
    }

    fn weights(&self, name: &str) -> Vec<u8> {
        let file = Path::new("checkpoint").join(format!("step_{STEPS:07}")).join("model.safetensors");
        std::fs::read(self.path(name).join(file)).expect("weights")
    }
}

#[test]
fn a_blend_resumes_exactly_and_its_sample_is_text() {
    let place = Place::new();
    let weights = [0.7, 0.3];
    let whole = place.train(place.setup("whole", weights, &[]), STEPS).unwrap_or_else(|e| panic!("{e}"));
    let resume = ["--resume_training=True"];
    for (name, resumed, stop) in [("parts", false, 5), ("parts", true, 6), ("parts", true, STEPS)] {
        let setup = place.setup(name, weights, if resumed { &resume } else { &[] });
        let part = place.train(setup, stop).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(part.steps, stop);
    }
    let (got, want) = (place.metrics("parts"), place.metrics("whole"));
    assert_eq!(want.iter().map(|metrics| metrics.step).collect::<Vec<_>>(), (1..=STEPS).collect::<Vec<_>>());
    assert_eq!(got, want, "a resumed run saw other samples");
    assert!(place.weights("parts") == place.weights("whole"), "the weights differ");
    let sample = whole.sample.expect("a sample");
    assert!(sample.starts_with("The mill") && sample.len() > "The mill".len(), "{sample}");

    let error = place.train(place.setup("parts", [0.5, 0.5], &resume), STEPS + 1).expect_err("another blend");
    assert!(error.contains("weights of data_path is [0.7,0.3] there, [0.5,0.5] here: "), "{error}");
    let file = place.path("tokenizer.json").display().to_string();
    let small = ["--model.model_config.vocab_size=319"];
    let error = place.train(place.setup("small", weights, &small), 1).expect_err("too many tokens");
    assert!(error.starts_with(&format!("{file}: has tokens up to 319, outside vocab_size 319: ")), "{error}");
}
