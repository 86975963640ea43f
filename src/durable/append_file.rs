//! Files that grow by whole records.

use super::PathOrigin;
use crate::error::Result;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::mem;
use std::path::{Path, PathBuf};

/// Most bytes of records that are kept while they cannot be written.
const MOST_KEPT: usize = 16 << 20;

/// A file that grows by whole records. A record that cannot be written, as on a full disk, is kept and written together
/// with a later one, so that only a kill leaves an incomplete record, at the end. If more than 16 MiB of records wait,
/// they are dropped: the file then has a gap, and a warning says how much is missing.
#[derive(Debug)]
pub struct AppendFile {
    place: PathOrigin,
    path: PathBuf,
    file: File,
    /// Length of the file up to its last whole record, in bytes.
    written: u64,
    kept: Vec<u8>,
    /// Number of records that are kept.
    waiting: u64,
}

impl AppendFile {
    /// Opens the file at `path` for appending and creates it if it is missing.
    ///
    /// # Errors
    /// The file cannot be opened for writing.
    pub fn open(place: PathOrigin, path: &Path) -> Result<Self> {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let opened = opened.and_then(|file| file.metadata().map(|about| (file, about.len())));
        let (file, written) = opened.map_err(|error| place.error(path, "open for writing", &error))?;
        Ok(Self { place, path: path.to_path_buf(), file, written, kept: Vec::new(), waiting: 0 })
    }

    /// Appends `record`, after those that could not be written before.
    ///
    /// # Errors
    /// The disk is full or fails; the record is kept.
    pub fn append(&mut self, record: &[u8]) -> Result<()> {
        let has_failed = !self.kept.is_empty();
        self.kept.extend_from_slice(record);
        self.waiting += 1;
        if self.kept.len() > MOST_KEPT {
            self.drop_kept(record);
        }
        // A failed write may have left a part of a record.
        let cut = if has_failed { self.file.set_len(self.written) } else { Ok(()) };
        let written = cut.and_then(|()| self.file.write_all(&self.kept));
        written.map_err(|error| self.place.error(&self.path, "write", &error))?;
        self.written += mem::take(&mut self.kept).len() as u64;
        self.waiting = 0;
        Ok(())
    }

    /// Drops the kept records except `newest`. Logs a warning, because the error about the file that cannot be written
    /// does not say what is lost.
    fn drop_kept(&mut self, newest: &[u8]) {
        let (path, lost) = (self.path.display(), self.waiting - 1);
        tracing::warn!(
            "{path}: {lost} records are lost, since more than {} MiB waited for room: there is a gap before the next one",
            MOST_KEPT >> 20
        );
        (self.kept, self.waiting) = (newest.to_vec(), 1);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::Mutex;

    const PLACE: PathOrigin = PathOrigin("--output_dir");

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
        // As much as there was room for.
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
    fn what_is_kept_is_bounded_and_a_gap_is_logged() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let log = tempfile::NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt().with_writer(Mutex::new(log.reopen().unwrap())).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let mut records = AppendFile::open(PLACE, &path).unwrap();
        let disk = mem::replace(&mut records.file, OpenOptions::new().write(true).open("/dev/full").unwrap());
        records.append(b"a").unwrap_err();
        records.append(&vec![b'x'; MOST_KEPT - 1]).unwrap_err();
        assert_eq!(fs::read_to_string(log.path()).unwrap(), "", "all of it fits");
        records.append(b"y").unwrap_err();
        let lines = fs::read_to_string(log.path()).unwrap();
        assert_eq!(
            lines.matches("2 records are lost, since more than 16 MiB waited for room").count(),
            1,
            "{lines}"
        );
        records.file = disk;
        records.append(b"z").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"yz");
    }
}
