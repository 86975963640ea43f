//! The configuration as its users meet it: whole files in, a plan or one line out.

mod datasets;
mod families;
mod faults;
mod groups;
mod malformed;
mod mixture;
mod mixture_errors;
mod model;
mod optimizer;
mod overrides;
mod reference;
mod rope_scaling;
mod rows;
mod schedule;

use std::path::{Path, PathBuf};

use super::*;
use crate::data::Loader;
use crate::error::Result;

/// Lines are numbered in the table below, so new keys go to the end.
const BASE: &str = "\
seed: 7
model:
  model_config:
    type: LlamaConfig
    vocab_size: 256
    hidden_size: 64
    num_layers: 2
    num_heads: 4
    seq_length: 32
runner_config:
  epochs: 2
  batch_size: 4
optimizer:
  type: AdamW
lr_schedule:
  type: cosine
  learning_rate: 1e-3
train_dataset: &train_dataset
  data_loader:
    type: CargoRegistryDataLoader
    shuffle: True
train_dataset_task:
  dataset_config: *train_dataset
callbacks:
  - type: MFLossMonitor
  - type: CheckpointMointor
    save_checkpoint_steps: 10
";

fn resolve(text: &str, arguments: &[&str]) -> Result<(RunPlan, Vec<String>)> {
    let overrides = Override::parse_all(arguments.to_vec())?;
    let config = RunConfig::parse(text, Path::new("x.yaml"), &overrides)?;
    Ok((config.plan, config.notices))
}

fn plan(text: &str) -> RunPlan {
    resolve(text, &[]).unwrap().0
}

fn message(text: &str, arguments: &[&str]) -> String {
    resolve(text, arguments).map(|(plan, _)| plan).unwrap_err().to_string()
}

