//! Data sets of MindSpore: MindRecord's data files, each beside its index.
//!
//! A data file `x` starts with a header ([`header`]), followed by pages of one size. Pages of arrays hold row after row, each
//! with its length (64 bits, little-endian) in front. A row with several columns has the length of each (64 bits, big-endian)
//! in front of it; how a column stores numbers is in [`column`]. Other pages hold scalars and text, which nobody trains on.
//! The index `x.db` ([`index`]) has the place of each row, which the pages say as well: a file whose pages and index disagree
//! is refused.

mod column;
mod header;
mod index;
mod loader;
mod part;
mod sqlite;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use self::column::{Column, Encoding, Numbers};
use self::header::{Header, Page};
use self::index::Place;
pub(super) use self::loader::{load, open_all};
pub use self::part::RowPart;
use super::files;
use crate::error::{Error, Result};

/// Bytes of the length in front of a row and of a column.
const LENGTH_BYTES: usize = 8;

/// One data file, memory-mapped, that agrees with its index.
#[derive(Debug)]
pub struct MindRecordFile {
    path: PathBuf,
    map: Arc<Mmap>,
    header: Header,
    rows: Vec<Row>,
}

/// A column of one file that holds arrays of whole numbers.
#[derive(Clone, Copy, Debug)]
pub struct NumberColumn {
    place: usize,
    encoding: Encoding,
}

/// Where a row's arrays are in the file, in bytes.
#[derive(Clone, Copy, Debug)]
struct Row {
    start: usize,
    len: usize,
}

impl MindRecordFile {
    /// Opens a data file, for which its index must be there.
    ///
    /// # Errors
    /// If it is not a MindRecord file or was cut, or its index is missing or another file's.
    pub fn open(path: &Path) -> Result<Self> {
        let map = files::map(path)?;
        let read = Header::read(&map).and_then(|header| {
            let rows = rows_of(&header, &map)?;
            Ok((header, rows))
        });
        let (header, rows) = read.map_err(|message| Error::file(path, message))?;
        index::check(path, rows.len(), |row| rows[row].place(&header))?;
        Ok(Self { path: path.to_path_buf(), map, header, rows })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Names of the files that were written together, this one among them.
    pub fn shards(&self) -> &[String] {
        &self.header.shards
    }

    /// The names of all columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.header.columns.iter().map(|column| column.name.as_str())
    }

    /// The column of this name.
    ///
    /// # Errors
    /// If there is none, or it does not hold arrays of whole numbers.
    pub fn column(&self, name: &str) -> Result<NumberColumn> {
        let Some(column) = self.header.columns.iter().find(|column| column.name == name) else {
            let names = self.columns().collect::<Vec<_>>().join(", ");
            let message = format!("has no column `{name}`; name one of {names} in `input_columns`");
            return Err(Error::file(&self.path, message));
        };
        let Column { kind, place, encoding, .. } = column;
        let encoding = encoding.ok_or_else(|| {
            let message =
                format!("column `{name}` has the type {kind}; write token ids as arrays of int32 or int64");
            Error::file(&self.path, message)
        })?;
        Ok(NumberColumn { place: *place, encoding })
    }

    /// Number of elements of a row's array.
    ///
    /// # Errors
    /// If the array is malformed.
    ///
    /// # Panics
    /// If there are fewer rows.
    #[track_caller]
    pub fn len_of(&self, row: usize, column: NumberColumn) -> Result<usize> {
        let numbers = self.numbers(row, column).map(|numbers| numbers.len());
        numbers.ok_or_else(|| Error::file(&self.path, format!("row {row} is malformed; copy the file again")))
    }

    /// The elements of a row's array. What a damaged file lacks is missing at the end.
    ///
    /// # Panics
    /// If there are fewer rows.
    #[track_caller]
    pub fn elements(&self, row: usize, column: NumberColumn) -> impl Iterator<Item = i64> {
        self.numbers(row, column).into_iter().flatten()
    }

    #[track_caller]
    fn numbers(&self, row: usize, column: NumberColumn) -> Option<Numbers<'_>> {
        let Row { start, len } = self.rows[row];
        let mut rest = &self.map[start..start + len];
        if self.header.blob_columns == 1 {
            return column.encoding.numbers(rest);
        }
        for _ in 0..column.place {
            take(&mut rest, u64::from_be_bytes)?;
        }
        column.encoding.numbers(take(&mut rest, u64::from_be_bytes)?)
    }
}

impl Row {
    /// Where the index should have the row, its length included.
    fn place(self, header: &Header) -> Place {
        let (page, start) = header.locate((self.start - LENGTH_BYTES) as u64);
        Place { page, start, end: start + (LENGTH_BYTES + self.len) as u64 }
    }
}

/// The rows of a file. The error says what is wrong with it.
fn rows_of(header: &Header, bytes: &[u8]) -> std::result::Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for page in header.pages.iter().filter(|page| page.is_blob()) {
        let starts_here = page.start_row == rows.len() as u64;
        let is_read = starts_here && read_page(header, page, bytes, &mut rows).is_some();
        if !is_read || page.end_row != rows.len() as u64 {
            return Err(format!("page {} is malformed; copy the file again", page.number));
        }
    }
    Ok(rows)
}

/// Appends the rows of a page; `None` if their lengths do not fit it.
fn read_page(header: &Header, page: &Page, bytes: &[u8], rows: &mut Vec<Row>) -> Option<()> {
    let start = usize::try_from(header.start(page)).ok()?;
    let end = start.checked_add(usize::try_from(page.used).ok()?)?;
    let mut rest = bytes.get(start..end)?;
    while !rest.is_empty() {
        let start = end - rest.len() + LENGTH_BYTES;
        let len = take(&mut rest, u64::from_le_bytes)?.len();
        rows.push(Row { start, len });
    }
    Some(())
}

/// Takes a length and that many bytes.
fn take<'a>(bytes: &mut &'a [u8], length: fn([u8; LENGTH_BYTES]) -> u64) -> Option<&'a [u8]> {
    let (len, rest) = bytes.split_first_chunk()?;
    let (own, rest) = rest.split_at_checked(usize::try_from(length(*len)).ok()?)?;
    *bytes = rest;
    Some(own)
}
