//! `train_dataset` and `eval_dataset`: where the tokens come from and how they are split into batches.

mod load;
mod loader;
mod megatron;
mod paths;
mod records;
mod replaced;
mod rows;

pub use loader::Loader;
pub(crate) use loader::LoaderType;
pub use megatron::Megatron;
use paths::FORMATS;
pub(crate) use replaced::drop_replaced;
pub use rows::{DatasetKeys, Tokenizer};

use crate::data::{Form, PackStrategy};
use crate::settings::engine::*;
use crate::settings::sections::run::Run;
use std::path::Path;

/// A data set: its own keys, and the keys of its loader.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dataset {
    /// The keys of the data set itself.
    pub keys: DatasetKeys,
    /// `data_loader`.
    pub loader: Loader,
    /// `data_loader.config` of Megatron's loader.
    pub megatron: Option<Megatron>,
    /// Whether its records are pairs of answers: a run with `preference`.
    pub has_pairs: bool,
}

/// The section of the class around a data set.
const TASK_TABLE: TableId = TableId::of("train_dataset_task");
const TASK: &str = "CausalLanguageModelDataset";
/// Classes whose data sets are read. The samples that they form follow from the loader.
const TASKS: &str = "CausalLanguageModelDataset KeyWordGenDataset MultiTurnDataset SFTDataset";

/// Reads the data set `section` (`train_dataset`), or the data set that its task (`train_dataset_task`) holds; `None`
/// after a fault that leaves nothing to check.
pub(crate) fn read(source: &Source, section: &str) -> Option<Dataset> {
    let task = format!("{section}_task");
    Reader::open(source, &task, &[TASK_TABLE]);
    let reader = Reader::open(source, section, &[DatasetKeys::ID]);
    let keys = DatasetKeys::read(&reader);
    check_task(source, &task, section);
    let (of_loader, loader, megatron) = loader::read(source, section)?;
    let mut dataset = Dataset { keys, loader, megatron, has_pairs: false };
    dataset.fill(&reader, &of_loader);
    Some(dataset)
}

/// Reads `eval_dataset`. Files of MindFormers carry an `eval_dataset` that `do_eval: False` leaves unused; this program
/// leaves it unused, too.
pub(crate) fn read_eval(source: &Source, run: &Run, train: Option<&Dataset>) -> Option<Dataset> {
    let is_there = ["eval_dataset", "eval_dataset_task"].iter().any(|path| source.node(path).is_some());
    if !run.do_eval {
        if is_there {
            source.note("eval_dataset: unused, as `do_eval` is False");
        }
        return None;
    }
    let keeps_evaluation = train.is_some_and(Dataset::keeps_evaluation);
    if is_there {
        let eval = read(source, "eval_dataset")?;
        let kept =
            [("eval_fraction", eval.keys.eval_fraction > 0.0), ("eval_samples", eval.keys.eval_samples > 0)];
        for (key, _) in kept.iter().filter(|(_, is_kept)| *is_kept) {
            let message = "belongs under `train_dataset`; an eval_dataset is used whole";
            source.fault(&join("eval_dataset", key), message);
        }
        if keeps_evaluation {
            source.note(
                "train_dataset.eval_fraction: kept out of training, though eval_dataset is what is evaluated",
            );
        }
        return Some(eval);
    }
    if let Some(train) = train.filter(|_| !keeps_evaluation && source.is_sound("train_dataset")) {
        let message = match train.megatron {
            Some(_) => {
                "needs data: write `split: \"0.95, 0.05, 0\"` under the loader's `config`, or an eval_dataset"
            }
            None => "needs data: write `eval_fraction: 0.05` under train_dataset, or an eval_dataset",
        };
        source.fault("do_eval", message);
    }
    None
}

