//! Paths, folders and glob patterns turned into a sorted list of files.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{Error, Result};

/// Files that a configuration names.
#[derive(Debug, Default)]
pub(super) struct FileList {
    /// Named one by one: each must be usable.
    pub named: Vec<PathBuf>,
    /// Found in folders or by patterns, sorted within each: unusable ones are passed over.
    pub found: Vec<PathBuf>,
}

impl FileList {
    /// Every file, and whether it was found rather than named.
    pub fn all(&self) -> impl Iterator<Item = (&Path, bool)> {
        let named = self.named.iter().map(|path| (path.as_path(), false));
        named.chain(self.found.iter().map(|path| (path.as_path(), true)))
    }
}

/// What to do about a path of the configuration that leads nowhere.
pub(super) const CORRECT_DATASET: &str = "correct `dataset_dir` or `dataset_files`";

/// Expands `paths`; folders are read recursively and filtered by `wanted`. `remedy` says where the paths were written.
pub(super) fn expand(paths: &[String], wanted: impl Fn(&Path) -> bool, remedy: &str) -> Result<FileList> {
    let mut files = FileList::default();
    for path in paths {
        let plain = Path::new(path);
        if plain.is_dir() {
            walk(plain, &wanted, &mut files.found)?;
        } else if plain.is_file() {
            files.named.push(plain.to_path_buf());
        } else if path.contains(['*', '?', '[']) {
            files.found.extend(matching(path)?.into_iter().filter(|file| file.is_file() && wanted(file)));
        } else {
            return Err(Error::file(plain, format!("no such file or folder; {remedy}")));
        }
    }
    Ok(files)
}

/// Appends the wanted files below `folder`, sorted by path. Hidden entries and linked folders are left out.
pub(super) fn walk(folder: &Path, wanted: &impl Fn(&Path) -> bool, found: &mut Vec<PathBuf>) -> Result<()> {
    let unreadable = |error: std::io::Error| Error::file(folder, format!("cannot be read: {error}"));
    let mut entries = fs::read_dir(folder)
        .and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>())
        .map_err(unreadable)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let kind = entry.file_type().map_err(unreadable)?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if kind.is_dir() {
            walk(&path, wanted, found)?;
        } else if path.is_file() && wanted(&path) {
            found.push(path);
        }
    }
    Ok(())
}

/// Reads a file whole.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::file(path, format!("cannot be read: {error}")))
}

/// Maps a file; an empty one gives an empty map.
pub(super) fn map(path: &Path) -> Result<Arc<Mmap>> {
    let unreadable = |error: std::io::Error| Error::file(path, format!("cannot be read: {error}"));
    let file = File::open(path).map_err(unreadable)?;
    // SAFETY: the map is only read. Another process that truncates the file meanwhile would end this one
    // with a bus error; token files are written once and never changed by training.
    let map = unsafe { Mmap::map(&file) }.map_err(unreadable)?;
    Ok(Arc::new(map))
}

/// Where git looks for the zero byte that tells binary files from text.
const LOOKED_AT: usize = 8000;

/// Whether a file looks binary.
pub(super) fn is_binary(path: &Path) -> Result<bool> {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LOOKED_AT as u64).read_to_end(&mut start));
    read.map_err(|error| Error::file(path, format!("cannot be read: {error}")))?;
    Ok(start.contains(&0))
}

/// Reads a file as text. `None` for one that is binary, where that `is_passed_over`.
///
/// # Errors
/// If it cannot be read, or is text in another encoding than UTF-8.
pub(super) fn read_text(path: &Path, is_passed_over: bool) -> Result<Option<String>> {
    let bytes = read(path)?;
    if is_passed_over && bytes.iter().take(LOOKED_AT).any(|byte| *byte == 0) {
        return Ok(None);
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|error| not_utf8(path, error.utf8_error().valid_up_to() as u64))
}

/// The error about a text file whose byte at `offset` starts no UTF-8 character.
pub(super) fn not_utf8(path: &Path, offset: u64) -> Error {
    Error::file(path, format!("is not UTF-8 text at byte {offset}; convert the file to UTF-8"))
}

/// Whether the extension of `path` is one of `extensions`, whatever the case.
pub(super) fn has_extension(path: &Path, extensions: &[String]) -> bool {
    let extension = path.extension().map(|extension| extension.to_string_lossy());
    extension.is_some_and(|extension| extensions.iter().any(|one| one.eq_ignore_ascii_case(&extension)))
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>> {
    let paths = glob::glob(pattern)
        .map_err(|error| Error::file(pattern, format!("is not a valid pattern: {}", error.msg)))?;
    paths.collect::<std::result::Result<_, _>>().map_err(|error: glob::GlobError| {
        Error::file(error.path(), format!("cannot be read: {}", error.error()))
    })
}
