//! Writes trained weights in the form of the folder that a run started from: under its names, in its layout and types,
//! with the files beside the weights and the towers that the run did not read.
//!
//! A checkpoint has its own names, one tensor for each projection, and the type that is trained. Each of its tensors
//! goes where loading found it: to a tensor of the folder, or to some rows of one. Tensors of the folder that get no
//! trained values are copied.
//!
//! If the checkpoint has an adapter, only the adapter is written, under the names that modules have in the class of the
//! folder.

use super::OUTPUT_DIR;
use super::arena_tensors::dtype_of;
use super::experts::ExpertTensors;
use super::lora::{self, Adapter};
use super::model_path::chosen;
use super::peft_modules::{self, parts};
use super::rewrite::{RewriteOptions, create, rewrite};
use super::stored_floats::Encoding;
use super::tensor_file::{TensorFile, TensorInfo};
use super::weight_faults::OTHER_MODEL;
use super::weight_files::{EMBEDDINGS, HEAD, WeightFiles, name_of};
use super::wrapped;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::model::parameters::{adapted_module, module_of};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// The numbers of exported tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Tensors that have trained values.
    pub trained: usize,
    /// Tensors of the folder that were copied unchanged.
    pub copied: usize,
}

/// Writes the weights of `checkpoint`, or its adapter, to the folder `out`, in the form of `like`. `checkpoint` and
/// `like` are folders with safetensors files, or such a file; `out` must be new or empty. FP8 and MXFP4, in which
/// nothing is trained, become bfloat16 without scales. If `element` is given, all floats of the model get that type.
/// Tokenizer, chat template and generation defaults are the checkpoint's, where it has them.
///
/// # Errors
/// A file that is missing or damaged; weights of another model; an adapter of a part of a module, or in another type;
/// weights beyond the range of their type; a disk that fails.
pub fn export(checkpoint: &Path, like: &Path, out: &Path, element: Option<Element>) -> Result<Exported> {
    let folder = WeightFiles::open(like)?;
    let checkpoint = &chosen(checkpoint)?;
    if let Some(adapter) = lora::beside(checkpoint) {
        if element.is_some() {
            let message = "holds an adapter, which is written in the type that it has; leave out --type, or merge it first";
            return Err(Error::file(adapter, message));
        }
        return export_adapter(&adapter, &folder, like, out);
    }
    let exporting = Exporting { trained: &WeightFiles::open(checkpoint)?, folder: &folder, path: checkpoint };
    let sources = exporting.sources()?;
    let trained = checkpoint.is_dir().then_some(checkpoint.as_path());
    let dtype = element.map(dtype_of);
    let options = RewriteOptions { dtype, trained, ..RewriteOptions::default() };
    let count = rewrite(&folder, like, out, options, |info| {
        sources.get(&info.name).map(|parts| exporting.assembled(info, parts)).transpose()
    })?;
    Ok(Exported { trained: sources.len(), copied: count - sources.len() })
}

/// The types of the floats at `path`, as torch calls them; `None` if there are no weights.
pub(crate) fn float_types(path: &Path) -> Option<String> {
    let files = WeightFiles::open(path).ok()?;
    let infos = files.names().into_iter().filter_map(|name| files.info(&name).ok());
    let floats = infos.filter(|info| Encoding::of(info.dtype).is_some());
    let types: BTreeSet<&str> = floats.map(|info| name_of(info.dtype)).collect();
    Some(types.into_iter().collect::<Vec<_>>().join(" and "))
}

/// Writes an adapter for the model in `folder`, so that PEFT can open it on that model. Modules have their full names,
/// which no other tower has.
fn export_adapter(adapter: &Path, folder: &WeightFiles, like: &Path, out: &Path) -> Result<Exported> {
    let opened = Adapter::open(adapter)?;
    let factors = &opened.files;
    let (names, mut infos) = (factors.names(), Vec::new());
    let (mut modules, mut parameters) = (BTreeMap::new(), BTreeMap::new());
    let rename = |module: &str| module_in(folder, module).map_err(|why| Error::file(adapter, why));
    for name in &names {
        let kept = peft_modules::parameter_of(name);
        let module = adapted_module(name).unwrap_or_else(|| kept.as_ref().map_or(name, |kept| parts(kept).0));
        if let Some(parameter) = opened.parameter_of(module) {
            let of_folder = experts_in(folder, parameter).map_err(|why| Error::file(adapter, why))?;
            let wrapper = module.replacen(parts(parameter).0, parts(&of_folder).0, 1);
            infos.push(TensorInfo { name: name.replace(module, &wrapper), ..factors.info(name)? });
            parameters.insert(of_folder, parameter.to_string());
            continue;
        }
        let of_folder = rename(module)?;
        infos.push(TensorInfo { name: name.replace(module, &of_folder), ..factors.info(name)? });
        if kept.is_none() {
            modules.insert(of_folder, module.to_string());
        }
    }
    let config = lora::config_for(adapter, like, [&modules, &parameters], rename)?;
    create(out)?;
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let file = out.join(lora::WEIGHTS);
    TensorFile::write(&file, &infos, metadata, |index, sink| sink.put(factors.bytes(&names[index])?))?;
    OUTPUT_DIR.write(&out.join(lora::CONFIG), &config)?;
    OUTPUT_DIR.sync_files(out)?;
    Ok(Exported { trained: names.len(), copied: 0 })
}

