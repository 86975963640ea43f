//! Writing: first the header, which follows from the shapes, then the bytes as they arrive.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;

use safetensors::tensor::TensorInfo as Placed;

use super::super::OUTPUT_DIR;
use super::{LENGTH_BYTES, MAX_HEADER_BYTES, TensorInfo};
use crate::error::{Error, Result};

/// Takes the bytes of one tensor in any pieces and checks that they are as many as its shape takes.
pub struct TensorSink<'a> {
    out: &'a mut (dyn Write + Send),
    path: &'a Path,
    tensor: &'a str,
    pub(super) missing_bytes: usize,
}

impl TensorSink<'_> {
    /// Appends `bytes` to the tensor.
    ///
    /// # Errors
    /// The disk is full or fails, or these are more bytes than the tensor's shape takes.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(missing_bytes) = self.missing_bytes.checked_sub(bytes.len()) else {
            return Err(self.wrong_length(format!("{} more", bytes.len() - self.missing_bytes)));
        };
        self.out.write_all(bytes).map_err(|error| OUTPUT_DIR.error(self.path, "write", &error))?;
        self.missing_bytes = missing_bytes;
        Ok(())
    }

    /// Checks that the tensor has all its bytes.
    pub(crate) fn finish(self) -> Result<()> {
        match self.missing_bytes {
            0 => Ok(()),
            missing => Err(self.wrong_length(format!("{missing} fewer"))),
        }
    }

    fn wrong_length(&self, difference: String) -> Error {
        let tensor = self.tensor;
        Error::file(self.path, format!("tensor `{tensor}` was given {difference} bytes than its shape takes"))
    }
}

/// A file whose header is written, and whose tensors follow one after the other.
pub(crate) struct TensorWriter<'a, W> {
    out: W,
    path: &'a Path,
    tensors: &'a [TensorInfo],
    /// The tensors in the order of their bytes.
    order: Vec<usize>,
    sizes: Vec<usize>,
}

impl<'a, W: Write + Send> TensorWriter<'a, W> {
    /// Writes the header into `out`; `path` only serves error messages.
    pub fn begin(
        mut out: W,
        path: &'a Path,
        tensors: &'a [TensorInfo],
        metadata: HashMap<String, String>,
    ) -> Result<Self> {
        let failed = |error: io::Error| OUTPUT_DIR.error(path, "write", &error);
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_key(|&index| Reverse(tensors[index].dtype.bitsize()));
        let placed = place(path, tensors, &order)?;
        let header = header_bytes(&placed, metadata).map_err(|error| failed(error.into()))?;
        if header.len() > MAX_HEADER_BYTES {
            return Err(Error::file(
                path,
                "the names and shapes of its tensors take more than the format's 100 MB",
            ));
        }
        out.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
        out.write_all(&header).map_err(failed)?;
        let size = |tensor: &TensorInfo| {
            let (start, end) = placed[tensor.name.as_str()].data_offsets;
            end - start
        };
        let sizes = tensors.iter().map(size).collect();
        Ok(Self { out, path, tensors, order, sizes })
    }

    /// The tensors in the order in which they are to be put.
    pub fn order(&self) -> Vec<usize> {
        self.order.clone()
    }

    /// The sink for the bytes of tensor number `index`, the next in order. The caller then
    /// [finishes](TensorSink::finish) it.
    pub fn sink(&mut self, index: usize) -> TensorSink<'_> {
        let tensor = &self.tensors[index].name;
        TensorSink { out: &mut self.out, path: self.path, tensor, missing_bytes: self.sizes[index] }
    }

    /// Hands all that was written to the operating system.
    pub fn end(mut self) -> Result<()> {
        self.out.flush().map_err(|error| OUTPUT_DIR.error(self.path, "write", &error))
    }
}

/// Each tensor's byte range, counted from the end of the header.
fn place<'a>(path: &Path, tensors: &'a [TensorInfo], order: &[usize]) -> Result<BTreeMap<&'a str, Placed>> {
    let mut placed = BTreeMap::new();
    let mut start = 0usize;
    for &index in order {
        let tensor = &tensors[index];
        let TensorInfo { name, dtype, shape } = tensor;
        let end = tensor.size_bytes().and_then(|size| start.checked_add(size));
        let odd =
            || Error::file(path, format!("tensor `{name}` of shape {shape:?} has no whole number of bytes"));
        let end = end.ok_or_else(odd)?;
        let range = Placed { dtype: *dtype, shape: shape.clone(), data_offsets: (start, end) };
        if name == "__metadata__" || placed.insert(name.as_str(), range).is_some() {
            return Err(Error::file(path, format!("the tensor name `{name}` is taken")));
        }
        start = end;
    }
    Ok(placed)
}

/// The JSON header, sorted by name so that equal checkpoints are equal files, and padded with spaces to a multiple of
/// 8 bytes so that the data is aligned.
fn header_bytes(
    placed: &BTreeMap<&str, Placed>,
    metadata: HashMap<String, String>,
) -> serde_json::Result<Vec<u8>> {
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        let sorted: BTreeMap<String, String> = metadata.into_iter().collect();
        header.insert("__metadata__".into(), serde_json::to_value(sorted)?);
    }
    for (name, range) in placed {
        header.insert((*name).into(), serde_json::to_value(range)?);
    }
    let mut bytes = serde_json::to_vec(&header)?;
    bytes.resize(bytes.len().next_multiple_of(LENGTH_BYTES), b' ');
    Ok(bytes)
}
