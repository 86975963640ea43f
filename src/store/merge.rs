//! Merging an adapter into the weights that it adapts: W + scale · B A, as an ordinary model.

use super::base::{Base, holds_model};
use super::experts::{ExpertFactors, ExpertTensors};
use super::lora::{self, Adapter, Factors, factor_names, scaled_to};
use super::model_path::{chosen, folder_of, resolve, run_of};
use super::peft_modules;
use super::rewrite::{RewriteOptions, rewrite};
use super::tensor_file::TensorInfo;
use super::weight_files::{EMBEDDINGS, HEAD, WeightFiles};
use super::wrapped;
use crate::error::{Error, Result, shell_word};
use crate::model::parameters::adapted_module;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

/// The module of the head.
const HEAD_MODULE: &str = "lm_head";

/// The numbers of merged tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Tensors of the model.
    pub tensors: usize,
    /// Tensors that the adapter changed.
    pub adapted: usize,
}

/// Merges the adapter at `lora` into the model at `base`, and writes the result to the folder `out`, which must be new
/// or empty. `base` is a safetensors file, the index of several, a folder with either, or a checkpoint that names its
/// base. `lora` is PEFT's file, its folder, or a checkpoint that has an adapter. Sums are f64. Each tensor keeps its
/// type, except that FP8 and MXFP4 become bfloat16.
///
/// # Errors
/// A file that is missing, damaged or of another kind; an adapter of another model, or of another base than the one
/// that is noted beside it; a disk that fails.
pub fn merge(base: &Path, lora: &Path, out: &Path) -> Result<Merged> {
    refuse_whole(base, lora, out)?;
    let weights = lora::required(&chosen(lora)?)?;
    let adapter = Adapter::open(&weights)?;
    let config = adapter.config()?;
    let (base, noted) = resolve(base, None)?;
    if let Some(expected) = Base::beside(&weights)? {
        expected.check_unless(&base, noted.as_ref())?;
    }
    let files = WeightFiles::open(&base)?;
    let is_transposed = files.is_transposed().unwrap_or(config.fan_in_fan_out);
    let kept = RefCell::default();
    let merging = Merging { base: &files, adapter: &adapter, weights: &weights, is_transposed, kept };
    let adapted = merging.adapted()?;
    adapter.check_saved(files.names().iter().map(|name| wrapped::alone(name)))?;
    adapted.iter().try_for_each(|(name, changes)| merging.check(name, changes))?;
    let (is_untied, head) = (merging.is_apart(), merging.new_head()?);
    let options = RewriteOptions { is_untied, head, trained: Some(folder_of(&weights)), dtype: None };
    let tensors = rewrite(&files, &base, out, options, |info| {
        adapted.get(&info.name).map(|changes| merging.tensor(&info.name, changes)).transpose()
    })?;
    Ok(Merged { tensors, adapted: adapted.len() })
}

/// Refuses a run or a checkpoint of whole weights, which `export` writes as a model.
fn refuse_whole(base: &Path, lora: &Path, out: &Path) -> Result<()> {
    let checkpoint = chosen(lora)?;
    if run_of(&checkpoint).is_none() || lora::beside(&checkpoint).is_some() || !holds_model(&checkpoint) {
        return Ok(());
    }
    let [base, trained, out] = [base, lora, out].map(|path| shell_word(&path.display().to_string()));
    let message = format!(
        "was trained whole, so there is no adapter to merge; its weights become a model by `gristmill export {trained} {base} {out}`"
    );
    Err(Error::file(lora, message))
}

/// The files of a merge.
struct Merging<'a> {
    base: &'a WeightFiles,
    adapter: &'a Adapter,
    /// The adapter's file.
    weights: &'a Path,
    /// Whether the matrices of layers are (in, out).
    is_transposed: bool,
    /// The factors of experts that were read last, by their modules.
    kept: RefCell<Vec<(String, Rc<ExpertFactors>)>>,
}

/// A change that an adapter makes to a tensor. Tensors that trained beside the factors come first in the order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// The adapter's tensor `by` replaces the tensor that a language model by itself calls `parameter`.
    Replaced { by: String, parameter: String },
    /// The product of the factors of a module is added.
    Adapted(String),
    /// The products of the factors of a module are added to the matrices of experts.
    OfExperts { module: String, part: ExpertPart },
    /// The bias of the second factor of a module is added.
    Biased(String),
}

/// What of the experts that a module adapts a tensor holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ExpertPart {
    /// All matrices, (experts, out, in), or (experts, in, out).
    All { is_turned: bool },
    /// Matrix number `place` of the `count` of an expert, which a language model by itself calls `name`.
    One { expert: usize, place: usize, count: usize, name: String },
}

