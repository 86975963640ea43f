//! The files of a model in the cache: `blobs` by their hashes, and for each commit a folder in `snapshots` of links to
//! them; `refs/main` names the newest commit. A file is in `blobs` only when its size and hash are right.
//! Source: <https://huggingface.co/docs/huggingface_hub/guides/manage-cache>.

use super::connection::{Hub, Watch};
use super::download::{Download, PLACE};
use super::listing::{Listing, RemoteFile};
use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A model in the cache.
pub(super) struct CachedModel {
    folder: PathBuf,
    /// Where locks are, by hash.
    locks: PathBuf,
}

impl CachedModel {
    pub fn new(cache: &Path, model: &str) -> Self {
        let own = format!("models--{}", model.replace('/', "--"));
        Self { folder: cache.join(&own), locks: cache.join(".locks").join(own) }
    }

    /// The folder of the newest commit that is here.
    pub fn newest(&self) -> Option<PathBuf> {
        let commit = fs::read_to_string(self.folder.join("refs").join("main")).ok()?;
        Some(self.folder.join("snapshots").join(commit.trim())).filter(|folder| folder.is_dir())
    }

    /// Fetches the files of `listing` that `model` needs and that are not here; their folder.
    ///
    /// # Errors
    /// Those of [`Hub::folder_of`].
    pub fn fetch(&self, hub: &Hub, model: &str, listing: Listing, watch: &mut dyn Watch) -> Result<PathBuf> {
        let commit = listing.commit.clone();
        let files = listing.needed().map_err(|why| Error::file(model, why))?;
        let snapshot = self.folder.join("snapshots").join(&commit);
        let refs = self.folder.join("refs");
        for folder in [&self.folder.join("blobs"), &refs, &snapshot, &self.locks] {
            PLACE.create_folder(folder)?;
        }
        let missing: Vec<&RemoteFile> = files.iter().filter(|file| !self.has(file)).collect();
        if !missing.is_empty() {
            let begun = missing.iter().map(|file| self.begun(file).metadata().map_or(0, |data| data.len()));
            watch.begins(
                missing.iter().map(|file| file.size).sum(),
                begun.sum(),
                &snapshot.display().to_string(),
            );
        }
        for file in missing {
            let url = format!("{}/{model}/resolve/{commit}/{}", hub.endpoint, file.name);
            self.fetch_file(hub, model, &url, file, watch)?;
        }
        for file in &files {
            let (blob, link) = (self.blob(file), snapshot.join(&file.name));
            place(&blob, &file.hash, &link).map_err(|error| PLACE.error(&link, "write", &error))?;
        }
        let newest = refs.join("main");
        fs::write(&newest, commit).map_err(|error| PLACE.error(&newest, "write", &error))?;
        Ok(snapshot)
    }

    fn fetch_file(
        &self,
        hub: &Hub,
        model: &str,
        url: &str,
        file: &RemoteFile,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let lock = self.locks.join(format!("{}.lock", file.hash));
        let locked = File::create(&lock).and_then(|held| held.lock().map(|()| held));
        let _held = locked.map_err(|error| PLACE.error(&lock, "lock", &error))?;
        if self.has(file) {
            return Ok(()); // another process had the lock
        }
        let (begun, blob) = (self.begun(file), self.blob(file));
        Download::open(hub, model, url, file, &begun)?.finish(watch)?;
        fs::rename(&begun, &blob).map_err(|error| PLACE.error(&blob, "write", &error))
    }

    fn blob(&self, file: &RemoteFile) -> PathBuf {
        self.folder.join("blobs").join(&file.hash)
    }

    /// Where the beginning of a file is.
    fn begun(&self, file: &RemoteFile) -> PathBuf {
        self.folder.join("blobs").join(format!("{}.incomplete", file.hash))
    }

    fn has(&self, file: &RemoteFile) -> bool {
        self.blob(file).metadata().is_ok_and(|data| data.len() == file.size)
    }
}

/// Puts the file `blob` with the hash `hash` at `link`, too: by a link, or where links need rights, by a copy.
fn place(blob: &Path, hash: &str, link: &Path) -> io::Result<()> {
    if link.exists() {
        return Ok(());
    }
    let _ = fs::remove_file(link); // a link to nothing
    let target = Path::new("..").join("..").join("blobs").join(hash);
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, link).or_else(|_| fs::copy(blob, link).map(|_| ()));
    #[cfg(windows)]
    return std::os::windows::fs::symlink_file(target, link).or_else(|_| fs::copy(blob, link).map(|_| ()));
    #[cfg(not(any(unix, windows)))]
    return fs::copy(blob, link).map(|_| drop(target));
}
