//! Tokens made from much data, kept in files of the user's cache folder so that the next start need not make them
//! again.
//!
//! A file is named by a hash of everything that decides its content, and appears whole or not at all. Files may be
//! deleted at any time. Without a folder that can be written, everything works without the cache.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use twox_hash::XxHash3_128;

use super::files::{self, InputFile};
use super::sample_store::SampleStore;
use crate::durable::{AtomicFile, PathOrigin, cache_folder};
use crate::error::Result;

/// Less data than this is not cached: to read it again takes a second.
const SMALLEST: u64 = 1 << 20;
/// The files of the cache have at most this many bytes together; the least recently used files make room.
const MOST_BYTES: u64 = 16 << 30;
/// An unfinished file that is older than this belongs to a process that has ended.
const ABANDONED: Duration = Duration::from_secs(3600);
const FOLDER: &str = "tokens";
const ENDING: &str = "tokens";
const PLACE: PathOrigin = PathOrigin("folder by XDG_CACHE_HOME, or keep no tokens by --no-cache");

static IS_OFF: AtomicBool = AtomicBool::new(false);
/// Held while tokens are made: threads of one process that want the same tokens wait for the first thread.
static MAKING: Mutex<()> = Mutex::new(());
/// The file that is being written, under its temporary name.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Keeps this process from reading tokens from the cache and from writing any to it.
pub fn turn_off() {
    IS_OFF.store(true, Ordering::Relaxed);
}

/// Removes the file that this process has begun to write, before the process ends without warning.
pub fn forget_unfinished() {
    if let Some(path) = lock(&UNFINISHED).take() {
        let _ = fs::remove_file(path);
    }
}

/// The place of some tokens in the cache.
pub(super) struct Place {
    path: PathBuf,
    /// The states of the files just before they were hashed.
    states: Vec<State>,
}

/// The length of a file and the time of its last change; `None` where they cannot be read.
type State = Option<(u64, SystemTime)>;

/// A file is being written, which an interrupt removes until this value is dropped.
pub(super) struct Unfinished;

impl Drop for Unfinished {
    fn drop(&mut self) {
        lock(&UNFINISHED).take();
    }
}

impl Place {
    /// The place of the tokens that `identity` and the contents of `files` decide. `None` if there is no identity, the
    /// files are small, the cache is turned off, or there is no cache folder.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(identity: Option<String>, files: &[InputFile]) -> Result<Option<Self>> {
        let (Some(identity), Some(folder)) = (identity, cache_folder()) else { return Ok(None) };
        if bytes_of(files) < SMALLEST || IS_OFF.load(Ordering::Relaxed) {
            return Ok(None);
        }
        Self::within(&folder, &identity, files).map(Some)
    }

    /// As [`of`](Self::of), in the cache in `folder`.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn within(folder: &Path, identity: &str, files: &[InputFile]) -> Result<Self> {
        // The states are taken before the files are hashed: a later change is not in the content that the name stands
        // for.
        let states = states(files);
        let mut hasher = XxHash3_128::new();
        hasher.write(format!("{}\n{identity}\n", build()).as_bytes());
        for InputFile { path, .. } in files {
            let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
            let mut file = File::open(path).map_err(|error| files::unreadable(path, &error))?;
            let bytes = hash(&mut file, &mut hasher).map_err(|error| files::unreadable(path, &error))?;
            hasher.write(format!("\n{ending} {bytes}\n").as_bytes());
        }
        let path = folder.join(FOLDER).join(format!("{:032x}.{ENDING}", hasher.finish_128()));
        Ok(Self { path, states })
    }

    /// Waits until no thread of this process makes tokens; other threads wait as long as the guard is kept.
    pub fn lock() -> MutexGuard<'static, ()> {
        lock(&MAKING)
    }

    /// Whether `files`, whose place this is, are still as they were before they were hashed.
    pub fn is_of(&self, files: &[InputFile]) -> bool {
        self.states.iter().all(Option::is_some) && states(files) == self.states
    }

    /// The tokens, if they are in the cache. A damaged file is removed.
    pub fn find(&self) -> Option<SampleStore> {
        let map = self.path.is_file().then(|| files::map(&self.path).ok())??;
        let Some(store) = SampleStore::open(map) else {
            tracing::warn!("{}: is damaged, and made again", self.path.display());
            let _ = fs::remove_file(&self.path);
            return None;
        };
        // The most recently used file makes room last.
        let _ = OpenOptions::new()
            .append(true)
            .open(&self.path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        Some(store)
    }

    /// Begins to write the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin(&self) -> Result<(AtomicFile, Unfinished)> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        PLACE.create_folder(folder)?;
        remove_abandoned(folder);
        let file = PLACE.begin_beside_others(&self.path)?;
        *lock(&UNFINISHED) = Some(file.temporary().to_path_buf());
        Ok((file, Unfinished))
    }

    /// Gives the written file its name, and makes room for it. If the name is taken and cannot be replaced, as on
    /// Windows while another process reads that file, the file that is there has the same content.
    ///
    /// # Errors
    /// If the file cannot be renamed.
    pub fn keep(&self, file: AtomicFile) -> Result<()> {
        match file.finish() {
            Err(error) if !self.path.is_file() => Err(error),
            _ => {
                make_room(self.path.parent().unwrap_or(Path::new("")), &self.path, MOST_BYTES);
                Ok(())
            }
        }
    }
}

