//! A file of lines that may still grow: lines that have been read are not read again.

use std::fs::Metadata;
use std::io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom};
use std::path::PathBuf;

use serde::Serialize;

use crate::durable::read_error;
use crate::error::Result;
use crate::store::run_folder::open_file;

/// Longer lines are passed over: no line of a run comes near this, and a file without line feeds must not fill the
/// memory.
const LONGEST_LINE: usize = 16 << 20;

/// A file of lines and how far it has been read.
#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    /// The start of the first line that has not been read.
    offset: u64,
    /// Identifies the file, on systems that number files.
    identity: Option<(u64, u64)>,
    /// The parts that could not be read.
    pub gaps: Gaps,
}

/// The parts of a file that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Gaps {
    /// The file's name.
    pub name: String,
    /// Lines that could not be read.
    pub unreadable: u64,
    /// Whether bytes follow the last line feed: a line being written, or one that a kill cut off.
    pub is_last_line_unfinished: bool,
}

impl Tail {
    /// The file at `path`, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let gaps = Gaps { name, ..Gaps::default() };
        Self { path, offset: 0, identity: None, gaps }
    }

    /// Forgets what was read if the file has since become shorter or been replaced, as when a run starts again. Returns
    /// whether that is so.
    pub fn restart(&mut self) -> bool {
        let is_replaced = match self.path.metadata() {
            Ok(data) => {
                data.len() < self.offset || self.identity.is_some_and(|old| identity(&data) != Some(old))
            }
            Err(_) => self.offset > 0,
        };
        if is_replaced {
            *self = Self::new(std::mem::take(&mut self.path));
        }
        is_replaced
    }

    /// Passes each line that has become complete to `take`, without its line feed; `take` returns whether it could be
    /// read. A missing file has no lines, and empty lines are passed over.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self, take: impl FnMut(&[u8]) -> bool) -> Result<()> {
        self.read_lines(take).map_err(|error| read_error(&self.path, "read", &error))
    }

    fn read_lines(&mut self, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
        let mut file = match open_file(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        self.identity = identity(&file.metadata()?);
        file.seek(SeekFrom::Start(self.offset))?;
        let mut file = BufReader::with_capacity(1 << 18, file);
        let mut line = Vec::new();
        // Number of bytes of a line that is being passed over.
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
                let text = line.strip_suffix(b"\n").unwrap_or(&line);
                let is_read = left_out == 0 && (text.is_empty() || take(text));
                self.gaps.unreadable += u64::from(!is_read);
                self.offset += line.len() as u64 + left_out;
                left_out = 0;
                line.clear();
            }
        }
        self.gaps.is_last_line_unfinished = !line.is_empty() || left_out > 0;
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
        let take = |line: &[u8]| {
            lines.push(String::from_utf8_lossy(line).into_owned());
            line != b"odd"
        };
        tail.read(take).unwrap();
        lines
    }

    #[test]
    fn a_line_is_read_once_and_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut tail = Tail::new(path.clone());
        assert_eq!(lines(&mut tail), [""; 0]);
        fs::write(&path, "one\n\nodd\nthr").unwrap();
        assert_eq!(lines(&mut tail), ["one", "odd"]);
        let name = "events.jsonl".to_string();
        assert_eq!(tail.gaps, Gaps { name, unreadable: 1, is_last_line_unfinished: true });
        assert!(!tail.restart());
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"ee\n").unwrap();
        assert_eq!(lines(&mut tail), ["three"]);
        assert!(!tail.gaps.is_last_line_unfinished);
        assert_eq!(lines(&mut tail), [""; 0]);
    }

    #[test]
    fn another_file_in_its_place_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["events.jsonl", "other"].map(|name| folder.path().join(name));
        fs::write(&path, "odd\ntwo\n").unwrap();
        let mut tail = Tail::new(path.clone());
        lines(&mut tail);
        fs::write(&other, "a line that is longer than both\n").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(tail.restart() || cfg!(not(unix)));
        assert!(lines(&mut tail) == ["a line that is longer than both"] || cfg!(not(unix)));
        fs::write(&path, "one\n").unwrap();
        assert!(tail.restart() && tail.gaps.unreadable == 0);
        assert_eq!(lines(&mut tail), ["one"]);
        fs::remove_file(&path).unwrap();
        assert!(tail.restart());
        assert_eq!(lines(&mut tail), [""; 0]);
    }

    #[test]
    fn a_file_without_line_feeds_does_not_fill_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut text = vec![b'x'; LONGEST_LINE + 5];
        text.extend_from_slice(b"\nnext\n");
        fs::write(&path, &text).unwrap();
        let mut tail = Tail::new(path);
        assert_eq!(lines(&mut tail), ["next"]);
        assert_eq!((tail.offset, tail.gaps.unreadable), (text.len() as u64, 1));
    }
}
