//! Writes a model as llama.cpp reads it: one file with keys, tokenizer and tensors.
//!
//! Matrices get the type that is asked for, and vectors, routers and biases of experts are f32. In Q4_0 the embedding
//! and the head are Q8_0, since every token reads them. A matrix whose rows are no whole number of blocks of 32 is f16.

use super::lora::{Adapter, factor_names};
use super::weight_faults::OTHER_MODEL;
use super::weight_files::{EMBEDDINGS, HEAD, WeightFiles};
use super::wrapped;
use crate::durable::PathOrigin;
use crate::error::{Error, Result};
use crate::hugging_face::gguf::{GgufTensor, Keys, Source, architecture, keys, tensors};
use crate::model::config::ModelConfig;
use crate::model::parameters::adapted_module;
use pmetal_gguf::{GgmlType, GgufStreamWriter, MetadataValue, TensorInfo, quantize::quantize_tensor};
use std::io::Write;
use std::path::Path;

/// The flag that names the file.
const FILE: PathOrigin = PathOrigin("--gguf");
/// Bytes to whose multiples tensors are aligned, which is the format's default.
const ALIGNMENT: u32 = 32;

/// A type of matrices in a file of llama.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufType {
    /// 32 bits.
    F32,
    /// 16 bits with 5 of exponent.
    F16,
    /// The upper half of f32.
    Bf16,
    /// Signed bytes in blocks of 32 with a scale: 8.5 bits.
    Q8_0,
    /// 4 bits in blocks of 32 with a scale: 4.5 bits.
    Q4_0,
}

impl GgufType {
    /// All types.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0];

