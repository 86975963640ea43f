//! Files of records: JSON lines, arrays of JSON objects, tables as text, and Parquet.
//!
//! One thread reads a file; its records are processed on all cores, and the results are taken in the order of the
//! records.

mod csv;
mod json;
#[cfg(not(feature = "parquet"))]
mod no_parquet;
#[cfg(feature = "parquet")]
mod parquet;
mod record;
mod unparsed;

use std::path::Path;

#[cfg(not(feature = "parquet"))]
use self::no_parquet as parquet;
pub(super) use self::record::Record;
use self::unparsed::Unparsed;
use super::all_cores::on_all_cores;
use super::files::{self, InputFile};
use crate::error::{Error, Result};

/// The endings, without the dot, of the files that are read in folders.
pub(super) const EXTENSIONS: [&str; 6] = ["json", "jsonl", "ndjson", "csv", "tsv", "parquet"];

/// Endings of data files that other programs read and this one does not, with what to do about each.
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

/// Number of records that a core takes at once, unless they are large.
const CHUNK: usize = 16;
/// A file is no longer read on once it has this many kinds of faults.
const MOST_FAULTS: usize = 10;
/// At most this many places of one kind of fault are named; the others are counted.
const MOST_PLACES: usize = 3;

/// The faults of the records of a file. The file is read on until there are ten of them. Faults that say the same of
/// several records count as one.
#[derive(Default)]
struct Faults(Vec<Fault>);

struct Fault {
    error: Error,
    /// The first places, such as `3` of `line 3`, and the number of all places.
    places: Vec<String>,
    count: u64,
}

impl Faults {
    /// Whether to read on after a record.
    fn go_on(&mut self, visited: Result<bool>) -> bool {
        let error = match visited {
            // After a fault no result is used, so `visit` cannot end the reading any more.
            Ok(goes_on) => return goes_on || !self.0.is_empty(),
            Err(error) => error,
        };
        let Some((_, place, what)) = placed(&error) else {
            // An error that names no record is about all of them.
            let is_again = self.0.last().is_some_and(|last| last.error.to_string() == error.to_string());
            if !is_again {
                self.0.push(Fault { error, places: Vec::new(), count: 1 });
            }
            return !is_again && self.0.len() < MOST_FAULTS;
        };
        let known = self.0.iter_mut().find(|fault| placed(&fault.error).is_some_and(|known| known.2 == what));
        match known {
            Some(fault) => {
                fault.places.extend(Some(place.to_string()).filter(|_| fault.places.len() < MOST_PLACES));
                fault.count += 1;
            }
            None => {
                let places = vec![place.to_string()];
                self.0.push(Fault { error, places, count: 1 });
            }
        }
        self.0.len() < MOST_FAULTS
    }

    fn finish(self) -> Result<()> {
        let faults: Vec<Error> = self.0.into_iter().map(Fault::told).collect();
        if faults.is_empty() { Ok(()) } else { Err(Error::all(faults)) }
    }
}

impl Fault {
    /// The error, with the places of all of its records.
    fn told(self) -> Error {
        match (&self.error, placed(&self.error)) {
            (Error::File { path, .. }, Some((unit, _, what))) if self.count > 1 => {
                let more = self.count - self.places.len() as u64;
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                Error::file(path, format!("{unit}s {}{more}: {what}", self.places.join(", ")))
            }
            _ => self.error,
        }
    }
}

/// The parts of an error about a record: the unit (`line`), its number, and what is wrong.
fn placed(error: &Error) -> Option<(&str, &str, &str)> {
    let Error::File { message, .. } = error else { return None };
    let (place, what) = message.split_once(": ")?;
    let (unit, number) = place.split_once(' ')?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some((unit, number, what))
}

/// Refuses a file whose ending is known as one that is not read.
///
/// # Errors
/// If the file has one of these endings.
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

/// Calls `visit` with each record of a file until it returns false. After a fault, it reads on in order to report up to
/// ten faults at once.
///
/// # Errors
/// If the file cannot be read, is malformed or has no record; the errors of `visit`.
pub(super) fn for_each(path: &Path, visit: &mut dyn FnMut(Record) -> Result<bool>) -> Result<()> {
    let mut faults = Faults::default();
    read(path, &mut |record| faults.go_on(record.parse().and_then(&mut *visit)))?;
    faults.finish()
}

/// Calls `make` with each record of a file, on all cores, and `take` with the results, in the order of the records,
/// until it returns false. Faults are handled as in [`for_each`]; `make` is called for a few records more than are
/// taken.
///
/// # Errors
/// If the file cannot be read, is malformed or has no record; the errors of `make` and `take`.
pub(super) fn for_each_made<T: Send>(
    path: &Path,
    make: impl Fn(Record) -> Result<T> + Sync,
    take: &mut dyn FnMut(T) -> Result<bool>,
) -> Result<()> {
    let mut faults = Faults::default();
    on_all_cores(
        CHUNK,
        Unparsed::bytes,
        |give| read(path, give),
        |record: Unparsed| record.parse().and_then(&make),
        &mut |made: Result<T>| faults.go_on(made.and_then(&mut *take)),
    )?;
    faults.finish()
}

/// Calls `give` with each record of a file until it returns false.
fn read(path: &Path, give: &mut dyn FnMut(Unparsed) -> bool) -> Result<()> {
    match files::has_extension(path, &["parquet"]) {
        true => parquet::read(path, give),
        false if files::has_extension(path, &["csv", "tsv"]) => csv::read(path, give),
        false => {
            refuse_unread(path)?;
            json::read(path, give)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same_of_many_records_is_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let told = |lines: &[&str]| {
            let file = folder.path().join("a.jsonl");
            std::fs::write(&file, lines.join("\n")).unwrap();
            let mut read = 0;
            let faults = for_each(&file, &mut |record| {
                read += 1;
                record.text("text").map(|_| true)
            });
            let faults = faults.map_err(|error| error.to_string().replace(&file.display().to_string(), "a"));
            (read, faults.err().unwrap_or_default())
        };
        let (good, empty, none, number) = (r#"{"text": "a"}"#, r#"{"text": ""}"#, "{}", r#"{"text": 1}"#);
        assert_eq!(told(&[good; 5]), (5, String::new()));
        let (_, one) = told(&[good, empty]);
        assert_eq!(one, "a: line 2: `text` is empty; fill it in, or remove the record");
        let lines = [&[empty, good, number][..], &[empty; 40], &[none, good]].concat();
        let (read, all) = told(&lines);
        let all: Vec<&str> = all.lines().collect();
        assert_eq!(read, 45, "what is the same does not end the reading");
        assert_eq!(all.len(), 3, "{all:?}");
        assert_eq!(all[0], "a: lines 1, 4, 5 and 38 more: `text` is empty; fill it in, or remove the record");
        assert!(all[1].starts_with("a: line 3: expected text under `text`, found a number"), "{all:?}");
        assert!(all[2].starts_with("a: line 44: has no key `text`"), "{all:?}");
        // Of faults that differ, ten are reported.
        let differing: Vec<String> = (0..20).map(|number| format!(r#"{{"key{number}": 1}}"#)).collect();
        let (read, all) = told(&differing.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((read, all.lines().count()), (10, 10));
    }
}
