//! Tensors in a safetensors file, streamed: neither writing nor reading holds a whole file in memory.
//!
//! The layout is 8 bytes with the header's length, the header (JSON: name to dtype, shape and byte range), then the
//! tensors' bytes, little-endian and without gaps (<https://github.com/huggingface/safetensors>). The `safetensors`
//! crate parses and checks the header; its writer is not used because it needs all bytes at once.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::weight_faults::OTHER_MODEL;
use super::{OUTPUT_DIR, remedy_for};
use crate::durable::read_error;
use crate::error::{Error, Result, foreign as library};

mod writer;
pub use writer::TensorSink;
pub(crate) use writer::TensorWriter;

/// Bytes of the length field that starts a file.
const LENGTH_BYTES: usize = 8;
/// The longest header that other readers of the format accept.
const MAX_HEADER_BYTES: usize = 100_000_000;

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// Its name, unique in the file.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its dimensions, outermost first, without padding.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Size in bytes; `None` if the product overflows or is not a whole number of bytes.
    pub(crate) fn size_bytes(&self) -> Option<usize> {
        let elements = self.shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length))?;
        let bits = elements.checked_mul(self.dtype.bitsize())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

/// A safetensors file, open for reading through a memory map.
///
/// ```
/// # use gristmill::store::tensor_file::{TensorFile, TensorInfo};
/// # use safetensors::Dtype;
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("model.safetensors");
/// let tensors = [TensorInfo { name: "norm.weight".into(), dtype: Dtype::F32, shape: vec![2] }];
/// TensorFile::write(&path, &tensors, Default::default(), |_index, sink| {
///     sink.put(&1.0f32.to_le_bytes())?; // in any number of pieces
///     sink.put(&2.0f32.to_le_bytes())
/// })?;
///
/// let file = TensorFile::open(&path)?;
/// let (shape, dtype, bytes) = file.tensor("norm.weight")?;
/// assert_eq!((shape, dtype, bytes.len()), (&[2][..], Dtype::F32, 8));
/// # Ok::<(), gristmill::error::Error>(())
/// ```
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    map: Mmap,
    header: Metadata,
    data_start: usize,
}

impl TensorFile {
    /// Writes a new file: the header, then each tensor's bytes as `fill(index, sink)` puts them, where `index` is
    /// into `tensors`. Tensors are sorted by element size, widest first and otherwise in the given order, so that
    /// each starts at a multiple of its element's size. Nothing is synced here: committing the checkpoint syncs all
    /// its files.
    ///
    /// # Errors
    /// A full disk or another I/O failure; an error of `fill`; a tensor that got more or fewer bytes than its shape
    /// takes. The file is then incomplete and must not be used.
    pub fn write(
        path: &Path,
        tensors: &[TensorInfo],
        metadata: HashMap<String, String>,
        mut fill: impl FnMut(usize, &mut TensorSink<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut writer = Self::begin(path, tensors, metadata)?;
        for index in writer.order() {
            let mut sink = writer.sink(index);
            fill(index, &mut sink)?;
            sink.finish()?;
        }
        writer.end()
    }

    /// Begins [`write`](Self::write) as single steps: the caller puts each tensor and ends the file.
    pub(crate) fn begin<'a>(
        path: &'a Path,
        tensors: &'a [TensorInfo],
        metadata: HashMap<String, String>,
    ) -> Result<TensorWriter<'a, BufWriter<File>>> {
        let file = File::create(path).map_err(|error| OUTPUT_DIR.error(path, "create", &error))?;
        TensorWriter::begin(BufWriter::with_capacity(1 << 20, file), path, tensors, metadata)
    }

    /// Opens a file and checks its header against its length.
    ///
    /// # Errors
    /// The file is missing, not a safetensors file, or truncated.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| read_error(path, "open", &error))?;
        // SAFETY: a map is undefined behaviour only if the file changes or shrinks while it is mapped. Checkpoints do
        // not change once they have their final name, and the run folder's lock keeps a second process from replacing
        // them.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| read_error(path, "read", &error))?;
        let (header, data_start) = parse(path, &map)?;
        Ok(Self { path: path.to_path_buf(), map, header, data_start })
    }

    /// Shape, element type and little-endian bytes of the tensor `name`. Other programs may start a tensor at any
    /// byte, so the slice may not be aligned.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn tensor(&self, name: &str) -> Result<(&[usize], Dtype, &[u8])> {
        let missing = || Error::file(&self.path, format!("holds no tensor `{name}`; {OTHER_MODEL}"));
        let info = self.header.info(name).ok_or_else(missing)?;
        let (start, end) = info.data_offsets;
        let bytes = self.map.get(self.data_start + start..self.data_start + end).ok_or_else(missing)?;
        Ok((&info.shape, info.dtype, bytes))
    }

    /// The tensors' names, in the order of their bytes.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }
}

/// The checked header and the offset of the data. The crate's own `read_metadata` is not used: it adds numbers from the
/// file without checking for overflow, and has the same error for foreign and truncated files.
fn parse(path: &Path, bytes: &[u8]) -> Result<(Metadata, usize)> {
    let foreign = |why: &str| {
        Error::file(
            path,
            format!("not a safetensors file, or one cut off in its header ({why}); {}", remedy_for(path)),
        )
    };
    let (length, rest) =
        bytes.split_first_chunk::<LENGTH_BYTES>().ok_or_else(|| foreign("shorter than 8 bytes"))?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_HEADER_BYTES {
        return Err(foreign("its header would be longer than 100 MB"));
    }
    let (header, data) = rest.split_at_checked(length).ok_or_else(|| foreign("its header passes its end"))?;
    let read = library(|| serde_json::from_slice::<Metadata>(header)).map_err(|panic| foreign(&panic))?;
    let header = read.map_err(|error| foreign(&error.to_string()))?;
    let (expected, found) = (header.data_len(), data.len());
    match expected.cmp(&found) {
        Ordering::Equal => Ok((header, LENGTH_BYTES + length)),
        Ordering::Greater => Err(Error::file(
            path,
            format!(
                "truncated: its tensors take {expected} bytes and {found} are there; {}",
                remedy_for(path)
            ),
        )),
        Ordering::Less => Err(Error::file(
            path,
            format!("{} unknown bytes follow its tensors; {}", found - expected, remedy_for(path)),
        )),
    }
}

#[cfg(test)]
mod tests;
