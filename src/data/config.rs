//! What the `train_dataset` and `eval_dataset` sections say.

use std::path::PathBuf;

use super::document_rules::DocumentRules;

/// One data set: where its tokens come from and how they are dealt.
#[derive(Clone, Debug, PartialEq)]
pub struct DataConfig {
    /// Where the tokens come from.
    pub loader: Loader,
    /// What turns text into token ids, and the ids of a sample back into text; without it bytes are tokens.
    pub tokenizer: Option<TokenizerConfig>,
    /// Whether windows are dealt in a new random order every epoch.
    pub shuffle: bool,
    /// Seed of the order; the run's own seed where absent.
    pub seed: Option<u64>,
    /// The share of tokens, at the end of the stream, kept for evaluation. 0 keeps none.
    pub eval_fraction: f64,
    /// What the end of a document means.
    pub documents: DocumentRules,
}

impl DataConfig {
    /// Whether a part of the data is kept for evaluation.
    pub fn keeps_evaluation(&self) -> bool {
        match &self.loader {
            Loader::Megatron(config) => config.split[1] > 0.0,
            _ => self.eval_fraction > 0.0,
        }
    }
}

/// `tokenizer` of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// The file `tokenizer.json`.
    pub file: PathBuf,
    /// The token that ends each document of a text.
    pub eos_token: String,
}

/// The source of tokens: `data_loader.type` and its keys.
#[derive(Clone, Debug, PartialEq)]
pub enum Loader {
    /// `TextDataLoader` and `JsonlDataLoader`: text files, encoded by the tokenizer or byte by byte.
    Text(TextConfig),
    /// `TokenDataLoader`: files of token ids, memory mapped.
    Tokens(TokensConfig),
    /// `BlendedMegatronDatasetDataLoader`: Megatron's pairs of `.bin` and `.idx`, memory mapped.
    Megatron(MegatronConfig),
    /// `CargoRegistryDataLoader`: the Rust sources that building any crate left on this machine.
    CargoRegistry(CargoRegistryConfig),
}

impl Loader {
    /// The weights of its sources, as they were written; none where there is one source.
    pub fn weights(&self) -> &[f64] {
        match self {
            Self::Text(config) => &config.weights,
            Self::Tokens(config) => &config.weights,
            Self::Megatron(config) => &config.weights,
            Self::CargoRegistry(_) => &[],
        }
    }
}

/// Keys of `TextDataLoader` and `JsonlDataLoader`.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// Files, folders (read recursively) and glob patterns.
    pub paths: Vec<String>,
    /// A weight for each path, which then is a source of its own; empty: all are one source.
    pub weights: Vec<f64>,
    /// What in a file is a document.
    pub documents: DocumentFormat,
    /// Only files with one of these extensions, without the dot; empty takes every text file.
    pub extensions: Vec<String>,
    /// Stop after this many bytes of text; each source of a blend counts its own.
    pub max_bytes: Option<u64>,
    /// The byte that ends each document where bytes are tokens. No document may contain it.
    pub eod_byte: u8,
}

/// What in a text file is a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentFormat {
    /// The whole file.
    File,
    /// Each line.
    Line,
    /// Each run of lines between blank ones.
    BlankLine,
    /// Each line is a JSON object, whose text stands under this key.
    Jsonl(String),
}

impl DocumentFormat {
    /// Every spelling of the key `documents`; JSON lines have a loader of their own.
    pub const NAMES: [(&'static str, Self); 3] =
        [("file", Self::File), ("line", Self::Line), ("blank_line", Self::BlankLine)];
}

/// Keys of `TokenDataLoader`.
#[derive(Clone, Debug, PartialEq)]
pub struct TokensConfig {
    /// Files, folders (their `*.bin` files) and glob patterns.
    pub paths: Vec<String>,
    /// A weight for each path, which then is a source of its own; empty: all are one source.
    pub weights: Vec<f64>,
    /// Width of a token where the file has no header that says so.
    pub dtype: TokenType,
}

/// Keys of `BlendedMegatronDatasetDataLoader`.
#[derive(Clone, Debug, PartialEq)]
pub struct MegatronConfig {
    /// Paths of the `.bin` and `.idx` files without these endings.
    pub prefixes: Vec<String>,
    /// A weight for each prefix; empty: there is one prefix.
    pub weights: Vec<f64>,
    /// Shares of the documents, in order: to learn from, to evaluate on, kept out. They sum to 1.
    pub split: [f64; 3],
    /// Samples of an epoch, and samples of an evaluation at most; 0 takes what there is.
    pub sizes: [u64; 2],
}

/// `dtype` of token files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// What the header says; 16 bits without one (nanoGPT).
    Auto,
    /// 16 bits.
    Uint16,
    /// 32 bits.
    Uint32,
}

impl TokenType {
    /// Every spelling of the key.
    pub const NAMES: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("uint16", Self::Uint16), ("uint32", Self::Uint32)];
}

/// Keys of `CargoRegistryDataLoader`.
#[derive(Clone, Debug, PartialEq)]
pub struct CargoRegistryConfig {
    /// Stop after this many bytes.
    pub max_bytes: u64,
    /// The byte that ends each source file.
    pub eod_byte: u8,
}
