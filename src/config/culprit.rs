//! Whose fault an error is: the file's, or that of a flag which changed it.

use super::overrides::Override;
use crate::error::{Error, Result};
use std::path::Path;

/// `error`, about `file` with `overrides` laid over it, under the name of the flag that caused it, if one did: the flag
/// without which `read` is content, or finds another fault though the flag lies within the section that this one is
/// about. An error that names a flag already, or the file's own fault, is returned as it is.
pub(super) fn name_flag(
    error: Error,
    file: &Path,
    overrides: &[Override],
    read: impl Fn(&[Override]) -> Result<()>,
) -> Error {
    let Error::Config { origin, message } = &error else { return error };
    let Some(path) = path_in_file(origin, file) else { return error };
    // Those within the section that the error is about are likelier than those elsewhere, and of two that set the same key
    // the last one counts.
    let mut suspects: Vec<usize> = (0..overrides.len()).rev().collect();
    suspects.sort_by_key(|&index| !overrides[index].lies_within(path));
    for index in suspects {
        let mut others = overrides.to_vec();
        let suspect = others.remove(index);
        let is_cause = match read(&others) {
            Ok(()) => true,
            Err(other) => other.to_string() != error.to_string() && suspect.lies_within(path),
        };
        if is_cause {
            let place = if path.is_empty() { String::new() } else { format!("{path}: ") };
            return Error::config(suspect.flag, format!("{place}{message}"));
        }
    }
    error
}

/// The dotted path in `FILE:LINE: PATH`; empty where the whole file is meant.
fn path_in_file<'a>(origin: &'a str, file: &Path) -> Option<&'a str> {
    let place = origin.strip_prefix(&*file.to_string_lossy())?.strip_prefix(':')?;
    Some(place.split_once(": ").map_or("", |(_, path)| path))
}
