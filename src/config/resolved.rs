//! A plan written out as a configuration with every value in place.

use super::document;
use super::family;
use super::node::Node;
use super::plan::RunPlan;
use super::rope_scaling;
use super::run::Resume;
use crate::data::{DataConfig, Loader, TokenType};
use crate::kernels::Tier;
use crate::model::config::Positions;
use crate::train::schedule::{Decay, Warmup};

/// The configuration that resolves to `plan`.
pub(super) fn to_yaml(plan: &RunPlan) -> String {
    let mut top = Entries::default();
    top.set("run_name", plan.name.as_str());
    // The run's folder is output_dir/run_name.
    top.some("output_dir", plan.output_dir.parent().map(|parent| parent.display().to_string()));
    top.set("seed", plan.seed);
    top.some("load_checkpoint", plan.load_checkpoint.as_ref().map(|path| path.display().to_string()));
    match &plan.resume {
        Resume::No => {}
        Resume::Latest => top.set("resume_training", true),
        Resume::Named(name) => top.set("resume_training", name.as_str()),
    }
    top.set("model", Entries::of([("model_config", model(plan))]));
    top.set(
        "runner_config",
        Entries::of([
            ("epochs", plan.epochs.into()),
            ("batch_size", plan.batch_size.into()),
            ("gradient_accumulation_steps", plan.gradient_accumulation_steps.into()),
            ("stop_step", plan.stop_step.unwrap_or(0).into()),
        ]),
    );
    let mut wrapper =
        Entries::of([("scale_sense", plan.loss_scale.into()), ("use_clip_grad", plan.clip.is_some().into())]);
    wrapper.some("max_grad_norm", plan.clip);
    top.set("runner_wrapper", wrapper);
    top.set(
        "optimizer",
        Entries::of([
            ("type", "AdamW".into()),
            ("betas", Node::List(vec![plan.optimizer.beta1.into(), plan.optimizer.beta2.into()])),
            ("eps", plan.optimizer.eps.into()),
            ("weight_decay", plan.optimizer.weight_decay.into()),
        ]),
    );
    top.set("lr_schedule", schedule(plan));
    top.set("train_dataset", dataset(&plan.train_dataset));
    top.some("eval_dataset", plan.eval_dataset.as_ref().map(dataset));
    top.set("do_eval", plan.eval.is_some());
    top.some("eval_step_interval", plan.eval.as_ref().map(|eval| eval.every_steps));
    top.some("eval_batches", plan.eval.as_ref().map(|eval| eval.batches));
    top.set("callbacks", callbacks(plan));
    if let Some(sample) = &plan.sample {
        let mut entries = Entries::of([
            ("prompt", sample.prompt.as_str().into()),
            ("tokens", sample.tokens.into()),
            ("temperature", sample.temperature.into()),
        ]);
        entries.some("seed", sample.seed);
        top.set("sample", entries);
    }
    let mut context = Entries::default();
    context.some("device_name", plan.device_name.as_deref());
    context.some("tier", plan.tier.map(Tier::name));
    // Whole megabytes lose nothing that a pool could use.
    context.some(
        "max_device_memory",
        plan.max_device_memory.map(|bytes| format!("{}MB", bytes as f64 / (1 << 20) as f64)),
    );
    if !context.0.is_empty() {
        top.set("context", context);
    }
    document::to_yaml(&top.into())
}

fn model(plan: &RunPlan) -> Node {
    let model = &plan.model;
    let mut entries = Entries::of([
        ("type", family::config_name(model.family).into()),
        ("vocab_size", model.vocab_size.into()),
        ("hidden_size", model.hidden_size.into()),
        ("num_layers", model.num_layers.into()),
        ("num_heads", model.num_heads.into()),
        ("intermediate_size", model.intermediate_size.into()),
        ("seq_length", model.seq_length.into()),
        ("hidden_act", family::activation_name(model.activation).into()),
        ("rms_norm_eps", model.norm_eps.into()),
        ("tie_word_embeddings", model.tie_word_embeddings.into()),
        ("qkv_has_bias", model.qkv_bias.into()),
        ("init_method_std", model.init_std.into()),
        (
            "ignore_token_id",
            if model.ignore_id == u32::MAX { Node::Int(-100) } else { u64::from(model.ignore_id).into() },
        ),
        ("max_position_embedding", model.max_positions.into()),
        ("compute_dtype", "float32".into()),
    ]);
    match model.positions {
        Positions::Learned => {}
        Positions::Rotary => {
            entries.set("n_kv_heads", model.num_kv_heads);
            entries.set("head_dim", model.head_dim);
            entries.set("theta", model.rope_theta);
            entries.set("rotary_percent", model.rotary_dim as f64 / model.head_dim as f64);
            entries.set("rotary_interleaved", model.rotary_interleaved);
            entries.set("use_qk_norm", model.qk_norm);
            if let Some((method, key, parameters)) = rope_scaling::written(&model.rope_scaling) {
                entries.set("extend_method", method);
                entries.set(key, parameters);
            }
        }
    }
    entries.into()
}

