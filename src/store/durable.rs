//! Writes that survive a crash: under its final name a file is either complete and on disk, or absent.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Suffix of unfinished files and folders. Anything with it may be deleted.
pub const UNFINISHED: &str = ".tmp";

/// Remedy for a damaged file of a checkpoint.
pub const USE_ANOTHER: &str =
    "use another checkpoint, or delete the folder of this one to resume from the one before it";

/// An I/O error about `path`, which --output_dir chose, as one line with the cause and the remedy; `doing` is what
/// was tried ("write", "create the folder").
pub fn io_error(path: impl AsRef<Path>, doing: &str, error: &io::Error) -> Error {
    io_error_of("--output_dir", path, doing, error)
}

/// Like [`io_error`] for a path that `setting` chose.
fn io_error_of(setting: &str, path: impl AsRef<Path>, doing: &str, error: &io::Error) -> Error {
    let cause = match error.kind() {
        ErrorKind::StorageFull => "disk full: free space there, or",
        ErrorKind::QuotaExceeded => "disk quota exceeded: free space there, or",
        ErrorKind::PermissionDenied => "no permission: change who may write it, or",
        ErrorKind::ReadOnlyFilesystem => "the file system is read-only:",
        ErrorKind::NotADirectory => "a part of this path is a file, not a folder:",
        ErrorKind::FileTooLarge => "the file would pass the size limit: raise `ulimit -f`, or",
        ErrorKind::NotFound => return Error::file(path, format!("cannot {doing}: no such file or folder")),
        _ => return Error::file(path, format!("cannot {doing}: {error}")),
    };
    Error::file(path, format!("cannot {doing}: {cause} choose another {setting}"))
}

/// Writes `bytes` to `path` so that a reader, now or after a crash, finds either the old content or the new, never a
/// part.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_atomically(path, |file| file.write_all(bytes))
}

/// Like [`write_atomically`], with content that `fill` writes.
pub fn replace_atomically(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let unfinished = with_suffix(path, UNFINISHED);
    let written = File::create(&unfinished).and_then(|mut file| {
        fill(&mut file)?;
        file.sync_all()
    });
    let replaced = written.and_then(|()| fs::rename(&unfinished, path));
    if let Err(error) = replaced {
        // On a full disk the space of the half-written file is needed.
        let _ = fs::remove_file(&unfinished);
        return Err(io_error(path, "write", &error));
    }
    sync_parent(path)
}

/// Creates a folder and its missing parents and syncs their names to disk: otherwise a power cut could lose a whole
/// folder of synced files.
pub fn create_folder(path: &Path) -> Result<()> {
    create_folder_of("--output_dir", path)
}

/// Like [`create_folder`] for a folder that `setting` chose, which errors then name.
pub fn create_folder_of(setting: &str, path: &Path) -> Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    fs::create_dir_all(path).map_err(|error| io_error_of(setting, path, "create the folder", &error))?;
    missing
        .iter()
        .rev()
        .filter(|folder| !folder.as_os_str().is_empty())
        .try_for_each(|folder| sync_parent(folder))
}

/// Syncs everything inside a folder, and the folder itself, to disk.
pub fn sync_tree(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(|error| io_error(folder, "read", &error))? {
        let path = entry.map_err(|error| io_error(folder, "read", &error))?.path();
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            // Windows flushes only handles that are open for writing.
            let synced = OpenOptions::new().write(true).open(&path).and_then(|file| file.sync_all());
            synced.map_err(|error| io_error(&path, "write", &error))?;
        }
    }
    sync_folder(folder)
}

/// Syncs a folder's list of names to disk, so that a rename inside it survives a power cut.
pub fn sync_folder(folder: &Path) -> Result<()> {
    // Elsewhere a folder cannot be opened as a file, and the file system's journal takes care of this.
    if cfg!(unix) {
        let synced = File::open(folder).and_then(|handle| handle.sync_all());
        synced.map_err(|error| io_error(folder, "sync the folder", &error))?;
    }
    Ok(())
}

/// [`sync_folder`] for the folder that contains `path`.
pub fn sync_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
        _ => sync_folder(Path::new(".")),
    }
}

/// `path` with `suffix` appended to its name.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_the_whole_content_and_leaves_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        write_atomically(&path, b"a longer first content").unwrap();
        write_atomically(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_keeps_the_old_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        write_atomically(&path, b"old").unwrap();
        let error = replace_atomically(&path, |file| {
            file.write_all(b"ne")?;
            Err(io::Error::from(ErrorKind::StorageFull))
        })
        .unwrap_err();
        let line = error.to_string();
        assert!(line.contains("metrics.jsonl") && line.contains("disk full"), "{line}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn errors_are_one_line_naming_path_cause_and_remedy() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = create_folder(&file.path().join("run")).unwrap_err().to_string();
        assert!(line.contains("is a file, not a folder: choose another --output_dir"), "{line}");
        for kind in [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem, ErrorKind::QuotaExceeded] {
            let line = io_error("out/run", "write", &io::Error::from(kind)).to_string();
            assert!(line.starts_with("out/run: cannot write: ") && line.contains("--output_dir"), "{line}");
        }
    }
}
