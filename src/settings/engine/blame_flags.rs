//! Decides whether an error is the fault of the file, or of a flag that changed it.
//!
//! An error at a key that a flag set names the flag. Other errors may still be caused by a flag, such as a new
//! `hidden_size` that the file's `num_heads` does not divide. So the document is read again without one flag at a time,
//! and the flag without which the error is gone is named, provided that no new error appears or the flag is in the
//! section that the error is about.

use super::document::Override;
use super::faults::Fault;
use crate::error::Error;

/// The errors of `faults`. An error that a flag of `overrides` caused is given under the name of that flag: the flag
/// without which `read` does not find this fault, and either finds no new one or the flag is in the section of the
/// fault. An error that names a flag already, or is the file's own fault, stays as it is.
pub(crate) fn blame_flags(
    faults: Vec<Fault>,
    overrides: &[Override],
    read: impl Fn(&[Override]) -> Vec<Fault>,
) -> Vec<Error> {
    let lines = |faults: &[Fault]| faults.iter().map(|fault| fault.error.to_string()).collect::<Vec<_>>();
    let before = lines(&faults);
    // Reading again costs as much as the first reading, so it is done once for each flag, and only if some fault is not
    // a flag's own.
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
                // If the flag lies in the section that is wrong, its name already says which section that is.
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
/// elsewhere, and if two set the same key, the last one counts.
fn suspects(overrides: &[Override], path: &str) -> Vec<usize> {
    let mut suspects: Vec<usize> = (0..overrides.len()).rev().collect();
    suspects.sort_by_key(|&index| !overrides[index].lies_within(path));
    suspects
}
