//! The files of a run: metrics, checkpoints and the tensors in them.

use gristmill::report::metrics::StepMetrics;
use gristmill::store::checkpoint_folder::{CheckpointFolder, Keep};
use gristmill::store::trainer_state::{FORMAT_VERSION, TrainerState};
use gristmill::train::Trainer;
use pollster::block_on;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The metrics of a run's folder, without what depends on the clock, and without the memory, which depends on where the
/// run is to end.
pub fn metrics(run: &Path) -> Vec<StepMetrics> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    // That of step 0 has an evaluation alone.
    let lines = text.lines().filter(|line| !line.starts_with("{\"step\":0,"));
    let lines = lines.map(|line| serde_json::from_str(line).expect("a line of metrics"));
    lines
        .map(|line| StepMetrics {
            tokens_per_second: 0.0,
            computed_tokens_per_second: None,
            step_ms: 0.0,
            host_memory_mib: None,
            device_memory_mib: None,
            ..line
        })
        .collect()
}

/// The lines of a folder's events: what happened in its run.
pub fn events(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("events.jsonl")).expect("events");
    text.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
}

/// What kinds these events are of.
pub fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().expect("a kind")).collect()
}

/// The newest whole checkpoint of a run's folder, and its step.
pub fn newest_checkpoint(run: &Path) -> Option<(u64, PathBuf)> {
    CheckpointFolder::of_run(run).latest().expect("a readable folder")
}

/// Writes a checkpoint of `trainer` into `folder` and returns its path.
pub fn save_checkpoint(trainer: &Trainer<'_>, step: u64, folder: &Path) -> PathBuf {
    let state = TrainerState {
        format_version: FORMAT_VERSION,
        step,
        global_step: step,
        micro_step: 0,
        loss_scale: 1.0,
        scaler: None,
        data_fingerprint: 0,
        data_hash: None,
        eval_data_hash: None,
        best: None,
        evaluations_since: 0,
        total_steps: None,
        decisions: Default::default(),
    };
    let folder = CheckpointFolder::new(folder, Keep::All);
    let pending = folder.begin(step).expect("a folder");
    block_on(trainer.write_checkpoint(&state, &pending)).expect("a checkpoint");
    pending.commit().expect("a checkpoint");
    folder.latest().expect("a folder").expect("a checkpoint").1
}

/// A tensor of a file: its shape, and its elements as words of 4 bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Words {
    pub shape: Vec<usize>,
    pub words: Vec<u32>,
}

impl Words {
    pub fn floats(&self) -> Vec<f64> {
        self.words.iter().map(|word| f64::from(f32::from_bits(*word))).collect()
    }
}

/// The tensors of a safetensors file, by name.
pub type TensorFile = BTreeMap<String, Words>;

/// Reads the tensors of a file.
pub fn read_tensors(path: &Path) -> TensorFile {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("tensors");
    let words =
        |bytes: &[u8]| bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let tensor = |view: TensorView<'_>| Words { shape: view.shape().to_vec(), words: words(view.data()) };
    file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect()
}

/// Writes tensors of f32 to a file.
pub fn write_tensors(path: &Path, tensors: &TensorFile) {
    let bytes: Vec<(&String, &Words, Vec<u8>)> = tensors
        .iter()
        .map(|(name, tensor)| {
            (name, tensor, tensor.words.iter().flat_map(|word| word.to_le_bytes()).collect())
        })
        .collect();
    let views = bytes.iter().map(|(name, tensor, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, tensor.shape.clone(), bytes).expect("a tensor"))
    });
    std::fs::write(path, serialize(views, None).expect("tensors")).expect("a file of tensors");
}
