//! Folders that all ranks of a run must see.

use crate::error::Error;
use std::path::Path;

/// The error of a rank that does not see `path`, which the first one does.
pub(crate) fn unseen(path: &Path) -> Error {
    Error::file(
        path,
        "is seen by rank 0 and not by this rank; give --output_dir a place on a file system that all ranks share",
    )
}
