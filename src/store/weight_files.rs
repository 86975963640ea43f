//! A model's tensors in one safetensors file, or in several with an index.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde_json::Value as Json;
use twox_hash::XxHash3_64;

use super::mxfp4::{self, Packed};
use super::published_names::{Cut, Published};
use super::stored_floats::{Block, Encoding, Scales, StoredFloats, refusal, scale_name};
use super::tensor_file::{TensorFile, TensorInfo};
use super::weight_faults::{OTHER_MODEL, check_format, remedy_of_missing, remedy_of_type};
use super::weight_index::{files_of, is_index, shards};
use super::wrapped::{self, Wrapped};
use crate::durable::read_json_if_present;
use crate::error::{Error, Result};

/// The file of a model whose tensors fit into one file.
pub(super) const MODEL: &str = "model.safetensors";
/// The stem of the names of a model's files, which have a number where there are several files.
pub(super) const STEM: &str = "model";
/// The head of a model that is not tied.
pub(super) const HEAD: &str = "lm_head.weight";
/// Names of the embedding. Where a checkpoint has no head, the head repeats the embedding.
pub(super) const EMBEDDINGS: [&str; 5] = [
    "model.embed_tokens.weight",
    "transformer.wte.weight",
    "transformer.word_embeddings.weight",
    "model.decoder.embed_tokens.weight",
    "gpt_neox.embed_in.weight",
];
/// Prefixes that names lack in the file of a bare model, which is one without a head.
const PREFIXES: [&str; 3] = ["model.", "transformer.", "gpt_neox."];
/// Ends of the names of tables that older versions of `transformers` saved beside the weights.
const TABLES: [&str; 4] =
    [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", ".rotary_pos_emb.inv_freq"];

/// Open files, and which of them holds each tensor.
pub(super) struct WeightFiles {
    path: PathBuf,
    files: Vec<TensorFile>,
    homes: HashMap<String, usize>,
    /// The tensors that are stored as two, by their names.
    packed: BTreeMap<String, Packed>,
    /// The layout that the model was first published in, if the tensors have it.
    published: Option<Published>,
    /// The names of the model inside another model, if it is inside one.
    wrapped: Option<Wrapped>,
    /// The block of an FP8 matrix that has one scale.
    block: Block,
    /// The class of the `config.json` beside them.
    class: Option<String>,
}

/// torch's name of a type.
pub(super) fn name_of(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::BF16 => "bfloat16",
        Dtype::F16 => "float16",
        Dtype::F32 => "float32",
        Dtype::F64 => "float64",
        Dtype::F8_E4M3 => "float8_e4m3fn",
        Dtype::F4 => "mxfp4",
        _ => "another type",
    }
}

/// A projection of one expert in a tensor (experts, rows, columns) of all of them.
#[derive(Clone, Copy)]
struct ExpertPart {
    number: usize,
    /// The half of its rows, if gate and up are one after the other.
    half: Option<usize>,
}

impl ExpertPart {
    /// Its rows among the `total` rows of `experts` experts; `None` if there is no such expert.
    fn rows(self, experts: usize, total: usize) -> Option<Range<usize>> {
        let rows = total.checked_div(experts).filter(|_| self.number < experts)?;
        let count = if self.half.is_some() { rows / 2 } else { rows };
        let first = self.number * rows + self.half.unwrap_or(0) * count;
        Some(first..first + count)
    }
}

