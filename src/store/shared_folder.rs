//! Folders that all ranks of a run must see.
//!
//! The first rank begins the folder of a checkpoint and commits it once all ranks have written. A rank that does not
//! see the first rank's mark there is on another file system, and says so.

use super::OUTPUT_DIR;
use crate::durable::read_error;
use crate::error::{Error, Result};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A file that the first rank writes and the others look for.
const MARK: &str = "rank_0.mark";

/// How long a rank looks for the mark: a network file system may show it late.
const PATIENCE: Duration = Duration::from_secs(5);

/// Marks `folder` and returns the text of the mark, which no other run has ever left.
///
/// # Errors
/// A disk that fails.
pub(crate) fn mark(folder: &Path) -> Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let mark = format!("{} {now}", std::process::id());
    OUTPUT_DIR.write(&folder.join(MARK), mark.as_bytes())?;
    Ok(mark)
}

/// Checks that `folder` has this `mark`.
///
/// # Errors
/// It has not, so it is another folder of the same name.
pub(crate) fn check_mark(folder: &Path, mark: &str) -> Result<()> {
    let since = Instant::now();
    while fs::read_to_string(folder.join(MARK)).ok().as_deref() != Some(mark) {
        if since.elapsed() > PATIENCE {
            return Err(unseen(folder));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Removes the mark.
///
/// # Errors
/// A disk that fails.
pub(crate) fn remove_mark(folder: &Path) -> Result<()> {
    let path = folder.join(MARK);
    fs::remove_file(&path).map_err(|error| read_error(&path, "remove", &error))
}

/// The error of a rank that does not see `path`, although the first rank does.
pub(crate) fn unseen(path: &Path) -> Error {
    Error::file(
        path,
        "rank 0 has this folder and this rank does not; give --output_dir a place on a file system that all ranks share",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_folder_of_the_same_name_is_told_apart() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let text = mark(folder.path()).unwrap();
        check_mark(folder.path(), &text).unwrap();
        mark(other.path()).unwrap();
        let line = check_mark(other.path(), &text).unwrap_err().to_string();
        assert!(line.ends_with("on a file system that all ranks share"), "{line}");
        remove_mark(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
