//! Whose fault an error is: the file's, or that of a flag which changed it.
//!
//! An error at a key that a flag set names the flag. Other errors may still be caused by one, such as a new
//! `hidden_size` that the file's `num_heads` does not divide. So the document is read again without one flag at a
//! time, and the flag without which the error is gone is named, provided that no new error appears or the flag is
//! in the section that the error is about.

use super::document::Override;
use super::faults::Fault;
use crate::error::Error;

/// The errors of `faults`, each under the name of the flag of `overrides` that caused it, if one did: the flag
/// without which `read` does not find this fault and either finds no new one, or was about the same section. An error
/// that names a flag already, or the file's own fault, stays as it is.
pub(crate) fn blame_flags(
    faults: Vec<Fault>,
    overrides: &[Override],
    read: impl Fn(&[Override]) -> Vec<Fault>,
) -> Vec<Error> {
    let lines = |faults: &[Fault]| faults.iter().map(|fault| fault.error.to_string()).collect::<Vec<_>>();
    let before = lines(&faults);
    // Reading again costs as much as reading, so it is done once a flag, and only if some fault is not a flag's own.
    let mut without: Vec<Option<Vec<String>>> = vec![None; overrides.len()];
    let named = faults.into_iter().zip(&before).map(|(Fault { written, error, .. }, line)| {
        let Some(path) = written else { return error };
        let cause = suspects(overrides, &path).into_iter().find(|&index| {
            let others = without[index].get_or_insert_with(|| {
                let mut others = overrides.to_vec();
                others.remove(index);
                lines(&read(&others))
            });
            let nothing_new = others.iter().all(|line| before.contains(line));
            !others.contains(line) && (nothing_new || overrides[index].lies_within(&path))
        });
        match (cause, error) {
            (Some(index), Error::Config { message, .. }) => {
                // What is wrong with a section that the flag is in says the flag itself.
                let is_within = overrides[index].lies_within(&path);
                let effect = if is_within { String::new() } else { format!("makes `{path}` wrong: ") };
                Error::config(&overrides[index].flag, format!("{effect}{message}"))
            }
            (_, error) => error,
        }
    });
    named.collect()
}

/// The overrides in the order of suspicion: those within the section that the error is about are likelier than those
/// elsewhere, and of two that set the same key the last one counts.
fn suspects(overrides: &[Override], path: &str) -> Vec<usize> {
    let mut suspects: Vec<usize> = (0..overrides.len()).rev().collect();
    suspects.sort_by_key(|&index| !overrides[index].lies_within(path));
    suspects
}
