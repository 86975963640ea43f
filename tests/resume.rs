//! A run that was stopped, interrupted or killed and then resumed is, bit for bit, the run that never stopped.

mod launch;
mod runs;

use gristmill::report::metrics::StepMetrics;
use gristmill::store::checkpoint_folder::CheckpointFolder;
use runs::Setup;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

const STEPS: u64 = 40;

/// A run of 40 steps through eight epochs of shuffled data, with evaluations, in a folder of its own.
struct Run {
    home: tempfile::TempDir,
    setup: Setup,
}

/// What a run leaves, apart from how long it took.
#[derive(PartialEq)]
struct Left {
    /// Every file of the newest checkpoint: weights, both moments, counters.
    checkpoint: BTreeMap<String, Vec<u8>>,
    metrics: Vec<StepMetrics>,
}

impl Run {
    /// A new run with a checkpoint every so many steps.
    fn new(checkpoint_every: u64) -> Self {
        Self::with(checkpoint_every, &[])
    }

    fn with(checkpoint_every: u64, overrides: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let setup = Setup::new("resumed", "")
            .with(&[
                // Wide enough that writing a checkpoint takes some milliseconds: the moment a kill has to hit.
                "--model.model_config.hidden_size=96",
                "--train_dataset.eval_fraction=0.3",
                "--do_eval=True",
                "--eval_step_interval=5",
                &format!("--output_dir={}", home.path().display()),
                &format!(
                    "--callbacks=[{{type: CheckpointMonitor, save_checkpoint_steps: {checkpoint_every}, \
                 keep_checkpoint_max: 2}}, {{type: MFLossMonitor, per_print_times: 1000}}]"
                ),
            ])
            .with(overrides);
        Self { home, setup }
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join(self.setup.name)
    }

    fn checkpoints(&self) -> CheckpointFolder {
        CheckpointFolder::new(self.folder().join("checkpoint"), 0)
    }

    fn newest(&self) -> Option<u64> {
        self.checkpoints().latest().expect("a readable folder").map(|(step, _)| step)
    }

    fn arguments(&self, stop_step: u64) -> Vec<String> {
        let mut arguments = self.setup.overrides.clone();
        arguments.push(format!("--stop_step={stop_step}"));
        if self.newest().is_some() {
            arguments.push("--resume_training=True".into());
        }
        arguments
    }

    /// Trains to `stop_step` in this process: a new run, or from the newest checkpoint.
    fn train(&self, stop_step: u64) -> &Self {
        let config = self.setup.write(self.home.path());
        let done =
            pollster::block_on(gristmill::train::run(&config, &self.arguments(stop_step), Arc::default()));
        let summary = done.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((summary.steps, summary.is_interrupted), (stop_step, false));
        self
    }

    /// The same in a process of its own.
    fn start(&self, stop_step: u64) -> Child {
        let config = self.setup.write(self.home.path());
        let arguments = [config.display().to_string()].into_iter().chain(self.arguments(stop_step));
        launch::start(&mut launch::train_gpt(arguments))
    }

    fn left(&self) -> Left {
        let (_, newest) = self.checkpoints().latest().expect("a readable folder").expect("a checkpoint");
        let files = std::fs::read_dir(newest).expect("a checkpoint").map(|entry| {
            let path = entry.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read(path).expect("a file"))
        });
        let metrics = std::fs::read_to_string(self.folder().join("metrics.jsonl")).expect("metrics");
        let metrics = metrics.lines().map(|line| {
            let metrics: StepMetrics = serde_json::from_str(line).expect("a line of metrics");
            StepMetrics { tokens_per_second: 0.0, step_ms: 0.0, ..metrics }
        });
        Left { checkpoint: files.collect(), metrics: metrics.collect() }
    }
}

/// The 40 steps without a stop.
fn uninterrupted() -> Left {
    let left = Run::new(STEPS).train(STEPS).left();
    let steps: Vec<u64> = left.metrics.iter().map(|metrics| metrics.step).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>());
    let evaluations = left.metrics.iter().filter(|metrics| metrics.eval_loss.is_some()).count();
    assert_eq!(evaluations, 8, "after every fifth step");
    assert!(left.metrics[39].loss < left.metrics[0].loss, "it learns");
    left
}

