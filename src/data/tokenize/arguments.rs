//! The command line of tokenizing.

use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Summary, TokenFormat, TokenizeConfig, tokenize, train_tokenizer};
use crate::data::config::{DocumentFormat, TokenizerConfig};
use crate::data::text::plural;
use crate::data::tokenizer::{END_OF_TEXT, Tokenizer};
use crate::error::Result;

/// Encodes text files into a file of token ids.
#[derive(Clone, Debug, clap::Args)]
pub struct TokenizeArguments {
    /// Text files, folders or patterns such as 'books/*.txt'
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<String>,
    /// The .bin file; for `--format megatron` the path of the .bin and .idx files without these endings
    #[arg(long, short, value_name = "PATH")]
    pub output: PathBuf,
    /// A tokenizer.json; without it bytes are tokens, and byte 0 ends a document
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// The token that ends each document
    #[arg(long, default_value = END_OF_TEXT, value_name = "TOKEN")]
    pub eos_token: String,
    /// What is written
    #[arg(long, value_enum, default_value = "plain")]
    pub format: TokenFormat,
    /// What in a file is a document
    #[arg(long, value_enum, default_value = "file")]
    pub documents: DocumentKind,
    /// The key of the text in lines of JSON
    #[arg(long, default_value = "text", value_name = "KEY")]
    pub text_key: String,
    /// Replace files that exist
    #[arg(long)]
    pub force: bool,
}

/// What in a text file is a document, as the command line says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DocumentKind {
    /// The whole file
    File,
    /// Each line
    Line,
    /// Each run of lines between blank ones
    BlankLine,
    /// Each line is a JSON object with the text under --text-key
    Jsonl,
}

/// Trains a byte-level BPE tokenizer on text files.
#[derive(Clone, Debug, clap::Args)]
pub struct TrainTokenizerArguments {
    /// Text files, folders or patterns such as 'books/*.txt'
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<String>,
    /// The tokenizer.json to write
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// How many tokens it has at most
    #[arg(long, default_value_t = 8192, value_name = "N")]
    pub vocab_size: usize,
    /// How often a pair of tokens must occur to be merged
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub min_frequency: u64,
    /// Replace a file that exists
    #[arg(long)]
    pub force: bool,
}

impl TokenizeArguments {
    /// What the arguments say.
    pub fn config(&self) -> TokenizeConfig {
        let tokenizer = self.tokenizer.clone();
        TokenizeConfig {
            inputs: self.inputs.clone(),
            documents: match self.documents {
                DocumentKind::File => DocumentFormat::File,
                DocumentKind::Line => DocumentFormat::Line,
                DocumentKind::BlankLine => DocumentFormat::BlankLine,
                DocumentKind::Jsonl => DocumentFormat::Jsonl(self.text_key.clone()),
            },
            tokenizer: tokenizer.map(|file| TokenizerConfig { file, eos_token: self.eos_token.clone() }),
            output: self.output.clone(),
            format: self.format,
            force: self.force,
        }
    }

    /// Encodes, with a progress bar on stderr where that is a terminal.
    ///
    /// # Errors
    /// Those of [`tokenize`].
    pub fn run(&self) -> Result<Summary> {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let done = tokenize(&self.config(), |bytes, total| {
            bar.set_length(total);
            bar.set_position(bytes);
        });
        bar.finish_and_clear();
        done
    }
}

impl TrainTokenizerArguments {
    /// Trains, and writes the file.
    ///
    /// # Errors
    /// Those of [`train_tokenizer`].
    pub fn run(&self) -> Result<Tokenizer> {
        train_tokenizer(&self.inputs, &self.output, self.vocab_size, self.min_frequency, self.force)
    }
}

/// `6 tokens in 2 documents from 1 file (9 bytes) written to x.bin`, and what was passed over.
impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let outputs: Vec<String> = self.outputs.iter().map(|path| path.display().to_string()).collect();
        write!(
            f,
            "{} in {} from {} ({} bytes) written to {}",
            plural(self.tokens as usize, "token"),
            plural(self.documents as usize, "document"),
            plural(self.files as usize, "file"),
            self.bytes,
            outputs.join(" and ")
        )?;
        for (count, what) in [(self.empty, "empty documents"), (self.binary, "binary files")] {
            if count > 0 {
                write!(f, "; {what} passed over: {count}")?;
            }
        }
        Ok(())
    }
}
