//! The settings of the `train_dataset` and `eval_dataset` sections.

use super::codec::TokenizerConfig;
use super::document_rules::DocumentRules;
use super::forms::{Form, PackStrategy};

/// One data set: where its tokens come from and in which order batches take them.
#[derive(Clone, Debug, PartialEq)]
pub struct DataConfig {
    /// Where the tokens come from.
    pub loader: Loader,
    /// Encodes text into token ids, and decodes those of a sample; `None`: every byte is a token.
    pub tokenizer: Option<TokenizerConfig>,
    /// Whether each epoch takes the windows in a new random order.
    pub shuffle: bool,
    /// Seed of that order; `None`: the seed of the run.
    pub seed: Option<u64>,
    /// Share of the tokens, at the end of the stream, that is held out for evaluation: 0 up to, but not including, 1.
    /// 0 holds out none.
    pub eval_fraction: f64,
    /// Number of samples of records, drawn by the seed of the run, that are held out instead.
    pub eval_samples: u64,
    /// How windows that hold several documents are treated.
    pub documents: DocumentRules,
}

impl DataConfig {
    /// Whether attention must keep documents apart: a rule says so, or samples are packed into rows.
    pub fn isolates_documents(&self) -> bool {
        self.documents.isolates_documents || self.is_packed()
    }

    /// Whether several samples may share a row.
    pub fn is_packed(&self) -> bool {
        matches!(&self.loader, Loader::Records(config) if config.packing.is_some())
    }

    /// Whether a part of the data is held out for evaluation.
    pub fn keeps_evaluation(&self) -> bool {
        match &self.loader {
            Loader::Megatron(config) => config.split[1] > 0.0,
            _ => self.eval_fraction > 0.0 || self.eval_samples > 0,
        }
    }
}

/// Where tokens come from: `data_loader.type` and its keys.
#[derive(Clone, Debug, PartialEq)]
pub enum Loader {
    /// `TextDataLoader` and `JsonlDataLoader`: text files, encoded by the tokenizer or byte by byte.
    Text(TextConfig),
    /// `TokenDataLoader`: memory-mapped files of token ids.
    Tokens(TokensConfig),
    /// `BlendedMegatronDatasetDataLoader`: Megatron's memory-mapped pairs of `.bin` and `.idx` files.
    Megatron(MegatronConfig),
    /// `MindDataset`: MindSpore's memory-mapped MindRecord files.
    MindRecord(MindRecordConfig),
    /// `ADGenDataLoader`, `HFDataLoader`, `SFTDataLoader` and `ToolAlpacaDataLoader`: files of records that become samples.
    Records(RecordsConfig),
    /// `CargoRegistryDataLoader`: the Rust sources of this crate's dependencies in the cargo registry of this machine.
    CargoRegistry(CargoRegistryConfig),
    /// `MemoryDataLoader`: none, since a program makes the batches itself.
    Memory,
}

/// Which files a loader reads, as one source or as several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paths {
    /// Files, folders, which are searched recursively, and glob patterns; of Megatron's loader the common path of each pair
    /// of `.bin` and `.idx` files, without the ending.
    pub paths: Vec<String>,
    /// A weight above 0 for each path, which makes each a source of its own; empty: all paths are one source.
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

/// Keys of `TextDataLoader` and `JsonlDataLoader`.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// The files of text.
    pub data_path: Paths,
    /// What counts as one document.
    pub documents: DocumentFormat,
    /// The extensions, without the dot, of files that are read from folders and patterns; empty: all text files.
    pub extensions: Vec<String>,
    /// Most bytes of text to read for each source; `None`: all.
    pub max_bytes: Option<u64>,
    /// The byte that ends each document if bytes are tokens. No document may contain it.
    pub eod_byte: u8,
}

/// What counts as one document of a text file.
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

/// Keys of `TokenDataLoader`.
#[derive(Clone, Debug, PartialEq)]
pub struct TokensConfig {
    /// The files of token ids; of a folder its `*.bin` files.
    pub data_path: Paths,
    /// Width of a token in files without a header.
    pub dtype: TokenType,
}

/// Keys of `BlendedMegatronDatasetDataLoader`.
#[derive(Clone, Debug, PartialEq)]
pub struct MegatronConfig {
    /// The pairs of files.
    pub data_path: Paths,
    /// Shares of the documents, in order, for training, for evaluation, and for neither. They sum to 1.
    pub split: [f64; 3],
    /// Number of samples in a training epoch, and in an evaluation; 0: as many as the data has.
    pub sizes: [u64; 2],
}

/// Keys of `MindDataset`.
#[derive(Clone, Debug, PartialEq)]
pub struct MindRecordConfig {
    /// The data files; of a folder those named `*.mindrecord`, with or without the number of a shard.
    pub data_path: Paths,
    /// The columns to read: `input_ids`, and what the file has of `labels` (or `target_ids`), `loss_mask`, `attention_mask`
    /// (or `input_mask`). A row has one token more than the model reads, or with `labels` that are shifted as many.
    pub columns: Vec<String>,
    /// Id of the token that fills rows. Nothing is predicted from it, unless there is a `loss_mask`. `None`: no padding.
    pub pad: Option<u32>,
}

/// Keys of the loaders of records.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordsConfig {
    /// Files of JSON lines, JSON arrays or Parquet, folders, which are searched recursively, and glob patterns.
    pub files: Vec<String>,
    /// The keys that name the files, for messages.
    pub keys: &'static str,
    /// How a record becomes a sample.
    pub form: Form,
    /// How several samples share a row; `None`: each is a row.
    pub packing: Option<PackStrategy>,
    /// Columns that get other names before samples are formed: the old and the new ones.
    pub renamed: Vec<(String, String)>,
    /// Most records to read; `None`: all.
    pub most: Option<u64>,
}

/// The `dtype` of token files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// What the header says; 16 bits without a header (nanoGPT).
    Auto,
    /// 16 bits.
    Uint16,
    /// 32 bits.
    Uint32,
}

/// Keys of `CargoRegistryDataLoader`.
#[derive(Clone, Debug, PartialEq)]
pub struct CargoRegistryConfig {
    /// Most bytes of text to read.
    pub max_bytes: u64,
    /// The byte that ends each source file.
    pub eod_byte: u8,
}
