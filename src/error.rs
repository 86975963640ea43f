//! The crate's error type. Every message is one line that names the culprit and the remedy, or several such lines.

mod foreign;
mod remedies;
mod shown;

pub(crate) use foreign::foreign;
pub(crate) use remedies::{new_run_from, shell_word};
pub(crate) use shown::shown;

use std::path::{Path, PathBuf};

/// A result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error that a user can act on. Displays as one line: the culprit, what was expected, what to do. `Debug` shows the
/// same line, since `unwrap`, and a `main` that returns the error, use it.
///
/// # Examples
///
/// ```
/// use gristmill::settings::RunConfig;
///
/// let text = "model: {model_config: {vocab_size: many, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 8}}";
/// let error = RunConfig::in_memory(text, &[]).unwrap_err();
/// assert!(error.to_string().starts_with("configuration:1: model.model_config.vocab_size: expected a whole number"));
/// assert_eq!(format!("{error:?}"), error.to_string()); // what a `main` that returns it prints
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No adapter that wgpu can use. The text says which backends were tried and what to install.
    #[error("no usable GPU adapter: {0}")]
    NoAdapter(String),
    /// The device failed: it was lost, or rejected a shader.
    #[error("{0}")]
    Device(String),
    /// The device has no memory left.
    #[error("out of memory {what}; {remedy}")]
    OutOfMemory {
        /// The purpose of the memory, or where it ran out.
        what: String,
        /// The largest consumers, and what to do.
        remedy: String,
    },
    /// A file or folder is missing, unreadable, unwritable or malformed.
    #[error("{}: {}", shown(&path.display().to_string()), shown(message))]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what to do.
        message: String,
    },
    /// An invalid configuration key or value, or an invalid flag.
    #[error("{}: {}", shown(origin), shown(message))]
    Config {
        /// `file:line: path.of.key`, or the flag.
        origin: String,
        /// What was expected and what to do.
        message: String,
    },
    /// Several faults of one configuration, a line each.
    #[error("{}", lines(.0))]
    Several(Vec<Error>),
    /// The training ran, but its loss or gradients stopped being finite.
    #[error("{0}")]
    Diverged(String),
    /// The ranks of the run cannot exchange: one has ended, or they do not run the same program.
    #[error("{0}")]
    Ranks(String),
    /// A tensor, binding or launch that the adapter cannot hold.
    #[error("{what}; {remedy}")]
    TooLarge {
        /// The item, and its limit.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The run is impossible as configured: a shape, a limit, a mismatch with the data.
    #[error("{}", shown(.0))]
    Plan(String),
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Number of errors that are listed; further ones are only counted.
const MOST_LINES: usize = 20;

impl Error {
    /// The error itself if there is only one, and otherwise an error with all of them.
    pub fn all(mut errors: Vec<Error>) -> Self {
        if errors.len() == 1 { errors.remove(0) } else { Self::Several(errors) }
    }

    /// An error about `path`.
    pub fn file(path: impl AsRef<Path>, message: impl std::fmt::Display) -> Self {
        Self::File { path: path.as_ref().to_path_buf(), message: message.to_string() }
    }

    /// An error about something that is too large for the adapter.
    pub(crate) fn too_large(what: impl std::fmt::Display, remedy: impl Into<String>) -> Self {
        Self::TooLarge { what: what.to_string(), remedy: remedy.into() }
    }

    /// An error about a configuration key or flag.
    pub fn config(origin: impl Into<String>, message: impl std::fmt::Display) -> Self {
        Self::Config { origin: origin.into(), message: message.to_string() }
    }
}

/// The first lines, and the number of further ones.
fn lines(errors: &[Error]) -> String {
    let mut lines: Vec<String> = errors.iter().take(MOST_LINES).map(Error::to_string).collect();
    if errors.len() > MOST_LINES {
        lines.push(format!("and {} more", errors.len() - MOST_LINES));
    }
    lines.join("\n")
}
