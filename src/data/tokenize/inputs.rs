//! The text files that a command reads.

use std::path::Path;

use crate::data::config::DocumentFormat;
use crate::data::files::{self, InputFile};
use crate::error::{Error, Result};

/// The files that `paths` name; of folders and patterns only those that `documents` are read from.
///
/// # Errors
/// If a path does not exist, or there are no files.
pub(super) fn expand(paths: &[String], documents: &DocumentFormat) -> Result<Vec<InputFile>> {
    let extension = documents.extension();
    let wanted = |path: &Path| extension.is_none_or(|one| files::has_extension(path, &[one]));
    let files = files::expand(paths, wanted, "name files, folders or patterns that exist")?;
    if files.is_empty() {
        let what = extension.map_or("files".to_string(), |extension| format!("*.{extension} files"));
        return Err(Error::file(paths.join(", "), format!("no {what} found; name files with text")));
    }
    Ok(files)
}

/// Refuses to overwrite an input.
///
/// # Errors
/// If `output` is one of `inputs`.
pub(super) fn check_output(inputs: &[InputFile], output: &Path) -> Result<()> {
    let Ok(output) = output.canonicalize() else { return Ok(()) }; // it does not exist yet
    let is_output = |file: &&InputFile| file.path.canonicalize().is_ok_and(|path| path == output);
    let message = "is an input and would be overwritten; choose another --output";
    inputs.iter().find(is_output).map_or(Ok(()), |file| Err(Error::file(&file.path, message)))
}
