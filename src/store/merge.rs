//! Merging an adapter into the weights that it adapts: W + scale · B A, as an ordinary model.

use super::OUTPUT_DIR;
use super::arena_tensors::dtype_of;
use super::beside_weights::BesideWeights;
use super::lora::{self, LoraConfig};
use super::tensor_file::{TensorFile, TensorInfo};
use super::weight_files::{MODEL, WeightFiles};
use super::wrapped;
use crate::error::{Error, Result};
use crate::model::parameters::{PEFT_PREFIX, adapted_module};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// What was merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Tensors of the model.
    pub tensors: usize,
    /// Those that an adapter changed.
    pub adapted: usize,
}

/// Writes the model at `base` with the adapter at `adapter` merged into it to the folder `out`, which must be new or empty.
/// `base` is a safetensors file, the index of several, or a folder with either; `adapter` PEFT's file, its folder, or a
/// checkpoint that has one. Sums are f64, and each tensor keeps its type.
///
/// # Errors
/// A file that is missing, damaged or of another kind; an adapter of another model; a disk that fails.
pub async fn merge(base: &Path, lora: &Path, out: &Path) -> Result<Merged> {
    let weights = lora::required(lora)?;
    let config = LoraConfig::beside(&weights)?.ok_or_else(|| {
        Error::file(
            &weights,
            "has no adapter_config.json beside it, which says what the product is multiplied by",
        )
    })?;
    let (base_files, factors) = (WeightFiles::open(base)?, WeightFiles::open(&weights)?);
    let names = base_files.names();
    let adapted = adapted_tensors(&base_files, &factors, &weights)?;
    let infos = names.iter().map(|name| base_files.info(name)).collect::<Result<Vec<TensorInfo>>>()?;
    let merging = Merging { base: &base_files, factors: &factors, weights: &weights, config: &config };
    adapted.iter().try_for_each(|(name, module)| merging.check(name, module))?;
    create(out)?;
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    TensorFile::write(&out.join(MODEL), &infos, metadata, async |index, sink| {
        let name = &names[index];
        match adapted.get(name) {
            Some(module) => sink.put(&merging.tensor(name, module)?),
            None => sink.put(base_files.bytes(name)?),
        }
    })
    .await?;
    BesideWeights::of_model(base)?.write(out, None)?;
    OUTPUT_DIR.sync_files(out)?;
    Ok(Merged { tensors: names.len(), adapted: adapted.len() })
}

/// The files of a merge.
struct Merging<'a> {
    base: &'a WeightFiles,
    factors: &'a WeightFiles,
    /// The adapter's file.
    weights: &'a Path,
    config: &'a LoraConfig,
}

impl Merging<'_> {
    /// Checks that A and B of the matrix `name` have its sizes, and that sums can be written in its type.
    fn check(&self, name: &str, module: &str) -> Result<()> {
        self.sizes(name, module).and_then(|_| self.base.element(name)).map(|_| ())
    }

    /// (out, in, r) of the matrix `name` and its adapter, that of `module`.
    fn sizes(&self, name: &str, module: &str) -> Result<[usize; 3]> {
        let [a, b] = factor_names(module);
        let (shape, a, b) =
            (self.base.info(name)?.shape, self.factors.info(&a)?.shape, self.factors.info(&b)?.shape);
        let expected = match (&shape[..], self.config.fan_in_fan_out) {
            (&[inputs, outputs], true) | (&[outputs, inputs], false) => Some((outputs, inputs)),
            _ => None,
        };
        match (expected, &a[..], &b[..]) {
            (Some((outputs, inputs)), &[rank, a_in], &[b_out, b_rank])
                if (a_in, b_out, b_rank) == (inputs, outputs, rank) =>
            {
                Ok([outputs, inputs, rank])
            }
            _ => {
                let expected = format!("is {shape:?} in the model, and the factors are {a:?} and {b:?}");
                Err(lora::other_model(self.weights, name, &expected))
            }
        }
    }

    /// The bytes of the matrix `name` plus what its adapter adds.
    fn tensor(&self, name: &str, module: &str) -> Result<Vec<u8>> {
        let [outputs, inputs, rank] = self.sizes(name, module)?;
        let [a, b] = factor_names(module);
        let (w, a, b) = (self.base.values(name)?, self.factors.values(&a)?, self.factors.values(&b)?);
        let scale = self.config.scale();
        let added = |output: usize, input: usize| {
            let product =
                (0..rank).map(|i| f64::from(b[output * rank + i]) * f64::from(a[i * inputs + input]));
            scale * product.sum::<f64>()
        };
        let width = if self.config.fan_in_fan_out { outputs } else { inputs };
        let element = self.base.element(name)?;
        let mut bytes = Vec::new();
        let mut row_bytes = Vec::new();
        for (row, values) in w.chunks(width).enumerate() {
            let sum = |(column, value): (usize, &f32)| {
                let (output, input) = if self.config.fan_in_fan_out { (column, row) } else { (row, column) };
                (f64::from(*value) + added(output, input)) as f32
            };
            let values: Vec<f32> = values.iter().enumerate().map(sum).collect();
            row_bytes.clear();
            element.encode_row(&values, &mut row_bytes); // padded
            bytes.extend_from_slice(&row_bytes[..width * element.bytes() as usize]);
        }
        debug_assert_eq!(self.base.info(name)?.dtype, dtype_of(element));
        Ok(bytes)
    }
}

/// The matrices that the adapter in `weights` changes, as the model calls them, each with what the adapter calls its module. Either may
/// be inside another model.
fn adapted_tensors(
    base: &WeightFiles,
    factors: &WeightFiles,
    weights: &Path,
) -> Result<BTreeMap<String, String>> {
    let mut adapted = BTreeMap::new();
    for name in factors.names() {
        let module = adapted_module(&name).ok_or_else(|| {
            Error::file(weights, format!("`{name}` is no factor of a low-rank adapter of a linear layer"))
        })?;
        let matrix = format!("{}.weight", wrapped::alone(module));
        let stored = base
            .stored_name(&matrix)
            .ok_or_else(|| lora::other_model(weights, module, "the model does not have"))?;
        adapted.insert(stored.to_string(), module.to_string());
    }
    Ok(adapted)
}

/// The names of A and B of a module.
fn factor_names(module: &str) -> [String; 2] {
    ["A", "B"].map(|factor| format!("{PEFT_PREFIX}{module}.lora_{factor}.weight"))
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
