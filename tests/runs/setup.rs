//! The configuration of a small run.

use super::{Leased, Weights, tensors_of};
use gristmill::data::LoadedData;
use gristmill::device::{Gpu, GpuOptions};
use gristmill::kernels::Tier;
use gristmill::model::init::initial_row;
use gristmill::model::parameters::Gpt;
use gristmill::settings::{Override, RunConfig, RunPlan};
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A configuration of a small run.
pub struct Setup {
    pub name: &'static str,
    kind: &'static str,
    model: String,
    /// A file of `tests/data` instead of the configuration made here.
    file: Option<&'static str>,
    pub overrides: Vec<String>,
    pub gpu_options: GpuOptions,
}

impl Setup {
    /// A 2-layer Llama, 32 wide; `model` adds keys to its section.
    pub fn new(name: &'static str, model: &str) -> Self {
        Self {
            name,
            kind: "LlamaConfig",
            model: model.to_string(),
            file: None,
            overrides: Vec::new(),
            gpu_options: GpuOptions::default(),
        }
    }

    /// The same model with layers that differ: the first has a window and rotates, the second does neither.
    pub fn of_layers(name: &'static str, model: &str) -> Self {
        let layers = "n_kv_heads: 2, sliding_window: 7, layer_types: [sliding_attention, full_attention], \
                      no_rope_layers: [1, 0]";
        Self::new(name, &format!("{layers}, {model}"))
    }

    /// The model with five layers, of which the last three read the keys and values of the first, the second and the
    /// first, and have wider feed-forward networks. Heads are wider and fewer in layers without a window, whose values
    /// are their keys, as in Gemma 4.
    pub fn of_shared_keys(name: &'static str, model: &str) -> Self {
        let layers = "n_kv_heads: 2, use_qk_norm: True, use_v_norm: True, sliding_window: 7, layer_types: \
                      [sliding_attention, full_attention], global_head_dim: 20, num_global_key_value_heads: 1, \
                      attention_k_eq_v: True, num_kv_shared_layers: 3, use_double_wide_mlp: True";
        Self::new(name, &format!("{layers}, {model}")).with(&["--model.model_config.num_layers=5"])
    }

    /// The same model with embeddings of each layer, 8 wide.
    pub fn of_layer_inputs(name: &'static str, model: &str) -> Self {
        let keys =
            "n_kv_heads: 2, hidden_size_per_layer_input: 8, hidden_act: gelu_new, embedding_multiplier: 3.0";
        Self::new(name, &format!("{keys}, {model}"))
    }

    /// The same model with caps that most scores and logits of later steps come near to.
    pub fn of_soft_caps(name: &'static str, model: &str) -> Self {
        let caps = "n_kv_heads: 2, attn_logit_softcapping: 0.25, final_logit_softcapping: 0.75";
        Self::new(name, &format!("{caps}, {model}"))
    }

    /// The same model with queries that grow at positions 8 and 16 of 24.
    pub fn of_growing_queries(name: &'static str, model: &str) -> Self {
        let rope = "rope_scaling: {rope_type: yarn, factor: 4, original_max_position_embeddings: 8, beta_fast: 1, \
                    beta_slow: 0.01, llama_4_scaling_beta: 0.5}";
        Self::new(name, &format!("n_kv_heads: 2, {rope}, {model}"))
    }

    /// The same model with linear attention before a layer of softmax, whose output has gates, as in Qwen3.5.
    pub fn of_linear_attention(name: &'static str, model: &str) -> Self {
        let heads = "layer_types: [linear_attention, full_attention], linear_num_value_heads: 4, \
                     linear_num_key_heads: 2, linear_key_head_dim: 8, linear_value_head_dim: 12";
        let softmax = "n_kv_heads: 2, use_qk_norm: True, attention_output_gate: True, rotary_percent: 0.5";
        Self::new(name, &format!("{heads}, {softmax}, layernorm_zero_centered_gamma: True, {model}"))
    }

    /// An LFM2 of the same width and depth, of whose layers the first has a gated convolution.
    pub fn of_convolutions(name: &'static str, model: &str) -> Self {
        let layers = "n_kv_heads: 2, layer_types: [conv, full_attention]";
        Self::typed("Lfm2Config", name, &format!("{layers}, {model}"))
    }

    /// A model of the type `kind`, of the same width and depth.
    pub fn typed(kind: &'static str, name: &'static str, model: &str) -> Self {
        Self { kind, ..Self::new(name, model) }
    }

    /// A GPT-2 of the same width and depth.
    pub fn gpt2(name: &'static str, model: &str) -> Self {
        Self { kind: "GPT2Config", ..Self::new(name, model) }
    }

