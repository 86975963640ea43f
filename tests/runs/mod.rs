//! Small training runs on text committed under `tests/data`.
#![allow(dead_code)] // each test binary uses its own part

use gristmill::data::Dataset;
use gristmill::device::{Gpu, GpuOptions};
use gristmill::model::arena::Arena;
use gristmill::model::config::{
    Activation, DropOrder, HotExperts, Llama3, MixtureConfig, ModelConfig, Positions, RopeScaling,
    TokenDispatch, Yarn,
};
use gristmill::model::init::initial_row;
use gristmill::model::parameters::Gpt;
use gristmill::ops::gelu::Gelu;
use gristmill::ops::route::{ExpertGroups, GroupScore, Score};
use gristmill::reference;
use gristmill::reference::rope_scaling::Scaling;
use gristmill::settings::{Override, RunConfig, RunPlan};
use gristmill::train::arenas::Arenas;
use gristmill::train::length::RunLength;
use gristmill::train::state::StepState;
use gristmill::train::{FinishedStep, Trainer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Tensors by checkpoint name.
pub type Weights = BTreeMap<String, Vec<f64>>;

/// A configuration of a small run.
pub struct Setup {
    pub name: &'static str,
    kind: &'static str,
    model: String,
    pub overrides: Vec<String>,
    pub gpu_options: GpuOptions,
}

/// What a run left.
pub struct Trained {
    pub states: Vec<StepState>,
    pub weights: Weights,
    pub gradients: Weights,
}

impl Setup {
    /// A 2-layer model, 40 wide; `model` adds keys to its section.
    pub fn new(name: &'static str, model: &str) -> Self {
        Self {
            name,
            kind: "LlamaConfig",
            model: model.to_string(),
            overrides: Vec::new(),
            gpu_options: GpuOptions::default(),
        }
    }

    /// The same width and depth, shaped like GPT-2.
    pub fn gpt2(name: &'static str, model: &str) -> Self {
        Self { kind: "GPT2Config", ..Self::new(name, model) }
    }

    /// With `--key=value` applied.
    pub fn with(mut self, overrides: &[&str]) -> Self {
        self.overrides.extend(overrides.iter().map(|o| o.to_string()));
        self
    }

    /// The configuration as a file.
    pub fn yaml(&self) -> String {
        let intermediate =
            if self.model.contains("intermediate_size") { "" } else { "intermediate_size: 64, " };
        format!(
            "
model:
  model_config: {{ type: {}, vocab_size: 256, hidden_size: 48, num_layers: 2, num_heads: 4, {intermediate}\
             seq_length: 24, init_method_std: 0.1, {} }}
train_dataset:
  data_loader: {{ type: TextDataLoader, dataset_files: tests/data/mill.txt, shuffle: True }}
runner_config: {{ epochs: 100, batch_size: 3, gradient_accumulation_steps: 2 }}
optimizer: {{ type: AdamW, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1 }}
lr_schedule: {{ type: CosineWithWarmUpLR, learning_rate: 3.0e-3, lr_end: 3.0e-4, warmup_steps: 3, total_steps: 40 }}
runner_wrapper: {{ use_clip_grad: True, max_grad_norm: 1.0, scale_sense: 1024.0 }}
seed: 7
",
            self.kind, self.model
        )
    }

    /// Writes that file into `folder`; `overrides` go on a command line.
    pub fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join(format!("{}.yaml", self.name));
        std::fs::write(&path, self.yaml()).expect("a configuration");
        path
    }

    pub fn plan(&self) -> RunPlan {
        let overrides = Override::parse_all(&self.overrides).expect("overrides");
        let config = RunConfig::parse(&self.yaml(), Path::new("test.yaml"), &overrides)
            .unwrap_or_else(|e| panic!("{e}"));
        config.plan
    }

    pub fn data(&self) -> (RunPlan, Dataset, RunLength) {
        let plan = self.plan();
        let data = plan.load_data().unwrap_or_else(|e| panic!("{e}"));
        let length = RunLength::new(&plan, data.train.steps_per_epoch());
        (plan, data, length)
    }

    pub fn gpu(&self) -> Gpu {
        pollster::block_on(Gpu::request(&self.gpu_options)).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The weights a run starts with.
    pub fn initial_weights(&self) -> Weights {
        let plan = self.plan();
        let mut weights = Weights::new();
        for (index, spec) in Gpt::describe(&plan.model).iter().enumerate() {
            for piece in &spec.pieces {
                let rows = spec.piece_rows(piece).flat_map(|(row, first, columns)| {
                    initial_row(spec, index, row, plan.settings.run.seed)[first..first + columns].to_vec()
                });
                let values = spec.to_file(piece, rows.collect());
                weights.insert(piece.name.clone(), values.into_iter().map(f64::from).collect());
            }
        }
        weights
    }

    /// Trains `steps` steps.
    pub fn train(&self, steps: u64) -> Trained {
        let (plan, data, length) = self.data();
        let gpu = self.gpu();
        let mut trainer =
            pollster::block_on(Trainer::new(&gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
        let mut states = Vec::new();
        for step in 0..steps {
            let first = step * plan.settings.runner.gradient_accumulation_steps as u64;
            pollster::block_on(trainer.step(step + 1, &data.train, first)).unwrap_or_else(|e| panic!("{e}"));
            states.extend(trainer.finished_steps().expect("states"));
        }
        pollster::block_on(trainer.wait()).expect("the device");
        states.extend(trainer.finished_steps().expect("states"));
        let weights = tensors(&trainer, |arenas| &arenas.weights);
        let gradients = tensors(&trainer, |arenas| &arenas.gradients);
        Trained {
            states: states.into_iter().map(|finished: FinishedStep| finished.state).collect(),
            weights,
            gradients,
        }
    }
}

pub fn reference_shape(model: &ModelConfig) -> reference::gpt::Shape {
    let architecture = match (model.positions, model.activation) {
        (Positions::Learned, Activation::Gelu(kind)) => reference::gpt::Architecture::Gpt2 {
            positions: model.max_positions,
            activation: match kind {
                Gelu::Exact => reference::gelu::Gelu::Exact,
                Gelu::Tanh => reference::gelu::Gelu::Tanh,
            },
        },
        (Positions::Rotary, Activation::SwiGlu) => reference::gpt::Architecture::Llama,
        other => panic!("the reference has no model of {other:?}"),
    };
    reference::gpt::Shape {
        architecture,
        vocab_size: model.vocab_size,
        hidden_size: model.hidden_size,
        num_layers: model.num_layers,
        num_heads: model.num_heads,
        num_kv_heads: model.num_kv_heads,
        head_dim: model.head_dim,
        intermediate_size: model.intermediate_size,
        norm_eps: model.norm_eps,
        rope: reference::rope::Rope {
            head_dim: model.head_dim,
            rotary_dim: model.rotary_dim,
            theta: model.rope_theta,
            interleaved: model.rotary_interleaved,
            scaling: reference_scaling(&model.rope_scaling),
        },
        tie_word_embeddings: model.tie_word_embeddings,
        qkv_bias: model.qkv_bias,
        qk_norm: model.qk_norm,
        window: model.sliding_window,
        mixture: model.mixture.as_ref().map(reference_mixture),
        multi_token: model.multi_token.map(|ahead| reference::multi_token::MultiToken {
            depth: ahead.depth,
            loss_factor: ahead.loss_factor,
        }),
    }
}

fn reference_mixture(config: &MixtureConfig) -> reference::mixture::Mixture {
    let hot = |hot: HotExperts| reference::mixture::Hot {
        count: hot.count,
        cold_token_share: hot.cold_token_share,
        update_step: hot.update_step as u32,
        checkpoint_step: hot.checkpoint_step.map(|step| step as u32),
    };
    reference::mixture::Mixture {
        experts: config.experts(),
        chosen: config.chosen(),
        score: match config.route.score {
            Score::Softmax => reference::mixture::Score::Softmax,
            Score::Sigmoid => reference::mixture::Score::Sigmoid,
        },
        groups: config.route.groups.map(|ExpertGroups { count, chosen, score }| {
            reference::mixture::ExpertGroups {
                count: count as usize,
                chosen: chosen as usize,
                best: if score == GroupScore::BestTwo { 2 } else { 1 },
            }
        }),
        norm_top_k: config.route.norm_top_k,
        scaling: f64::from(config.route.scaling),
        bias_update_rate: if config.has_bias { config.bias_update_rate } else { 0.0 },
        intermediate_size: config.intermediate_size,
        first_dense_layers: config.first_dense_layers,
        shared: config.shared.map(|shared| reference::mixture::Shared {
            intermediate_size: shared.intermediate_size,
            is_gated: shared.is_gated,
        }),
        losses: reference::mixture::Losses {
            expert: config.losses.expert,
            sequence: config.losses.sequence,
            z: config.losses.z,
        },
        capacity: match config.dispatch {
            TokenDispatch::Dropless { .. } => None,
            TokenDispatch::Capacity(capacity) => Some(reference::mixture::Capacity {
                factor: capacity.factor,
                is_token_major: capacity.order == DropOrder::Token,
                renormalises: capacity.renormalises,
                hot: capacity.hot.map(hot),
            }),
        },
    }
}

fn reference_scaling(scaling: &RopeScaling) -> Scaling {
    match *scaling {
        RopeScaling::None => Scaling::None,
        RopeScaling::Yarn(Yarn { factor, original, beta_fast, beta_slow, mscale, mscale_all_dim }) => {
            Scaling::Yarn { factor, original, beta_fast, beta_slow, mscale, mscale_all_dim }
        }
        RopeScaling::Llama3(Llama3 { factor, original, low_freq_factor, high_freq_factor }) => {
            Scaling::Llama3 { factor, original, low_freq_factor, high_freq_factor }
        }
        other => panic!("the reference has no scaling like {other:?}"),
    }
}

/// What one of the trainer's arenas holds.
pub fn tensors(trainer: &Trainer<'_>, arena: impl Fn(&Arenas) -> &Arena) -> Weights {
    let tensors = pollster::block_on(trainer.tensors(arena)).expect("tensors");
    tensors.into_iter().map(|(name, values)| (name, values.into_iter().map(f64::from).collect())).collect()
}

pub fn weights_of(weights: &reference::gpt::Weights) -> Weights {
    weights.clone()
}

/// ‖a − b‖ / ‖b‖ over all tensors together.
pub fn relative_distance(a: &Weights, b: &Weights) -> f64 {
    assert!(a.keys().eq(b.keys()), "the same tensors on both sides");
    let pairs = || a.values().flatten().zip(b.values().flatten());
    let difference: f64 = pairs().map(|(a, b)| (a - b) * (a - b)).sum();
    let norm: f64 = pairs().map(|(_, b)| b * b).sum();
    (difference / norm).sqrt()
}