/// The files of the cache, each with the time of its last use and its length: first the finished files, then the
/// others.
fn files_in(folder: &Path) -> [Vec<(SystemTime, u64, PathBuf)>; 2] {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| {
        let data = entry.metadata().ok()?;
        Some((data.modified().ok()?, data.len(), entry.path()))
    });
    let (kept, unfinished) =
        files.partition(|(_, _, path)| path.extension().is_some_and(|ending| ending == ENDING));
    [kept, unfinished]
}

/// Removes the unfinished files of processes that have ended.
fn remove_abandoned(folder: &Path) {
    let [_, unfinished] = files_in(folder);
    let is_old = |modified: &SystemTime| modified.elapsed().is_ok_and(|age| age > ABANDONED);
    for (_, _, path) in unfinished.iter().filter(|(modified, ..)| is_old(modified)) {
        let _ = fs::remove_file(path);
    }
}

/// Removes the least recently used files while all files together have more than `most` bytes, but never `newest`.
fn make_room(folder: &Path, newest: &Path, most: u64) {
    let [mut kept, _] = files_in(folder);
    kept.sort();
    let mut all: u64 = kept.iter().map(|(_, length, _)| length).sum();
    for (_, length, path) in kept.iter().filter(|(_, _, path)| path != newest) {
        if all <= most {
            break;
        }
        if fs::remove_file(path).is_ok() {
            all -= length;
        }
    }
}

/// Tells the user a line, once in this process.
pub(super) fn say_once(line: String, is_warning: bool) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if lock(&SAID).insert(line.clone()) {
        if is_warning { tracing::warn!("{line}") } else { tracing::info!("{line}") }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path.display().fmt(f)
    }
}

/// The version and the build of this program: another build may make other tokens.
fn build() -> String {
    let of_program = || {
        let data = fs::metadata(std::env::current_exe().ok()?).ok()?;
        Some((data.len(), data.modified().ok()?))
    };
    format!("{} {:?}", env!("CARGO_PKG_VERSION"), of_program())
}

/// Hashes the rest of a file, and returns how many bytes it has.
fn hash(file: &mut File, hasher: &mut XxHash3_128) -> io::Result<u64> {
    let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(bytes);
        }
        hasher.write(&buffer[..read]);
        bytes += read as u64;
    }
}

pub(super) fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |data| data.len())
}

/// Bytes of all `files`.
pub(super) fn bytes_of(files: &[InputFile]) -> u64 {
    files.iter().map(|file| length(&file.path)).sum()
}

fn states(files: &[InputFile]) -> Vec<State> {
    let state = |file: &InputFile| {
        let data = file.path.metadata().ok()?;
        Some((data.len(), data.modified().ok()?))
    };
    files.iter().map(state).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_used_last_stay_and_none_that_is_abandoned() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, age: u64| {
            let path = folder.path().join(name);
            fs::write(&path, [0; 10]).unwrap();
            let when = SystemTime::now() - Duration::from_secs(age);
            OpenOptions::new().append(true).open(&path).unwrap().set_modified(when).unwrap();
            path
        };
        let newest = file("a.tokens", 9000);
        file("b.tokens", 50);
        file("c.tokens", 5000);
        file("d.1.tmp", 5000);
        file("d.1", 5000);
        file("e.2.tmp", 50);
        make_room(folder.path(), &newest, 20);
        remove_abandoned(folder.path());
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["a.tokens", "b.tokens", "e.2.tmp"]);
    }

    /// As on Windows, where a file that another process reads cannot be replaced. A folder, which cannot be replaced on
    /// any system, takes its place here.
    #[test]
    fn what_cannot_be_named_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let _making = Place::lock();
        let place = Place::within(folder.path(), "", &[]).unwrap();
        let write = || {
            let (file, _unfinished) = place.begin().unwrap();
            place.keep(file)
        };
        write().unwrap();
        fs::remove_file(&place.path).unwrap();
        fs::create_dir(&place.path).unwrap();
        assert!(write().is_err());
        let left = fs::read_dir(place.path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "the folder alone");
    }
}