#[track_caller]
fn equal(name: &str, got: &Left, want: &Left) {
    for (file, bytes) in &want.checkpoint {
        assert!(
            got.checkpoint.get(file) == Some(bytes),
            "{name}: {file} differs from the uninterrupted run's"
        );
    }
    assert!(got.checkpoint.keys().eq(want.checkpoint.keys()), "{name}: {:?}", got.checkpoint.keys());
    for (got, want) in got.metrics.iter().zip(&want.metrics) {
        assert_eq!(got, want, "{name}");
    }
    assert_eq!(got.metrics.len(), want.metrics.len(), "{name}");
    let bytes: usize = want.checkpoint.values().map(Vec::len).sum();
    println!("{name}: {bytes} bytes of checkpoint and {} lines of metrics are equal", want.metrics.len());
}

#[test]
fn twenty_steps_and_twenty_more_are_forty() {
    let want = uninterrupted();
    equal("a second run", &uninterrupted(), &want);
    // Stops fall on evaluations, since the last step of a run is evaluated in any case.
    equal("20 and 20", &Run::new(1000).train(20).train(STEPS).left(), &want);
    equal(
        "5, 10, 20 and 40 steps, checkpoints between",
        &Run::new(4).train(5).train(10).train(20).train(STEPS).left(),
        &want,
    );
}

/// Moments that some parameters lack, rates that some have of their own: all of it comes back.
#[test]
fn muon_groups_and_frozen_parameters_resume_exactly() {
    let overrides = [
        "--optimizer={type: Muon}",
        "--grouped_lr_schedule={default: {type: linear, learning_rate: 3.e-3}, \
         grouped: [{params: ['layers.1'], type: cosine, learning_rate: 1.e-3}]}",
        "--model.model_config.freeze=['layers.0.feed_forward']",
    ];
    let want = Run::with(1000, &overrides).train(10).left();
    equal("5 and 5 with Muon", &Run::with(1000, &overrides).train(5).train(10).left(), &want);
}

/// Masks depend on the step's number, not on what ran before.
#[test]
fn a_run_with_dropout_resumes_exactly() {
    let new = |checkpoint_every| {
        let mut run = Run::new(checkpoint_every);
        run.setup = run.setup.with(&[
            "--model.model_config.attention_dropout=0.1",
            "--model.model_config.hidden_dropout=0.1",
            "--model.model_config.emb_dropout_prob=0.1",
        ]);
        run
    };
    let want = new(STEPS).train(STEPS).left();
    assert!(want.metrics[0].loss != uninterrupted().metrics[0].loss, "something is dropped");
    equal("with dropout, 5 and 35", &new(1000).train(5).train(STEPS).left(), &want);
}

/// Files hold most of GPT-2's matrices transposed: what is saved and loaded must be what was there.
#[test]
fn a_gpt2_shape_resumes_exactly_and_is_saved_as_one() {
    let new = |checkpoint_every| {
        let Run { home, mut setup } = Run::new(checkpoint_every);
        let model = "--model.model_config={type: GPT2Config, vocab_size: 256, n_embd: 48, n_layer: 2, n_head: 4, \
                     seq_length: 24, n_positions: 30}";
        setup.overrides[0] = model.into();
        Run { home, setup }
    };
    let want = new(1000).train(10).left();
    equal("gpt2, 5 and 5", &new(1000).train(5).train(10).left(), &want);
    let json = |file: &str| -> serde_json::Value {
        serde_json::from_slice(&want.checkpoint[file]).expect("a file of JSON")
    };
    let config = json("config.json");
    assert_eq!(config["architectures"][0], "GPT2LMHeadModel");
    assert_eq!((&config["n_positions"], &config["n_inner"]), (&30.into(), &192.into()));
    let model =
        safetensors::SafeTensors::deserialize(&want.checkpoint["model.safetensors"]).expect("tensors");
    for (name, shape) in [
        ("wte.weight", &[256, 48][..]),
        ("wpe.weight", &[30, 48]),
        ("h.1.attn.c_attn.weight", &[48, 144]),
        ("h.1.attn.c_attn.bias", &[144]),
        ("h.1.mlp.c_proj.weight", &[192, 48]),
        ("ln_f.bias", &[48]),
    ] {
        let tensor = model.tensor(&format!("transformer.{name}")).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(tensor.shape(), shape, "{name}");
    }
}