fn schedule(plan: &RunPlan) -> Entries {
    let schedule = &plan.schedule;
    let mut entries = Entries::default();
    match schedule.decay {
        Decay::Cosine { num_cycles, decay_steps } => {
            entries.set("type", "CosineWithWarmUpLR");
            entries.set("num_cycles", num_cycles);
            entries.some("decay_steps", decay_steps);
        }
        Decay::Linear => entries.set("type", "LinearWithWarmUpLR"),
        Decay::Constant => entries.set("type", "ConstantWarmUpLR"),
    }
    entries.set("learning_rate", schedule.learning_rate);
    entries.set("lr_end", schedule.lr_end);
    match schedule.warmup {
        Warmup::Steps(steps) => entries.set("warmup_steps", steps),
        Warmup::Ratio(ratio) => entries.set("warmup_ratio", ratio),
        Warmup::Epochs(epochs) => entries.set("warmup_epochs", epochs),
    }
    entries.set("warmup_lr_init", schedule.warmup_lr_init);
    entries.some("total_steps", schedule.total_steps);
    entries
}

fn dataset(data: &DataConfig) -> Entries {
    let paths = |paths: &[String]| Node::List(paths.iter().map(|path| path.as_str().into()).collect());
    let mut loader = match &data.loader {
        Loader::Text(config) => {
            let mut entries =
                Entries::of([("type", "TextDataLoader".into()), ("dataset_files", paths(&config.paths))]);
            entries.set("extensions", paths(&config.extensions));
            entries.some("max_bytes", config.max_bytes);
            entries.set("eod_byte", u64::from(config.eod_byte));
            entries
        }
        Loader::Tokens(config) => {
            let dtype =
                TokenType::NAMES.iter().find(|(_, dtype)| *dtype == config.dtype).map(|(name, _)| *name);
            let mut entries =
                Entries::of([("type", "TokenDataLoader".into()), ("dataset_files", paths(&config.paths))]);
            entries.some("dtype", dtype);
            entries
        }
        Loader::CargoRegistry(config) => Entries::of([
            ("type", "CargoRegistryDataLoader".into()),
            ("max_bytes", config.max_bytes.into()),
            ("eod_byte", u64::from(config.eod_byte).into()),
        ]),
    };
    loader.set("shuffle", data.shuffle);
    let mut entries = Entries::of([("data_loader", loader.into())]);
    entries.some("seed", data.seed);
    entries.set("eval_fraction", data.eval_fraction);
    entries
}

fn callbacks(plan: &RunPlan) -> Node {
    let loss = Entries::of([("type", "MFLossMonitor".into()), ("per_print_times", plan.log_every.into())]);
    let mut items = vec![loss.into()];
    if let Some(checkpoint) = &plan.checkpoint {
        items.push(
            Entries::of([
                ("type", "CheckpointMonitor".into()),
                ("prefix", checkpoint.prefix.as_str().into()),
                ("save_checkpoint_steps", checkpoint.every_steps.into()),
                ("keep_checkpoint_max", checkpoint.keep_max.into()),
            ])
            .into(),
        );
    }
    Node::List(items)
}

/// A section being written.
#[derive(Default)]
struct Entries(Vec<(String, Node)>);

impl Entries {
    fn of<const N: usize>(entries: [(&str, Node); N]) -> Self {
        Self(entries.into_iter().map(|(key, node)| (key.to_string(), node)).collect())
    }

    fn set(&mut self, key: &str, value: impl Into<Node>) {
        self.0.push((key.to_string(), value.into()));
    }

    fn some(&mut self, key: &str, value: Option<impl Into<Node>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }
}

impl From<Entries> for Node {
    fn from(entries: Entries) -> Self {
        Self::Map(entries.0)
    }
}
