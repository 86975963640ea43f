//! A file that appears under its name once it is complete, or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A file being written under a temporary name. Dropping it before [`finish`](Self::finish) removes it.
#[derive(Debug)]
pub(super) struct AtomicFile {
    path: PathBuf,
    /// `path` with `.tmp` appended.
    temporary: PathBuf,
    /// `None` once the file is finished.
    file: Option<BufWriter<File>>,
}

impl AtomicFile {
    /// Starts the file that will become `path`, and creates its folder if there is none.
    ///
    /// # Errors
    /// If `path` exists and not `force`, or cannot be created.
    pub fn create(path: &Path, force: bool) -> Result<Self> {
        Self::check_free(path, force)?;
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|error| fails(folder, &error))?;
        }
        let file = File::create(&temporary).map_err(|error| fails(&temporary, &error))?;
        Ok(Self { path: path.to_path_buf(), temporary, file: Some(BufWriter::with_capacity(1 << 20, file)) })
    }

    /// Checks that `path` may be written.
    ///
    /// # Errors
    /// If it exists and not `force`, or is a folder.
    pub fn check_free(path: &Path, force: bool) -> Result<()> {
        if path.is_dir() {
            return Err(Error::file(path, "is a folder; name a file"));
        }
        if path.exists() && !force {
            return Err(Error::file(path, "exists; choose another name, or replace it with --force"));
        }
        Ok(())
    }

    /// The name that the file will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.fill(|out| out.write_all(bytes))
    }

    /// Appends what `fill` writes.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn fill(&mut self, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
        let written = self.file.as_mut().map_or(Ok(()), fill);
        written.map_err(|error| fails(&self.path, &error))
    }

    /// Overwrites the start of the file with `bytes`.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write_start(&mut self, bytes: &[u8]) -> Result<()> {
        self.fill(|out| {
            out.seek(SeekFrom::Start(0))?;
            out.write_all(bytes)?;
            out.seek(SeekFrom::End(0)).map(|_| ())
        })
    }

    /// Syncs the file to the disk and gives it its name, which it returns.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn finish(mut self) -> Result<PathBuf> {
        let Some(file) = self.file.take() else { return Ok(self.path.clone()) };
        let synced =
            file.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| file.sync_all());
        let named = synced.and_then(|()| fs::rename(&self.temporary, &self.path));
        named.map(|()| self.path.clone()).map_err(|error| {
            let _ = fs::remove_file(&self.temporary); // it may be what fills the disk
            fails(&self.path, &error)
        })
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn fails(path: &Path, error: &io::Error) -> Error {
    Error::file(path, format!("cannot be written: {error}; check the folder and the free space on its disk"))
}
