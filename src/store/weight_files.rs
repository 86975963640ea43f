//! A model's tensors in one safetensors file, or in several with an index.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use super::foreign::{OTHER_MODEL, check_format, remedy_of_missing, remedy_of_type};
use super::published_names::{Cut, Published};
use super::tensor_file::{TensorFile, TensorInfo};
use super::weight_index::{files_of, is_index, shards};
use crate::element::Element;
use crate::error::{Error, Result};

/// The file of a model whose tensors fit one.
pub(super) const MODEL: &str = "model.safetensors";
/// The files of a model are called so, with a number where there are several.
pub(super) const STEM: &str = "model";
/// What the names in the file of a bare model, one without a head, lack.
const PREFIXES: [&str; 2] = ["model.", "transformer."];
/// Ends of the names of tables that older versions of `transformers` saved beside the weights.
const TABLES: [&str; 4] =
    [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", ".rotary_pos_emb.inv_freq"];

/// Open files, and which of them holds each tensor.
pub(super) struct WeightFiles {
    path: PathBuf,
    files: Vec<TensorFile>,
    homes: HashMap<String, usize>,
    /// The layout that the model was first published in, if the tensors have it.
    published: Option<Published>,
}

impl WeightFiles {
    /// Opens the weights at `path`: a safetensors file, an index, or a folder with either.
    ///
    /// # Errors
    /// A file is missing, not a safetensors file, or truncated; an index that is not one.
    pub fn open(path: &Path) -> Result<Self> {
        check_format(path)?;
        match path.is_dir() {
            true => Self::open_stem(path, STEM),
            false if is_index(path) => Self::of_files(path, &shards(path)?),
            false => Self::of_files(path, &[path.to_path_buf()]),
        }
    }

    /// Opens the tensors of `stem` in `folder`: one file, or several with an index.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_stem(folder: &Path, stem: &str) -> Result<Self> {
        let files = files_of(folder, stem)?;
        match &files[..] {
            [index, shards @ ..] if is_index(index) => Self::of_files(index, shards),
            files => Self::of_files(&files[0], files),
        }
    }

    fn of_files(path: &Path, paths: &[PathBuf]) -> Result<Self> {
        let path = path.to_path_buf();
        let files = paths.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>>>()?;
        let names = files.iter().enumerate();
        let homes = names.flat_map(|(index, file)| file.names().into_iter().map(move |name| (name, index)));
        let homes: HashMap<String, usize> = homes.collect();
        let published = Published::recognise(&path, homes.keys().map(String::as_str));
        Ok(Self { path, homes, files, published })
    }

    /// The path of the file or of the index.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a tensor of this name.
    pub fn holds(&self, name: &str) -> bool {
        self.place(name).is_some()
    }

    /// Checks that the tensor `info.name` has this shape and type. Floats of any width fit where floats are expected.
    ///
    /// # Errors
    /// The tensor is missing, or its shape or type differ.
    pub fn check(&self, info: &TensorInfo) -> Result<()> {
        let TensorInfo { name, dtype: expected, shape: size } = info;
        let (shape, dtype, _) = self.tensor(name)?;
        let mut shape = shape.to_vec();
        if let Some(rows) = shape.first_mut() {
            *rows = self.rows(name, *rows)?.into_iter().map(|range| range.len()).sum();
        }
        let is_float = element(*expected).is_some() && element(dtype).is_some();
        if shape == *size && (dtype == *expected || is_float) {
            return Ok(());
        }
        let remedy = if is_float { OTHER_MODEL } else { remedy_of_type(dtype) };
        let message =
            format!("`{name}` is {dtype:?} {shape:?} there, {expected:?} {size:?} in this model; {remedy}");
        Err(Error::file(&self.path, message))
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.homes.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Name, type and shape of the tensor `name`.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn info(&self, name: &str) -> Result<TensorInfo> {
        let (shape, dtype, _) = self.tensor(name)?;
        Ok(TensorInfo { name: name.to_string(), dtype, shape: shape.to_vec() })
    }

    /// The type of the floats in the tensor `name`.
    ///
    /// # Errors
    /// There is no such tensor, or it does not hold floats.
    pub fn element(&self, name: &str) -> Result<Element> {
        let (_, dtype, _) = self.tensor(name)?;
        element(dtype).ok_or_else(|| self.no_floats(name, dtype))
    }

    /// The bytes of the tensor `name` as it is stored.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        self.tensor(name).map(|(_, _, bytes)| bytes)
    }

    /// The values of the tensor `name`, which [`check`](Self::check) found to be floats; 16 bits are widened exactly.
    ///
    /// # Errors
    /// There is no such tensor, or it does not hold floats.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        self.row_values(name, 0..usize::MAX)
    }

    /// The values of some rows of the tensor `name`; those beyond its end are left out.
    ///
    /// # Errors
    /// Those of [`values`](Self::values).
    pub fn row_values(&self, name: &str, wanted: Range<usize>) -> Result<Vec<f32>> {
        let (shape, dtype, bytes) = self.tensor(name)?;
        let element = element(dtype).ok_or_else(|| self.no_floats(name, dtype))?;
        let Some(&total) = shape.first().filter(|rows| **rows > 0) else { return Ok(element.decode(bytes)) };
        let width = bytes.len() / total;
        let (mut values, mut before) = (Vec::new(), 0);
        for range in self.rows(name, total)? {
            // Rows are counted in the tensor of this name, which may be several ranges of the one that holds it.
            let of_range = |row: usize| range.start + row.saturating_sub(before).min(range.len());
            let rows = of_range(wanted.start)..of_range(wanted.end);
            values.extend(element.decode(&bytes[rows.start * width..rows.end * width]));
            before += range.len();
        }
        Ok(values)
    }

    /// The tensors that are not `known`, sorted, but for tables that follow from a model's shape.
    pub fn unknown(&self, known: &HashSet<String>) -> Vec<&str> {
        let known: HashSet<&str> =
            known.iter().filter_map(|name| self.place(name)).map(|(stored, _)| stored).collect();
        let is_table = |name: &str| TABLES.iter().any(|end| name.ends_with(end));
        let names = self.homes.keys().map(String::as_str);
        let mut unknown: Vec<&str> = names.filter(|name| !known.contains(name) && !is_table(name)).collect();
        unknown.sort_unstable();
        unknown
    }

    /// The name here of the tensor `name`.
    pub fn stored(&self, name: &str) -> Option<&str> {
        self.place(name).map(|(stored, _)| stored)
    }

    fn no_floats(&self, name: &str, dtype: Dtype) -> Error {
        Error::file(&self.path, format!("`{name}` holds {dtype:?}, not floats; {}", remedy_of_type(dtype)))
    }

    fn tensor(&self, name: &str) -> Result<(&[usize], Dtype, &[u8])> {
        let missing = || {
            let remedy = remedy_of_missing(name, self.homes.keys().map(String::as_str));
            Error::file(&self.path, format!("holds no tensor `{name}`; {remedy}"))
        };
        let (stored, _) = self.place(name).ok_or_else(missing)?;
        self.files[self.homes[stored]].tensor(stored)
    }

    /// The rows that the tensor `name` is of the one that holds it, which has `total`.
    fn rows(&self, name: &str, total: usize) -> Result<Vec<Range<usize>>> {
        match (self.place(name), &self.published) {
            (Some((_, cut)), Some(published)) => published.rows(cut, total, &self.path),
            _ => Ok(std::iter::once(0..total).collect()),
        }
    }

    /// The name here of the tensor that holds the one that a whole model calls `name`, and which rows of it that one is.
    fn place(&self, name: &str) -> Option<(&str, Cut)> {
        let of_layout = || {
            let place = self.published.as_ref()?.place(name)?;
            let (stored, _) = self.homes.get_key_value(&place.name)?;
            Some((stored.as_str(), place.cut))
        };
        self.stored_name(name).map(|stored| (stored, Cut::Whole)).or_else(of_layout)
    }

    /// The name here of the tensor that a whole model calls `name`, if it has that name or that without a prefix.
    pub fn stored_name(&self, name: &str) -> Option<&str> {
        let bare = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
        let names = [Some(name), bare].into_iter().flatten();
        names.filter_map(|name| self.homes.get_key_value(name)).map(|(stored, _)| stored.as_str()).next()
    }
}

/// The storage type of floats; `None` for other types.
fn element(dtype: Dtype) -> Option<Element> {
    match dtype {
        Dtype::F32 => Some(Element::F32),
        Dtype::F16 => Some(Element::F16),
        Dtype::BF16 => Some(Element::Bf16),
        _ => None,
    }
}
