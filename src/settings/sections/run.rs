//! The keys at the top level of a file, those about evaluation among them.

use crate::settings::engine::*;
use std::path::{Path, PathBuf};

rows! {
    /// The top level: the run's name and seed, where it starts, when it evaluates.
    pub struct Run in "" {
        /// Configuration files that this file extends, as paths relative to it. A key that this file writes overrides
        /// the same key of a base; sections are merged key by key. If several bases have the same top-level key, the
        /// last of them supplies its whole value.
        base_config: Vec<PathBuf> = Host.optional().example("./base.yaml"),
        /// Name of the run and of its folder below `output_dir`; by default the name of the file.
        run_name: String = Host.optional().read_by(folder_name).example("trial"),
        /// Folder in which run folders are made.
        output_dir: PathBuf = Host.default("./output".into()).example("./runs"),
        /// Weights that the run starts from: a safetensors file, the index file of several, or a folder with either.
        /// They are floats of 16, 32 or 64 bits, or FP8 or MXFP4 with block scales. The folder of a run stands for its
        /// best checkpoint, or else its newest; an adapter stands for its base. A resumed run of adapters looks here
        /// for its base if the base was moved. If the configuration leaves out a size of the model, the `config.json`
        /// there supplies every key of the model that is not written, and the `tokenizer.json` there is used by data
        /// sets that name no tokenizer.
        load_checkpoint: PathBuf = Host.optional().example("./weights"),
        /// Keys of the `config.json` beside `load_checkpoint` that need not agree with what the run computes;
        /// `model_type` exempts all keys.
        ignore_config_keys: Vec<String> = Host.optional().example("[rope_theta]"),
        /// Whether tensors of `load_checkpoint` for which the model has no place are left out, with a warning.
        load_partial: bool = Host.default(false),
        /// Whether to continue a run: `True` continues from the newest checkpoint of its folder, and the name of a
        /// checkpoint from that one. `auto` continues if there is a complete checkpoint and begins a new run otherwise,
        /// for schedulers that repeat one command. `extend` continues as `True` does, but accepts other epochs, steps
        /// and learning rates than those of the checkpoint: from there on the new schedule applies, and the count of
        /// `early_stopping_patience` starts again.
        resume_training: Resume = Host.optional().example("True"),
        /// Whether a run that completes saves a checkpoint of its last step, even without a `CheckpointMonitor` that
        /// writes others. A run that is interrupted always saves a checkpoint.
        save_final: bool = Host.default(true),
        /// Seed of the initial weights and of dropout, and of the data order and the sample if these have no seed of
        /// their own.
        seed: u64 = Numbers.default(0),
        /// Whether to evaluate during training.
        do_eval: bool = Host.default(false),
        /// Steps between evaluations; 0 or below: no evaluations by steps.
        eval_step_interval: i64 = Host.default(100),
        /// Largest number of micro-batches in an evaluation. Every evaluation uses the same ones.
        eval_batches: u64 = Host.default(16),
        /// Epochs between evaluations at the end of an epoch, in addition to those of `eval_step_interval`; 0 or below:
        /// no evaluations by epochs.
        eval_epoch_interval: i64 = Host.default(-1).example("2"),
        /// Whether a new run also evaluates the weights that it starts from, before its first step.
        eval_on_start: bool = Host.default(false),
        /// Whether the checkpoint with the lowest `eval_loss` is kept in addition to those that a `CheckpointMonitor`
        /// keeps. Each evaluation that is better than all before it writes a checkpoint, and other commands that are
        /// given the run use the best checkpoint instead of the newest.
        keep_best: bool = Host.default(false),
        /// Number of evaluations in a row, none of them better than the best by more than `min_delta`, after which the
        /// run ends; 0: no early stopping.
        early_stopping_patience: u64 = Host.default(0),
        /// Improvement over the best evaluation loss, in nats per token, that an evaluation must exceed to count as
        /// better for `early_stopping_patience`.
        min_delta: f64 = Host.default(0.0).within(FROM_ZERO),
        /// Matrices that are exempt from weight decay: regular expressions, found anywhere in a parameter's name.
        no_decay_params: Vec<String> = Numbers.optional().example("['down_proj']"),
        /// Whether the first gradient or loss that is not finite ends the run with an error; no weight changes from
        /// that step on. With an adaptive loss scale, the first overflow ends the run, too.
        check_for_nan_in_loss_and_grad: bool = Host.default(false),
        /// Whether the loss lines and event files show the parts of the loss, `lm_loss`, `load_balancing_loss` and
        /// `mtp_loss`, with the definitions of MindFormers: the balance loss is a mean over the layers, without its
        /// factor, and the loss of multi-token prediction includes its factor. True by default if a file says
        /// `use_legacy: False`, as in MindFormers. A model without experts and without multi-token prediction has only
        /// one part.
        print_separate_loss: Option<bool> = Host.optional().example("True"),
        /// Whether one rank does the work of all ranks that the file asks for: the degrees of `parallel_config` become
        /// 1, gradient accumulation keeps the number of windows in a step, and `context.max_device_memory` is not
        /// applied.
        as_single: bool = Host.default(false),
        /// Whether the run is spread over several ranks; see `parallel_config`.
        use_parallel: Option<bool> = Host.optional().example("True"),
        /// Micro-batches that MindFormers computes in turns to hide communication. If the degrees of `parallel_config`
        /// apply, and also with `as_single`, a step accumulates this many times as many micro-batches; otherwise the
        /// key is taken as 1.
        micro_batch_interleave_num: Option<u64> = Host.optional().within(COUNT).example("2"),
    }
    sections "trainer runner_config runner_wrapper optimizer lr_schedule grouped_lr_schedule train_dataset \
                train_dataset_task eval_dataset eval_dataset_task model moe_config recompute_config swap_config \
                monitor_config preference callbacks context parallel_config parallel sample metric tensorboard"
}

