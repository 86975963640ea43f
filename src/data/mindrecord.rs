//! MindSpore's data sets: MindRecord data files.
//!
//! A data file starts with a header (`header`), followed by pages of equal size. Pages of arrays hold row after row,
//! each with its length (64 bits, little-endian) in front. In a row with several columns, the length of each column (64
//! bits, big-endian) stands in front of it; how a column stores numbers is described in [`column`]. Other pages hold
//! scalars and text, which are not read. The index that MindSpore writes beside a data file, `x.db`, says where each
//! row is. It is not read, because the pages say the same.
//!
//! A file that was cut, or in which the columns of a row do not fill the row, is refused when it is opened. Rows stay
//! in the mapped file; a part of a stream decodes the rows that a batch takes. As in MindFormers' Llama, nothing is
//! predicted from `pad_token_id` (0 by default), where a label is negative, or where a mask is 0.

mod column;
mod header;
mod loader;
mod part;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use self::column::{Column, Encoding, Numbers};
use self::header::{Header, Page};
pub(crate) use self::loader::load;
pub(super) use self::loader::open_all;
pub use self::part::TokensOfRows;
use super::files;
use crate::error::{Error, Result};

/// Bytes of the length that stands in front of a row and of a column.
const LENGTH_BYTES: usize = 8;

/// One memory-mapped data file, whose rows were checked when it was opened.
#[derive(Debug)]
pub struct MindRecordFile {
    path: PathBuf,
    map: Arc<Mmap>,
    header: Header,
    rows: Vec<RowBytes>,
}

/// A column of one file that holds arrays of whole numbers.
#[derive(Clone, Copy, Debug)]
pub struct NumberColumn {
    place: usize,
    encoding: Encoding,
}

/// Where a row's arrays are in the file, in bytes.
#[derive(Clone, Copy, Debug)]
struct RowBytes {
    start: usize,
    len: usize,
}

impl MindRecordFile {
    /// Opens a data file, and checks that the columns of each row fill the row and are stored as their types say.
    ///
    /// # Errors
    /// If the file is not a MindRecord file, or was cut or damaged.
    pub fn open(path: &Path) -> Result<Self> {
        let map = files::map(path)?;
        let read = Header::read(&map).and_then(|header| {
            let rows = rows_of(&header, &map)?;
            Ok((header, rows))
        });
        let (header, rows) = read.map_err(|message| Error::file(path, message))?;
        let file = Self { path: path.to_path_buf(), map, header, rows };
        match (0..file.rows()).find(|row| file.check(*row).is_none()) {
            Some(row) => {
                let message =
                    format!("row {row} is malformed: its columns do not fill it; copy the file again");
                Err(Error::file(path, message))
            }
            None => Ok(file),
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Names of the files that were written together, including this file.
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
    /// If there is no such column, or it does not hold arrays of whole numbers.
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
    /// # Panics
    /// If there are fewer rows.
    #[track_caller]
    pub fn len_of(&self, row: usize, column: NumberColumn) -> usize {
        self.numbers(row, column).map_or(0, |numbers| numbers.len())
    }

    /// The elements of a row's array. If another program has cut or changed the file since it was opened, some may be
    /// missing.
    ///
    /// # Panics
    /// If there are fewer rows.
    #[track_caller]
    pub fn elements(&self, row: usize, column: NumberColumn) -> impl Iterator<Item = i64> {
        self.numbers(row, column).into_iter().flatten()
    }

    /// The numbers of a row's array; `None` if the file has changed since it was opened.
    #[track_caller]
    fn numbers(&self, row: usize, column: NumberColumn) -> Option<Numbers<'_>> {
        let mut rest = self.bytes(row);
        for _ in 0..column.place {
            self.next_column(&mut rest)?;
        }
        column.encoding.numbers(self.next_column(&mut rest)?)
    }

    /// `None` if the columns of a row do not fill it, or one of them is not stored as its type says.
    fn check(&self, row: usize) -> Option<()> {
        let mut rest = self.bytes(row);
        for encoding in &self.header.blob_columns {
            let own = self.next_column(&mut rest)?;
            encoding.is_none_or(|encoding| encoding.fills(own)).then_some(())?;
        }
        rest.is_empty().then_some(())
    }

    #[track_caller]
    fn bytes(&self, row: usize) -> &[u8] {
        let RowBytes { start, len } = self.rows[row];
        &self.map[start..start + len]
    }

    /// Takes the next column off the rest of a row. The only column of a row has no length in front.
    fn next_column<'a>(&self, rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        match self.header.blob_columns.len() {
            1 => Some(std::mem::take(rest)),
            _ => take(rest, u64::from_be_bytes),
        }
    }
}

/// The rows of a file. The error says what is wrong with the file.
fn rows_of(header: &Header, bytes: &[u8]) -> std::result::Result<Vec<RowBytes>, String> {
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
fn read_page(header: &Header, page: &Page, bytes: &[u8], rows: &mut Vec<RowBytes>) -> Option<()> {
    let start = usize::try_from(header.start(page)).ok()?;
    let end = start.checked_add(usize::try_from(page.used).ok()?)?;
    let mut rest = bytes.get(start..end)?;
    while !rest.is_empty() {
        let start = end - rest.len() + LENGTH_BYTES;
        let len = take(&mut rest, u64::from_le_bytes)?.len();
        rows.push(RowBytes { start, len });
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
