//! The sections `train_dataset` and `eval_dataset`.

mod documents;
mod loader;
mod paths;
mod tokenizer;

use super::document::Document;
use super::known_keys;
use super::section::{Notes, Section, closest};
use crate::data::DataConfig;
use crate::error::Result;

const TEXT: &str = "TextDataLoader";
const JSONL: &str = "JsonlDataLoader";
const TOKENS: &str = "TokenDataLoader";
const MEGATRON: &str = "BlendedMegatronDatasetDataLoader";
const CARGO: &str = "CargoRegistryDataLoader";

/// Loaders of the original whose data needs converting.
const ORIGINALS: [&str; 21] = [
    "MindDataset",
    "ADGenDataLoader",
    "HFDataLoader",
    "CommonDataLoader",
    "TFRecordDataset",
    "SFTDataLoader",
    "MultiTurnDataset",
    "ToolAlpacaDataLoader",
    "MultiSourceDataLoader",
    "BaseMultiModalDataLoader",
    "MultiImgCapDataLoader",
    "TrainingDataLoader",
    "WikiTextDataLoader",
    "WMT16DataLoader",
    "CLUENERDataLoader",
    "SQuADDataLoader",
    "Flickr8kDataLoader",
    "Cifar100DataLoader",
    "ImageFolderDataset",
    "MnliDataset",
    "GeneratorDataset",
];

/// Reads the data set `section` (`train_dataset`), or the one that its task (`train_dataset_task`) holds.
pub(super) fn read(document: &Document, section: &str, notes: &mut Notes) -> Result<DataConfig> {
    let task = format!("{section}_task");
    let of_task = format!("{task}.dataset_config");
    let kind_path = format!("{task}.type");
    if let Some(kind) = document.word(&kind_path).filter(|kind| *kind != "CausalLanguageModelDataset") {
        let message = format!("`{kind}` is not built yet; write `type: CausalLanguageModelDataset`");
        return Err(document.error(&kind_path, message));
    }
    Section::open(document, &task, &known_keys::TASK, notes)?;
    let (own, other) = (document.get(section), document.get(&of_task));
    let path = match (own, other) {
        (None, Some(_)) => of_task.as_str(),
        (Some(own), Some(other)) if own != other && !document.is_overridden(section) => {
            let message = format!("differs from `{section}`; write it once and refer to it by an anchor");
            return Err(document.error(&of_task, message));
        }
        _ => section,
    };
    read_at(document, path, notes)
}

fn read_at(document: &Document, path: &str, notes: &mut Notes) -> Result<DataConfig> {
    let loader_path = format!("{path}.data_loader");
    let kind_path = format!("{loader_path}.type");
    let Some(kind) = document.word(&kind_path) else {
        let message = format!(
            "`data_loader.type` is missing; write one of {TEXT}, {JSONL}, {TOKENS}, {MEGATRON}, {CARGO}"
        );
        return Err(document.error(path, message));
    };
    let keys = match kind {
        TEXT => &known_keys::TEXT_LOADER,
        JSONL => &known_keys::JSONL_LOADER,
        TOKENS => &known_keys::TOKEN_LOADER,
        MEGATRON => &known_keys::MEGATRON_LOADER,
        CARGO => &known_keys::CARGO_LOADER,
        _ => return Err(document.error(&kind_path, not_ours(kind))),
    };
    let section = Section::open(document, &loader_path, keys, notes)?;
    let shuffle = section.or("shuffle", true)?;
    let own = Section::open(document, path, &known_keys::DATASET, notes)?;
    let tokenizer = tokenizer::read(document, &own, notes)?;
    let rules = documents::read(document, &own)?;
    let (loader, seed, rules) = match kind {
        TEXT | JSONL => (loader::text(&section, kind == JSONL)?, None, rules),
        TOKENS => (loader::tokens(&section)?, None, rules),
        CARGO => (loader::cargo(&section)?, None, rules),
        _ => {
            let config_path = format!("{loader_path}.config");
            let config = Section::open(document, &config_path, &known_keys::MEGATRON, notes)?;
            documents::check_seq_length(document, &config)?;
            let seed = config.get("seed")?.or(config.get("random_seed")?);
            (loader::megatron(&section, &config)?, seed, documents::megatron(&config, rules)?)
        }
    };
    if tokenizer.is_some() && kind != MEGATRON && kind != TOKENS && section.node("eod_byte").is_some() {
        let message =
            "bytes are no tokens beside a `tokenizer`; remove it: `tokenizer.eos_token` ends documents";
        return Err(section.error("eod_byte", message));
    }
    let part = |share: f64| (0.0..1.0).contains(&share);
    let eval_fraction = own.number("eval_fraction", 0.0, "a share in [0, 1)", part)?;
    if kind == MEGATRON && eval_fraction > 0.0 {
        let message = "is `data_loader.config.split` for this loader: write `split: \"0.95, 0.05, 0\"`";
        return Err(own.error("eval_fraction", message));
    }
    let seed = match seed {
        None => own.get("seed")?,
        seed => seed,
    };
    Ok(DataConfig { loader, tokenizer, shuffle, seed, eval_fraction, documents: rules })
}

fn not_ours(kind: &str) -> String {
    let ours = [TEXT, JSONL, TOKENS, MEGATRON, CARGO];
    if let Some(name) = closest(kind, ours.into_iter()) {
        return format!("unknown type `{kind}`; did you mean `{name}`?");
    }
    let what = if ORIGINALS.contains(&kind) { "is not built" } else { "is no data loader" };
    format!("`{kind}` {what}; convert the data to text ({TEXT}) or to files of token ids ({TOKENS})")
}
