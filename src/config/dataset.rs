//! The sections `train_dataset` and `eval_dataset`.

use super::document::Document;
use super::known_keys;
use super::node::FromNode;
use super::section::{Notes, Section, closest};
use crate::data::{CargoRegistryConfig, DataConfig, Loader, TextConfig, TokenType, TokensConfig};
use crate::error::Result;

const TEXT: &str = "TextDataLoader";
const TOKENS: &str = "TokenDataLoader";
const CARGO: &str = "CargoRegistryDataLoader";
const DEFAULT_CARGO_BYTES: u64 = 8 << 20;

/// Loaders of the original whose data needs converting.
const ORIGINALS: [&str; 22] = [
    "MindDataset",
    "ADGenDataLoader",
    "BlendedMegatronDatasetDataLoader",
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
        let message = format!("`data_loader.type` is missing; write one of {TEXT}, {TOKENS}, {CARGO}");
        return Err(document.error(path, message));
    };
    let keys = match kind {
        TEXT => &known_keys::TEXT_LOADER,
        TOKENS => &known_keys::TOKEN_LOADER,
        CARGO => &known_keys::CARGO_LOADER,
        _ => return Err(document.error(&kind_path, not_ours(kind))),
    };
    let section = Section::open(document, &loader_path, keys, notes)?;
    let loader = match kind {
        TEXT => Loader::Text(TextConfig {
            paths: read_paths(&section)?,
            extensions: read_extensions(&section)?,
            max_bytes: match section.node("max_bytes") {
                None => None,
                Some(_) => Some(section.positive("max_bytes", 0)?),
            },
            eod_byte: read_byte(&section)?,
        }),
        TOKENS => Loader::Tokens(TokensConfig { paths: read_paths(&section)?, dtype: read_dtype(&section)? }),
        _ => Loader::CargoRegistry(CargoRegistryConfig {
            max_bytes: section.positive("max_bytes", DEFAULT_CARGO_BYTES)?,
            eod_byte: read_byte(&section)?,
        }),
    };
    let shuffle = section.or("shuffle", true)?;
    let section = Section::open(document, path, &known_keys::DATASET, notes)?;
    let part = |share: f64| (0.0..1.0).contains(&share);
    Ok(DataConfig {
        loader,
        shuffle,
        seed: section.get("seed")?,
        eval_fraction: section.number("eval_fraction", 0.0, "a share in [0, 1)", part)?,
    })
}

fn not_ours(kind: &str) -> String {
    let ours = [TEXT, TOKENS, CARGO];
    if let Some(name) = closest(kind, ours.into_iter()) {
        return format!("unknown type `{kind}`; did you mean `{name}`?");
    }
    let what = if ORIGINALS.contains(&kind) { "is not built" } else { "is no data loader" };
    format!("`{kind}` {what}; convert the data to text ({TEXT}) or to files of token ids ({TOKENS})")
}

/// `dataset_dir` and `dataset_files` together.
fn read_paths(section: &Section) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for key in ["dataset_dir", "dataset_files"] {
        let found: Vec<String> = section.or(key, Vec::new())?;
        if found.iter().any(String::is_empty) {
            return Err(section.error(key, "is empty; name a file, a folder or a pattern"));
        }
        paths.extend(found);
    }
    if paths.is_empty() {
        return Err(
            section.error("type", "needs `dataset_dir` or `dataset_files`: a file, a folder or a pattern")
        );
    }
    Ok(paths)
}

fn read_extensions(section: &Section) -> Result<Vec<String>> {
    let extensions: Vec<String> = section.or("extensions", Vec::new())?;
    Ok(extensions.into_iter().map(|one| one.trim_start_matches('.').to_string()).collect())
}

fn read_byte(section: &Section) -> Result<u8> {
    let value: u64 = section.or("eod_byte", 0)?;
    u8::try_from(value)
        .map_err(|_| section.error("eod_byte", format!("expected a byte, 0 to 255, found `{value}`")))
}

fn read_dtype(section: &Section) -> Result<TokenType> {
    let Some(node) = section.node("dtype") else { return Ok(TokenType::Auto) };
    let name = String::from_node(node).unwrap_or_default();
    let found = TokenType::NAMES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype);
    found.ok_or_else(|| section.error("dtype", format!("expected auto, uint16 or uint32, found {node}")))
}
