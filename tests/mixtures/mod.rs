//! Small training runs of mixtures of experts: what they leave, and the files of their checkpoints.
#![allow(dead_code)] // each test binary uses its own part

use crate::runs::{Setup, Weights, tensors};
use gristmill::report::expert_load::MixtureReport;
use gristmill::settings::RunPlan;
use gristmill::store::checkpoint_folder::CheckpointFolder;
use gristmill::store::trainer_state::{FORMAT_VERSION, TrainerState};
use gristmill::train::length::RunLength;
use gristmill::train::state::StepState;
use gristmill::train::{FinishedStep, Trainer};
use pollster::block_on;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A 2-layer model with experts of odd width; `routing` is the rest of `moe_config`, `model` adds keys to the model.
pub fn experts(name: &'static str, routing: &str, model: &str) -> Setup {
    let moe_config = format!("--moe_config={{{routing}, moe_intermediate_size: 37}}");
    Setup::new(name, model).with(&[&moe_config])
}

/// A run in this process.
#[derive(Debug, PartialEq)]
pub struct Left {
    pub losses: Vec<f32>,
    pub norms: Vec<f32>,
    pub reports: Vec<MixtureReport>,
    pub weights: Weights,
}

impl Left {
    /// All choices of the run that were dropped.
    pub fn dropped(&self) -> u32 {
        self.reports.iter().flat_map(|report| &report.layers).map(|layer| layer.dropped).sum()
    }
}

/// Trains `steps` steps of `plan`, which may differ from that of `setup`, from the weights in the file `load` if there is one.
pub fn train(setup: &Setup, plan: &RunPlan, load: Option<&Path>, steps: u64) -> Left {
    let data = plan.load_data().unwrap_or_else(|e| panic!("{e}"));
    let length = RunLength::new(&plan, data.train.steps_per_epoch());
    let gpu = setup.gpu();
    let mut trainer = block_on(Trainer::new(&gpu, plan, &length)).unwrap_or_else(|e| panic!("{e}"));
    if let Some(path) = load {
        trainer.load_weights(path).unwrap_or_else(|e| panic!("{e}"));
    }
    let mut finished = Vec::new();
    for step in 0..steps {
        let first = step * plan.settings.runner.gradient_accumulation_steps as u64;
        block_on(trainer.step(step + 1, &data.train, first)).unwrap_or_else(|e| panic!("{e}"));
        finished.extend(trainer.finished_steps().expect("states"));
    }
    block_on(trainer.wait()).expect("the device");
    finished.extend(trainer.finished_steps().expect("states"));
    assert_eq!(finished.len() as u64, steps);
    let number = |of: fn(&StepState) -> f32| finished.iter().map(|step| of(&step.state)).collect();
    Left {
        losses: number(|state| state.loss),
        norms: number(|state| state.grad_norm),
        reports: finished.iter().filter_map(|step: &FinishedStep| step.mixture.clone()).collect(),
        weights: tensors(&trainer, |arenas| &arenas.weights),
    }
}

/// Writes a checkpoint of `trainer` into `folder` and returns where it is.
pub fn save(trainer: &Trainer<'_>, step: u64, folder: &Path) -> PathBuf {
    let state = TrainerState {
        format_version: FORMAT_VERSION,
        step,
        global_step: step,
        micro_step: 0,
        loss_scale: 1.0,
        data_fingerprint: 0,
        decisions: Default::default(),
    };
    let folder = CheckpointFolder::new(folder, 0);
    let pending = folder.begin(step).expect("a folder");
    block_on(trainer.save(&state, &pending)).expect("a checkpoint");
    pending.commit().expect("a checkpoint");
    folder.latest().expect("a folder").expect("a checkpoint").1
}

/// A tensor of a file: its shape, and its elements as 4 bytes each.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub words: Vec<u32>,
}

impl Tensor {
    pub fn floats(&self) -> Vec<f64> {
        self.words.iter().map(|word| f64::from(f32::from_bits(*word))).collect()
    }
}

/// The tensors of a file, by name.
pub fn read(path: &Path) -> BTreeMap<String, Tensor> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("tensors");
    let words =
        |bytes: &[u8]| bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let tensor = |view: TensorView<'_>| Tensor { shape: view.shape().to_vec(), words: words(view.data()) };
    file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect()
}

/// Writes tensors of f32.
pub fn write(path: &Path, tensors: &BTreeMap<String, Tensor>) {
    let bytes: Vec<(&String, &Tensor, Vec<u8>)> = tensors
        .iter()
        .map(|(name, tensor)| {
            (name, tensor, tensor.words.iter().flat_map(|word| word.to_le_bytes()).collect())
        })
        .collect();
    let views = bytes.iter().map(|(name, tensor, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, tensor.shape.clone(), bytes).expect("a tensor"))
    });
    serialize_to_file(views, None, path).expect("a file of tensors");
}
