//! Writes a model anew with some of its tensors changed: under its own names, in its layout and types, with the files
//! beside its weights.

use super::OUTPUT_DIR;
use super::model_assets::ModelAssets;
use super::stored_floats::Encoding;
use super::tensor_file::{TensorFile, TensorInfo};
use super::weight_files::{MODEL, WeightFiles, name_of};
use crate::durable::read_error;
use crate::error::{Error, Result};
use safetensors::Dtype;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::Path;

/// The key of a `config.json` that says that there are scales.
const QUANTISED: &str = "quantization_config";
/// The key of a `config.json` that says that the head is the embedding.
const TIED: &str = "tie_word_embeddings";

/// What changes besides values.
#[derive(Default)]
pub(super) struct RewriteOptions<'a> {
    /// Whether the model gets its own head, which no longer repeats the embedding.
    pub is_untied: bool,
    /// The new head, if the model has no tensor for it yet.
    pub head: Option<TensorInfo>,
    /// The type that all floats get; otherwise each tensor keeps its own.
    pub dtype: Option<Dtype>,
    /// The folder of the checkpoint or the adapter that was trained, whose tokenizer, chat template and generation
    /// defaults are written, if it has some.
    pub trained: Option<&'a Path>,
}

/// Writes the model at `path`, whose tensors are in `files`, to the folder `out`, which must be new or empty. Each
/// tensor, a new `head` included, gets the values that `changed` returns, or keeps its own. FP8 and MXFP4, in which
/// nothing is written, become bfloat16 without scales. Returns the number of tensors.
///
/// # Errors
/// An error of `changed`; a tensor that is not of floats; a folder that is taken; a disk that fails.
pub(super) fn rewrite(
    files: &WeightFiles,
    path: &Path,
    out: &Path,
    RewriteOptions { is_untied, head, dtype, trained }: RewriteOptions<'_>,
    changed: impl Fn(&TensorInfo) -> Result<Option<Vec<f32>>>,
) -> Result<usize> {
    let mut infos = infos(files)?;
    infos.extend(head);
    for info in infos.iter_mut().filter(|info| Encoding::of(info.dtype).is_some()) {
        info.dtype = dtype.unwrap_or(info.dtype);
    }
    create(out)?;
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    TensorFile::write(&out.join(MODEL), &infos, metadata, |index, sink| {
        let info = &infos[index];
        match changed(info)? {
            Some(values) => sink.put(&encoded(files, info, &values)?),
            None if files.info(&info.name)?.dtype == info.dtype => sink.put(files.bytes(&info.name)?),
            None => sink.put(&encoded(files, info, &files.values(&info.name)?)?),
        }
    })?;
    let beside = ModelAssets::of_model(path)?;
    let beside = if let Some(trained) = trained { beside.under(trained) } else { beside };
    beside.write(out, None)?;
    correct_config(&out.join("config.json"), is_untied, dtype)?;
    OUTPUT_DIR.sync_files(out)?;
    Ok(infos.len())
}

/// The tensors that are written.
fn infos(files: &WeightFiles) -> Result<Vec<TensorInfo>> {
    let widened = |info: TensorInfo| match info.dtype {
        Dtype::F8_E4M3 | Dtype::F4 => TensorInfo { dtype: Dtype::BF16, ..info },
        _ => info,
    };
    files.of_model().iter().map(|name| files.info(name).map(widened)).collect()
}

/// The bytes of `values` in the type of a tensor.
///
/// # Errors
/// A type in which nothing is written; a finite value that would become infinite.
fn encoded(files: &WeightFiles, info: &TensorInfo, values: &[f32]) -> Result<Vec<u8>> {
    let beyond = match info.dtype {
        Dtype::F16 => 65520.0, // halfway from the largest to the power of two above it
        Dtype::BF16 => f32::from_bits(0x7f7f_8000),
        _ => f32::INFINITY,
    };
    if let Some(value) = values.iter().find(|value| value.is_finite() && value.abs() >= beyond) {
        let message = format!(
            "`{}` holds {value:e}, which {} cannot hold; write another --type",
            info.name,
            name_of(info.dtype)
        );
        return Err(Error::file(files.path(), message));
    }
    let encoding = Encoding::of(info.dtype);
    encoding.and_then(|encoding| encoding.encode(values)).ok_or_else(|| {
        let message = format!("`{}` holds {:?}, in which nothing is written", info.name, info.dtype);
        Error::file(files.path(), message)
    })
}

/// Creates the folder `out`.
///
/// # Errors
/// It is there already and not empty; a disk that fails.
pub(super) fn create(out: &Path) -> Result<()> {
    let is_taken = std::fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some()) || out.is_file();
    if is_taken {
        return Err(Error::file(out, "is there already and not empty; name a new folder"));
    }
    OUTPUT_DIR.create_folder(out)
}

/// Corrects the `config.json` at `path`: removes the entry that says how weights are quantised, if that is FP8 or
/// MXFP4; says that the head is not tied, if `is_untied`; and says the type of the weights, if `dtype` is given.
fn correct_config(path: &Path, is_untied: bool, dtype: Option<Dtype>) -> Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let text = std::fs::read(path).map_err(|error| read_error(path, "read", &error))?;
    let Ok(mut config) = serde_json::from_slice::<Map<String, Value>>(&text) else { return Ok(()) };
    let is_widened =
        |value: &Value| value.get("quant_method").is_some_and(|method| method == "fp8" || method == "mxfp4");
    let drops_scales = config.get(QUANTISED).is_some_and(is_widened);
    if !drops_scales && !is_untied && dtype.is_none() {
        return Ok(());
    }
    if drops_scales {
        config.remove(QUANTISED);
    }
    if let Some(dtype) = dtype {
        const TYPES: [&str; 2] = ["dtype", "torch_dtype"];
        let inner = config.get_mut("text_config").and_then(Value::as_object_mut);
        let named = inner.into_iter().flatten().filter(|(key, _)| TYPES.contains(&key.as_str()));
        named.for_each(|(_, value)| *value = name_of(dtype).into());
        let known: Vec<&str> = TYPES.into_iter().filter(|key| config.contains_key(*key)).collect();
        for key in if known.is_empty() { vec![TYPES[1]] } else { known } {
            config.insert(key.to_string(), name_of(dtype).into());
        }
    }
    if is_untied {
        config.insert(TIED.to_string(), Value::Bool(false));
    }
    let text = serde_json::to_vec_pretty(&config).map_err(|error| Error::file(path, error))?;
    OUTPUT_DIR.write(path, &text)
}
