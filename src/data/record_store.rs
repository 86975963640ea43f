//! The records of files as samples: formed on all cores, or found where an earlier start has kept them.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use super::config::RecordsConfig;
use super::files::InputFile;
use super::forms::{Formed, Former};
use super::plural::plural;
use super::progress::{Progress, Shown};
use super::records::{self, Record};
use super::sample_store::{MOST_TOKENS, SampleStore, StoreWriter, Written};
use super::token_cache::{Place, length, say_once};
use crate::error::{Error, Result};

/// A reading that took longer is told of.
const LONG: Duration = Duration::from_secs(5);

/// The samples of all records, and the number of their files.
///
/// # Errors
/// Files that cannot be read or are not there; records that `former` forms nothing of.
pub(super) fn load(config: &RecordsConfig, former: &Former<'_>) -> Result<(Arc<SampleStore>, usize)> {
    let files = records::files(&config.files, &format!("correct {}", config.keys))?;
    let of_form = former.identity();
    let identity = of_form.map(|form| format!("records\n{form}\n{:?} {:?}", config.renamed, config.most));
    let store = match Place::of(identity, &files)? {
        None => in_memory(config, former, &files)?,
        Some(place) => {
            let _making = Place::lock();
            match place.find() {
                Some(store) => {
                    say_once(
                        format!("tokens of {} samples are those in {}", store.len(), kept(&place, &store)),
                        false,
                    );
                    store
                }
                None => in_file(config, former, &files, &place)?,
            }
        }
    };
    Ok((Arc::new(store), files.len()))
}

fn in_memory(config: &RecordsConfig, former: &Former<'_>, files: &[InputFile]) -> Result<SampleStore> {
    let mut writer = StoreWriter::in_memory();
    let done = form_all(config, former, files, &mut writer)?;
    if done.progress.elapsed > LONG {
        say_once(done.progress.to_string(), false);
    }
    match writer.finish()? {
        Written::Memory(store) => Ok(store),
        Written::File => unreachable!("it was begun in memory"),
    }
}

/// The same in a file of the cache; in memory where that cannot be written.
fn in_file(
    config: &RecordsConfig,
    former: &Former<'_>,
    files: &[InputFile],
    place: &Place,
) -> Result<SampleStore> {
    let without = |error: Error| {
        say_once(format!("tokens are not kept for the next start: {error}"), true);
        in_memory(config, former, files)
    };
    let states =
        || files.iter().map(|file| std::fs::metadata(&file.path).ok()?.modified().ok()).collect::<Vec<_>>();
    let before = states();
    let begun = place.begin().and_then(|(file, begun)| Ok((StoreWriter::in_file(file)?, begun)));
    let (mut writer, begun) = match begun {
        Ok(begun) => begun,
        Err(error) => return without(error),
    };
    let Done { progress, failed } = form_all(config, former, files, &mut writer)?;
    let written = failed.map_or(Ok(()), Err).and_then(|()| writer.finish());
    if let Err(error) = written {
        return without(error);
    }
    // A file that changed meanwhile is not what the name says.
    if states() != before {
        begun.discard();
        return in_memory(config, former, files);
    }
    if let Err(error) = begun.keep() {
        return without(error);
    }
    match place.find() {
        Some(store) => {
            say_once(format!("{progress}; they are kept in {}", kept(place, &store)), false);
            Ok(store)
        }
        None => in_memory(config, former, files),
    }
}

/// Where a store is, how large, and how to do without.
fn kept(place: &Place, store: &SampleStore) -> impl Display {
    format!("{place} ({:.1} MB; --no-cache keeps and reads none)", store.bytes() as f64 / 1e6)
}

/// How far the forming of samples has got.
struct Done {
    progress: Progress,
    /// What kept them from being written.
    failed: Option<Error>,
}

fn form_all(
    config: &RecordsConfig,
    former: &Former<'_>,
    files: &[InputFile],
    writer: &mut StoreWriter,
) -> Result<Done> {
    let form = |mut record: Record| {
        for (old, new) in &config.renamed {
            let value = record.fields.remove(old).ok_or_else(|| record.missing(old))?;
            record.fields.insert(new.clone(), value);
            record.text.clear();
        }
        let formed = former.form(&record)?;
        match formed
            .tokens
            .iter()
            .chain(formed.targets.last())
            .find(|id| (MOST_TOKENS..u32::MAX).contains(*id))
        {
            Some(id) => Err(record.error(format!("has the token {id}, which no vocabulary has; correct it"))),
            None => Ok((formed, record.text.len() as u64 + 1)),
        }
    };
    let mut shown = Shown::new(files.iter().map(|file| length(&file.path)).sum());
    let (mut left, mut failed) = (config.most.unwrap_or(u64::MAX), None);
    for file in files {
        records::for_each_made(&file.path, form, &mut |(formed, bytes): (Formed, u64)| {
            shown.add(bytes, formed.tokens.len() as u64);
            if failed.is_none() {
                failed = writer.push(formed).err();
            }
            left = left.saturating_sub(1); // lines are read on after a fault, for others
            Ok(left > 0 && failed.is_none())
        })?;
        if left == 0 || failed.is_some() {
            break;
        }
    }
    Ok(Done { progress: shown.so_far(), failed })
}

impl Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, megabytes) = (self.elapsed.as_secs_f64(), self.bytes as f64 / 1e6);
        let (records, rate) = (plural(self.records, "record"), self.tokens as f64 / 1e6 / seconds.max(1e-3));
        let tokens = self.tokens as f64 / 1e6;
        write!(
            f,
            "{records} of {megabytes:.1} MB became {tokens:.1} million tokens in {seconds:.1} s ({rate:.2} million a second)"
        )
    }
}
