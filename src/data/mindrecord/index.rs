//! The index beside a data file: an SQLite file with the place of each row.

use std::path::{Path, PathBuf};

use super::sqlite::{Database, Record, Value};
use crate::data::files;
use crate::error::{Error, Result};

/// The ending that an index has after the name of its data file.
const ENDING: &str = "db";

/// The table of rows. Its first eight columns are the row's number, page, start and end of its scalars, group, page, start and
/// end of its arrays; the columns of the user's own index follow.
const TABLE: &str = "INDEXES";

/// Where the arrays of a row are: the number of the page, and the first byte and the one after the last within the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub page: u64,
    pub start: u64,
    pub end: u64,
}

/// Compares the index of the data file at `data` with the places of its rows, which `place` gives by number.
///
/// # Errors
/// If there is no index, or it is not the index of this file.
pub(super) fn check(data: &Path, rows: usize, place: impl Fn(usize) -> Place) -> Result<()> {
    let path = path(data);
    let name = data.file_name().unwrap_or_default().display().to_string();
    if !path.is_file() {
        let message = format!("no such file; it is the index of `{name}`: copy it beside that file");
        return Err(Error::file(&path, message));
    }
    let map = files::map(&path)?;
    let indexed = compare(&map, rows, place);
    indexed.map_err(|message| {
        Error::file(&path, format!("{message}; copy the index that was written with `{name}`"))
    })
}

/// The path of the index.
fn path(data: &Path) -> PathBuf {
    let mut path = data.as_os_str().to_owned();
    path.push(".");
    path.push(ENDING);
    path.into()
}

fn compare(index: &[u8], rows: usize, place: impl Fn(usize) -> Place) -> std::result::Result<(), String> {
    let database = Database::open(index).ok_or("is not an SQLite file")?;
    let mut count = 0;
    let is_index = database.for_each_row(TABLE, |record| {
        count += 1;
        let (row, indexed) =
            indexed(record).ok_or_else(|| format!("has a malformed row in its table {TABLE}"))?;
        let found = usize::try_from(row).ok().filter(|row| *row < rows).map(&place);
        if found != Some(indexed) {
            return Err(format!("is the index of another file: it has row {row} elsewhere"));
        }
        Ok(())
    })?;
    if !is_index {
        return Err(format!("is an SQLite file without MindRecord's table {TABLE}"));
    }
    if count != rows {
        return Err(format!("is the index of another file: it has {count} rows, the data has {rows}"));
    }
    Ok(())
}

/// The number of a row, and its place.
fn indexed(record: Record<'_>) -> Option<(i64, Place)> {
    let mut columns = record.columns().map(|value| match value {
        Value::Integer(number) => Some(number),
        Value::Text(_) | Value::Other => None,
    });
    let row = columns.next()??;
    let mut columns = columns.skip(4).map(|number| number.and_then(|number| u64::try_from(number).ok()));
    let place = Place { page: columns.next()??, start: columns.next()??, end: columns.next()?? };
    Some((row, place))
}
