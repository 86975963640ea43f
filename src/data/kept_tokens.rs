//! The tokens of files: kept by an earlier start, or made now and kept for the next start.

use std::fmt::Display;
use std::time::Duration;

use super::files::InputFile;
use super::notes::plural;
use super::progress::{Progress, Shown};
use super::sample_store::{SampleStore, StoreWriter, Written};
use super::token_cache::{Place, bytes_of, say_once};
use crate::error::{Error, Result};

/// A reading that took longer than this is reported to the user.
const LONG: Duration = Duration::from_secs(5);

/// Tokens that are being made from files.
pub(super) struct Making {
    /// The store to which the tokens are written.
    pub writer: StoreWriter,
    /// How far the making has got.
    pub shown: Shown,
    /// The error that kept the tokens from being written: nothing more needs to be made.
    pub failed: Option<Error>,
}

impl Making {
    fn new(writer: StoreWriter, files: &[InputFile]) -> Self {
        Self { writer, shown: Shown::new(bytes_of(files)), failed: None }
    }

    /// Writes by `write`, unless an earlier write has failed.
    pub fn write(&mut self, write: impl FnOnce(&mut StoreWriter) -> Result<()>) {
        if self.failed.is_none() {
            self.failed = write(&mut self.writer).err();
        }
    }
}

/// The tokens of `files`, which `make` writes, in memory or in the cache under a key of `identity` and the contents of
/// the files.
///
/// # Errors
/// A file that cannot be read; the errors of `make`.
pub(super) fn kept_or_made(
    identity: Option<String>,
    files: &[InputFile],
    make: &dyn Fn(&mut Making) -> Result<()>,
) -> Result<SampleStore> {
    let Some(place) = Place::of(identity, files)? else { return in_memory(files, make) };
    let _making = Place::lock();
    match place.find() {
        Some(store) => {
            say_once(format!("tokens of {} are those in {}", samples(&store), kept(&place, &store)), false);
            Ok(store)
        }
        None => in_file(files, make, &place),
    }
}

fn in_memory(files: &[InputFile], make: &dyn Fn(&mut Making) -> Result<()>) -> Result<SampleStore> {
    let mut making = Making::new(StoreWriter::in_memory(), files);
    make(&mut making)?;
    let Making { writer, shown, .. } = making;
    let progress = shown.so_far();
    drop(shown); // a line takes the place of its bar
    if progress.elapsed > LONG {
        say_once(progress.to_string(), false);
    }
    match writer.finish()? {
        Written::Memory(store) => Ok(store),
        Written::File(_) => unreachable!("it was begun in memory"),
    }
}

/// Makes the tokens in a file of the cache, or in memory where that file cannot be written.
fn in_file(
    files: &[InputFile],
    make: &dyn Fn(&mut Making) -> Result<()>,
    place: &Place,
) -> Result<SampleStore> {
    let without = |error: &dyn Display| {
        say_once(format!("tokens are not kept for the next start: {error}"), true);
        in_memory(files, make)
    };
    let begun = place.begin().and_then(|(file, unfinished)| Ok((StoreWriter::in_file(file)?, unfinished)));
    let (writer, _unfinished) = match begun {
        Ok(begun) => begun,
        Err(error) => return without(&error),
    };
    let mut making = Making::new(writer, files);
    make(&mut making)?;
    let Making { writer, shown, failed } = making;
    let progress = shown.so_far();
    drop(shown);
    let file = match failed.map_or(Ok(()), Err).and_then(|()| writer.finish()) {
        Ok(Written::File(file)) => file,
        Ok(Written::Memory(store)) => return Ok(store),
        Err(error) => return without(&error),
    };
    if !place.is_of(files) {
        return without(&"the data changed while they were made");
    }
    if let Err(error) = place.keep(file) {
        return without(&error);
    }
    match place.find() {
        Some(store) => {
            say_once(format!("{progress}; they are kept in {}", kept(place, &store)), false);
            Ok(store)
        }
        None => in_memory(files, make),
    }
}

/// The place of a store and its size, and the flag that turns the cache off.
fn kept(place: &Place, store: &SampleStore) -> impl Display {
    format!("{place} ({:.1} MB; --no-cache keeps and reads none)", store.bytes() as f64 / 1e6)
}

fn samples(store: &SampleStore) -> String {
    plural(store.len() as u64, if store.notes.text.is_some() { "document" } else { "sample" })
}

impl Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, megabytes) = (self.elapsed.as_secs_f64(), self.bytes as f64 / 1e6);
        let (tokens, rate) = (self.tokens as f64 / 1e6, self.tokens as f64 / 1e6 / seconds.max(1e-3));
        write!(
            f,
            "{megabytes:.1} MB became {tokens:.1} million tokens in {seconds:.1} s ({rate:.2} million a second)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// The name is a hash of the content that was read, so no other content is kept under it, whatever changed a file,
    /// and whenever.
    #[test]
    fn what_changes_after_it_was_hashed_is_not_kept() {
        let change = |path: &Path, text: &str| fs::write(path, text).unwrap();
        let other_length = |path: &Path| {
            let modified = path.metadata().unwrap().modified().unwrap();
            change(path, "longer");
            fs::File::options().append(true).open(path).unwrap().set_modified(modified).unwrap();
        };
        let other_time = |path: &Path| {
            std::thread::sleep(Duration::from_millis(30)); // the clock of a file system is coarse
            change(path, "new");
        };
        let nothing = |_: &Path| {};
        let gone = |path: &Path| fs::remove_file(path).unwrap();
        type Change<'a> = &'a dyn Fn(&Path);
        let rows: [(&str, Change<'_>, Change<'_>, usize); 6] = [
            ("nothing", &nothing, &nothing, 1),
            ("before they are made", &other_time, &nothing, 0),
            ("length alone, before", &other_length, &nothing, 0),
            ("while they are made", &nothing, &other_time, 0),
            ("length alone, meanwhile", &nothing, &other_length, 0),
            ("the file goes", &nothing, &gone, 0),
        ];
        let _making = Place::lock();
        for (name, before, meanwhile, kept) in rows {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("data");
            change(&path, "old");
            let files = [InputFile { path: path.clone(), is_found: false }];
            let place = Place::within(folder.path(), "test", &files).unwrap();
            before(&path);
            let is_first = std::cell::Cell::new(true);
            let store = in_file(
                &files,
                &|making| {
                    if is_first.replace(false) {
                        meanwhile(&path);
                    }
                    making.write(|writer| writer.push_tokens(&[7, 8]));
                    making.writer.end();
                    Ok(())
                },
                &place,
            );
            assert_eq!(store.unwrap().len(), 1, "{name}");
            let there = fs::read_dir(folder.path().join("tokens")).unwrap().count();
            assert_eq!(there, kept, "{name}");
        }
    }
}
