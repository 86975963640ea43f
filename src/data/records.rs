//! Files of records: JSON lines, arrays of JSON objects, tables as text, and Parquet.

mod csv;
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
pub(super) const EXTENSIONS: [&str; 6] = ["json", "jsonl", "ndjson", "csv", "tsv", "parquet"];

/// Endings of data that other programs read, and that is not read here: what to do about each.
const UNREAD: [(&[&str], &str); 4] = [
    (&["gz", "zst", "bz2", "xz", "lz4", "zip", "tar", "tgz", "7z", "rar"], "unpack it"),
    (
        &[
            "arrow", "feather", "orc", "avro", "tfrecord", "msgpack", "lance", "sqlite", "db", "h5", "hdf5",
            "lmdb",
        ],
        "convert it to JSON lines or Parquet",
    ),
    (
        &["xlsx", "xls", "ods", "pkl", "pickle", "npy", "npz", "pt", "pth", "safetensors", "gguf"],
        "convert it to JSON lines",
    ),
    (&["pdf", "docx", "doc", "odt", "epub", "rtf"], "save it as text"),
];

/// Most faults that a file is read on for.
const MOST_FAULTS: usize = 10;

/// The faults of the records of a file, which are read on for up to ten of them.
#[derive(Default)]
struct Faults(Vec<Error>);

impl Faults {
    /// Whether there is more to read after a record.
    fn go_on(&mut self, visited: Result<bool>) -> bool {
        match visited {
            // After a fault nothing is used, so nothing is enough either.
            Ok(goes_on) => goes_on || !self.0.is_empty(),
            // What is no fault of a record is that of all of them.
            Err(error) if self.0.last().is_some_and(|last| last.to_string() == error.to_string()) => false,
            Err(error) => {
                self.0.push(error);
                self.0.len() < MOST_FAULTS
            }
        }
    }

    fn finish(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::all(self.0)) }
    }
}

/// Refuses a file that is known by its ending, and not read.
///
/// # Errors
/// If the file is one of these.
pub(super) fn refuse_unread(path: &Path) -> Result<()> {
    match UNREAD.iter().find(|(endings, _)| files::has_extension(path, endings)) {
        Some((_, remedy)) => {
            let known = EXTENSIONS.join(", .");
            Err(Error::file(
                path,
                format!(
                    "is of a kind that is not read; {remedy} (records are read from .{known}, and text from other files)"
                ),
            ))
        }
        None => Ok(()),
    }
}

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

/// Calls `visit` with each record of a file until it returns false. It goes on after a fault, to tell of up to ten at once.
///
/// # Errors
/// If the file cannot be read, is malformed or has no record; those of `visit`.
pub(super) fn for_each(path: &Path, visit: &mut dyn FnMut(Record) -> Result<bool>) -> Result<()> {
    match files::has_extension(path, &["parquet"]) {
        true => parquet::for_each(path, visit),
        false if files::has_extension(path, &["csv", "tsv"]) => csv::for_each(path, visit),
        false => {
            refuse_unread(path)?;
            json::for_each(path, visit)
        }
    }
}
