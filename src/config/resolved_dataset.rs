//! A data set written out with every value in place.

use super::node::Node;
use super::resolved::Entries;
use crate::data::{DataConfig, DocumentFormat, DocumentRules, Loader, MegatronConfig, TextConfig, TokenType};

/// The section that reads back as `data`.
pub(super) fn entries(data: &DataConfig) -> Entries {
    let mut loader = match &data.loader {
        Loader::Text(config) => text(config, data.tokenizer.is_some()),
        Loader::Tokens(config) => {
            let mut entries = Entries::of([("type", "TokenDataLoader".into())]);
            set_paths(&mut entries, &config.paths, &config.weights);
            entries.some("dtype", name(&TokenType::NAMES, &config.dtype));
            entries
        }
        Loader::Megatron(config) => megatron(config, &data.documents),
        Loader::CargoRegistry(config) => {
            let mut entries = Entries::of([
                ("type", "CargoRegistryDataLoader".into()),
                ("max_bytes", config.max_bytes.into()),
            ]);
            set_eod_byte(&mut entries, config.eod_byte, data.tokenizer.is_some());
            entries
        }
    };
    loader.set("shuffle", data.shuffle);
    let mut entries = Entries::of([("data_loader", loader.into())]);
    if let Some(tokenizer) = &data.tokenizer {
        let tokenizer = Entries::of([
            ("tokenizer_file", tokenizer.file.display().to_string().into()),
            ("eos_token", tokenizer.eos_token.as_str().into()),
        ]);
        entries.set("tokenizer", tokenizer);
    }
    entries.some("seed", data.seed);
    if !matches!(data.loader, Loader::Megatron(_)) {
        entries.set("eval_fraction", data.eval_fraction);
    }
    let rules = &data.documents;
    entries.some("eod_token_id", rules.eod.map(u64::from));
    set_rules(&mut entries, rules);
    entries
}

fn text(config: &TextConfig, has_tokenizer: bool) -> Entries {
    let mut entries = Entries::default();
    match &config.documents {
        DocumentFormat::Jsonl(key) => {
            entries.set("type", "JsonlDataLoader");
            entries.set("text_key", key.as_str());
        }
        documents => {
            entries.set("type", "TextDataLoader");
            entries.some("documents", name(&DocumentFormat::NAMES, documents));
        }
    }
    set_paths(&mut entries, &config.paths, &config.weights);
    entries.set("extensions", list(&config.extensions));
    entries.some("max_bytes", config.max_bytes);
    set_eod_byte(&mut entries, config.eod_byte, has_tokenizer);
    entries
}

fn megatron(config: &MegatronConfig, rules: &DocumentRules) -> Entries {
    let mut inner = Entries::of([
        ("data_path", blend(&config.prefixes, &config.weights)),
        ("split", Node::List(config.split.iter().map(|share| (*share).into()).collect())),
    ]);
    inner.some("pad", rules.pad.map(u64::from));
    let sizes = config.sizes.iter().chain([&0]).map(|size| (*size).into()).collect();
    Entries::of([
        ("type", "BlendedMegatronDatasetDataLoader".into()),
        ("datasets_type", "GPTDataset".into()),
        ("sizes", Node::List(sizes)),
        ("config", inner.into()),
    ])
}

fn set_rules(entries: &mut Entries, rules: &DocumentRules) {
    entries.set("reset_position_ids", rules.resets_positions);
    entries.set("reset_attention_mask", rules.isolates_documents);
    entries.set("eod_mask_loss", rules.masks_eod_loss);
}

fn set_paths(entries: &mut Entries, paths: &[String], weights: &[f64]) {
    if weights.is_empty() {
        entries.set("dataset_files", list(paths));
    } else {
        entries.set("data_path", blend(paths, weights));
    }
}

/// Bytes end no documents beside a tokenizer.
fn set_eod_byte(entries: &mut Entries, eod: u8, has_tokenizer: bool) {
    if !has_tokenizer {
        entries.set("eod_byte", u64::from(eod));
    }
}

/// One path, or weights and paths by turns.
fn blend(paths: &[String], weights: &[f64]) -> Node {
    if weights.is_empty() {
        return list(paths);
    }
    let pairs = weights.iter().zip(paths).flat_map(|(weight, path)| [(*weight).into(), path.as_str().into()]);
    Node::List(pairs.collect())
}

fn list(texts: &[String]) -> Node {
    Node::List(texts.iter().map(|text| text.as_str().into()).collect())
}

fn name<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> Option<&'static str> {
    names.iter().find(|(_, known)| known == value).map(|(name, _)| *name)
}
