//! A plan written out as a configuration with every value in place.

use super::document;
use super::family;
use super::groups;
use super::node::Node;
use super::optimizer;
use super::plan::RunPlan;
use super::resolved_dataset;
use super::resolved_mixture;
use super::rope_scaling;
use super::run::Resume;
use super::schedule;
use crate::kernels::Tier;
use crate::model::config::{MultiToken, Positions};

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
    if let Some(mixture) = &plan.model.mixture {
        top.set("moe_config", resolved_mixture::entries(mixture, &plan.instruments));
    }
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
    top.set("optimizer", optimizer::to_node(&plan.optimizer));
    if plan.groups.is_empty() {
        top.set("lr_schedule", schedule::to_node(&plan.schedule));
    } else {
        top.set("grouped_lr_schedule", groups::to_node(&plan.schedule, &plan.groups));
    }
    if !plan.no_decay_params.is_empty() {
        top.set("no_decay_params", words(&plan.no_decay_params));
    }
    top.set("train_dataset", resolved_dataset::entries(&plan.train_dataset));
    top.some("eval_dataset", plan.eval_dataset.as_ref().map(resolved_dataset::entries));
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
    entries.some("sliding_window", model.sliding_window);
    for (key, share) in [
        ("attention_dropout", model.attention_dropout),
        ("hidden_dropout", model.hidden_dropout),
        ("emb_dropout_prob", model.embedding_dropout),
    ] {
        entries.some(key, Some(share).filter(|share| *share > 0.0));
    }
    if let Some(MultiToken { depth, loss_factor }) = model.multi_token {
        entries.set("mtp_depth", depth);
        entries.set("mtp_loss_factor", loss_factor);
    }
    for (key, patterns) in [("freeze", &plan.freeze), ("freeze_exclude", &plan.freeze_exclude)] {
        entries.some(key, (!patterns.is_empty()).then(|| words(patterns)));
    }
    entries.into()
}

fn words(words: &[String]) -> Node {
    Node::List(words.iter().map(|word| word.as_str().into()).collect())
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
    items.extend(resolved_mixture::callbacks(plan.model.mixture.as_ref(), &plan.instruments));
    Node::List(items)
}

/// A section being written.
#[derive(Default)]
pub(super) struct Entries(Vec<(String, Node)>);

impl Entries {
    pub fn of<const N: usize>(entries: [(&str, Node); N]) -> Self {
        Self(entries.into_iter().map(|(key, node)| (key.to_string(), node)).collect())
    }

    pub fn set(&mut self, key: &str, value: impl Into<Node>) {
        self.0.push((key.to_string(), value.into()));
    }

    pub fn some(&mut self, key: &str, value: Option<impl Into<Node>>) {
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