    /// Its name in command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    fn stored(self) -> GgmlType {
        match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::Bf16 => GgmlType::Bf16,
            Self::Q8_0 => GgmlType::Q8_0,
            Self::Q4_0 => GgmlType::Q4_0,
        }
    }

    /// llama.cpp's number of a file of mostly this type.
    fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// The type of `tensor` in a file of this type.
    fn of(self, tensor: &GgufTensor) -> GgmlType {
        let is_table = ["token_embd.weight", "output.weight"].contains(&tensor.name.as_str());
        let columns = tensor.shape.last().copied().unwrap_or(0);
        match self {
            _ if !tensor.is_matrix => GgmlType::F32,
            Self::Q8_0 | Self::Q4_0 if !columns.is_multiple_of(32) => GgmlType::F16,
            Self::Q4_0 if is_table => GgmlType::Q8_0,
            _ => self.stored(),
        }
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufWritten {
    /// The number of tensors.
    pub tensors: usize,
    /// Matrices that are f16 because their rows are no whole number of blocks.
    pub unquantised: usize,
    /// What a user should know of the file, a line each.
    pub notices: Vec<String>,
}

/// Writes the weights at `weights` of `model` to the file `out`, which must be new, with the keys `text` of its
/// tokenizer.
///
/// # Errors
/// A model that llama.cpp does not have; weights that are missing or damaged, or beyond the range of the type; a disk
/// that fails.
pub(crate) fn write(
    model: &ModelConfig,
    weights: &Path,
    text: Keys,
    out: &Path,
    kind: GgufType,
) -> Result<GgufWritten> {
    let files = WeightFiles::open(weights)?;
    let refused = |why: String| Error::file(weights, why);
    let architecture = architecture(model).map_err(refused)?;
    let tensors = tensors(&architecture, model).map_err(refused)?;
    let mut metadata = keys(&architecture, model);
    metadata.extend(text);
    metadata.insert("general.file_type".into(), MetadataValue::Uint32(kind.file_type()));
    if let Some(name) = weights.file_name().and_then(|name| name.to_str()) {
        metadata.insert("general.name".into(), MetadataValue::String(name.into()));
    }
    write_file(&files, &metadata, &tensors, out, kind)?;
    let is_unquantised = |tensor: &&GgufTensor| {
        tensor.is_matrix && kind.stored().is_quantized() && !kind.of(tensor).is_quantized()
    };
    let unquantised = tensors.iter().filter(is_unquantised).count();
    Ok(GgufWritten { tensors: tensors.len(), unquantised, notices: architecture.notices })
}

/// Writes the adapter in the file `weights` for `model` to the file `out`, which must be new, as llama.cpp adds one to
/// a file of its base.
///
/// # Errors
/// An adapter of more than linear layers, or on a base that is not the published one; what [`write`] refuses.
pub(crate) fn write_adapter(
    model: &ModelConfig,
    weights: &Path,
    out: &Path,
    kind: GgufType,
) -> Result<GgufWritten> {
    let refused = |why: String| Error::file(weights, why);
    if kind.stored().is_quantized() {
        return Err(refused(format!(
            "is an adapter, whose factors {} does not hold; write --type f16 or f32",
            kind.name()
        )));
    }
    let adapter = Adapter::open(weights)?;
    adapter.config()?;
    let left = |what: &str| {
        refused(format!("{what}, which a file of llama.cpp's cannot say; merge it by `gristmill merge`"))
    };
    if !adapter.keeps_base() {
        return Err(left("took something out of its base by `init_lora_weights`"));
    }
    let is_other = |name: &str| name.ends_with(".bias") || name.contains("lora_magnitude_vector");
    let is_factor = |name: &str| adapted_module(name).is_some() && !is_other(name);
    if let Some(name) = adapter.files.names().iter().find(|name| !is_factor(name)) {
        return Err(left(&format!("has `{name}` beside factors of low rank")));
    }
    if let Some(parameter) = adapter.parameters().next() {
        return Err(left(&format!("adapts the experts of `{parameter}`")));
    }
    let architecture = architecture(model).map_err(refused)?;
    let known = tensors(&architecture, model).map_err(refused)?;
    let scales = adapter.modules().map(|module| (module, adapter.scale_of(module).unwrap_or(1.0)));
    let scales: Vec<(&str, f64)> = scales.collect();
    // The file has one alpha, by which the product of each module is multiplied and divided by its rank.
    let alpha = scales.first().map_or(1.0, |(module, scale)| scale * adapter.rank_of(module) as f64);
    let mut factors = Vec::new();
    for (module, scale) in scales {
        let matrix = format!("{}.weight", wrapped::alone(module));
        let of_base = known.iter().find(|tensor| tensor.is_matrix && tensor.is_stored_as(&matrix));
        let base = of_base.filter(|tensor| tensor.name != "token_embd.weight");
        let base = base.ok_or_else(|| left(&format!("adapts `{module}`")))?;
        let (rank, [a, b]) =
            (adapter.rank_of(module), factor_names(module).map(|name| adapter.files.values(&name)));
        let factor = (scale * rank as f64 / alpha) as f32;
        let b = base.in_rows_of(b?).into_iter().map(|value| value * factor);
        for (end, shape, values) in
            [("lora_a", vec![rank, base.shape[1]], a?), ("lora_b", vec![base.shape[0], rank], b.collect())]
        {
            factors.push(GgufTensor {
                name: format!("{}.{end}", base.name),
                shape,
                is_matrix: true,
                sources: vec![Source::Values(values)],
                offset: 0.0,
            });
        }
    }
    let metadata = Keys::from([
        ("general.type".to_string(), MetadataValue::String("adapter".into())),
        ("general.architecture".to_string(), MetadataValue::String(architecture.name().into())),
        ("general.file_type".to_string(), MetadataValue::Uint32(kind.file_type())),
        ("adapter.type".to_string(), MetadataValue::String("lora".into())),
        ("adapter.lora.alpha".to_string(), MetadataValue::Float32(alpha as f32)),
    ]);
    write_file(&adapter.files, &metadata, &factors, out, kind)?;
    Ok(GgufWritten { tensors: factors.len(), unquantised: 0, notices: Vec::new() })
}

/// The bytes of `tensor` in this type.
fn encoded(files: &WeightFiles, tensor: &GgufTensor, kind: GgmlType) -> Result<Vec<u8>> {
    let columns = tensor.shape.last().copied().unwrap_or(1);
    let largest = match kind {
        GgmlType::F16 => 65520.0, // halfway from the largest to the power of two above it
        GgmlType::Bf16 => f32::from_bits(0x7f7f_8000),
        _ => f32::INFINITY,
    };
    let mut bytes = Vec::new();
    let mut count = 0;
    for source in &tensor.sources {
        let mut values = source.of_stored(stored(files, source)?);
        values.iter_mut().for_each(|value| *value += tensor.offset);
        if let Some(value) = values.iter().find(|value| value.is_finite() && value.abs() >= largest) {
            let message = format!(
                "`{}` holds {value:e}, which {kind:?} cannot hold; write another --type",
                tensor.name
            );
            return Err(Error::file(files.path(), message));
        }
        count += values.len();
        let of_source = quantize_tensor(&values, kind, columns, None);
        bytes.extend(
            of_source.map_err(|error| Error::file(files.path(), format!("`{}`: {error}", tensor.name)))?,
        );
    }
    let expected: usize = tensor.shape.iter().product();
    if count != expected {
        let message =
            format!("`{}` would have {count} values instead of {expected}; {OTHER_MODEL}", tensor.name);
        return Err(Error::file(files.path(), message));
    }
    Ok(bytes)
}

/// The values of the tensor that `source` reads. A head that is not there is the embedding.
fn stored(files: &WeightFiles, source: &Source) -> Result<Vec<f32>> {
    let Some(name) = source.stored() else { return Ok(Vec::new()) };
    let embedding = EMBEDDINGS.into_iter().find(|embedding| files.holds(embedding));
    let name = embedding.filter(|_| name == HEAD && !files.holds(HEAD)).unwrap_or(name);
    files.values(name)
}

/// Writes the keys `metadata` and the tensors, whose values are in `files`, to the file `out`, which must be new.
fn write_file(
    files: &WeightFiles,
    metadata: &Keys,
    tensors: &[GgufTensor],
    out: &Path,
    kind: GgufType,
) -> Result<()> {
    if out.exists() {
        return Err(Error::file(out, "is there already; name a new file"));
    }
    let info = |tensor: &GgufTensor| {
        let shape = tensor.shape.iter().map(|size| *size as u64).collect();
        TensorInfo::new(tensor.name.clone(), shape, kind.of(tensor))
    };
    let infos: Vec<TensorInfo> = tensors.iter().map(info).collect();
    let mut file = FILE.begin(out)?;
    let mut written = Ok(());
    file.fill(|sink| {
        written = fill(sink, out, metadata, infos, |index| {
            encoded(files, &tensors[index], kind.of(&tensors[index]))
                .map(|bytes| (&*tensors[index].name, bytes))
        });
        Ok(())
    })?;
    written?;
    file.finish().map(drop)
}

/// Writes the header and the tensors, in order, of which `bytes` returns the name and the bytes.
fn fill<'a>(
    sink: &mut impl Write,
    out: &Path,
    metadata: &Keys,
    tensors: Vec<TensorInfo>,
    bytes: impl Fn(usize) -> Result<(&'a str, Vec<u8>)>,
) -> Result<()> {
    let count = tensors.len();
    let mut writer =
        GgufStreamWriter::new(sink, metadata, tensors, ALIGNMENT).map_err(|error| failure(out, &error))?;
    for index in 0..count {
        let (name, bytes) = bytes(index)?;
        writer.write_tensor(name, &bytes).map_err(|error| failure(out, &error))?;
    }
    writer.finish().map(drop).map_err(|error| failure(out, &error))
}

/// An error of the library while it writes `out`.
fn failure(out: &Path, error: &dyn std::error::Error) -> Error {
    match error.source().and_then(|cause| cause.downcast_ref()) {
        Some(cause) => FILE.error(out, "write", cause),
        None => Error::file(out, format!("cannot be written ({error})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of Python's gguf 0.19 for the same values.
    #[test]
    fn blocks_are_those_of_llama_cpp() {
        let values: Vec<f32> = (0..32).map(|i| ((i * 37 % 64) as f64 - 31.0) as f32 / 17.0).collect();
        for (kind, expected) in [
            (GgufType::Q8_0, "97238518ad40d467fc9124b94be073089d30c457ec7f14a93cd063f88d20b547dc6f"),
            (GgufType::Q4_0, "88b3cf379d047be248bf269df36ad148ae15"),
        ] {
            let bytes = quantize_tensor(&values, kind.stored(), 32, None).unwrap();
            let shown: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(shown, expected, "{kind:?}");
        }
    }
}
