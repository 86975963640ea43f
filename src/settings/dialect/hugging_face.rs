//! A folder of Hugging Face in place of a model's keys: its `config.json` supplies the shape, and its tokenizer reads
//! the data.
//!
//! A configuration that leaves out a size that every model has takes from the folder all keys that it does not write. A
//! configuration that writes these sizes, such as the `config.yaml` of a run folder, does not need the folder.

#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::hugging_face::config_json::{Fact, Shape};
use crate::hugging_face::refuse_name_of_hub;
use crate::hugging_face::tokenizer::TokenizerFiles;
use crate::settings::engine::*;
use crate::settings::sections::model::{DEEPSEEK_V3, Model, ModelType, PATH as MODEL};
use crate::settings::sections::moe::{Moe, PATH as MOE};
use serde_json::Value;
use std::path::{Path, PathBuf};

rows! {
    /// A folder that takes the place of a model's keys.
    pub struct FolderForms in "" forms {
        /// A folder of Hugging Face whose `config.json` and tokenizer are used as if they were beside
        /// `load_checkpoint`; its weights are not used.
        pretrained_model_dir: PathBuf = Host.optional().example("./Qwen2.5-0.5B"),
    }
}

/// The keys that name a folder: for the shape alone, or for the weights too.
const FOLDERS: [&str; 2] = ["pretrained_model_dir", "load_checkpoint"];
/// The sizes that every model has.
const SIZES: [&str; 4] = ["vocab_size", "hidden_size", "num_layers", "num_heads"];
/// The keys whose values follow from the widths of latent attention.
const NOT_OF_LATENT: [&str; 3] = ["use_qk_norm", "rotary_percent", "head_dim"];
/// The key of a file for the length of the longest text.
const LENGTH: &str = "max_position_embeddings";

/// Writes the values of the folder under the keys that are read, if these are not written. When the run starts, the
/// folder's values are compared with those that follow from all keys.
pub(crate) fn translate(source: &mut Source) {
    FolderForms::read(&Reader::unchecked(source, ""));
    let folder_at = |key: &&str| source.node(key).is_some_and(|node| !node.is_off());
    let Some(key) = FOLDERS.into_iter().find(folder_at) else { return };
    let lacks_size = SIZES.iter().any(|key| source.node(&join(MODEL, key)).is_none());
    let Some(folder) = source.node(key).and_then(PathBuf::from_node) else { return };
    if key == FOLDERS[1] && !lacks_size {
        return replace_missing_tokenizer(source, &folder);
    }
    match described(source, &folder, key) {
        Ok(true) => drop(source.document.take(FOLDERS[0])),
        Ok(false) => {}
        Err(error) => source.fault(key, error),
    }
}

/// Writes the shape and the tokenizer of `folder`, which the key `origin` names, into `source` if the folder has a
/// `config.json`. Returns whether it has one.
fn described(source: &mut Source, folder: &Path, origin: &str) -> Result<bool> {
    let length = source.node(&join(MODEL, "seq_length")).and_then(usize::from_node);
    let ignored = source.node("ignore_config_keys").and_then(Vec::<String>::from_node).unwrap_or_default();
    let Some(shape) = Shape::of(folder, length, &ignored)? else {
        refuse_name_of_hub(folder)?;
        let message = "has no config.json; name a folder of Hugging Face's";
        return if origin == FOLDERS[0] { Err(Error::file(folder, message)) } else { Ok(false) };
    };
    write_shape(source, &shape, origin);
    write_tokenizer(source, folder, origin)?;
    Ok(true)
}

