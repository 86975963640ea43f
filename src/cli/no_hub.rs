//! Models by their names in a build without the feature `hub`: none is fetched.

use crate::error::Result;
use crate::hugging_face::refuse_name_of_hub;
use std::path::{Path, PathBuf};

/// `path`.
///
/// # Errors
/// It is the name of a model on a hub.
pub fn folder_of(path: &Path) -> Result<PathBuf> {
    refuse_name_of_hub(path)?;
    Ok(path.to_path_buf())
}