impl Dataset {
    /// The sections of the data set and their places, below `path`; `decides` says whether they count when a run
    /// resumes.
    pub(crate) fn placed(&self, path: &str, decides: bool) -> Vec<Placed> {
        let mut placed = vec![self.keys.placed(path), self.loader.placed(format!("{path}.data_loader"))];
        let megatron = self.megatron.as_ref();
        placed.extend(megatron.map(|megatron| megatron.placed(format!("{path}.data_loader.config"))));
        placed.iter_mut().for_each(|section| section.decides = decides);
        placed
    }

    /// Makes pairs of answers of the records, for a run with `preference`; reports a loader at `path` that has none.
    pub(crate) fn learn_pairs(&mut self, source: &Source, path: &str) {
        self.has_pairs = true;
        let loader = join(path, "data_loader");
        if self.loader.kind != LoaderType::Chat && self.loader.kind != LoaderType::Memory {
            let message =
                format!("`preference` learns from pairs of answers; write `{}`", LoaderType::Chat.word());
            source.fault(&join(&loader, "type"), message);
        } else if self.loader.packing() == Some(PackStrategy::Truncate) {
            source.fault(
                &join(&loader, "packing"),
                "would divide pairs of answers; write `best_fit` or `pack`",
            );
        }
    }

    /// How a record becomes a sample, or two.
    pub(super) fn form(&self) -> Form {
        match self.loader.form(&self.keys) {
            Form::Chat(form) if self.has_pairs => Form::Preference(form),
            form => form,
        }
    }

    /// Moves the settings for documents of Megatron's loader to the data set's own keys, and checks that keys fit
    /// together.
    fn fill(&mut self, reader: &Reader<'_>, of_loader: &Reader<'_>) {
        if self.keys.eval_samples > 0 && !self.loader.has_records() {
            reader.fault("eval_samples", "counts samples of loaders of records; write `eval_fraction: 0.05`");
        } else if self.keys.eval_samples > 0 && self.keys.eval_fraction > 0.0 {
            reader.fault("eval_samples", "stands beside `eval_fraction`; keep one of them");
        }
        if self.loader.kind == LoaderType::Memory {
            let keys = &self.keys;
            let of_files = [("eval_fraction", keys.eval_fraction > 0.0), ("seed", keys.seed.is_some())];
            for (key, _) in of_files.into_iter().filter(|(_, is_written)| *is_written) {
                reader.fault(key, "is of data that are read from files; batches in memory are made with what they need: remove it");
            }
        }
        if let Some(megatron) = &mut self.megatron {
            if self.keys.eval_fraction > 0.0 {
                let message =
                    "is `data_loader.config.split` for this loader: write `split: \"0.95, 0.05, 0\"`";
                reader.fault("eval_fraction", message);
            }
            let keys = &mut self.keys;
            keys.eod_token_id = megatron.eod.take().filter(|id| *id >= 0).or(keys.eod_token_id);
            keys.seed = megatron.seed.take().or(keys.seed);
            keys.reset_position_ids |= std::mem::take(&mut megatron.reset_position_ids);
            keys.reset_attention_mask |= std::mem::take(&mut megatron.reset_attention_mask)
                | std::mem::take(&mut megatron.create_compressed_eod_mask);
            keys.eod_mask_loss |= std::mem::take(&mut megatron.eod_mask_loss);
            megatron.pad = megatron.pad.filter(|id| *id >= 0);
            megatron.seq_length = None;
        }
        self.keys.eod_token_id = self.keys.eod_token_id.filter(|id| *id >= 0);
        self.fill_columns(reader);
        if self.loader.kind != LoaderType::Prompts {
            reader.ignore(&["max_source_length", "max_target_length"]);
            (self.keys.max_source_length, self.keys.max_target_length) = (None, None);
        }
        if self.keys.tokenizer.is_some() && of_loader.has("eod_byte") && self.loader.eod_byte.is_some() {
            let message =
                "bytes are no tokens beside a `tokenizer`; remove it: `tokenizer.eos_token` ends documents";
            of_loader.fault("eod_byte", message);
        }
        if self.keys.tokenizer.is_some() {
            self.loader.eod_byte = None;
        }
    }