impl Merging<'_> {
    /// The tensors that the adapter changes, by their names in the model, and the changes. The model and the adapter
    /// may each be of a language model inside another model.
    fn adapted(&self) -> Result<BTreeMap<String, BTreeSet<Change>>> {
        let mut adapted: BTreeMap<String, BTreeSet<Change>> = BTreeMap::new();
        for name in self.adapter.files.names() {
            if self.head().is_some() && !self.is_apart() && self.adapter.repeats_head(&name) {
                continue;
            }
            if let Some(module) =
                adapted_module(&name).filter(|module| self.adapter.parameter_of(module).is_some())
            {
                for (stored, part) in self.experts(module)? {
                    let change = Change::OfExperts { module: module.to_string(), part };
                    adapted.entry(stored).or_default().insert(change);
                }
                continue;
            }
            let (parameter, change) = match (adapted_module(&name), peft_modules::parameter_of(&name)) {
                (Some(module), _) if name.ends_with(".bias") => {
                    let bias = format!("{}.bias", wrapped::alone(module));
                    if !self.base.holds(&bias) {
                        let message = format!(
                            "has a bias for `{module}`, which has none in the model, so that no merged weights can hold it; use the \
                             adapter as it is, by `--adapter`"
                        );
                        return Err(Error::file(self.weights, message));
                    }
                    (bias, Change::Biased(module.to_string()))
                }
                (Some(module), _) => (matrix_of(module), Change::Adapted(module.to_string())),
                (None, Some(kept)) => {
                    let parameter = wrapped::alone(&kept);
                    (parameter.clone(), Change::Replaced { by: name.clone(), parameter })
                }
                (None, None) => {
                    let message = format!("`{name}` is no tensor of a low-rank adapter, as PEFT calls them");
                    return Err(Error::file(self.weights, message));
                }
            };
            let module = adapted_module(&name).unwrap_or(&parameter);
            let missing = || lora::other_model(self.weights, module, "the model does not have");
            let head = || self.head().filter(|_| parameter == HEAD).map(|_| HEAD);
            let stored = self.base.stored(&parameter).or_else(head).ok_or_else(missing)?;
            adapted.entry(stored.to_string()).or_default().insert(change);
        }
        match (self.is_apart(), self.head()) {
            (true, Some(_)) => drop(adapted.entry(HEAD.to_string()).or_default()),
            (true, None) => {}
            (false, _) => self.add_tied_head(&mut adapted),
        }
        Ok(adapted)
    }

    /// The tensors of the base that have the matrices of the experts that `module` adapts, and what they have of them.
    fn experts(&self, module: &str) -> Result<Vec<(String, ExpertPart)>> {
        let parameter = wrapped::alone(self.adapter.parameter_of(module).unwrap_or(module));
        let missing = || lora::other_model(self.weights, &parameter, "the model does not have");
        let stored = |name: &str| self.base.stored(name).map(str::to_string).ok_or_else(missing);
        Ok(match ExpertTensors::of(self.base, &parameter).ok_or_else(missing)? {
            ExpertTensors::Stacked { name, is_turned } => {
                vec![(stored(&name)?, ExpertPart::All { is_turned })]
            }
            ExpertTensors::Each(experts) => {
                let factors = self.expert_factors(module)?;
                if experts.len() != factors.experts {
                    let expected =
                        format!("has {} experts in the model, and {} there", experts.len(), factors.experts);
                    return Err(lora::other_model(self.weights, &parameter, &expected));
                }
                let of_expert = |(expert, names): (usize, Vec<String>)| {
                    let count = names.len();
                    names.into_iter().enumerate().map(move |(place, name)| (expert, place, count, name))
                };
                let all = experts.into_iter().enumerate().flat_map(of_expert);
                let part = |(expert, place, count, name): (usize, usize, usize, String)| {
                    Ok((stored(&name)?, ExpertPart::One { expert, place, count, name }))
                };
                all.map(part).collect::<Result<_>>()?
            }
        })
    }

    /// The factors of the experts that `module` adapts, which are read for many tensors one after the other.
    fn expert_factors(&self, module: &str) -> Result<Rc<ExpertFactors>> {
        let mut kept = self.kept.borrow_mut();
        if let Some((_, factors)) = kept.iter().find(|(name, _)| name == module) {
            return Ok(factors.clone());
        }
        let factors = Rc::new(self.adapter.expert_factors(module)?);
        kept.truncate(1); // those of gate and up, and of down, of one layer
        kept.insert(0, (module.to_string(), factors.clone()));
        Ok(factors)
    }

    /// Checks that the tensor `name` has the `part` of the experts that `module` adapts, and adds the products of their
    /// factors to its `values`, if there are some.
    fn add_experts(
        &self,
        name: &str,
        module: &str,
        part: &ExpertPart,
        values: Option<&mut [f32]>,
    ) -> Result<()> {
        let (shape, factors) = (self.base.info(name)?.shape, self.expert_factors(module)?);
        let (experts, inputs, outputs) = (factors.experts, factors.inputs(), factors.outputs());
        let fits = match part {
            ExpertPart::All { is_turned: false } => shape == [experts, outputs, inputs],
            ExpertPart::All { is_turned: true } => shape == [experts, inputs, outputs],
            ExpertPart::One { count, name, .. } => {
                let rows = self.base.rows(name, shape.first().copied().unwrap_or(0))?;
                let rows: usize = rows.iter().map(Range::len).sum();
                shape.len() == 2 && rows * count == outputs && shape[1] == inputs
            }
        };
        if !fits {
            let expected = format!(
                "is {shape:?} in the model, and the factors are of {experts} experts of {outputs} x {inputs}"
            );
            return Err(lora::other_model(self.weights, name, &expected));
        }
        let Some(values) = values else { return Ok(()) };
        match part {
            ExpertPart::All { is_turned } => {
                for (expert, values) in values.chunks_exact_mut(outputs * inputs).enumerate() {
                    match is_turned {
                        false => {
                            factors.add(expert, 0..outputs, values, |output, input| output * inputs + input)
                        }
                        true => {
                            factors.add(expert, 0..outputs, values, |output, input| input * outputs + output)
                        }
                    }
                }
            }
            ExpertPart::One { expert, place, count, name } => {
                let rows: Vec<usize> = self.base.rows(name, shape[0])?.into_iter().flatten().collect();
                let first = place * (outputs / count);
                let own = first..first + rows.len();
                factors.add(*expert, own, values, |output, input| rows[output] * inputs + input);
            }
        }
        Ok(())
    }

    /// Whether the model with the adapter has its own embedding or head, although the base may tie the two.
    fn is_apart(&self) -> bool {
        let is_adapted = self.adapter.modules().any(|module| wrapped::alone(module) == HEAD_MODULE);
        is_adapted || self.adapter.is_apart()
    }

    /// The name of the embedding, if the base has no head and so the embedding is the head.
    fn head(&self) -> Option<&str> {
        let embedding = || EMBEDDINGS.iter().find_map(|name| self.base.stored(name));
        if self.base.holds(HEAD) { None } else { embedding() }
    }

    /// The name in the base of the tensor that the merged tensor `name` comes from.
    fn source<'n>(&'n self, name: &'n str) -> &'n str {
        self.head().filter(|_| name == HEAD).unwrap_or(name)
    }

    /// The new head of the merged model, if the model has its own head and the base has none.
    ///
    /// # Errors
    /// The language model is inside another model, whose configuration would have to change.
    fn new_head(&self) -> Result<Option<TensorInfo>> {
        let Some(embedding) = self.head().filter(|_| self.is_apart()) else { return Ok(None) };
        if !self.base.towers().is_empty() {
            let message = "trained the embedding and the head apart, which the model ties inside another; use the adapter as it is";
            return Err(Error::file(self.weights, message));
        }
        Ok(Some(TensorInfo { name: HEAD.to_string(), ..self.base.info(embedding)? }))
    }

    /// Gives a head that repeats the embedding the same changes as the embedding.
    fn add_tied_head(&self, adapted: &mut BTreeMap<String, BTreeSet<Change>>) {
        let head = self.base.stored(HEAD).filter(|head| !adapted.contains_key(*head)).map(str::to_string);
        let is_repeated = |head: &str, name: &str| {
            let bytes = self.base.bytes(head).ok();
            name != head && bytes.is_some() && bytes == self.base.bytes(name).ok()
        };
        let Some(head) = head else { return };
        let embedding = EMBEDDINGS.iter().filter_map(|name| self.base.stored(name));
        let changed = embedding.filter(|name| is_repeated(&head, name)).find_map(|name| adapted.get(name));
        if let Some(changes) = changed.cloned() {
            adapted.insert(head, changes);
        }
    }

    /// Checks that the tensor `name` has floats, and that its `changes` have the sizes that it takes.
    fn check(&self, name: &str, changes: &BTreeSet<Change>) -> Result<()> {
        self.base.row_values(self.source(name), 0..0)?;
        changes.iter().try_for_each(|change| match change {
            Change::Biased(module) => self.bias(name, module).map(drop),
            Change::Adapted(module) => self.outputs(name, module).map(drop),
            Change::OfExperts { module, part } => self.add_experts(name, module, part, None),
            Change::Replaced { by, parameter } => self.replaced(name, by, parameter).map(drop),
        })
    }

    /// The rows of the tensor `name` that are the `parameter`, which the adapter has as `by`.
    fn replaced(&self, name: &str, by: &str, parameter: &str) -> Result<Vec<Range<usize>>> {
        let (mut shape, found) =
            (self.base.info(self.source(name))?.shape, self.adapter.files.info(by)?.shape);
        let rows = self.base.rows(parameter, shape.first().copied().unwrap_or(1))?;
        if let Some(first) = shape.first_mut() {
            *first = rows.iter().map(Range::len).sum();
        }
        self.adapter.files.row_values(by, 0..0)?;
        match shape == found {
            true => Ok(rows),
            false => {
                let expected = format!("is {shape:?} in the model, and {found:?} there");
                Err(lora::other_model(self.weights, parameter, &expected))
            }
        }
    }

    /// The bias of the second factor of `module`, and the rows of the tensor `name` that it is added to.
    fn bias(&self, name: &str, module: &str) -> Result<(Vec<f32>, Vec<Range<usize>>)> {
        let total = self.base.info(name)?.shape.iter().product();
        let rows = self.base.rows(&format!("{}.bias", wrapped::alone(module)), total)?;
        let bias = self.adapter.bias(module)?.unwrap_or_default();
        match bias.len() == rows.iter().map(Range::len).sum::<usize>() {
            true => Ok((bias, rows)),
            false => Err(lora::other_model(self.weights, name, "has another size in the model")),
        }
    }

    /// The outputs of the tensor `name` that the adapter of `module` has.
    fn outputs(&self, name: &str, module: &str) -> Result<Vec<Range<usize>>> {
        let factors = &self.adapter.files;
        let [a, b] = factor_names(module);
        let (shape, a, b) =
            (self.base.info(self.source(name))?.shape, factors.info(&a)?.shape, factors.info(&b)?.shape);
        let (inputs, outputs) = match (&shape[..], self.is_transposed && name != HEAD) {
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

    /// The values of the tensor `name` with its `changes`.
    fn tensor(&self, name: &str, changes: &BTreeSet<Change>) -> Result<Vec<f32>> {
        let source = self.source(name);
        let mut values = self.base.values(source)?;
        let rows = self.base.info(source)?.shape.first().copied().unwrap_or(1).max(1);
        for change in changes {
            match change {
                Change::Adapted(module) => self.add_product(name, module, rows, &mut values)?,
                Change::OfExperts { module, part } => {
                    self.add_experts(name, module, part, Some(&mut values))?;
                }
                Change::Biased(module) => {
                    let (bias, rows) = self.bias(name, module)?;
                    rows.into_iter().flatten().zip(bias).for_each(|(place, bias)| values[place] += bias);
                }
                Change::Replaced { by, parameter } => {
                    let (width, trained) = (values.len() / rows, self.adapter.files.values(by)?);
                    let places = self.replaced(name, by, parameter)?.into_iter();
                    let places = places.flat_map(|range| range.start * width..range.end * width);
                    places.zip(trained).for_each(|(place, trained)| values[place] = trained);
                }
            }
        }
        Ok(values)
    }

    /// Adds the product of the factors of `module` to the `values` of the tensor `name`, which has `rows` rows.
    fn add_product(&self, name: &str, module: &str, rows: usize, values: &mut [f32]) -> Result<()> {
        let outputs = self.outputs(name, module)?;
        let is_transposed = self.is_transposed && name != HEAD;
        let matrix = if name == HEAD { self.source(name).to_string() } else { matrix_of(module) };
        let Factors { rank, a, b, scale } =
            self.adapter.factors(module, self.base, &matrix, is_transposed)?;
        let width = values.len() / rows;
        let inputs = if is_transposed { rows } else { width };
        let magnitudes = self.adapter.magnitudes(module, b.len() / rank)?;
        for (row, output) in outputs.into_iter().flatten().enumerate() {
            let place =
                |input: usize| if is_transposed { input * width + output } else { output * width + input };
            let sum = |input: usize| {
                let product =
                    (0..rank).map(|i| f64::from(b[row * rank + i]) * f64::from(a[i * inputs + input]));
                f64::from(values[place(input)]) + scale * product.sum::<f64>()
            };
            let mut sums: Vec<f64> = (0..inputs).map(sum).collect();
            if let Some(magnitudes) = &magnitudes {
                scaled_to(&mut sums, magnitudes[row]);
            }
            sums.into_iter().enumerate().for_each(|(input, sum)| values[place(input)] = sum as f32);
        }
        Ok(())
    }
}

/// The matrix of a module, as a language model by itself calls it.
fn matrix_of(module: &str) -> String {
    format!("{}.weight", wrapped::alone(module))
}
