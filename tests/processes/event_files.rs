//! Event files, read back by TensorBoard itself: a Python package, which `setup.sh --tensorboard` installs into
//! `target/python`.

use gristmill::report::metrics::StepMetrics;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// What TensorBoard reads in a folder of event files.
#[derive(serde::Deserialize)]
pub struct EventFiles {
    /// Step and value of each number.
    scalars: BTreeMap<String, Vec<(u64, f64)>>,
    /// Step and buckets of each histogram.
    histograms: BTreeMap<String, Vec<(u64, Vec<Value>)>>,
    texts: BTreeMap<String, String>,
}

impl EventFiles {
    /// Reads those in `folder`; nothing without TensorBoard, which CI must have.
    pub fn read(folder: &Path) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let own = root.join("target/python/bin/python");
        let python = if own.exists() { own } else { "python3".into() };
        let output = Command::new(&python).arg(root.join("tests/tensorboard/read.py")).arg(folder).output();
        if output.as_ref().map_or(true, |output| output.status.code() == Some(3)) {
            let is_ci = std::env::var_os("CI").is_some();
            assert!(!is_ci, "{} has no TensorBoard; run `./setup.sh --tensorboard`", python.display());
            println!(
                "SKIPPED: no TensorBoard reads the event files back, since {} has none",
                python.display()
            );
            println!("SKIPPED: run `./setup.sh --tensorboard`");
            return None;
        }
        let output = output.expect("Python");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    /// Panics unless the files have every number of `lines` once, and no other; histograms of `layers` in each step,
    /// and the configuration.
    #[track_caller]
    pub fn assert_hold(&self, lines: &[StepMetrics], layers: &[usize]) {
        let samples = self.scalars["batch-size"][0].1 as u64;
        let mut expected: BTreeMap<String, Vec<(u64, f64)>> = BTreeMap::new();
        for line in lines {
            for (tag, number) in numbers(line) {
                expected.entry(tag).or_default().push((line.step, number));
            }
        }
        for (tag, values) in &self.scalars {
            let (name, scale) = match tag.strip_suffix(" vs samples") {
                Some(name) => (name, samples),
                None => (tag.as_str(), 1),
            };
            if ["batch-size", "throughput", "B-samples-per-day", "model-flops-throughput-per-npu"]
                .contains(&name)
            {
                let steps: Vec<u64> = values.iter().map(|(step, _)| *step).collect();
                assert_eq!(steps, lines.iter().map(|line| line.step * scale).collect::<Vec<_>>(), "{tag}");
                continue;
            }
            let want = expected.get(name).unwrap_or_else(|| panic!("{tag} is not in the metrics"));
            assert_eq!(values.len(), want.len(), "{tag}: {values:?} and {want:?}");
            for ((step, value), (want_step, want)) in values.iter().zip(want) {
                // Lines round times and speeds to thousandths; all else are the same 32 bits.
                let allowed = if name.contains("time") || name.contains("second") { 1e-3 } else { 0.0 };
                let apart = (*value as f32 - *want as f32).abs();
                assert!(
                    *step == want_step * scale && apart <= allowed,
                    "{tag}, step {step}: {value}, {want}"
                );
            }
        }
        for tag in expected.keys() {
            assert!(self.scalars.contains_key(tag), "no {tag} in {:?}", self.scalars.keys());
        }
        for layer in layers {
            let steps: Vec<u64> =
                self.histograms[&format!("expert_load/{layer}")].iter().map(|(step, _)| *step).collect();
            assert_eq!(steps, lines.iter().map(|line| line.step).collect::<Vec<_>>(), "layer {layer}");
        }
        assert!(self.texts["runner_config"].contains("batch_size"), "{:?}", self.texts);
        println!("TensorBoard reads {} tags of {} steps", self.scalars.len(), lines.len());
    }
}

/// The numbers of a step that event files have, by tag.
fn numbers(line: &StepMetrics) -> Vec<(String, f64)> {
    let single = [
        ("loss", Some(line.loss.into())),
        ("learning-rate", Some(line.lr.into())),
        ("grad-norm", Some(line.global_norm.into())),
        ("loss-scale", Some(line.loss_scale)),
        ("iteration-time", Some(line.step_ms)),
        ("tokens-per-second", Some(line.tokens_per_second)),
        ("load-balancing-loss", line.load_balancing_loss.map(f64::from)),
        ("z-loss", line.z_loss.map(f64::from)),
        ("mtp-loss", line.mtp_loss.map(f64::from)),
        ("eval-loss", line.eval_loss.map(f64::from)),
        ("eval-perplexity", line.eval_perplexity.map(f64::from)),
        ("eval-accuracy", line.eval_accuracy.map(f64::from)),
        ("device-memory-mib", line.device_memory_mib.map(f64::from)),
        ("host-memory-mib", line.host_memory_mib.map(f64::from)),
    ];
    let layers = [("drop-rate", &line.drop_rate), ("expert-load-entropy", &line.expert_load_entropy)];
    let of_layers = layers.into_iter().flat_map(|(tag, numbers)| {
        let numbers = numbers.iter().flatten().enumerate();
        numbers.map(move |(at, number)| (format!("{tag}/{at}"), f64::from(*number)))
    });
    let single = single.into_iter().filter_map(|(tag, number)| Some((tag.to_string(), number?)));
    let monitor = line.monitor.iter().flatten().map(|(tag, number)| (tag.clone(), f64::from(*number)));
    single.chain(of_layers).chain(monitor).collect()
}
