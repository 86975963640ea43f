//! The keys at the top level of a file, those about evaluation among them.

use crate::settings::engine::*;
use std::path::{Path, PathBuf};

rows! {
    /// The top level: the run's name and seed, where it starts, when it evaluates.
    pub struct Run in "" {
        /// Files that this one builds on, relative to it: their keys count where it is silent. Sections are merged
        /// key by key with those of a base; of several bases the last that has a top-level key gives all of it.
        base_config: Vec<PathBuf> = Host.optional().example("./base.yaml"),
        /// Name of the run and of its folder below `output_dir`; by default the name of the file.
        run_name: String = Host.optional().read_by(folder_name).example("trial"),
        /// Folder in which run folders are made.
        output_dir: PathBuf = Host.default("./output".into()).example("./runs"),
        /// Weights that the run starts from: a safetensors file, the index of several, or a folder with either, in
        /// floats of 16, 32 or 64 bits or in FP8 with the scales of blocks. A run stands for its best checkpoint or
        /// else its newest, an adapter for its base. A run of adapters that resumes looks here for its base if that
        /// was moved. Where the sizes of the model are not written, the `config.json` there supplies them and every
        /// other key of the model that is not written, and the `tokenizer.json` there reads data sets that name no
        /// tokenizer.
        load_checkpoint: PathBuf = Host.optional().example("./weights"),
        /// Keys of the `config.json` beside `load_checkpoint` that need not say what the run computes; `model_type`:
        /// none of them.
        ignore_config_keys: Vec<String> = Host.optional().example("[rope_theta]"),
        /// Whether tensors of `load_checkpoint` that the model has no place for are left out, with a warning.
        load_partial: bool = Host.default(false),
        /// Whether to continue a run: `True` from the newest checkpoint of its folder, or that checkpoint's name.
        /// `auto` continues where there is a complete checkpoint and begins a new run otherwise, for schedulers that
        /// repeat one command. `extend` continues as `True` does, and other epochs, steps and rates than the
        /// checkpoint's count from there on: the schedule is the new one, and evaluations without a better one are
        /// counted anew.
        resume_training: Resume = Host.optional().example("True"),
        /// Whether a run that is complete saves a checkpoint of its last step, also where no `CheckpointMonitor`
        /// writes others. One that is interrupted always does.
        save_final: bool = Host.default(true),
        /// Seed of the initial weights, of dropout and, where they have none of their own, of data order and sample.
        seed: u64 = Numbers.default(0),
        /// Whether to evaluate during training.
        do_eval: bool = Host.default(false),
        /// Steps between evaluations, unless it is 0 or below.
        eval_step_interval: i64 = Host.default(100),
        /// Micro-batches of an evaluation at most, always the same ones.
        eval_batches: u64 = Host.default(16),
        /// Epochs between evaluations at their ends, beside those by steps, unless it is 0 or below.
        eval_epoch_interval: i64 = Host.default(-1).example("2"),
        /// Whether a new run evaluates before its first step, too: the weights that it starts from.
        eval_on_start: bool = Host.default(false),
        /// Whether the checkpoint with the lowest `eval_loss` is kept beside those that a `CheckpointMonitor` keeps.
        /// Each evaluation that is better than all before has one, and other commands that are given the run take the
        /// best instead of the newest.
        keep_best: bool = Host.default(false),
        /// The run ends after so many evaluations in a row that are not better than the best one by more than
        /// `min_delta`; 0: it does not.
        early_stopping_patience: u64 = Host.default(0),
        /// What an evaluation must be better by, in nats per token, to count as better for `early_stopping_patience`.
        min_delta: f64 = Host.default(0.0).within(FROM_ZERO),
        /// Patterns of matrices without weight decay: regular expressions, found anywhere in a parameter's name.
        no_decay_params: Vec<String> = Numbers.optional().example("['down_proj']"),
        /// Whether the first gradient or loss that is not finite ends the run with an error; no weight changes from
        /// that step on. Under a loss scale that adapts, too, the first overflow does.
        check_for_nan_in_loss_and_grad: bool = Host.default(false),
        /// Whether the loss lines and event files show the parts of the loss, `lm_loss`, `load_balancing_loss` and
        /// `mtp_loss`, as MindFormers prints them: the balance loss without its factor and per layer, that of
        /// multi-token prediction with its factor. By default as there: where a file says `use_legacy: False`. A
        /// model without experts and such prediction has one part.
        print_separate_loss: Option<bool> = Host.optional().example("True"),
        /// Whether one rank does the work of all that the file asks for: degrees of `parallel_config` become 1, the
        /// windows of a step are kept by accumulation, and `context.max_device_memory` is not applied.
        as_single: bool = Host.default(false),
        /// Whether the run is spread over several ranks; see `parallel_config`.
        use_parallel: Option<bool> = Host.optional().example("True"),
        /// Micro-batches that MindFormers computes in turns to hide communication. Where degrees of `parallel_config`
        /// count, and by `as_single`, so many times more are accumulated; elsewhere taken as 1.
        micro_batch_interleave_num: Option<u64> = Host.optional().within(COUNT).example("2"),
    }
    sections "trainer runner_config runner_wrapper optimizer lr_schedule grouped_lr_schedule train_dataset \
                train_dataset_task eval_dataset eval_dataset_task model moe_config recompute_config swap_config \
                monitor_config callbacks context parallel_config parallel sample metric tensorboard"
}

/// The key that names the files a file builds on.
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

/// Reads the top level of `source`; a run without a name has that of the file.
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

    /// Steps between evaluations, if there are any by steps.
    pub fn eval_interval(&self) -> Option<u64> {
        u64::try_from(self.eval_step_interval).ok().filter(|steps| self.do_eval && *steps > 0)
    }

    /// Whether the run decides something by the loss of an evaluation. It then waits for that loss.
    pub(crate) fn judges_evaluations(&self) -> bool {
        self.do_eval && (self.keep_best || self.early_stopping_patience > 0)
    }

    /// Whether the run ends after this many `evaluations` without a better one.
    pub(crate) fn stops_after(&self, evaluations: u64) -> bool {
        self.do_eval && (1..=evaluations).contains(&self.early_stopping_patience)
    }

    /// Epochs between evaluations, if there are any by epochs.
    pub(crate) fn eval_epochs(&self) -> Option<u64> {
        u64::try_from(self.eval_epoch_interval).ok().filter(|epochs| self.do_eval && *epochs > 0)
    }
}

/// Notes keys about evaluation that have no effect, and checks the others. Files have these keys even if nothing is
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

/// Reads the name, which becomes one folder below output_dir, and nothing else.
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