impl WeightFiles {
    /// Opens the weights at `path`: a safetensors file, an index, or a folder with either.
    ///
    /// # Errors
    /// A file is missing, not a safetensors file, or truncated; a file with the name of an index that is none.
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
        let config = path.with_file_name("config.json");
        let config =
            read_json_if_present(&config, "JSON", "fetch it again, or remove it")?.unwrap_or(Json::Null);
        let infos = homes.iter().map(|(name, index)| {
            let (shape, dtype, _) = files[*index].tensor(name)?;
            Ok(TensorInfo { name: name.clone(), dtype, shape: shape.to_vec() })
        });
        let packed = mxfp4::packed(&infos.collect::<Result<Vec<_>>>()?);
        let published = Published::recognise(&config, homes.keys().map(String::as_str));
        let wrapped = Wrapped::recognise(homes.keys().map(String::as_str));
        let block = Block::of(&config);
        let class = config["model_type"].as_str().map(str::to_string);
        Ok(Self { path, homes, files, packed, published, wrapped, block, class })
    }

    /// Whether the matrices of layers are (in, out), as GPT-2's are; `None` if there is no `config.json`.
    pub fn is_transposed(&self) -> Option<bool> {
        self.class.as_ref().map(|class| class == "gpt2")
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
    /// The tensor is missing, or its shape or type differ; FP8 without its scales.
    pub fn check(&self, info: &TensorInfo) -> Result<()> {
        let TensorInfo { name, dtype: expected, shape: size } = info;
        let (shape, dtype, _) = self.tensor(name)?;
        let mut shape = match (shape, self.expert(name)) {
            // The rows of its matrix among those of all experts.
            (&[experts, rows, columns], Some(_)) => vec![experts * rows, columns],
            _ => shape.to_vec(),
        };
        if let Some(rows) = shape.first_mut() {
            *rows = self.rows(name, *rows)?.into_iter().map(|range| range.len()).sum();
        }
        let is_float = Encoding::of(*expected).is_some() && Encoding::of(dtype).is_some();
        if shape == *size && (dtype == *expected || is_float) {
            return if is_float { self.floats(name).map(|_| ()) } else { Ok(()) };
        }
        let remedy = if is_float { OTHER_MODEL } else { remedy_of_type(dtype) };
        let message =
            format!("`{name}` is {dtype:?} {shape:?} there, {expected:?} {size:?} in this model; {remedy}");
        Err(Error::file(&self.path, message))
    }

    /// The names of all tensors that a model has, sorted: those of FP8 without their scales, and those that are stored
    /// as two under one name.
    pub fn of_model(&self) -> Vec<String> {
        let all = || self.homes.keys().chain(self.packed.keys());
        let parts: HashSet<String> = all()
            .flat_map(|name| self.with_scales(name).filter(|part| part != name).collect::<Vec<_>>())
            .collect();
        let mut names: Vec<String> = all().filter(|name| !parts.contains(*name)).cloned().collect();
        names.sort_unstable();
        names
    }

    /// The names of all tensors as files have them, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.homes.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// XXH3 of all tensors in the order of their names: name, type, shape and bytes of each, with the lengths of the
    /// parts whose length may vary. Checkpoints store it: it must not change.
    ///
    /// # Errors
    /// None but those of [`open`](Self::open).
    pub fn hash(&self) -> Result<u64> {
        let mut hasher = XxHash3_64::new();
        for name in self.names() {
            let (shape, dtype, bytes) = self.tensor(&name)?;
            for text in [name, dtype.to_string()] {
                hasher.write(&(text.len() as u64).to_le_bytes());
                hasher.write(text.as_bytes());
            }
            hasher.write(&(shape.len() as u64).to_le_bytes());
            shape.iter().for_each(|size| hasher.write(&(*size as u64).to_le_bytes()));
            hasher.write(bytes);
        }
        Ok(hasher.finish())
    }

    /// One line: the number, size and types of the stored tensors that a whole model calls by these `names`.
    pub fn contents(&self, names: impl Iterator<Item = String>) -> String {
        let stored: BTreeSet<String> =
            names.filter_map(|name| self.stored(&name).map(str::to_string)).collect();
        let infos: Vec<TensorInfo> = stored.iter().filter_map(|name| self.info(name).ok()).collect();
        let types: BTreeSet<&str> = infos.iter().map(|info| name_of(info.dtype)).collect();
        let parameters: usize = infos.iter().map(|info| info.shape.iter().product::<usize>()).sum();
        let types = types.into_iter().collect::<Vec<_>>().join(" and ");
        format!("{} tensors, {parameters} parameters in {types}", infos.len())
    }

    /// Name, type and shape of the tensor `name`.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn info(&self, name: &str) -> Result<TensorInfo> {
        let (shape, dtype, _) = self.tensor(name)?;
        Ok(TensorInfo { name: name.to_string(), dtype, shape: shape.to_vec() })
    }

    /// The bytes of the tensor `name` as it is stored.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        self.tensor(name).map(|(_, _, bytes)| bytes)
    }

    /// The values of the tensor `name`, which [`check`](Self::check) found to be floats; 8 and 16 bits are widened
    /// exactly, 64 narrowed.
    ///
    /// # Errors
    /// There is no such tensor, or it does not hold floats.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        self.row_values(name, 0..usize::MAX)
    }

    /// The values of some rows of the tensor `name`; rows beyond its end are left out.
    ///
    /// # Errors
    /// Those of [`values`](Self::values).
    pub fn row_values(&self, name: &str, wanted: Range<usize>) -> Result<Vec<f32>> {
        let floats = self.floats(name)?;
        let (mut values, mut before) = (Vec::new(), 0);
        for range in self.rows(name, floats.rows)? {
            // Rows are counted in the tensor `name`, which may be several ranges of rows of the tensor that holds it.
            let of_range = |row: usize| range.start + row.saturating_sub(before).min(range.len());
            values.extend(floats.of_rows(of_range(wanted.start)..of_range(wanted.end)));
            before += range.len();
        }
        Ok(values)
    }

    /// The values of part number `part` of the tensor `name`, which has `parts` of the same size along its first
    /// dimension.
    ///
    /// # Errors
    /// Those of [`values`](Self::values).
    pub fn part_values(&self, name: &str, part: usize, parts: usize) -> Result<Vec<f32>> {
        let rows = self.floats(name)?.rows / parts;
        self.row_values(name, part * rows..(part + 1) * rows)
    }

    /// The other towers of the model that this model is inside of, each with its number of tensors; empty if this model
    /// is by itself.
    pub fn towers(&self) -> String {
        let names = self.homes.keys().map(String::as_str);
        wrapped::towers(names.filter(|name| wrapped::is_of_tower(self.wrapped, name)))
    }

    /// The tensors that are not `known`, sorted, except tables that follow from a model's shape and the tensors of
    /// other towers.
    pub fn unknown(&self, known: &HashSet<String>) -> Vec<&str> {
        let stored = known.iter().filter_map(|name| self.stored(name));
        let known: HashSet<String> = stored.flat_map(|name| self.with_scales(name)).collect();
        let is_left = |name: &str| {
            TABLES.iter().any(|end| name.ends_with(end)) || wrapped::is_of_tower(self.wrapped, name)
        };
        let names = self.homes.keys().map(String::as_str);
        let mut unknown: Vec<&str> = names.filter(|name| !known.contains(*name) && !is_left(name)).collect();
        unknown.sort_unstable();
        unknown
    }

    /// The name in the files of the tensor that holds the tensor `name`.
    pub fn stored(&self, name: &str) -> Option<&str> {
        self.place(name).map(|(stored, _)| stored)
    }

    /// The name of a tensor in the files, and the name of its scales if it has some; of one that is stored as two,
    /// both.
    fn with_scales(&self, stored: &str) -> impl Iterator<Item = String> {
        let packed = self.packed.get(stored).map(|packed| [packed.blocks.clone(), packed.scales.clone()]);
        let is_scaled = self.info(stored).is_ok_and(|info| Encoding::of(info.dtype) == Some(Encoding::E4m3));
        let name = Some(stored.to_string()).filter(|_| packed.is_none());
        let names = [name, is_scaled.then(|| scale_name(stored))].into_iter().flatten();
        names.chain(packed.into_iter().flatten())
    }

    /// The whole tensor that holds the tensor called `name`.
    fn floats(&self, name: &str) -> Result<StoredFloats<'_>> {
        if let Some(packed) = self.place(name).and_then(|(stored, _)| self.packed.get(stored)) {
            let of = |part: &str| self.files[self.homes[part]].tensor(part).map(|(.., bytes)| bytes);
            let (bytes, codes) = (of(&packed.blocks)?, of(&packed.scales)?);
            let scales = Some(Scales::Micro { codes, sizes: [packed.shape[1], packed.shape[2]] });
            return Ok(StoredFloats { encoding: Encoding::Mxfp4, rows: packed.shape[0], bytes, scales });
        }
        let (shape, dtype, bytes) = self.tensor(name)?;
        let error = || Error::file(&self.path, format!("`{name}` {}", refusal(dtype)));
        if dtype == Dtype::F4 {
            return Err(error());
        }
        let encoding = Encoding::of(dtype).ok_or_else(error)?;
        let scales = (encoding == Encoding::E4m3).then(|| self.scales(name, shape)).transpose()?;
        // The rows of several matrices follow one another.
        let rows = match shape {
            [rows @ .., _columns] if !rows.is_empty() => rows.iter().product(),
            vector => vector.iter().product(),
        };
        Ok(StoredFloats { encoding, rows, bytes, scales })
    }

    /// The scales of the tensor that holds the tensor `name`, which is FP8 of this shape.
    fn scales(&self, name: &str, shape: &[usize]) -> Result<Scales<'_>> {
        let error = |what: String| {
            let remedy = "fetch the checkpoint again, or save it in bfloat16";
            Error::file(&self.path, format!("`{name}` is F8_E4M3 {shape:?} {what}; {remedy}"))
        };
        let scale = scale_name(self.stored(name).unwrap_or(name));
        let home = self.homes.get(&scale);
        let home = home.ok_or_else(|| error(format!("without its scales, `{scale}`")))?;
        let (found, dtype, bytes) = self.files[*home].tensor(&scale)?;
        let expected =
            <[usize; 2]>::try_from(shape).ok().map(|shape| (self.block.scales_of(shape), shape[1]));
        match (expected, Encoding::of(dtype)) {
            (Some((expected, columns)), Some(encoding @ Encoding::Plain(_))) if found == expected => {
                Ok(Scales::OfBlocks { block: self.block, values: encoding.decode(bytes), columns })
            }
            _ => Err(error(format!(
                "and `{scale}` {dtype:?} {found:?}, not floats for each of its blocks of {}",
                self.block
            ))),
        }
    }

    fn tensor(&self, name: &str) -> Result<(&[usize], Dtype, &[u8])> {
        let missing = || {
            let remedy = remedy_of_missing(name, self.homes.keys().map(String::as_str));
            Error::file(&self.path, format!("holds no tensor `{name}`; {remedy}"))
        };
        let (stored, _) = self.place(name).ok_or_else(missing)?;
        match self.packed.get(stored) {
            Some(packed) => Ok((&packed.shape, Dtype::F4, &[])),
            None => self.files[self.homes[stored]].tensor(stored),
        }
    }

    /// The rows that the tensor `name` takes of the tensor that holds it, which has `total` rows.
    ///
    /// # Errors
    /// Those of [`Published::rows`].
    pub fn rows(&self, name: &str, total: usize) -> Result<Vec<Range<usize>>> {
        if let Some((stored, part)) = self.expert(name) {
            let (shape, ..) = self.tensor(stored)?;
            let rows = part.rows(shape.first().copied().unwrap_or(0), total);
            let error =
                || Error::file(&self.path, format!("`{stored}` {shape:?} holds no `{name}`; {OTHER_MODEL}"));
            return rows.map(|rows| std::iter::once(rows).collect()).ok_or_else(error);
        }
        match (self.place(name), &self.published) {
            (Some((_, cut)), Some(published)) => published.rows(cut, total, &self.path),
            _ => Ok(std::iter::once(0..total).collect()),
        }
    }

    /// Where the tensor that a whole model calls `name` is: the name in the files of the tensor that holds it, and
    /// which rows of that tensor it takes.
    fn place(&self, name: &str) -> Option<(&str, Cut)> {
        let of_layout = || {
            let place = self.published.as_ref()?.place(name)?;
            Some((self.stored_name(&place.name)?, place.cut))
        };
        let of_expert = || self.expert(name).map(|(stored, _)| (stored, Cut::Whole));
        self.stored_name(name).map(|stored| (stored, Cut::Whole)).or_else(of_layout).or_else(of_expert)
    }

    /// The tensor of all experts that holds the projection `name` of one, and which part of it, in files without a
    /// tensor of that name: those in which Qwen3.5 was published.
    fn expert(&self, name: &str) -> Option<(&str, ExpertPart)> {
        let (module, of_one) = name.strip_suffix(".weight")?.split_once(".experts.")?;
        let (number, projection) = of_one.split_once('.')?;
        let (stored, half) = match projection {
            "gate_proj" => ("gate_up_proj", Some(0)),
            "up_proj" => ("gate_up_proj", Some(1)),
            "down_proj" => ("down_proj", None),
            _ => return None,
        };
        let part = ExpertPart { number: number.parse().ok()?, half };
        let stored = self.stored_name(&format!("{module}.experts.{stored}"))?;
        self.stored_name(name).is_none().then_some((stored, part))
    }

    /// The name in the files of the tensor that a whole model calls `name`: the same name, the name without a prefix,
    /// or the name inside another model, whichever is there.
    pub fn stored_name(&self, name: &str) -> Option<&str> {
        let bare = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
        let inside = self.wrapped.into_iter().flat_map(|wrapped| wrapped.names(name));
        let mut names = [Some(name), bare].into_iter().flatten().map(str::to_string).chain(inside);
        names.find_map(|name| {
            let stored = self.homes.get_key_value(&name).map(|(stored, _)| stored);
            stored.or_else(|| self.packed.get_key_value(&name).map(|(stored, _)| stored)).map(String::as_str)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hugging_face::config_json::tests::exported::exported;
    use crate::model::parameters::{Gpt, Role};

    /// Merging and exporting look for a tied embedding by these names, and bare models lack their prefix.
    #[test]
    fn the_embedding_of_every_family_is_known() {
        for model in exported() {
            let specs = Gpt::describe(&model);
            let embedding = specs.iter().find(|spec| spec.role == Role::Embedding).expect("an embedding");
            let name = &embedding.pieces[0].name;
            assert!(EMBEDDINGS.contains(&name.as_str()), "{:?}: {name}", model.family);
            assert!(PREFIXES.iter().any(|prefix| name.starts_with(prefix)), "{:?}: {name}", model.family);
        }
    }

    #[test]
    fn a_damaged_config_json_is_named_and_not_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let no_tensors = [&2u64.to_le_bytes()[..], b"{}"].concat();
        std::fs::write(folder.path().join(MODEL), no_tensors).unwrap();
        assert!(WeightFiles::open(folder.path()).is_ok());
        std::fs::write(folder.path().join("config.json"), "{").unwrap();
        let error = WeightFiles::open(folder.path()).err().expect("an error").to_string();
        assert!(error.contains("config.json: not JSON, or damaged (EOF"), "{error}");
    }

    /// Two experts of 32 inputs and 2 outputs, all of whose codes are 1, under scales of 1, 2, 4 and 8: one tensor to a
    /// model, and two to a file.
    #[test]
    fn blocks_and_scales_are_one_tensor() {
        let folder = tempfile::tempdir().unwrap();
        let info = |name: &str, shape: &[usize]| TensorInfo {
            name: format!("model.layers.0.mlp.experts.{name}"),
            dtype: Dtype::U8,
            shape: shape.to_vec(),
        };
        let infos = [info("down_proj_blocks", &[2, 2, 1, 16]), info("down_proj_scales", &[2, 2, 1])];
        let bytes: [&[u8]; 2] = [&[0x22; 64], &[127, 128, 129, 130]];
        let path = folder.path().join(MODEL);
        TensorFile::write(&path, &infos, HashMap::new(), |index, sink| sink.put(bytes[index])).unwrap();
        let files = WeightFiles::open(&path).unwrap();
        let name = "model.layers.0.mlp.experts.down_proj";
        assert_eq!(files.of_model(), [name]);
        assert_eq!(files.names(), infos.each_ref().map(|info| info.name.clone()));
        let wanted = TensorInfo { name: name.to_string(), dtype: Dtype::F32, shape: vec![2, 32, 2] };
        files.check(&wanted).unwrap();
        assert_eq!(files.row_values(name, 1..2).unwrap(), [4.0, 8.0].repeat(32));
        assert_eq!(files.values(name).unwrap()[..4], [1.0, 2.0, 1.0, 2.0]);
        assert!(files.unknown(&HashSet::from([name.to_string()])).is_empty());
        let other = TensorInfo { shape: vec![2, 2, 32], ..wanted };
        let error = files.check(&other).expect_err("another shape").to_string();
        assert!(error.contains("is F4 [2, 32, 2] there"), "{error}");
    }

    /// Two experts of 3 inputs and 2 inner columns: gate and up of both in one tensor, in which each expert has its
    /// rows.
    #[test]
    fn an_expert_is_found_among_all() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = "model.language_model.layers.0.mlp.experts";
        let info = |name: &str, shape: &[usize]| TensorInfo {
            name: format!("{prefix}.{name}"),
            dtype: Dtype::F32,
            shape: shape.to_vec(),
        };
        let infos = [info("down_proj", &[2, 3, 2]), info("gate_up_proj", &[2, 4, 3])];
        let values: Vec<f32> = (0..24u8).map(f32::from).collect();
        let path = folder.path().join(MODEL);
        TensorFile::write(&path, &infos, HashMap::new(), |index, sink| {
            sink.put(bytemuck::cast_slice(&values[..if index == 0 { 12 } else { 24 }]))
        })
        .unwrap();
        let files = WeightFiles::open(&path).unwrap();
        let of = |name: &str, shape: [usize; 2]| {
            let name = format!("model.layers.0.mlp.experts.{name}.weight");
            let info = TensorInfo { name: name.clone(), dtype: Dtype::F32, shape: shape.to_vec() };
            files.check(&info).and_then(|()| files.values(&name))
        };
        assert_eq!(of("0.gate_proj", [2, 3]).unwrap(), values[..6]);
        assert_eq!(of("1.gate_proj", [2, 3]).unwrap(), values[12..18]);
        assert_eq!(of("1.up_proj", [2, 3]).unwrap(), values[18..]);
        assert_eq!(of("1.down_proj", [3, 2]).unwrap(), values[6..12]);
        for (name, shape) in [("2.up_proj", [2, 3]), ("1.up_proj", [4, 3])] {
            let error = of(name, shape).expect_err("another model").to_string();
            assert!(
                error.contains("gate_up_proj` [2, 4, 3] holds no") || error.contains("[2, 3] there"),
                "{error}"
            );
        }
    }
}
