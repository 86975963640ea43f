//! A run on two sources, encoded by a tokenizer: stopped and resumed it is, bit for bit, the run that never stopped.

mod runs;

use gristmill::data::tokenize::train_tokenizer;
use gristmill::train::metrics::StepMetrics;
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

/// Positions that restart and targets that are masked reach the kernels: the first step's loss and gradient are those of the
/// f64 reference on what the batch says, and not those of a batch that says nothing of documents.
#[test]
fn the_ends_of_documents_reach_the_kernels() {
    const ALLOWED: f64 = 1e-5;
    // Every space ends a document, so that each window has several.
    let data = "--train_dataset={data_loader: {type: TextDataLoader, dataset_files: tests/data/mill.txt}, \
                eod_token_id: 32, reset_position_ids: True, eod_mask_loss: True}";
    let setup = Setup::new("ends", "").with(&[data]);
    let trained = setup.train(1);
    let (plan, data, _) = setup.data();
    let shape = runs::reference_shape(&plan.model);
    let (weights, micro_steps) = (setup.initial_weights(), plan.gradient_accumulation_steps as u64);
    let mean = |is_plain: bool| -> (f64, f64) {
        let (mut loss, mut gradients) = (0.0, runs::Weights::new());
        for micro_step in 0..micro_steps {
            let batch = data.train.batch(micro_step).expect("a batch");
            let length = plan.model.seq_length as u32;
            let positions: Vec<u32> = match is_plain {
                true => (0..batch.tokens.len() as u32).map(|i| i % length).collect(),
                false => batch.positions,
            };
            let counted = batch.targets.iter().filter(|target| **target != u32::MAX).count();
            assert!(counted < batch.targets.len(), "no document ends in this batch");
            let seed = 1.0 / (counted as f64 * micro_steps as f64);
            let (sum, _, own) = gristmill::reference::gpt::loss_and_gradients(
                &shape,
                &weights,
                &batch.tokens,
                &batch.targets,
                &positions,
                length as usize,
                u32::MAX,
                seed,
            );
            loss += seed * sum;
            for (name, gradient) in own {
                let all = gradients.entry(name).or_insert_with(|| vec![0.0; gradient.len()]);
                all.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
            }
        }
        (loss, gradients.values().flatten().map(|g| g * g).sum::<f64>().sqrt())
    };
    let got = &trained.states[0];
    let off = |(loss, norm): (f64, f64)| {
        ((f64::from(got.loss) - loss).abs() / loss).max((f64::from(got.grad_norm) - norm).abs() / norm)
    };
    println!("the first step is off by {:.1} % of what is allowed", 100.0 * off(mean(false)) / ALLOWED);
    assert!(off(mean(false)) <= ALLOWED, "loss {}, norm {}, and {:?}", got.loss, got.grad_norm, mean(false));
    assert!(off(mean(true)) > 10.0 * ALLOWED, "positions make no difference here");
}

/// Packed documents that do not see each other have the losses and gradients that they have alone: those of the f64
/// reference on each document by itself, added up.
#[test]
fn packed_documents_learn_as_if_alone() {
    const ALLOWED: f64 = 1e-5;
    let data = "--train_dataset={data_loader: {type: TextDataLoader, dataset_files: tests/data/mill.txt}, \
                eod_token_id: 32, eod_reset: True}";
    let setup = Setup::new("alone", "").with(&[data]);
    let trained = setup.train(1);
    let (plan, data, _) = setup.data();
    assert!(plan.isolates_documents());
    let shape = runs::reference_shape(&plan.model);
    let (weights, micro_steps) = (setup.initial_weights(), plan.gradient_accumulation_steps as u64);
    let (mut loss, mut gradients, mut documents) = (0.0, runs::Weights::new(), 0);
    for micro_step in 0..micro_steps {
        let batch = data.train.batch(micro_step).expect("a batch");
        let seed = 1.0 / (batch.targets.len() as f64 * micro_steps as f64);
        for row in 0..plan.batch_size {
            let first = row * plan.model.seq_length;
            let mut start = first;
            while start < first + plan.model.seq_length {
                let end = first + batch.ends[start] as usize;
                let length = end - start;
                let (sum, _, own) = gristmill::reference::gpt::loss_and_gradients(
                    &shape,
                    &weights,
                    &batch.tokens[start..end],
                    &batch.targets[start..end],
                    &(0..length as u32).collect::<Vec<_>>(),
                    length,
                    u32::MAX,
                    seed,
                );
                loss += seed * sum;
                for (name, gradient) in own {
                    let all = gradients.entry(name).or_insert_with(|| vec![0.0; gradient.len()]);
                    all.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
                }
                (start, documents) = (end, documents + 1);
            }
        }
    }
    assert!(documents > 3 * plan.batch_size, "{documents} documents are too few to tell");
    let got = &trained.states[0];
    let loss_error = (f64::from(got.loss) - loss).abs() / loss;
    let scale = f64::from(setup.plan().loss_scale as f32);
    let unscaled: runs::Weights = trained
        .gradients
        .into_iter()
        .map(|(name, g)| (name, g.into_iter().map(|g| g / scale).collect()))
        .collect();
    let gradient_error = runs::relative_distance(&unscaled, &gradients);
    println!(
        "{documents} documents: the loss is off by {:.1} %, the gradients by {:.1} % of what is allowed",
        100.0 * loss_error / ALLOWED,
        100.0 * gradient_error / ALLOWED
    );
    assert!(
        loss_error <= ALLOWED && gradient_error <= ALLOWED,
        "loss {loss_error:.1e}, gradients {gradient_error:.1e}"
    );
}
