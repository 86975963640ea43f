//! Merging an adapter into the weights that it adapts: W + scale · B A, as an ordinary model.

use super::base::{self, Base};
use super::lora::{self, LoraConfig};
use super::rewriting::rewrite;
use super::weight_files::WeightFiles;
use super::wrapped;
use crate::error::{Error, Result};
use crate::model::parameters::{PEFT_PREFIX, adapted_module};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
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
/// `base` is a safetensors file, the index of several, a folder with either, or a checkpoint that names its base; `adapter` PEFT's
/// file, its folder, or a checkpoint that has one. Sums are f64, and each tensor keeps its type, but FP8 becomes bfloat16.
///
/// # Errors
/// A file that is missing, damaged or of another kind; an adapter of another model, or of another base than the one that is noted
/// beside it; a disk that fails.
pub async fn merge(base: &Path, lora: &Path, out: &Path) -> Result<Merged> {
    let weights = lora::required(lora)?;
    let config = LoraConfig::beside(&weights)?.ok_or_else(|| {
        Error::file(
            &weights,
            "has no adapter_config.json beside it, which says what the product is multiplied by",
        )
    })?;
    let (base, noted) = base::located(base, None)?;
    let expected = Base::beside(&weights)?.filter(|expected| !noted.is_some_and(|noted| noted.is(expected)));
    expected.map(|expected| expected.check(&base)).transpose()?;
    let (files, factors) = (WeightFiles::open(&base)?, WeightFiles::open(&weights)?);
    let merging = Merging { base: &files, factors: &factors, weights: &weights, config: &config };
    let adapted = merging.adapted()?;
    adapted.iter().try_for_each(|(name, modules)| merging.check(name, modules))?;
    let tensors = rewrite(&files, &base, out, |info| {
        adapted.get(&info.name).map(|modules| merging.tensor(&info.name, modules)).transpose()
    })
    .await?;
    Ok(Merged { tensors, adapted: adapted.len() })
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
    /// The tensors that the adapter changes, as the model calls them, each with what the adapter calls the modules that it holds.
    /// Either may be inside another model.
    fn adapted(&self) -> Result<BTreeMap<String, BTreeSet<String>>> {
        let mut adapted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for name in self.factors.names() {
            let module = adapted_module(&name).ok_or_else(|| {
                let message = format!("`{name}` is no factor of a low-rank adapter of a linear layer");
                Error::file(self.weights, message)
            })?;
            let stored = self.base.stored(&matrix_of(module));
            let missing = || lora::other_model(self.weights, module, "the model does not have");
            adapted.entry(stored.ok_or_else(missing)?.to_string()).or_default().insert(module.to_string());
        }
        Ok(adapted)
    }

    /// Checks that the tensor `name` has floats, and the factors of its `modules` their sizes.
    fn check(&self, name: &str, modules: &BTreeSet<String>) -> Result<()> {
        self.base.row_values(name, 0..0)?;
        modules.iter().try_for_each(|module| self.outputs(name, module).map(drop))
    }

    /// Which outputs of the tensor `name` the adapter of `module` has.
    fn outputs(&self, name: &str, module: &str) -> Result<Vec<Range<usize>>> {
        let [a, b] = factor_names(module);
        let (shape, a, b) =
            (self.base.info(name)?.shape, self.factors.info(&a)?.shape, self.factors.info(&b)?.shape);
        let (inputs, outputs) = match (&shape[..], self.config.fan_in_fan_out) {
            (&[inputs, outputs], true) => (inputs, std::iter::once(0..outputs).collect()),
            (&[outputs, inputs], false) => (inputs, self.base.rows(&matrix_of(module), outputs)?),
            _ => (0, Vec::new()),
        };
        let count: usize = outputs.iter().map(Range::len).sum();
        match (&a[..], &b[..]) {
            (&[rank, a_in], &[b_out, b_rank])
                if (a_in, b_out, b_rank) == (inputs, count, rank) && count > 0 =>
            {
                Ok(outputs)
            }
            _ => {
                let expected = format!("is {shape:?} in the model, and the factors are {a:?} and {b:?}");
                Err(lora::other_model(self.weights, name, &expected))
            }
        }
    }

    /// The values of the tensor `name` plus what the adapters of its `modules` add.
    fn tensor(&self, name: &str, modules: &BTreeSet<String>) -> Result<Vec<f32>> {
        let mut values = self.base.values(name)?;
        let is_transposed = self.config.fan_in_fan_out;
        let rows = self.base.info(name)?.shape.first().copied().unwrap_or(1).max(1);
        let width = values.len() / rows;
        for module in modules {
            let [a, b] = factor_names(module);
            let (outputs, rank) = (self.outputs(name, module)?, self.factors.info(&a)?.shape[0]);
            let (a, b) = (self.factors.values(&a)?, self.factors.values(&b)?);
            let inputs = if is_transposed { rows } else { width };
            for (row, output) in outputs.into_iter().flatten().enumerate() {
                for input in 0..inputs {
                    let place = if is_transposed { input * width + output } else { output * width + input };
                    let product =
                        (0..rank).map(|i| f64::from(b[row * rank + i]) * f64::from(a[i * inputs + input]));
                    let sum = f64::from(values[place]) + self.config.scale() * product.sum::<f64>();
                    values[place] = sum as f32;
                }
            }
        }
        Ok(values)
    }
}

/// The matrix of a module, as a language model by itself calls it.
fn matrix_of(module: &str) -> String {
    format!("{}.weight", wrapped::alone(module))
}

/// The names of A and B of a module.
fn factor_names(module: &str) -> [String; 2] {
    ["A", "B"].map(|factor| format!("{PEFT_PREFIX}{module}.lora_{factor}.weight"))
}
