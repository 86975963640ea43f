//! Tensors in several files with an index that says which file holds each tensor, in the format of `transformers`.

use super::OUTPUT_DIR;
use crate::durable::read_json;
use crate::error::{Error, Result};
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The end of the name of an index.
const INDEX: &str = ".safetensors.index.json";

/// An index: which file holds a tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The name of file `number`, from 1, of `count` with the tensors of `stem`: `model-00001-of-00004.safetensors`, or
/// `model.safetensors` if there is only one file.
pub(super) fn file_name(stem: &str, number: usize, count: usize) -> String {
    match count {
        1 => format!("{stem}.safetensors"),
        _ => format!("{stem}-{number:05}-of-{count:05}.safetensors"),
    }
}

/// The files with the tensors of `stem` in `folder`: one, or several and their index, which comes first. If there are
/// none, the single file that is missing.
///
/// # Errors
/// An index that is damaged.
pub(super) fn files_of(folder: &Path, stem: &str) -> Result<Vec<PathBuf>> {
    let (whole, index) = (folder.join(file_name(stem, 1, 1)), folder.join(format!("{stem}{INDEX}")));
    if whole.exists() || !index.exists() {
        return Ok(vec![whole]);
    }
    let shards = shards(&index)?;
    Ok([index].into_iter().chain(shards).collect())
}

/// Whether `path` has the name of an index.
pub(super) fn is_index(path: &Path) -> bool {
    path.to_string_lossy().ends_with(INDEX)
}

/// The files that the index at `path` names, which lie beside it.
///
/// # Errors
/// A file that cannot be read, or is no index.
pub(super) fn shards(path: &Path) -> Result<Vec<PathBuf>> {
    let (what, remedy) = ("an index of safetensors files", "fetch the checkpoint again");
    let Index { weight_map } = read_json(path, what, remedy)?;
    let names: BTreeSet<String> = weight_map.into_values().collect();
    if let Some(name) =
        names.iter().find(|name| Path::new(name).file_name() != Some(OsStr::new(name.as_str())))
    {
        let why = format!("not {what}: `{name}` is not the name of a file beside it; {remedy}");
        return Err(Error::file(path, why));
    }
    Ok(names.iter().map(|name| path.with_file_name(name)).collect())
}

/// Writes the index of `stem` into `folder`: the file of each tensor, and the bytes of all.
///
/// # Errors
/// A disk that fails.
pub(super) fn write(
    folder: &Path,
    stem: &str,
    files: &BTreeMap<String, String>,
    total_size: usize,
) -> Result<()> {
    let path = folder.join(format!("{stem}{INDEX}"));
    let index = json!({ "metadata": { "total_size": total_size }, "weight_map": files });
    let text = serde_json::to_vec_pretty(&index).map_err(|error| Error::file(&path, error))?;
    OUTPUT_DIR.write(&path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_names_the_files_of_tensors() {
        let folder = tempfile::tempdir().unwrap();
        let files: BTreeMap<String, String> = (1..=3)
            .map(|number| (format!("layers.{number}.weight"), file_name("model", number, 3)))
            .collect();
        write(folder.path(), "model", &files, 12).unwrap();
        let names: Vec<PathBuf> = files_of(folder.path(), "model").unwrap();
        let names: Vec<&str> = names.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names[..2], ["model.safetensors.index.json", "model-00001-of-00003.safetensors"]);
        assert_eq!(names.len(), 4);
        assert_eq!(
            files_of(folder.path(), "optimizer").unwrap(),
            [folder.path().join("optimizer.safetensors")]
        );
    }
}