fn write_shape(source: &mut Source, shape: &Shape, origin: &str) {
    let is_latent = shape.value("kv_lora_rank").is_some();
    let written = source.node(&join(MODEL, "type")).and_then(ModelType::from_node);
    let named = shape.value("type").and_then(Value::as_str).and_then(ModelType::named);
    let kind = if is_latent { ModelType::named(DEEPSEEK_V3) } else { named };
    let Some(kind) = written.or(kind) else { return };
    // A message names a key of the file as a key in the folder.
    let mut put = |path: String, node: Node, key: &str| {
        if source.node(&path).is_none() {
            source.document.put(&path, node, &join(origin, key));
        }
    };
    put(join(MODEL, "type"), kind.word().into(), "model_type");
    let reads = |key: &str| Model::table().row(key).is_some_and(|row| kind.reads_row(row));
    let is_mixture = shape.value("expert_num").is_some();
    for (fact, Fact { key: theirs, value }) in &shape.facts {
        let key = if *fact == "scoring_func" { "use_gating_sigmoid" } else { fact };
        let Some(node) = node_of(value) else { continue };
        if reads(key) && !(is_latent && NOT_OF_LATENT.contains(&key)) {
            put(join(MODEL, key), node, theirs);
        } else if is_mixture && Moe::table().row(key).is_some() {
            put(join(MOE, key), node, theirs);
        }
    }
    if is_mixture {
        // Experts of Hugging Face's classes take every token that chose them, and their bias moves only in the first
        // training.
        put(join(MOE, "use_gmm"), true.into(), "num_experts");
        if shape.value("moe_shared_expert_intermediate_size").is_none() {
            put(join(MOE, "shared_expert_num"), 0_usize.into(), "n_shared_experts");
        }
        if shape.value("balance_via_topk_bias") == Some(&Value::Bool(true)) {
            put(join(MOE, "topk_bias_update_rate"), 0.0.into(), "topk_method");
        }
    }
    put(join(MODEL, "seq_length"), shape.length.into(), LENGTH);
    // A window that the configuration writes may be longer than the model is made for.
    if let Some(longest) = shape.longest.filter(|longest| *longest >= shape.length) {
        put(join(MODEL, "max_position_embedding"), longest.into(), LENGTH);
    }
    if let Some(longest) = shape.longest.filter(|longest| *longest < shape.length) {
        let length = shape.length;
        let line = format!(
            "seq_length {length} is beyond the {longest} positions that the model is made for ({LENGTH})"
        );
        source.note(line);
    }
    source.note(format!(
        "{origin}: the shape of the model is that of {}, {}",
        shape.file.display(),
        shape.class
    ));
}

/// Names the tokenizer in `folder` for data sets that name none.
fn write_tokenizer(source: &mut Source, folder: &Path, origin: &str) -> Result<()> {
    let Some(TokenizerFiles { file, eos_token }) = TokenizerFiles::of(folder)? else { return Ok(()) };
    let mut entries = vec![("tokenizer_file".to_string(), Node::from(file))];
    entries.extend(eos_token.map(|token| ("eos_token".to_string(), Node::from(token))));
    for section in ["train_dataset", "eval_dataset"] {
        let path = join(section, "tokenizer");
        if matches!(source.node(section), Some(Node::Map(_))) && source.node(&path).is_none() {
            source.document.put(&path, Node::Map(entries.clone()), origin);
        }
    }
    Ok(())
}

/// Names the tokenizer in `folder`, the folder of `load_checkpoint`, for data sets of a resumed run whose own tokenizer
/// is missing: it has moved with its model. If it makes other tokens than before, the check of the data finds that.
fn replace_missing_tokenizer(source: &mut Source, folder: &Path) {
    let resumes = source.node("resume_training").is_some_and(|node| !node.is_off());
    let beside = folder.join("tokenizer.json");
    for section in ["train_dataset", "eval_dataset"] {
        let path = join(&join(section, "tokenizer"), "tokenizer_file");
        let named = source.node(&path).and_then(PathBuf::from_node);
        let Some(named) = named.filter(|named| resumes && !named.exists() && beside.is_file()) else {
            continue;
        };
        source.note(format!("{path}: {} is not there; that of load_checkpoint is read", named.display()));
        source.document.put(&path, Node::from(beside.display().to_string()), FOLDERS[1]);
    }
}

/// The value of a key; `None` for null.
fn node_of(value: &Value) -> Option<Node> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(is_on) => Node::Bool(*is_on),
        Value::Number(number) => {
            number.as_u64().map_or_else(|| number.as_f64().map(Node::Float), |whole| Some(whole.into()))?
        }
        Value::String(text) => Node::Text(text.clone()),
        Value::Array(items) => Node::List(items.iter().filter_map(node_of).collect()),
        Value::Object(entries) => Node::Map(
            entries.iter().filter_map(|(key, value)| Some((key.clone(), node_of(value)?))).collect(),
        ),
    })
}
