//! Files that survive a crash: under its final name a file is either complete and on disk, or absent.

mod append_file;
mod cache_folder;
mod pairs;

pub use self::append_file::AppendFile;
pub(crate) use self::cache_folder::cache_folder;
pub(crate) use self::pairs::Pairs;

use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// Suffix of unfinished files and folders. Any file or folder with it may be deleted.
pub(crate) const UNFINISHED: &str = ".tmp";

/// The setting or flag that chose a place on disk. Errors tell the user to change it.
#[derive(Clone, Copy, Debug)]
pub struct PathOrigin(pub &'static str);

/// A file being written under a temporary name. Dropping it before [`finish`](Self::finish) removes it.
#[derive(Debug)]
pub struct AtomicFile {
    place: PathOrigin,
    path: PathBuf,
    temporary: PathBuf,
    /// `None` once the file is finished.
    file: Option<BufWriter<File>>,
}

impl PathOrigin {
    /// An I/O error at `path` as one line with the cause and the remedy; `doing` is what was tried ("write").
    pub fn error(self, path: impl AsRef<Path>, doing: &str, error: &io::Error) -> Error {
        let cause = match error.kind() {
            ErrorKind::StorageFull => "disk full: free space there, or",
            ErrorKind::QuotaExceeded => "disk quota exceeded: free space there, or",
            ErrorKind::PermissionDenied => "no permission: change who may write it, or",
            ErrorKind::ReadOnlyFilesystem => "the file system is read-only:",
            ErrorKind::NotADirectory => "a part of this path is a file, not a folder:",
            ErrorKind::IsADirectory => "a folder has this name: remove it, or",
            ErrorKind::FileTooLarge => "the file would pass the size limit: raise `ulimit -f`, or",
            _ => return read_error(path, doing, error),
        };
        Error::file(path, format!("cannot {doing}: {cause} choose another {}", self.0))
    }

    /// Creates a folder and its missing parents and syncs their names to disk: otherwise a power cut could lose a whole
    /// folder of synced files.
    pub fn create_folder(self, path: &Path) -> Result<()> {
        let missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
        fs::create_dir_all(path).map_err(|error| self.error(path, "create the folder", &error))?;
        let mut named = missing.iter().rev().filter(|folder| !folder.as_os_str().is_empty());
        named.try_for_each(|folder| self.sync_parent(folder))
    }

    /// Starts the file that will replace `path`. Anything at its temporary name is removed, and never written through
    /// if it is a link.
    pub fn begin(self, path: &Path) -> Result<AtomicFile> {
        let temporary = with_suffix(path, UNFINISHED);
        let _ = fs::remove_file(&temporary);
        self.begin_as(path, temporary)
    }

    /// As [`begin`](Self::begin) for a file that other processes may write at the same time, in other containers even
    /// under the same process number: its temporary name is its own.
    pub(crate) fn begin_beside_others(self, path: &Path) -> Result<AtomicFile> {
        let own = RandomState::new().build_hasher().finish();
        self.begin_as(path, with_suffix(path, &format!(".{own:016x}{UNFINISHED}")))
    }

    fn begin_as(self, path: &Path, temporary: PathBuf) -> Result<AtomicFile> {
        let created = OpenOptions::new().write(true).create_new(true).open(&temporary);
        let file = created.map_err(|error| self.error(path, "write", &error))?;
        let file = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(AtomicFile { place: self, path: path.to_path_buf(), temporary, file })
    }

    /// Writes `bytes` to `path` so that a reader, now or after a crash, finds either the old content or the new.
    pub fn write(self, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut file = self.begin(path)?;
        file.fill(|out| out.write_all(bytes))?;
        file.finish().map(|_| ())
    }

    /// Syncs the files of a folder and of its subfolders, and the folder itself, to disk.
    pub(crate) fn sync_files(self, folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder).map_err(|error| read_error(folder, "read", &error))? {
            let path = entry.map_err(|error| read_error(folder, "read", &error))?.path();
            if path.is_dir() {
                self.sync_files(&path)?;
                continue;
            }
            self.sync_file(&path)?;
        }
        self.sync_folder(folder)
    }

    /// Syncs the content of a file to disk.
    pub(crate) fn sync_file(self, path: &Path) -> Result<()> {
        // Windows flushes only handles that are open for writing.
        let synced = OpenOptions::new().write(true).open(path).and_then(|file| file.sync_all());
        synced.map_err(|error| self.error(path, "write", &error))
    }

    /// Syncs a folder's list of names to disk, so that a rename inside it survives a power cut.
    pub(crate) fn sync_folder(self, folder: &Path) -> Result<()> {
        // On other systems a folder cannot be opened as a file, and the file system's journal makes renames durable.
        let synced =
            if cfg!(unix) { File::open(folder).and_then(|handle| handle.sync_all()) } else { Ok(()) };
        synced.map_err(|error| self.error(folder, "sync the folder", &error))
    }

    fn sync_parent(self, path: &Path) -> Result<()> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        self.sync_folder(parent.unwrap_or(Path::new(".")))
    }
}

