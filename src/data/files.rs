//! Paths, folders and glob patterns turned into a sorted list of files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Files that a configuration names.
#[derive(Debug, Default)]
pub(super) struct FileList {
    /// Named one by one: each must be usable.
    pub named: Vec<PathBuf>,
    /// Found in folders or by patterns, sorted within each: unusable ones are passed over.
    pub found: Vec<PathBuf>,
}

/// Expands `paths`; folders are read recursively and filtered by `wanted`.
pub(super) fn expand(paths: &[String], wanted: impl Fn(&Path) -> bool) -> Result<FileList> {
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
            return Err(Error::file(
                plain,
                "no such file or folder; correct `dataset_dir` or `dataset_files`",
            ));
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
