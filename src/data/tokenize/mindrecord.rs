//! Copies MindRecord files into files of token ids.

use std::path::Path;

use super::writer::TokenWriter;
use super::{Summary, TokenFormat, check_output};
use crate::data::files::InputFile;
use crate::data::mindrecord::{MindRecordFile, NumberColumn, open_all};
use crate::error::{Error, Result};

/// Copies the token ids in `column` of the rows of MindRecord files to `output` and, of Megatron's `format`, the `.idx`
/// file beside it. A file that is the only one of `inputs` stands for all files that were written with it. Each row
/// becomes a document as it is: no token that ends a document is added, and padding stays. Calls `progress` after each
/// file with the number of bytes done and the total number of bytes.
///
/// # Errors
/// If an input is missing or malformed or has no such column, a value is not a token id, an output exists and not
/// `force`, or the disk is full. An incomplete output is removed.
pub fn copy_mindrecord(
    inputs: &[String],
    column: &str,
    output: &Path,
    format: TokenFormat,
    force: bool,
    mut progress: impl FnMut(u64, u64),
) -> Result<Summary> {
    let files = open_all(inputs)?;
    let paths = files.iter().map(|file| InputFile { path: file.path().to_path_buf(), is_found: false });
    check_output(&paths.collect::<Vec<_>>(), output)?;
    let columns = files.iter().map(|file| Ok((file, file.column(column)?))).collect::<Result<Vec<_>>>()?;
    let size = |file: &MindRecordFile| file.path().metadata().map_or(0, |metadata| metadata.len());
    let total = files.iter().map(size).sum();
    let mut largest = 0;
    for (file, column) in &columns {
        for row in 0..file.rows() {
            largest = largest.max(ids(file, *column, row)?.into_iter().max().unwrap_or(0));
        }
    }
    let mut writer = TokenWriter::create(output, format, largest as usize + 1, force)?;
    let mut summary = Summary::default();
    for (file, column) in &columns {
        for row in 0..file.rows() {
            let ids = ids(file, *column, row)?;
            summary.documents += 1;
            summary.tokens += ids.len() as u64;
            writer.document(&ids)?;
        }
        summary.files += 1;
        summary.bytes += size(file);
        progress(summary.bytes, total);
    }
    if summary.tokens == 0 {
        return Err(Error::file(inputs.join(", "), "no tokens found; name files with rows"));
    }
    Ok(Summary { outputs: writer.finish()?, ..summary })
}

/// The token ids of a row.
fn ids(file: &MindRecordFile, column: NumberColumn, row: usize) -> Result<Vec<u32>> {
    let ids = file.elements(row, column).map(|id| u32::try_from(id).ok().filter(|id| *id < u32::MAX));
    ids.collect::<Option<_>>().ok_or_else(|| {
        let message = format!("row {row} has a value that is not a token id, but negative or wider than 32 bits; write the file again");
        Error::file(file.path(), message)
    })
}
