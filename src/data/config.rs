//! What the `train_dataset` and `eval_dataset` sections say.

/// One data set: where its tokens come from and how they are dealt.
#[derive(Clone, Debug, PartialEq)]
pub struct DataConfig {
    /// Where the tokens come from.
    pub loader: Loader,
    /// Whether windows are dealt in a new random order every epoch.
    pub shuffle: bool,
    /// Seed of the order; the run's own seed where absent.
    pub seed: Option<u64>,
    /// The share of tokens, at the end of the stream, kept for evaluation. 0 keeps none.
    pub eval_fraction: f64,
}

/// The source of tokens: `data_loader.type` and its keys.
#[derive(Clone, Debug, PartialEq)]
pub enum Loader {
    /// `TextDataLoader`: text files, each byte a token.
    Text(TextConfig),
    /// `TokenDataLoader`: files of token ids, memory mapped.
    Tokens(TokensConfig),
    /// `CargoRegistryDataLoader`: the Rust sources that building any crate left on this machine.
    CargoRegistry(CargoRegistryConfig),
}

/// Keys of `TextDataLoader`.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// Files, folders (read recursively) and glob patterns.
    pub paths: Vec<String>,
    /// Only files with one of these extensions, without the dot; empty takes every text file.
    pub extensions: Vec<String>,
    /// Stop after this many bytes.
    pub max_bytes: Option<u64>,
    /// The byte that ends each document. No document may contain it.
    pub eod_byte: u8,
}

/// Keys of `TokenDataLoader`.
#[derive(Clone, Debug, PartialEq)]
pub struct TokensConfig {
    /// Files, folders (their `*.bin` files) and glob patterns.
    pub paths: Vec<String>,
    /// Width of a token where the file has no header that says so.
    pub dtype: TokenType,
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