impl AtomicFile {
    /// The name that the file will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name that the file has until then.
    pub(crate) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Appends the bytes that `fill` writes.
    pub fn fill(&mut self, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
        let written = self.file.as_mut().map_or(Ok(()), fill);
        written.map_err(|error| self.place.error(&self.path, "write", &error))
    }

    /// Overwrites the start of the file with `bytes`.
    pub(crate) fn write_start(&mut self, bytes: &[u8]) -> Result<()> {
        self.fill(|out| {
            out.seek(SeekFrom::Start(0))?;
            out.write_all(bytes)?;
            out.seek(SeekFrom::End(0)).map(|_| ())
        })
    }

    /// Syncs the file to disk and renames it to its final path, which is returned.
    pub fn finish(mut self) -> Result<PathBuf> {
        self.fill(|out| out.flush().and_then(|()| out.get_ref().sync_all()))?;
        self.file = None; // Windows does not rename open files
        if let Err(error) = fs::rename(&self.temporary, &self.path) {
            let _ = fs::remove_file(&self.temporary);
            return Err(self.place.error(&self.path, "write", &error));
        }
        self.place.sync_parent(&self.path)?;
        Ok(self.path.clone())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = fs::remove_file(&self.temporary); // it may be what fills the disk
        }
    }
}

/// When the file at `path` was last written or put there: a copy may keep the time of its original, and a link may have
/// another target than before.
pub(crate) fn changed(path: &Path) -> Option<SystemTime> {
    let times = |data: fs::Metadata| [data.modified().ok(), placed(&data)].into_iter().flatten().max();
    [path.metadata().ok()?, path.symlink_metadata().ok()?].into_iter().filter_map(times).max()
}

#[cfg(unix)]
fn placed(data: &fs::Metadata) -> Option<SystemTime> {
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;
    let [seconds, nanos] = [data.ctime(), data.ctime_nsec()].map(u64::try_from);
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.ok()?) + Duration::from_nanos(nanos.ok()?))
}

#[cfg(not(unix))]
fn placed(data: &fs::Metadata) -> Option<SystemTime> {
    data.created().ok()
}

/// The contents of a descriptive file, such as a `config.json` or a `tokenizer.json`.
///
/// # Errors
/// It cannot be read, or has more than 256 MiB, several times the size of the largest published one, so that it must be
/// something else.
pub(crate) fn read_description(path: &Path) -> Result<Vec<u8>> {
    let failed = |error: io::Error| read_error(path, "read", &error);
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(LARGEST_DESCRIPTION + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST_DESCRIPTION {
        let most = LARGEST_DESCRIPTION >> 20;
        return Err(Error::file(
            path,
            format!("has more than {most} MiB, so it is damaged or another kind of file; fetch it again"),
        ));
    }
    Ok(bytes)
}

/// The contents of the JSON file at `path`, which should be `what`; `remedy` is the advice if it is something else.
///
/// # Errors
/// As [`read_description`]; a file that is something else, or damaged.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, what: &str, remedy: &str) -> Result<T> {
    serde_json::from_slice(&read_description(path)?)
        .map_err(|error| Error::file(path, format!("not {what}, or damaged ({error}); {remedy}")))
}

/// [`read_json`] where there is such a file.
///
/// # Errors
/// As [`read_json`].
pub(crate) fn read_json_if_present<T: DeserializeOwned>(
    path: &Path,
    what: &str,
    remedy: &str,
) -> Result<Option<T>> {
    path.is_file().then(|| read_json(path, what, remedy)).transpose()
}

const LARGEST_DESCRIPTION: u64 = 256 << 20;

/// An I/O error about a file that is only read, or an error whose cause no other place would change.
pub(crate) fn read_error(path: impl AsRef<Path>, doing: &str, error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::file(path, format!("cannot {doing}: no such file or folder")),
        _ => Error::file(path, format!("cannot {doing}: {error}")),
    }
}

/// `path` with `suffix` appended to its name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
