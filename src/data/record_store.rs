//! The records of files as samples: formed on all cores, or read from the cache of an earlier start.

use std::sync::Arc;

use super::config::RecordFiles;
use super::files::InputFile;
use super::kept_tokens::{Making, kept_or_made};
use super::records::{self, Record};
use super::sample_formats::{Formed, Former};
use super::sample_store::{MOST_TOKENS, SampleStore};
use super::token_cache::bytes_of;
use crate::error::Result;

/// The samples of all records, and the number of their files.
///
/// # Errors
/// Files that cannot be read or do not exist; records from which `former` forms no sample.
pub(super) fn load(named: &RecordFiles, former: &Former<'_>) -> Result<(Arc<SampleStore>, usize)> {
    let files = records::files(&named.paths, &format!("correct {}", named.keys))?;
    // If only a part of the files is read, hashing all of them would take longer than reading that part. Each record
    // has at least one byte.
    let reads_all = named.most.is_none_or(|most| most >= bytes_of(&files));
    let of_form = former.identity().filter(|_| reads_all);
    let identity = of_form.map(|form| format!("records\n{form}\n{:?} {:?}", named.renamed, named.most));
    let store = kept_or_made(identity, &files, &|making| form_all(named, former, &files, making))?;
    Ok((Arc::new(store), files.len()))
}

fn form_all(
    named: &RecordFiles,
    former: &Former<'_>,
    files: &[InputFile],
    making: &mut Making,
) -> Result<()> {
    let form = |mut record: Record| {
        let bytes = record.text.len() as u64 + 1;
        for (old, new) in &named.renamed {
            let value = record.fields.remove(old).ok_or_else(|| record.missing(old))?;
            record.fields.insert(new.clone(), value);
            record.text.clear();
        }
        let formed = former.form(&record)?;
        let samples = [Some(&formed), formed.rejected.as_deref()].into_iter().flatten();
        let ids = samples.flat_map(|sample| sample.tokens.iter().chain(sample.targets.last()));
        let unknown = ids.copied().find(|id| (MOST_TOKENS..u32::MAX).contains(id));
        match unknown {
            Some(id) => Err(record.error(format!("has the token {id}, which no vocabulary has; correct it"))),
            None => Ok((formed, bytes)),
        }
    };
    let mut left = named.most.unwrap_or(u64::MAX);
    for file in files {
        records::for_each_made(&file.path, form, &mut |(mut formed, bytes): (Formed, u64)| {
            making.shown.add(bytes, formed.tokens.len() as u64);
            let rejected = formed.rejected.take();
            making.write(|writer| {
                writer.push(formed)?;
                rejected.map_or(Ok(()), |rejected| writer.push(*rejected))
            });
            left = left.saturating_sub(1); // after a fault, lines are still read to find others
            Ok(left > 0 && making.failed.is_none())
        })?;
        if left == 0 || making.failed.is_some() {
            break;
        }
    }
    Ok(())
}