    /// The configuration in `tests/data/{file}`.
    pub fn of_file(name: &'static str, file: &'static str) -> Self {
        Self { file: Some(file), ..Self::new(name, "") }
    }

    /// A file in MindFormers' dialect, `tests/data/{file}`, shrunk by flags alone to 32 wide on a small text; `keys`
    /// are further flags, without dashes. On one rank, whatever its degrees.
    pub fn shrunk(name: &'static str, file: &'static str, keys: &[&str]) -> Self {
        Self::shrunk_on_ranks(name, file, keys).with(&["--as-single", "--parallel_config={}"])
    }

    /// The same on as many ranks as the file asks for.
    pub fn shrunk_on_ranks(name: &'static str, file: &'static str, keys: &[&str]) -> Self {
        let common = [
            "--train_dataset={data_loader: {type: TextDataLoader, dataset_files: tests/data/mill.txt, shuffle: True}}",
            "--train_dataset_task={type: CausalLanguageModelDataset}",
            "--runner_config.epochs=100",
            "--lr_schedule.learning_rate=3.0e-3",
            "--model.model_config.hidden_size=32",
            "--model.model_config.seq_length=24",
            "--model.model_config.compute_dtype=float32",
        ];
        let keys: Vec<String> = keys.iter().map(|key| format!("--{key}")).collect();
        Self::of_file(name, file).with(&common).with(&keys.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The same model with experts of an odd width; `routing` adds keys to `moe_config`.
    pub fn experts(name: &'static str, routing: &str, model: &str) -> Self {
        let moe_config = format!("--moe_config={{{routing}, moe_intermediate_size: 37}}");
        Self::new(name, model).with(&[&moe_config])
    }

    /// The same model with experts beside the dense networks, as in Gemma 4.
    pub fn beside_dense(name: &'static str, model: &str) -> Self {
        let routing = "expert_num: 6, num_experts_chosen: 3, use_gmm: True, enable_moe_block: True, \
                       moe_intermediate_size: 36";
        let keys = "n_kv_heads: 2, norm_placement: both, hidden_act: gelu_new";
        Self::new(name, &format!("{keys}, {model}")).with(&[&format!("--moe_config={{{routing}}}")])
    }

    /// A model of the type `kind` with such experts.
    pub fn experts_of(kind: &'static str, name: &'static str, routing: &str, model: &str) -> Self {
        Self { kind, ..Self::experts(name, routing, model) }
    }

    /// A gpt-oss of the same width and depth, of whose layers the first has a window.
    pub fn gpt_oss(name: &'static str, model: &str) -> Self {
        let layers = "n_kv_heads: 2, sliding_window: 7, layer_types: [sliding_attention, full_attention]";
        let experts = "--moe_config={expert_num: 4, num_experts_chosen: 2, use_gmm: True, norm_topk_prob: True, \
                       moe_intermediate_size: 36}";
        Self::typed("GptOssConfig", name, &format!("{layers}, {model}")).with(&[experts])
    }

    /// A dense layer, and one with experts, a window, sinks and twice as many heads of keys, whose values are wider than
    /// keys and have a factor, as in MiMo-V2.
    pub fn mimo(name: &'static str, model: &str) -> Self {
        let layers = "n_kv_heads: 2, num_global_key_value_heads: 1, v_head_dim: 12, attention_value_scale: 0.7, \
                      attention_sinks: sliding_attention, sliding_window: 7, layer_types: \
                      [full_attention, sliding_attention], sliding_theta: 30, rotary_percent: 0.5";
        let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, use_gating_sigmoid: True, \
                       norm_topk_prob: True, balance_via_topk_bias: True, topk_bias_update_rate: 0.01, \
                       first_k_dense_replace: 1";
        Self::experts(name, routing, &format!("{layers}, {model}"))
    }

    /// The same model 48 wide, with heads of 12, for what needs its size.
    pub fn wide(self) -> Self {
        self.with(&["--model.model_config.hidden_size=48"])
    }

    /// With `overrides` of the form `--key=value`.
    pub fn with(mut self, overrides: &[&str]) -> Self {
        self.overrides.extend(overrides.iter().map(|o| o.to_string()));
        self
    }

    /// The configuration file.
    pub fn yaml(&self) -> String {
        if let Some(file) = self.file {
            return std::fs::read_to_string(Path::new("tests/data").join(file)).expect("a configuration");
        }
        let intermediate =
            if self.model.contains("intermediate_size") { "" } else { "intermediate_size: 64, " };
        format!(
            "
model:
  model_config: {{ type: {}, vocab_size: 256, hidden_size: 32, num_layers: 2, num_heads: 4, {intermediate}\
             seq_length: 24, init_method_std: 0.1, {} }}
train_dataset:
  data_loader: {{ type: TextDataLoader, dataset_files: tests/data/mill.txt, shuffle: True }}
runner_config: {{ epochs: 100, batch_size: 2, gradient_accumulation_steps: 2 }}
optimizer: {{ type: AdamW, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1 }}
lr_schedule: {{ type: CosineWithWarmUpLR, learning_rate: 3.0e-3, lr_end: 3.0e-4, warmup_steps: 3, total_steps: 40 }}
runner_wrapper: {{ use_clip_grad: True, max_grad_norm: 1.0, scale_sense: 1024.0 }}
seed: 7
",
            self.kind, self.model
        )
    }

    /// Writes the configuration file, without the overrides, into `folder`.
    pub fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join(format!("{}.yaml", self.name));
        std::fs::write(&path, self.yaml()).expect("a configuration");
        path
    }

    /// The plan of the configuration with its overrides.
    pub fn plan(&self) -> RunPlan {
        let overrides = Override::parse_all(&self.overrides).expect("overrides");
        let config = RunConfig::parse(&self.yaml(), Path::new("test.yaml"), &overrides)
            .unwrap_or_else(|e| panic!("{e}"));
        config.plan
    }

    /// The plan, the data it names, and the steps that follow from both.
    pub fn data(&self) -> (RunPlan, LoadedData, RunLength) {
        let plan = self.plan();
        let data = plan.load_data().unwrap_or_else(|e| panic!("{e}"));
        let length = RunLength::new(&plan, data.train.steps_per_epoch());
        (plan, data, length)
    }

    /// A device with the tier that the overrides name, if they do; it converts f16 as that of a run does.
    pub fn gpu(&self) -> Leased {
        self.gpu_for(&self.plan())
    }

    /// The same for `plan`.
    pub fn gpu_for(&self, plan: &RunPlan) -> Leased {
        let tier = plan.settings.context.tier.or(self.gpu_options.tier);
        Leased::for_plan(&GpuOptions { tier, ..self.gpu_options.clone() }, plan)
    }

    /// The weights a run starts with.
    pub fn initial_weights(&self) -> Weights {
        let plan = self.plan();
        let mut weights = Weights::new();
        for spec in &Gpt::describe(&plan.model) {
            for piece in &spec.pieces {
                let rows = spec.piece_rows(piece).flat_map(|(row, first, columns)| {
                    initial_row(spec, row, plan.settings.run.seed)[first..first + columns].to_vec()
                });
                let values = spec.in_file_order(piece, rows.collect());
                weights.extend(tensors_of(spec, piece, values));
            }
        }
        let specs = Gpt::describe(&plan.model);
        let matrices = specs.iter().flat_map(|spec| &spec.pieces).filter(|piece| piece.is_transposed);
        let transposed: BTreeSet<&str> =
            matrices.filter_map(|piece| piece.name.strip_suffix(".weight")).collect();
        let magnitudes = weights.iter().filter_map(|(name, values)| {
            let module = name.strip_prefix("base_model.model.")?.strip_suffix(".lora_magnitude_vector")?;
            let w = &weights[&format!("{module}.weight")];
            let (rows, cols) = (values.len(), w.len() / values.len());
            let is_transposed = transposed.contains(module);
            let at = |row: usize, col: usize| {
                if is_transposed { w[col * rows + row] } else { w[row * cols + col] }
            };
            let norm = |row: usize| (0..cols).map(|col| at(row, col).powi(2)).sum::<f64>().sqrt();
            Some((name.clone(), (0..rows).map(norm).collect::<Vec<f64>>()))
        });
        let magnitudes: Vec<_> = magnitudes.collect();
        weights.extend(magnitudes);
        weights
    }
}

/// A device with the default options.
pub fn open_gpu() -> Leased {
    Leased::of(&GpuOptions::default())
}

/// A device that runs the kernels of `tier`.
pub fn open_gpu_of(tier: Tier) -> Leased {
    Leased::of(&GpuOptions { tier: Some(tier), ..GpuOptions::default() })
}

/// A trainer before its first step.
pub fn new_trainer<'gpu>(gpu: &'gpu Gpu, plan: &RunPlan, length: &RunLength) -> Trainer<'gpu> {
    pollster::block_on(Trainer::new(gpu, plan, length)).unwrap_or_else(|e| panic!("{e}"))
}
