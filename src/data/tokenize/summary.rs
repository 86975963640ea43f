//! What `tokenize` did, in numbers and as a sentence.

use std::fmt;
use std::path::PathBuf;

use crate::data::plural::{plural, skipped};

/// The result of one call of [`tokenize`](super::tokenize) or [`copy_mindrecord`](super::copy_mindrecord).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of documents written.
    pub documents: u64,
    /// Number of tokens written, including the token that ends each document.
    pub tokens: u64,
    /// Bytes of text read, or of MindRecord files.
    pub bytes: u64,
    /// Number of files read.
    pub files: u64,
    /// Number of documents without text, which are skipped.
    pub empty: u64,
    /// Number of binary files in folders, which are skipped.
    pub binary: u64,
    /// The files written.
    pub outputs: Vec<PathBuf>,
}

/// `6 tokens in 2 documents from 1 file (9 bytes) written to x.bin`, and what was skipped.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs: Vec<String> = self.outputs.iter().map(|path| path.display().to_string()).collect();
        write!(
            f,
            "{} in {} from {} ({} bytes) written to {}",
            plural(self.tokens, "token"),
            plural(self.documents, "document"),
            plural(self.files, "file"),
            self.bytes,
            outputs.join(" and ")
        )?;
        let skipped = skipped(self.binary, self.empty);
        if skipped.is_empty() { Ok(()) } else { write!(f, "; {skipped}") }
    }
}
