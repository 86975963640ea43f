//! Files that grow by whole records.

use super::Place;
use crate::error::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::mem;
use std::path::{Path, PathBuf};

/// How many bytes of records are kept while they cannot be written.
const MOST_KEPT: usize = 16 << 20;

/// A file that grows by whole records. One that cannot be written, as on a full disk, is kept and written with a later one, so that
/// none is missing among those in the file, and only a kill leaves an incomplete one, at its end.
#[derive(Debug)]
pub struct AppendFile {
    place: Place,
    path: PathBuf,
    file: File,
    /// Bytes of the file that are whole records.
    written: u64,
    kept: Vec<u8>,
    /// Whether more had to be kept than may be: a later record would leave a gap.
    is_over: bool,
}

impl AppendFile {
    /// Opens the file at `path` for appending and creates it if it is missing.
    ///
    /// # Errors
    /// The file cannot be opened for writing.
    pub fn open(place: Place, path: &Path) -> Result<Self> {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let opened = opened.and_then(|file| file.metadata().map(|about| (file, about.len())));
        let (file, written) = opened.map_err(|error| place.error(path, "open for writing", &error))?;
        Ok(Self { place, path: path.to_path_buf(), file, written, kept: Vec::new(), is_over: false })
    }

    /// Appends `record`, after those that could not be written before.
    ///
    /// # Errors
    /// The disk is full or fails; the record is kept.
    pub fn append(&mut self, record: &[u8]) -> Result<()> {
        let has_failed = !self.kept.is_empty();
        self.kept.extend_from_slice(record);
        self.is_over |= self.kept.len() > MOST_KEPT;
        if self.is_over {
            self.kept = Vec::new();
            let message = format!(
                "cannot write: more than {} MiB wait for room, and nothing more is written",
                MOST_KEPT >> 20
            );
            return Err(Error::file(&self.path, message));
        }
        // What a failed write left may end within a record.
        let cut = if has_failed { self.file.set_len(self.written) } else { Ok(()) };
        let written = cut.and_then(|()| self.file.write_all(&self.kept));
        written.map_err(|error| self.place.error(&self.path, "write", &error))?;
        self.written += mem::take(&mut self.kept).len() as u64;
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs;

    const PLACE: Place = Place("--output_dir");

    #[test]
    fn what_a_full_disk_refused_is_written_once_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let mut records = AppendFile::open(PLACE, &path).unwrap();
        records.append(b"one ").unwrap();
        let disk = mem::replace(&mut records.file, OpenOptions::new().write(true).open("/dev/full").unwrap());
        let line = records.append(b"two ").unwrap_err().to_string();
        assert!(
            line.ends_with(
                "records: cannot write: disk full: free space there, or choose another --output_dir"
            )
        );
        // As far as there was room.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"tw").unwrap();
        records.append(b"three ").unwrap_err();
        records.file = disk;
        records.append(b"four ").unwrap();
        records.append(b"five").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one two three four five");
        let mut records = AppendFile::open(PLACE, &path).unwrap();
        records.append(b" six").unwrap();
        assert!(fs::read_to_string(&path).unwrap().ends_with("five six"));
    }

    #[test]
    fn what_is_kept_is_bounded_and_then_leaves_no_gap() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let mut records = AppendFile::open(PLACE, &path).unwrap();
        let disk = mem::replace(&mut records.file, OpenOptions::new().write(true).open("/dev/full").unwrap());
        records.append(&vec![b'x'; MOST_KEPT]).unwrap_err();
        let line = records.append(b"y").unwrap_err().to_string();
        assert!(line.contains("more than 16 MiB wait for room"), "{line}");
        records.file = disk;
        records.append(b"z").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }
}
