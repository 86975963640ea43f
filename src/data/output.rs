//! The files that `tokenize` and `train-tokenizer` write.

use std::path::Path;

use crate::durable::{AtomicFile, PathOrigin};
use crate::error::{Error, Result};

const OUTPUT: PathOrigin = PathOrigin("--output");

/// Starts the file that will become `path` if [`check_free`] allows it, and creates its folder if there is none.
pub(super) fn begin(path: &Path, force: bool) -> Result<AtomicFile> {
    check_free(path, force)?;
    path.parent().map_or(Ok(()), |folder| OUTPUT.create_folder(folder))?;
    OUTPUT.begin(path)
}

/// Refuses a `path` that is a folder, or that exists unless `force`.
pub(super) fn check_free(path: &Path, force: bool) -> Result<()> {
    match path.exists() {
        true if path.is_dir() => Err(Error::file(path, "is a folder; name a file")),
        true if !force => Err(Error::file(path, "exists; choose another name, or replace it with --force")),
        _ => Ok(()),
    }
}