/// The name of our `parameter` of experts in the class of `folder`, or why it has none.
fn experts_in(folder: &WeightFiles, parameter: &str) -> std::result::Result<String, String> {
    match ExpertTensors::of(folder, parameter) {
        None => Err(format!(
            "adapts `{parameter}`, which {} does not have; {OTHER_MODEL}",
            folder.path().display()
        )),
        Some(_) if !folder.towers().is_empty() => Ok(wrapped::module(parameter)),
        Some(_) => Ok(parameter.to_string()),
    }
}

/// The name of our `module` in the class of `folder`, or why it has no such module.
fn module_in(folder: &WeightFiles, module: &str) -> std::result::Result<String, String> {
    let matrix = format!("{module}.weight");
    if matrix == HEAD && folder.stored(HEAD).is_none() && EMBEDDINGS.iter().any(|name| folder.holds(name)) {
        return Ok(module.to_string()); // of a model whose embedding is its head, too
    }
    let place = folder.stored(&matrix).and_then(|stored| Some((stored, folder.info(&matrix).ok()?)));
    let Some((stored, TensorInfo { shape, .. })) = place else {
        return Err(format!(
            "adapts `{module}`, which {} does not have; {OTHER_MODEL}",
            folder.path().display()
        ));
    };
    let total = shape.first().copied().unwrap_or(0);
    let rows = folder.rows(&matrix, total).map_err(|error| error.to_string())?;
    if rows.iter().map(std::ops::Range::len).sum::<usize>() != total {
        return Err(format!(
            "adapts `{module}`, some rows of `{}` in {}, which PEFT adapts as one; open it on the run's own checkpoint",
            module_of(stored),
            folder.path().display()
        ));
    }
    Ok(match folder.stored_name(&matrix) {
        None => module_of(stored).to_string(),
        Some(_) if !folder.towers().is_empty() => wrapped::module(module),
        Some(_) => module.to_string(),
    })
}

struct Exporting<'a> {
    trained: &'a WeightFiles,
    folder: &'a WeightFiles,
    /// The path of the checkpoint.
    path: &'a Path,
}

impl Exporting<'_> {
    /// For each tensor of the folder that gets trained values, the checkpoint's tensors that hold them.
    fn sources(&self) -> Result<BTreeMap<String, Vec<String>>> {
        let mut sources: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in self.trained.names() {
            let foreign = || {
                let message = format!(
                    "`{name}` has no place in {}; name the folder that the run started from",
                    self.folder.path().display()
                );
                Error::file(self.path, message)
            };
            let stored = self.folder.stored(&name).ok_or_else(foreign)?;
            self.folder.check(&self.trained.info(&name)?)?;
            sources.entry(stored.to_string()).or_default().push(name);
        }
        let head = self.folder.stored(HEAD).filter(|head| !sources.contains_key(*head));
        let embedding = EMBEDDINGS.into_iter().find(|name| self.trained.holds(name));
        sources.extend(head.zip(embedding).map(|(head, name)| (head.to_string(), vec![name.to_string()])));
        Ok(sources)
    }

    /// The values of a tensor, put together from `parts`, each of which holds some of its rows.
    fn assembled(&self, info: &TensorInfo, parts: &[String]) -> Result<Vec<f32>> {
        // The rows of several matrices follow one another.
        let (total, width) = match &info.shape[..] {
            [rows @ .., width] if !rows.is_empty() => (rows.iter().product(), *width),
            vector => (vector.iter().product(), 1),
        };
        let mut values = vec![0.0; total * width];
        let mut missing = total;
        for part in parts {
            // A head that repeats the embedding takes all of it.
            let is_own = self.folder.stored(part) == Some(info.name.as_str());
            let rows =
                if is_own { self.folder.rows(part, total)? } else { std::iter::once(0..total).collect() };
            let mut trained = self.trained.values(part)?.into_iter();
            for range in rows {
                missing = missing.saturating_sub(range.len());
                values[range.start * width..range.end * width]
                    .iter_mut()
                    .zip(&mut trained)
                    .for_each(|(value, trained)| *value = trained);
            }
        }
        match missing {
            0 => Ok(values),
            _ => {
                Err(Error::file(self.path, format!("lacks {missing} rows of `{}`; {OTHER_MODEL}", info.name)))
            }
        }
    }
}