/// The files of a checkpoint in the order in which they are written. Whatever the folder is called meanwhile, a run is
/// killed when the first of each pair is there and the second is not.
const KILLED_BETWEEN: [(&str, &str); 5] = [
    ("", "model.safetensors"),
    ("model.safetensors", "optimizer.safetensors"),
    ("optimizer.safetensors", "config.json"),
    ("config.json", "trainer_state.json"),
    ("trainer_state.json", "a file that never comes"), // on its way to the disk and to its final name
];

#[cfg(unix)] // elsewhere a killed process and a renamed folder follow other rules
#[test]
fn a_run_killed_while_writing_checkpoints_resumes_exactly() {
    let want = uninterrupted();
    let run = Run::new(1);
    let mut hits = 0;
    for moment in KILLED_BETWEEN {
        let before = run.newest();
        // Not in the first checkpoint of all, since without one there is nothing to resume, and some steps later each time.
        let from = before.map_or(2, |step| step + 3);
        let mut child = run.start(STEPS);
        while child.try_wait().expect("the process").is_none() {
            if newest_folder(&run).is_some_and(|(step, folder)| step >= from && is_between(&folder, moment)) {
                child.kill().expect("the process");
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let ended = launch::end(child);
        assert!(ended.code.is_none_or(|code| code == 0), "{}", ended.stderr);
        let (step, folder) = newest_folder(&run).expect("a folder");
        let is_hit = !folder.join("trainer_state.json").exists();
        hits += u32::from(is_hit);
        println!("killed after `{}`: step {step} is whole: {}, {:?} was", moment.0, !is_hit, run.newest());
        assert!(run.newest() >= before, "a whole checkpoint is gone");
    }
    // One that comes between two checkpoints is a fair kill too, but they must not all be.
    assert!(hits >= 2, "only {hits} kills came while a checkpoint was being written");
    assert!(run.newest() < Some(STEPS), "nothing is left to resume");
    launch::end(run.start(STEPS)).succeeded();
    equal("killed five times", &run.left(), &want);
}

/// The step and folder of the newest checkpoint, whole or not, under whatever name.
fn newest_folder(run: &Run) -> Option<(u64, PathBuf)> {
    let entries = std::fs::read_dir(run.folder().join("checkpoint")).ok()?;
    let step = |path: &Path| path.file_name()?.to_str()?.get(5..12)?.parse().ok();
    entries.flatten().filter_map(|entry| Some((step(&entry.path())?, entry.path()))).max()
}

fn is_between(folder: &Path, (there, missing): (&str, &str)) -> bool {
    folder.join(there).exists() && !folder.join(missing).exists()
}

#[cfg(unix)]
#[test]
fn interrupts_finish_the_step_and_save() {
    let want = uninterrupted();
    for signal in ["INT", "TERM"] {
        // No checkpoint is due before the end: what there is, the interrupt saved.
        let run = Run::new(1000);
        let mut child = run.start(STEPS);
        while !has_lines(&run.folder().join("metrics.jsonl"))
            && child.try_wait().expect("the process").is_none()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let sent = std::process::Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(sent.expect("kill").success());
        let ended = launch::end(child).succeeded();
        let step = run.newest().expect("a checkpoint");
        println!("SIG{signal} ended the run after step {step}");
        assert!(step < STEPS, "the signal came too late to mean anything");
        assert!(
            ended
                .stderr
                .contains(&format!("interrupted after step {step}: continue with --resume_training=True")),
            "{}",
            ended.stderr
        );
        launch::end(run.start(STEPS)).succeeded();
        equal(signal, &run.left(), &want);
    }
}

fn has_lines(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.len() > 0)
}