/// The key that names the files that a file extends.
pub(crate) const BASES: &str = "base_config";

/// `resume_training`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// A new run.
    #[default]
    No,
    /// From the newest checkpoint of the run folder.
    Latest,
    /// From the newest checkpoint if there is one, otherwise a new run.
    Auto,
    /// From the newest checkpoint, with another length or other rates.
    Extended,
    /// From the checkpoint of this name.
    Named(String),
}

impl Setting for Resume {
    fn kind() -> ValueKind {
        ValueKind::Form("True, False, auto, extend or the name of a checkpoint")
    }

    fn from_node(node: &Node) -> Option<Self> {
        match (bool::from_node(node), node) {
            (Some(true), _) => Some(Self::Latest),
            (Some(false), _) => Some(Self::No),
            (None, Node::Text(name)) if name.is_empty() => Some(Self::No),
            (None, Node::Text(word)) if word == "auto" => Some(Self::Auto),
            (None, Node::Text(word)) if word == "extend" => Some(Self::Extended),
            (None, Node::Text(name)) => Some(Self::Named(name.clone())),
            _ => None,
        }
    }

    fn to_node(&self) -> Option<Node> {
        match self {
            Self::No => None,
            Self::Latest => Some(true.into()),
            Self::Auto => Some("auto".into()),
            Self::Extended => Some("extend".into()),
            Self::Named(name) => Some(name.as_str().into()),
        }
    }
}

/// Reads the top level of `source`. A run without a name takes the name of the file.
pub(crate) fn read(source: &Source) -> Run {
    let reader = Reader::open(source, "", &[Run::ID]);
    let mut run = Run::read(&reader);
    if run.run_name.is_empty() {
        let stem = source.document.file().file_stem();
        run.run_name = stem.map_or("run".to_string(), |stem| stem.to_string_lossy().into_owned());
        check_folder_name(&reader, "run_name", &run.run_name);
    }
    let is_new_style = source.value("use_legacy") == Some(false);
    run.print_separate_loss = run.print_separate_loss.or(Some(is_new_style));
    run.base_config.clear(); // merged already
    if run.weights().is_none() {
        reader.ignore(&["ignore_config_keys", "load_partial"]);
    }
    run
}

impl Run {
    /// The run's own folder.
    pub fn folder(&self) -> PathBuf {
        self.output_dir.join(&self.run_name)
    }

    /// Weights to start from, if any.
    pub fn weights(&self) -> Option<&Path> {
        (!self.load_checkpoint.as_os_str().is_empty()).then_some(&self.load_checkpoint)
    }

    /// Steps between evaluations, if evaluations are due by steps.
    pub fn eval_interval(&self) -> Option<u64> {
        u64::try_from(self.eval_step_interval).ok().filter(|steps| self.do_eval && *steps > 0)
    }

    /// Whether the loss of an evaluation decides something in the run, which then waits for that loss.
    pub(crate) fn judges_evaluations(&self) -> bool {
        self.do_eval && (self.keep_best || self.early_stopping_patience > 0)
    }

    /// Whether the run ends after this many `evaluations` without a better one.
    pub(crate) fn stops_after(&self, evaluations: u64) -> bool {
        self.do_eval && (1..=evaluations).contains(&self.early_stopping_patience)
    }

    /// Epochs between evaluations, if evaluations are due by epochs.
    pub(crate) fn eval_epochs(&self) -> Option<u64> {
        u64::try_from(self.eval_epoch_interval).ok().filter(|epochs| self.do_eval && *epochs > 0)
    }
}

/// Notes keys about evaluation that have no effect, and checks the others. Files may have these keys even if nothing is
/// evaluated.
pub(crate) fn check_evaluation(source: &Source, run: &Run) {
    if !run.do_eval {
        let asked = [
            ("eval_on_start", run.eval_on_start),
            ("keep_best", run.keep_best),
            ("early_stopping_patience", run.early_stopping_patience > 0),
        ];
        for (key, _) in asked.iter().filter(|(_, is_asked)| *is_asked) {
            source.note(format!("{key}: nothing is evaluated, as `do_eval` is False"));
        }
        return;
    }
    if run.eval_step_interval <= 0 && run.eval_epoch_interval <= 0 {
        source.note("eval_step_interval: not above 0, so nothing is evaluated");
    }
    if run.eval_batches == 0 {
        source.fault("eval_batches", "expected a whole number above 0, found `0`");
    }
}

/// Reads the name, which must be that of one folder directly below `output_dir`.
fn folder_name(reader: &Reader<'_>, key: &'static str) -> Option<String> {
    let name: String = reader.convert(key, reader.node(key)?)?;
    check_folder_name(reader, key, &name).then_some(name)
}

fn check_folder_name(reader: &Reader<'_>, key: &str, name: &str) -> bool {
    let is_wrong = name.trim().is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\n']);
    if is_wrong {
        reader.fault(key, format!("expected the name of a folder, found `{}`", name.escape_debug()));
    }
    !is_wrong
}
