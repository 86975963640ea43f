//! The keys of each loader.

use super::paths;
use crate::config::node::{FromNode, Node};
use crate::config::section::Section;
use crate::data::{
    CargoRegistryConfig, DocumentFormat, Loader, MegatronConfig, TextConfig, TokenType, TokensConfig,
};
use crate::error::Result;

const DEFAULT_CARGO_BYTES: u64 = 8 << 20;

pub(super) fn text(section: &Section, is_jsonl: bool) -> Result<Loader> {
    let (paths, weights) = paths::read(section)?;
    let mut extensions: Vec<String> = section.or("extensions", Vec::new())?;
    extensions.iter_mut().for_each(|one| *one = one.trim_start_matches('.').to_string());
    // A folder of lines of JSON often holds other files, of which no line would parse.
    if is_jsonl && section.node("extensions").is_none() {
        extensions.push("jsonl".to_string());
    }
    Ok(Loader::Text(TextConfig {
        paths,
        weights,
        documents: if is_jsonl {
            DocumentFormat::Jsonl(section.or("text_key", "text".to_string())?)
        } else {
            choice(section, "documents", &DocumentFormat::NAMES, DocumentFormat::File)?
        },
        extensions,
        max_bytes: match section.node("max_bytes") {
            None => None,
            Some(_) => Some(section.positive("max_bytes", 0)?),
        },
        eod_byte: byte(section)?,
    }))
}

pub(super) fn tokens(section: &Section) -> Result<Loader> {
    let (paths, weights) = paths::read(section)?;
    let dtype = choice(section, "dtype", &TokenType::NAMES, TokenType::Auto)?;
    Ok(Loader::Tokens(TokensConfig { paths, weights, dtype }))
}

pub(super) fn cargo(section: &Section) -> Result<Loader> {
    let max_bytes = section.positive("max_bytes", DEFAULT_CARGO_BYTES)?;
    Ok(Loader::CargoRegistry(CargoRegistryConfig { max_bytes, eod_byte: byte(section)? }))
}

/// `section` is the loader's, `config` the one of that name in it.
pub(super) fn megatron(section: &Section, config: &Section) -> Result<Loader> {
    let Some((prefixes, weights)) = paths::blend(config)? else {
        let message = "needs `config.data_path`: weights and paths by turns, each path that of a .bin and an .idx file without these endings";
        return Err(section.error("type", message));
    };
    let sizes: Vec<u64> = section.or("sizes", Vec::new())?;
    if sizes.len() > 3 {
        let message =
            format!("expected samples to train, evaluate and test on, found {} numbers", sizes.len());
        return Err(section.error("sizes", message));
    }
    let size = |index: usize| sizes.get(index).copied().unwrap_or(0);
    Ok(Loader::Megatron(MegatronConfig {
        prefixes,
        weights,
        split: split(config)?,
        sizes: [size(0), size(1)],
    }))
}

/// `split`: one to three shares as text or a list, of which only the proportions matter.
fn split(config: &Section) -> Result<[f64; 3]> {
    let Some(node) = config.node("split") else { return Ok([1.0, 0.0, 0.0]) };
    let shares: Option<Vec<f64>> = match node {
        Node::Text(text) => text.split(',').map(|share| share.trim().parse().ok()).collect(),
        node => Vec::from_node(node),
    };
    let fits = |shares: &Vec<f64>| {
        shares.len() <= 3 && shares.iter().all(|share| share.is_finite() && *share >= 0.0) && shares[0] > 0.0
    };
    let Some(mut shares) = shares.filter(|shares| !shares.is_empty() && fits(shares)) else {
        let message = "expected the shares to train, evaluate and test on, such as \"0.9, 0.1, 0\"";
        return Err(config.error("split", format!("{message}, found {node}")));
    };
    shares.resize(3, 0.0);
    let sum: f64 = shares.iter().sum();
    Ok([shares[0] / sum, shares[1] / sum, shares[2] / sum])
}

fn byte(section: &Section) -> Result<u8> {
    let value: u64 = section.or("eod_byte", 0)?;
    u8::try_from(value)
        .map_err(|_| section.error("eod_byte", format!("expected a byte, 0 to 255, found `{value}`")))
}

/// One of a few words.
fn choice<T: Clone>(section: &Section, key: &str, names: &[(&str, T)], default: T) -> Result<T> {
    let Some(node) = section.node(key) else { return Ok(default) };
    let found = node.word().and_then(|word| names.iter().find(|(name, _)| *name == word));
    found.map(|(_, value)| value.clone()).ok_or_else(|| {
        let (last, others) = names.split_last().map_or(("", Vec::new()), |((last, _), others)| {
            (*last, others.iter().map(|(name, _)| *name).collect())
        });
        section.error(key, format!("expected {} or {last}, found {node}", others.join(", ")))
    })
}