#[test]
fn malformed_input_is_answered_in_one_line() {
    assert!(resolve(BASE, &[]).is_ok());
    let mut wrong = Vec::new();
    for (line, instead, expected) in malformed::MALFORMED {
        assert_eq!(BASE.matches(line).count(), 1, "{line} must stand in the base once");
        let found = match resolve(&BASE.replace(line, instead), &[]) {
            Ok(_) => "accepted".to_string(),
            Err(error) => error.to_string(),
        };
        if found != *expected {
            wrong.push(format!("{instead}\n  expected {expected}\n  found    {found}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn numbers_and_words_of_yaml_1_1() {
    let text = BASE
        .replace("1e-3", "1.e-3")
        .replace("type: LlamaConfig", "rms_norm_eps: '1e-6'\n    extend_method: \"None\"");
    let text =
        text.replace("seed: 7", "seed: 7\nload_checkpoint: ''\nresume_training: no\ncontext: {tier: None}");
    let plan = plan(&text);
    assert_eq!((plan.schedule.learning_rate, plan.model.norm_eps), (1e-3, 1e-6));
    assert_eq!(
        (plan.settings.run.load_checkpoint, plan.settings.run.resume_training, plan.settings.context.tier),
        (PathBuf::new(), Resume::No, None)
    );
}

/// In the style of the original's Llama files.
const LLAMA_STYLE: &str = "\
seed: 0
output_dir: './runs'  # a comment
load_checkpoint: ''
auto_trans_ckpt: False
run_mode: 'finetune'
trainer: {type: CausalLanguageModelingTrainer, model_name: llama2_7b}
runner_config: {epochs: 2, batch_size: 6, sink_mode: True, sink_size: 2}
optimizer: {type: adamw, betas: [0.9, 0.95], eps: 1.e-8, learning_rate: 5.e-5}
lr_schedule: {type: CosineWithWarmUpLR, learning_rate: 5.e-5, lr_end: 0, warmup_ratio: 0.03, total_steps: -1}
train_dataset: &train_dataset
  data_loader: {type: TokenDataLoader, dataset_dir: ./data, shuffle: False}
  input_columns: [\"input_ids\"]
  drop_remainder: True
train_dataset_task:
  type: CausalLanguageModelDataset
  dataset_config: *train_dataset
use_parallel: True
parallel_config: {data_parallel: 8, model_parallel: 1, micro_batch_num: 4}
micro_batch_interleave_num: 1
moe_config: {expert_num: 1, capacity_factor: 1.05}
recompute_config: {recompute: [0, 0], select_recompute: False, mp_comm_recompute: True}
callbacks:
  - type: MFLossMonitor
  - type: CheckpointMointor
    prefix: llama_7b
    async_save: False
  - type: ObsMonitor
context: {mode: 0, device_target: Ascend, max_device_memory: \"58GB\"}
model:
  model_config:
    type: LlamaConfig
    seq_length: 4096
    hidden_size: 4096
    num_layers: 32
    num_heads: 32
    vocab_size: 32000
    multiple_of: 256
    ignore_token_id: -100
    param_init_type: \"float16\"
    compute_dtype: float32
    extend_method: \"None\"
    use_flash_attention: False
    kv_channels: 128
  arch: {type: LlamaForCausalLM}
runner_wrapper:
  type: MFTrainOneStepCell
  scale_sense: {type: FixedLossScaleUpdateCell, loss_scale_value: 4294967296}
  use_clip_grad: True
";

/// In the style of Megatron: other names, and merge keys.
const MEGATRON_STYLE: &str = "\
run_name: small
do_eval: True
eval_step_interval: 20
defaults: &loader
eval_epoch_interval: -1
runner_config:
  <<: {epochs: 3, batch_size: 2}
  stop_step: 9
model:
  model_config:
    vocab_size: 512
    hidden_size: 96
    num_hidden_layers: 3
    num_attention_heads: 6
    num_query_groups: 2
    head_dim: 32
    ffn_hidden_size: 100
    seq_length: 16
    layernorm_epsilon: 1e-6
    rotary_base: 500000
    partial_rotary_factor: 0.5
    qk_layernorm: True
    add_qkv_bias: True
    initializer_range: 0.02
    untie_embeddings_and_output_weights: False
    num_experts: 1
    ignore_token_id: 3
lr_schedule: {type: linear, learning_rate: 0.001, warmup_epochs: 1, total_steps: 50}
train_dataset: {seed: 5, eval_fraction: 0.1, data_loader: {type: TextDataLoader, dataset_files: ['a*', b], extensions: .txt}}
callbacks: None
sample: {prompt: \"fn main\", tokens: 10, temperature: 0}
";

#[test]
fn a_file_of_the_original() {
    let (plan, notices) = resolve(LLAMA_STYLE, &[]).unwrap();
    assert_eq!(
        (plan.settings.run.run_name.as_str(), plan.settings.run.folder().as_path()),
        ("x", Path::new("./runs/x"))
    );
    let model = &plan.model;
    assert_eq!(
        (model.intermediate_size, model.num_kv_heads, model.head_dim, model.rotary_dim),
        (11008, 32, 128, 128)
    );
    assert_eq!((model.init_std, model.ignore_id, model.rope_theta), (0.01, u32::MAX, 1e4));
    assert_eq!(
        (plan.settings.wrapper.clip(), plan.settings.wrapper.scale_sense, plan.tokens_per_step),
        (Some(1.0), 4294967296.0, 6 * 4096)
    );
    assert_eq!((plan.optimizer.beta2, plan.schedule.warmup.clone()), (0.95, Warmup::Ratio(0.03)));
    assert_eq!(plan.settings.context.max_device_memory.map(|size| size.0), Some(58 << 30));
    let checkpoint = plan.settings.callbacks.checkpoint.clone().unwrap();
    assert_eq!(
        (checkpoint.save_checkpoint_steps, checkpoint.keep_checkpoint_max, checkpoint.prefix.as_str()),
        (1, 5, "llama_7b")
    );
    assert_eq!(
        notices,
        [
            "model.model_config.param_init_type: float32 here, which is more precise",
            "model.model_config.use_flash_attention: attention never stores its matrix here, whatever this says",
            "parallel_config asks for data_parallel 8; this run is one rank and takes 1",
            "without meaning here and ignored: use_parallel, moe_config.capacity_factor, trainer.model_name, \
             recompute_config.mp_comm_recompute, runner_config.{sink_mode, sink_size}, train_dataset.input_columns, \
             callbacks.ObsMonitor, context.device_target, parallel_config.micro_batch_num",
        ]
    );
}

#[test]
fn a_file_with_the_names_of_megatron() {
    let (plan, notices) = resolve(&MEGATRON_STYLE.replace("defaults: &loader\n", ""), &[]).unwrap();
    let model = &plan.model;
    assert_eq!((model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim), (3, 6, 2, 32));
    assert_eq!((model.intermediate_size, model.rotary_dim, model.ignore_id), (100, 16, 3));
    assert!(model.qk_norm && model.qkv_bias && model.tie_word_embeddings);
    assert_eq!((model.rope_theta, model.norm_eps, model.init_std), (5e5, 1e-6, 0.02));
    assert_eq!(
        (plan.settings.runner.epochs, plan.settings.runner.batch_size, plan.settings.runner.stop_step),
        (3, 2, 9)
    );
    assert_eq!((plan.settings.run.eval_interval(), plan.settings.run.eval_batches), (Some(20), 16));
    assert_eq!(notices, ["runner_wrapper is absent: gradients are clipped at norm 1.0, as in the original"]);
    assert_eq!((plan.schedule.total_steps, plan.schedule.warmup.clone()), (Some(50), Warmup::Epochs(1)));
    assert!(message(MEGATRON_STYLE, &[]).starts_with("x.yaml:4: defaults: unknown key"));
}

#[test]
fn a_resolved_plan_reads_back_as_itself() {
    let windowed = BASE.replace("seq_length: 32", "seq_length: 32\n    sliding_window: 5\n    attention_dropout_rate: 0.05\n    hidden_dropout: 0.1\n    embedding_dropout_prob: 0.2");
    for text in [BASE, &windowed, LLAMA_STYLE, &MEGATRON_STYLE.replace("defaults: &loader\n", "")] {
        for arguments in [&[][..], &["--resume_training=step_0000020", "--context.max_device_memory=1.5MB"]] {
            let (plan, _) = resolve(text, arguments).unwrap();
            let (again, notices) = resolve(&plan.to_yaml(), &[]).unwrap();
            assert_eq!(plan, again);
            assert_eq!(notices, [""; 0]);
        }
    }
}

#[test]
fn files_that_are_not_there() {
    let error = RunConfig::load(Path::new("no/such.yaml"), &[]).map(|config| config.notices).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no/such.yaml: no such file; name a configuration, such as configs/tiny.yaml"
    );
    let folder = tempfile::tempdir().unwrap();
    let load = |path: &str| {
        let loader = format!("--train_dataset.data_loader={{type: TextDataLoader, dataset_dir: '{path}'}}");
        let (plan, _) = resolve(BASE, &[&loader]).unwrap();
        plan.load_data().map(|data| data.summary).unwrap_err().to_string()
    };
    let empty = folder.path().display().to_string();
    let expected = format!("{empty}: no text found; name text files with `dataset_dir` or `dataset_files`");
    assert_eq!(load(&empty), expected);
    let expected = "no/such/file: no such file or folder; correct `dataset_dir` or `dataset_files`";
    assert_eq!(load("no/such/file"), expected);
}

#[test]
fn every_configuration_of_the_repository_resolves() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let mut count = 0;
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for path in paths.filter(|path| path.extension().is_some_and(|ending| ending == "yaml")) {
        let config = RunConfig::load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.notices, [""; 0], "our own files need no notice");
        count += 1;
    }
    assert!(count > 0);
}

proptest::proptest! {
    /// Whatever is written, the answer is a plan or a few lines.
    #[test]
    fn no_text_panics(line in 0usize..30, garbage in "[ -~\n]{0,40}") {
        let mut lines: Vec<&str> = BASE.lines().collect();
        lines.insert(line.min(lines.len()), &garbage);
        if let Err(error) = resolve(&lines.join("\n"), &[]) {
            let text = error.to_string();
            proptest::prop_assert!(text.lines().count() <= 21 && text.lines().all(|line| !line.is_empty()));
        }
    }
}
