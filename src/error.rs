//! The one error type of the crate: every message is a line that names the culprit and the remedy.

use std::path::{Path, PathBuf};

/// A result whose error a user can act on.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Displayed as one line: the culprit, what was expected, what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No adapter that wgpu can use; the text lists what was tried and what to install.
    #[error("no usable GPU adapter: {0}")]
    NoAdapter(String),
    /// The device failed: lost, out of memory, or a shader it refuses.
    #[error("{0}")]
    Device(String),
    /// A file or folder is missing, unreadable, unwritable or not what it should be.
    #[error("{}: {message}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it and what to do.
        message: String,
    },
    /// A key or value of the configuration, or a flag that overrides one.
    #[error("{origin}: {message}")]
    Config {
        /// `file:line: path.of.key`, or the flag.
        origin: String,
        /// What was expected and what to do.
        message: String,
    },
    /// Several faults of one configuration, a line each.
    #[error("{}", lines(.0))]
    Several(Vec<Error>),
    /// The run cannot work as planned (a shape, a limit, a mismatch with the data).
    #[error("{0}")]
    Plan(String),
}

/// A reader of more lines than this mends the first ones first.
const MOST_LINES: usize = 20;

impl Error {
    /// One error, or all of several.
    pub fn all(mut errors: Vec<Error>) -> Self {
        if errors.len() == 1 { errors.remove(0) } else { Self::Several(errors) }
    }

    /// An error about `path`.
    pub fn file(path: impl AsRef<Path>, message: impl std::fmt::Display) -> Self {
        Self::File { path: path.as_ref().to_path_buf(), message: message.to_string() }
    }

    /// An error about a configuration key or flag.
    pub fn config(origin: impl Into<String>, message: impl std::fmt::Display) -> Self {
        Self::Config { origin: origin.into(), message: message.to_string() }
    }
}

/// The first lines, and how many more there are.
fn lines(errors: &[Error]) -> String {
    let mut lines: Vec<String> = errors.iter().take(MOST_LINES).map(Error::to_string).collect();
    if errors.len() > MOST_LINES {
        lines.push(format!("and {} more", errors.len() - MOST_LINES));
    }
    lines.join("\n")
}
