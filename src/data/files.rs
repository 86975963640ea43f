//! Expands paths, folders and glob patterns into a sorted list of files, and reads files.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{Error, Result};

/// A file to read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InputFile {
    pub path: PathBuf,
    /// Whether the file was found in a folder or by a pattern, rather than named itself. A found file that cannot be
    /// used is skipped; a named file that cannot be used is an error.
    pub is_found: bool,
}

/// The keys that name the files of a data set, for messages.
pub(super) const DATASET_KEYS: &str = "`dataset_dir` or `dataset_files`";

/// Expands `paths` into files. Named files come first. Folders are searched recursively; in folders and patterns only
/// `wanted` files count. `remedy` tells the user what to do about a path that does not exist.
pub(super) fn expand(
    paths: &[String],
    wanted: impl Fn(&Path) -> bool,
    remedy: &str,
) -> Result<Vec<InputFile>> {
    let (mut named, mut found) = (Vec::new(), Vec::new());
    for path in paths {
        let plain = Path::new(path);
        if plain.is_dir() {
            walk(plain, &wanted, &mut found)?;
        } else if plain.is_file() {
            named.push(plain.to_path_buf());
        } else if path.contains(['*', '?', '[']) {
            found.extend(matching(path)?.into_iter().filter(|file| file.is_file() && wanted(file)));
        } else {
            return Err(Error::file(plain, format!("no such file or folder; {remedy}")));
        }
    }
    let named = named.into_iter().map(|path| InputFile { path, is_found: false });
    Ok(named.chain(found.into_iter().map(|path| InputFile { path, is_found: true })).collect())
}

/// Appends the wanted files below `folder` to `found`, sorted by path. Hidden entries and linked folders are left out.
pub(super) fn walk(folder: &Path, wanted: &impl Fn(&Path) -> bool, found: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries = fs::read_dir(folder)
        .and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>())
        .map_err(|error| unreadable(folder, &error))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let kind = entry.file_type().map_err(|error| unreadable(folder, &error))?;
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

/// Whether the extension of `path` is one of `extensions` (without the dot), in upper or lower case.
pub(super) fn has_extension(path: &Path, extensions: &[impl AsRef<str>]) -> bool {
    let extension = path.extension().map(|extension| extension.to_string_lossy());
    extension
        .is_some_and(|extension| extensions.iter().any(|one| one.as_ref().eq_ignore_ascii_case(&extension)))
}

/// Reads a whole file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| unreadable(path, &error))
}

/// Reads a whole file of text.
pub(super) fn text_of(path: &Path) -> Result<String> {
    as_text(path, read(path)?)
}

fn as_text(path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| not_utf8(path, error.utf8_error().valid_up_to() as u64))
}

/// Memory-maps a file; an empty file gives an empty map.
pub(super) fn map(path: &Path) -> Result<Arc<Mmap>> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    // SAFETY: the map is only read. If another process truncates the file meanwhile, this one ends with a bus error;
    // token files are written once, and training never changes them.
    let map = unsafe { Mmap::map(&file) }.map_err(|error| unreadable(path, &error))?;
    Ok(Arc::new(map))
}

/// A file with a zero byte among its first this many bytes is binary, as in git.
const SNIFFED_BYTES: usize = 8000;

/// Whether a file is binary.
pub(super) fn is_binary(path: &Path) -> Result<bool> {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SNIFFED_BYTES as u64).read_to_end(&mut start));
    read.map_err(|error| unreadable(path, &error))?;
    Ok(start.contains(&0))
}

/// Reads a whole file as text; `None` if the file was found (not named) and is binary.
///
/// # Errors
/// If the file cannot be read, or is not UTF-8.
pub(super) fn read_text(file: &InputFile) -> Result<Option<String>> {
    let bytes = read(&file.path)?;
    if is_text(file, &bytes)? { as_text(&file.path, bytes).map(Some) } else { Ok(None) }
}

/// Whether the `bytes` of a file may be text; false if the file was found (not named) and is binary.
///
/// # Errors
/// If the file was named and is a file of token ids.
pub(super) fn is_text(file: &InputFile, bytes: &[u8]) -> Result<bool> {
    if bytes.iter().take(SNIFFED_BYTES).any(|byte| *byte == 0) {
        if file.is_found {
            return Ok(false);
        }
        if has_extension(&file.path, &TOKEN_FILES) {
            return Err(token_file(&file.path));
        }
    }
    Ok(true)
}

/// The error about a file that cannot be opened or read.
pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::file(path, format!("cannot be read: {error}"))
}

/// The error about a text file whose byte at `offset` does not start a UTF-8 character.
pub(super) fn not_utf8(path: &Path, offset: u64) -> Error {
    if has_extension(path, &TOKEN_FILES) {
        return token_file(path);
    }
    Error::file(path, format!("is not UTF-8 text at byte {offset}; convert the file to UTF-8"))
}

/// The extensions of files of token ids, without the dot.
pub(super) const TOKEN_FILES: [&str; 1] = ["bin"];

/// The loaders that read files of token ids, for messages.
pub(super) const TOKEN_LOADERS: &str = "files of token ids are read by `type: TokenDataLoader`, or with an .idx file beside them by `BlendedMegatronDatasetDataLoader`";

fn token_file(path: &Path) -> Error {
    Error::file(path, format!("is not text; {TOKEN_LOADERS}"))
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>> {
    let paths = glob::glob(pattern)
        .map_err(|error| Error::file(pattern, format!("is not a valid pattern: {}", error.msg)))?;
    paths
        .collect::<std::result::Result<_, _>>()
        .map_err(|error: glob::GlobError| unreadable(error.path(), error.error()))
}
