//! Files of records: JSON lines, arrays of JSON objects, and Parquet.

mod json;
#[cfg(not(feature = "parquet"))]
mod no_parquet;
#[cfg(feature = "parquet")]
mod parquet;
mod record;

use std::path::Path;

#[cfg(not(feature = "parquet"))]
use self::no_parquet as parquet;
pub(super) use self::record::Record;
use super::files::{self, InputFile};
use crate::error::{Error, Result};

/// The endings, without the dot, of the files that are read from folders.
pub(super) const EXTENSIONS: [&str; 3] = ["json", "jsonl", "parquet"];

/// The files of records that `paths` name. `remedy` tells the user what to do about a path that does not exist.
///
/// # Errors
/// If a path does not exist, or no file is found.
pub(super) fn files(paths: &[String], remedy: &str) -> Result<Vec<InputFile>> {
    let wanted = |path: &Path| files::has_extension(path, &EXTENSIONS);
    let files = files::expand(paths, wanted, remedy)?;
    match files.is_empty() {
        true => {
            let message = format!("no *.{} file found; {remedy}", EXTENSIONS.join(", *."));
            Err(Error::file(paths.join(", "), message))
        }
        false => Ok(files),
    }
}

/// Calls `visit` with each record of a file until it returns false.
///
/// # Errors
/// If the file cannot be read, is malformed or has no record; those of `visit`.
pub(super) fn for_each(path: &Path, visit: &mut dyn FnMut(Record) -> Result<bool>) -> Result<()> {
    match files::has_extension(path, &["parquet"]) {
        true => parquet::for_each(path, visit),
        false => json::for_each(path, visit),
    }
}
