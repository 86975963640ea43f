//! Tensors of a file that a model has no place for.

use super::weight_faults::remedy_of_unplaced;
use super::weight_files::{HEAD, WeightFiles};
use super::wrapped;
use crate::error::{Error, Result};
use crate::hugging_face::config_json;
use std::collections::HashSet;
use std::path::Path;

/// The parts of a layer that make keys and values, which transformers passes over where a layer reads those of another.
const OF_KEYS: [&str; 4] =
    [".self_attn.k_proj.", ".self_attn.v_proj.", ".self_attn.k_norm.", ".self_attn.v_norm."];

/// Checks that each tensor of `file`, which was found at `weights`, is one of `known`, the names of the model's tensors.
/// These need no place: tables that follow from a model's shape, layers of multi-token prediction that the class of the
/// file leaves out, keys and values of layers that read those of others, and other towers, all of which the log names,
/// and a head that repeats the `embedding`.
///
/// # Errors
/// A tensor without a place, unless the weights are `is_partial`, so that such tensors are left out with a warning.
pub(super) fn check(
    file: &WeightFiles,
    known: &HashSet<String>,
    embedding: Option<&str>,
    weights: &Path,
    is_partial: bool,
) -> Result<()> {
    let towers = file.towers();
    if !towers.is_empty() {
        let path = file.path().display();
        tracing::info!(
            "{path}: the language model alone is read; tensors of other towers are left: {towers}"
        );
    }
    let further = config_json::further_layers(weights);
    let is_further = |name: &str| {
        let is_apart = AHEAD.iter().any(|start| name.starts_with(start)) && further.is_some();
        is_apart || layer_of(name).zip(further).is_some_and(|(layer, first)| layer >= first)
    };
    let readers = config_json::first_kv_reader(weights);
    let is_unread = |name: &str| {
        let name = wrapped::alone(name);
        let is_of_reader = layer_of(&name).zip(readers).is_some_and(|(layer, first)| layer >= first);
        is_of_reader && OF_KEYS.iter().any(|part| name.contains(part))
    };
    let mut unplaced = file.unknown(known);
    for (what, is_left) in [
        ("layers of multi-token prediction", &is_further as &dyn Fn(&str) -> bool),
        ("keys and values of layers that read those of others", &is_unread),
    ] {
        let all = unplaced.len();
        unplaced.retain(|name| !is_left(name));
        if unplaced.len() < all {
            let (path, count) = (file.path().display(), all - unplaced.len());
            tracing::info!("{path}: {count} tensors of {what} are left, as by transformers");
        }
    }
    unplaced.retain(|name| !is_repeated(file, name, embedding));
    let Some(first) = unplaced.first() else { return Ok(()) };
    let (path, count) = (file.path(), unplaced.len());
    if is_partial {
        let path = path.display();
        tracing::warn!(
            "{path}: {count} of its tensors are not in this model and are ignored, `{first}` among them"
        );
        return Ok(());
    }
    let what = format!("{count} of its tensors have no place in this model, `{first}` among them");
    Err(Error::file(path, format!("{what}; {}", remedy_of_unplaced(&unplaced))))
}

/// Where files of Qwen3-Next and Qwen3.5, and of ERNIE 4.5, have their layers of multi-token prediction.
const AHEAD: [&str; 3] = ["mtp.", "model.mtp.", "model.mtp_"];

/// Whether `name` is the head and equals the `embedding` bit for bit.
fn is_repeated(file: &WeightFiles, name: &str, embedding: Option<&str>) -> bool {
    let Some(embedding) = embedding.filter(|_| file.stored(HEAD) == Some(name)) else {
        return false;
    };
    let same_type = file.info(name).and_then(|head| Ok(head.dtype == file.info(embedding)?.dtype));
    let same = || file.bytes(name).and_then(|head| Ok(head == file.bytes(embedding)?));
    same_type.unwrap_or(false) && same().unwrap_or(false)
}

/// The number of the layer in the name of a tensor, under Llama's names.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}
