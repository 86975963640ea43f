//! A file of lines that may still grow: what has been read is not read again.

use std::fs::Metadata;
use std::io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::store::run_folder::open_file;

/// Longer lines are passed over: none that a run writes comes near, and a file without line feeds must not fill the memory.
const LONGEST_LINE: usize = 16 << 20;

/// A file of lines and how far it has been read.
#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    /// Where the first line that is not read begins.
    offset: u64,
    /// Which file that was, where the system numbers files.
    identity: Option<(u64, u64)>,
    /// Whether bytes follow the last line feed: a line under way, or one that a kill left.
    pub has_unfinished_line: bool,
}

impl Tail {
    /// The file at `path`, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), offset: 0, identity: None, has_unfinished_line: false }
    }

    /// Whether the file has become shorter or another one since it was read, as when a run starts again.
    pub fn is_replaced(&self) -> bool {
        match self.path.metadata() {
            Ok(data) => {
                data.len() < self.offset || self.identity.is_some_and(|old| identity(&data) != Some(old))
            }
            Err(_) => self.offset > 0,
        }
    }

    /// Passes each line that has become complete to `take`, without its line feed. A missing file has none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let mut file = match open_file(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        self.identity = identity(&file.metadata()?);
        file.seek(SeekFrom::Start(self.offset))?;
        let mut file = BufReader::with_capacity(1 << 18, file);
        let mut line = Vec::new();
        // Bytes of a line that are passed over.
        let mut left_out = 0;
        loop {
            let part = file.fill_buf()?;
            if part.is_empty() {
                break;
            }
            let end = part.iter().position(|byte| *byte == b'\n');
            let length = end.map_or(part.len(), |end| end + 1);
            match line.len() + length <= LONGEST_LINE {
                true => line.extend_from_slice(&part[..length]),
                false => left_out += length as u64 + std::mem::take(&mut line).len() as u64,
            }
            file.consume(length);
            if end.is_some() {
                if left_out == 0 {
                    take(line.strip_suffix(b"\n").unwrap_or(&line));
                }
                self.offset += line.len() as u64 + left_out;
                left_out = 0;
                line.clear();
            }
        }
        self.has_unfinished_line = !line.is_empty() || left_out > 0;
        Ok(())
    }
}

#[cfg(unix)]
fn identity(data: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((data.dev(), data.ino()))
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> Option<(u64, u64)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    fn lines(tail: &mut Tail) -> Vec<String> {
        let mut lines = Vec::new();
        tail.read(|line| lines.push(String::from_utf8_lossy(line).into_owned())).unwrap();
        lines
    }

    #[test]
    fn a_line_is_read_once_and_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.txt");
        let mut tail = Tail::new(&path);
        assert_eq!(lines(&mut tail), [""; 0]);
        fs::write(&path, "one\ntwo\nthr").unwrap();
        assert_eq!(lines(&mut tail), ["one", "two"]);
        assert!(tail.has_unfinished_line && !tail.is_replaced());
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"ee\n").unwrap();
        assert_eq!(lines(&mut tail), ["three"]);
        assert!(!tail.has_unfinished_line);
        assert_eq!(lines(&mut tail), [""; 0]);
    }

    #[test]
    fn another_file_in_its_place_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["log.txt", "other"].map(|name| folder.path().join(name));
        fs::write(&path, "one\ntwo\n").unwrap();
        let mut tail = Tail::new(&path);
        lines(&mut tail);
        fs::write(&other, "a line that is longer than both\n").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(cfg!(not(unix)) || tail.is_replaced());
        fs::write(&path, "one\n").unwrap();
        assert!(tail.is_replaced());
        fs::remove_file(&path).unwrap();
        assert!(tail.is_replaced());
    }

    #[test]
    fn a_file_without_line_feeds_does_not_fill_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut text = vec![b'x'; LONGEST_LINE + 5];
        text.extend_from_slice(b"\nnext\n");
        fs::write(&path, &text).unwrap();
        let mut tail = Tail::new(&path);
        assert_eq!(lines(&mut tail), ["next"]);
        assert_eq!(tail.offset, text.len() as u64);
    }
}
