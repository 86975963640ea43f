//! The files that loaders read, and how they read them.

/// Which files a loader reads, as one source or as several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paths {
    /// Files, folders (searched recursively) and glob patterns; for Megatron's loader, the common path of each pair of
    /// `.bin` and `.idx` files, without the ending.
    pub paths: Vec<String>,
    /// A weight above 0 for each path, which makes each path a source of its own; empty: all paths are one source.
    pub weights: Vec<f64>,
}

impl Paths {
    /// The paths and the weight of each source.
    pub(super) fn groups(&self) -> Vec<(&[String], f64)> {
        match self.weights.as_slice() {
            [] => vec![(&self.paths, 1.0)],
            weights => self.paths.chunks(1).zip(weights.iter().copied()).collect(),
        }
    }
}

/// The unit of a text file that counts as one document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentFormat {
    /// The whole file.
    File,
    /// Each line.
    Line,
    /// Each run of lines between blank lines.
    BlankLine,
    /// Each line is a JSON object with the text under this key.
    Jsonl(String),
}

impl DocumentFormat {
    /// The extension, without the dot, of the only files in a folder that are read in this format; `None`: all text
    /// files. A folder of JSON lines often holds other files, none of whose lines would parse.
    pub fn extension(&self) -> Option<&'static str> {
        matches!(self, Self::Jsonl(_)).then_some("jsonl")
    }
}

/// The files of records that a loader reads, and what it takes of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordFiles {
    /// Files of JSON lines, JSON arrays or Parquet, folders (searched recursively) and glob patterns.
    pub paths: Vec<String>,
    /// The keys that name the files, for messages.
    pub keys: &'static str,
    /// Columns that get other names before samples are formed, as pairs of the old and the new name.
    pub renamed: Vec<(String, String)>,
    /// Most records to read; `None`: all.
    pub most: Option<u64>,
}

/// The `dtype` of token files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// The width that the header names; 16 bits without a header (nanoGPT).
    Auto,
    /// 16 bits.
    Uint16,
    /// 32 bits.
    Uint32,
}
