//! Whose fault an error is: the file's, or that of a flag which changed it.
//!
//! An error at a key that a flag set names the flag. Other errors may still be caused by one, such as a new
//! `hidden_size` that the file's `num_heads` does not divide. So the document is read again without one flag at a
//! time, and the flag without which the error is gone is named, provided that no new error appears or the flag is
//! in the section that the error is about.

use super::document::Override;
use crate::error::Error;
use std::path::Path;

/// `errors` about `file` with `overrides` laid over it, each under the name of the flag that caused it, if one did: the flag
/// without which `read` does not find this error and either finds no new one, or was about the same section. An error that
/// names a flag already, or the file's own fault, stays as it is.
pub(crate) fn name_flags(
    errors: Vec<Error>,
    file: &Path,
    overrides: &[Override],
    read: impl Fn(&[Override]) -> Vec<Error>,
) -> Vec<Error> {
    let lines = |errors: &[Error]| errors.iter().map(Error::to_string).collect::<Vec<_>>();
    let before = lines(&errors);
    // Reading again costs as much as reading, so it is done once a flag, and only if some error is not a flag's own.
    let mut without: Vec<Option<Vec<String>>> = vec![None; overrides.len()];
    let mut named = Vec::new();
    for error in errors {
        named.push(match path_in_file(&error, file).map(str::to_string) {
            None => error,
            Some(path) => {
                let cause = suspects(overrides, &path).into_iter().find(|&index| {
                    let others = without[index].get_or_insert_with(|| {
                        let mut others = overrides.to_vec();
                        others.remove(index);
                        lines(&read(&others))
                    });
                    let is_gone = !others.contains(&error.to_string());
                    let nothing_new = others.iter().all(|line| before.contains(line));
                    is_gone && (nothing_new || overrides[index].lies_within(&path))
                });
                cause.map_or_else(|| error.clone(), |index| under_flag(&error, &path, &overrides[index]))
            }
        });
    }
    named
}

/// The overrides in the order of suspicion: those within the section that the error is about are likelier than those
/// elsewhere, and of two that set the same key the last one counts.
fn suspects(overrides: &[Override], path: &str) -> Vec<usize> {
    let mut suspects: Vec<usize> = (0..overrides.len()).rev().collect();
    suspects.sort_by_key(|&index| !overrides[index].lies_within(path));
    suspects
}

fn under_flag(error: &Error, path: &str, suspect: &Override) -> Error {
    let Error::Config { message, .. } = error else { return error.clone() };
    let place = if path.is_empty() { String::new() } else { format!("{path}: ") };
    Error::config(&suspect.flag, format!("{place}{message}"))
}

/// The dotted path in `FILE:LINE: PATH`; empty where the whole file is meant.
fn path_in_file<'a>(error: &'a Error, file: &Path) -> Option<&'a str> {
    let Error::Config { origin, .. } = error else { return None };
    let place = origin.strip_prefix(&*file.to_string_lossy())?.strip_prefix(':')?;
    Some(place.split_once(": ").map_or("", |(_, path)| path))
}
