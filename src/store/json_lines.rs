//! Files of JSON objects, one per line, each with the number of a step.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;

use serde::Deserialize;

use super::OUTPUT_DIR;
use crate::durable::read_error;
use crate::error::Result;

/// The only field that matters here.
#[derive(Deserialize)]
struct Line {
    step: u64,
}

/// Removes the lines after `last_step` and any that a kill left incomplete, so that a resumed run does not write a step
/// twice. Returns how many lines were removed; a missing file has none.
///
/// # Errors
/// The file cannot be read or replaced.
pub(crate) fn truncate_after(path: &Path, last_step: u64) -> Result<usize> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(read_error(path, "read", &error)),
    };
    let mut removed = 0;
    let mut kept = OUTPUT_DIR.begin(path)?;
    kept.fill(|out| {
        // Split as bytes: an incomplete last line may not be UTF-8.
        for line in BufReader::new(file).split(b'\n') {
            let line = line?;
            if serde_json::from_slice::<Line>(&line).is_ok_and(|line| line.step <= last_step) {
                out.write_all(&line)?;
                out.write_all(b"\n")?;
            } else {
                removed += 1;
            }
        }
        Ok(())
    })?;
    kept.finish()?;
    Ok(removed)
}