    /// Fills in the defaults of the keys that only MindDataset reads; other loaders have no columns.
    fn fill_columns(&mut self, reader: &Reader<'_>) {
        let keys = &mut self.keys;
        if self.loader.kind != LoaderType::MindRecord {
            reader.ignore(&["input_columns", "pad_token_id"]);
            (keys.input_columns, keys.pad_token_id) = (None, None);
            return;
        }
        keys.input_columns.get_or_insert_with(|| vec!["input_ids".to_string()]);
        let of_model = || reader.source.node("model.model_config.pad_token_id").and_then(i64::from_node);
        keys.pad_token_id = Some(keys.pad_token_id.or_else(of_model).unwrap_or(0).max(-1));
    }
}

impl Dataset {
    /// The files that the data set reads, if they exist and each is named by itself. For folders, patterns, pairs of
    /// files and registries, only a search tells which files these are.
    pub(crate) fn named_files(&self) -> Option<Vec<&Path>> {
        let Loader { dataset_dir, dataset_files, data_path, path, data_files, chat_template, .. } =
            &self.loader;
        let of_megatron = self.megatron.iter().flat_map(|megatron| &megatron.data_path.paths);
        let lists = [dataset_dir, dataset_files, data_files, &data_path.paths].into_iter().flatten();
        let single = Some(path).filter(|path| !path.is_empty() && !FORMATS.contains(&path.as_str()));
        let data: Vec<&String> = lists.chain(single).chain(of_megatron).collect();
        let is_named = |path: &&String| !path.contains(['*', '?', '[']) && Path::new(path).is_file();
        let is_sure =
            !data.is_empty() && data.iter().chain(&chat_template.iter().collect::<Vec<_>>()).all(is_named);
        is_sure.then(|| data.into_iter().chain(chat_template).map(Path::new).collect())
    }

    /// Clears the paths of the data set's files, which may differ between machines. The content of the files has a
    /// fingerprint.
    pub(crate) fn forget_paths(&mut self) {
        let Loader { dataset_dir, dataset_files, data_path, path, data_files, chat_template, .. } =
            &mut self.loader;
        [dataset_dir, dataset_files, data_files].into_iter().for_each(Vec::clear);
        let of_megatron = self.megatron.as_mut().map(|Megatron { data_path, .. }| data_path);
        let blends = [data_path].into_iter().chain(of_megatron);
        blends.flat_map(|blend| &mut blend.paths).for_each(String::clear);
        let tokenizer = self.keys.tokenizer.as_mut().map(|Tokenizer { tokenizer_file, .. }| tokenizer_file);
        [path].into_iter().chain(chat_template).chain(tokenizer).for_each(String::clear);
    }
}

/// A task of another class than the one that is built keeps the data from loading, unless the loader is one that is not
/// built and does so already.
fn check_task(source: &Source, task: &str, dataset: &str) {
    let path = format!("{task}.type");
    let Some(node) = source.node(&path) else { return };
    let word = node.word().unwrap_or_default();
    if source.plans(TASK_TABLE, word) {
        if !loader::is_planned(source, dataset) {
            source.data_fault(&path, format!("`{word}` is not built; write `type: {TASK}`"));
        }
    } else if !words(TASKS).any(|task| task == word) {
        source.fault(&path, unknown_type(word, words(TASKS)));
    }
}

impl Setting for Tokenizer {
    fn kind() -> ValueKind {
        ValueKind::Form("a path or a section with `tokenizer_file`")
    }

    fn to_node(&self) -> Option<Node> {
        Some(self.written())
    }

    /// The file may move. The tokens that it makes of the text are in the fingerprint of the data.
    fn to_decision(&self) -> Option<Node> {
        self.eos_token.to_node()
    }
}
