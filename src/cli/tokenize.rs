//! `tokenize` and `train-tokenizer`: text files into token files, and into a tokenizer.

mod show;

use crate::data::tokenize::{
    Summary, TokenFormat, TokenizeConfig, copy_mindrecord, tokenize, train_tokenizer,
};
use crate::data::tokenizer::{END_OF_TEXT, Tokenizer};
use crate::data::{ChatForm, Codec, DocumentFormat};
use crate::error::{Error, Result};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::{Path, PathBuf};

/// The flags of `tokenize`.
#[derive(Clone, Debug, clap::Args)]
pub struct TokenizeArguments {
    /// Text files, folders or glob patterns such as 'books/*.txt'; with --show a file of records and a model
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<String>,
    /// The .bin file to write; with `--format megatron` the common path of the .bin and .idx files, without the ending
    #[arg(long, short, value_name = "PATH", required_unless_present = "show")]
    output: Option<PathBuf>,
    /// Write nothing, and print the first N records as the model learns them: `tokenize --show 3 DATA MODEL`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "output")]
    show: Option<u64>,
    /// With --show a file with the template that writes conversations, if the tokenizer has none
    #[arg(long, value_name = "FILE", requires = "show")]
    chat_template: Option<PathBuf>,
    /// With --show prompts and completions, and instructions, as they are, without the chat template
    #[arg(long, requires = "show")]
    raw: bool,
    /// What the inputs are
    #[arg(long, value_enum, default_value = "text")]
    from: InputKind,
    /// A tokenizer.json; without one every byte is a token and byte 0 ends a document
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The token that ends a document
    #[arg(long, default_value = END_OF_TEXT, value_name = "TOKEN")]
    eos_token: String,
    /// The file format to write
    #[arg(long, value_enum, default_value = "plain")]
    format: TokenFormat,
    /// What counts as one document
    #[arg(long, value_enum, default_value = "file")]
    documents: DocumentKind,
    /// The key of the text in each JSON object, with `--documents jsonl`
    #[arg(long, default_value = "text", value_name = "KEY")]
    text_key: String,
    /// The column of token ids, with `--from mindrecord`
    #[arg(long, default_value = "input_ids", value_name = "COLUMN")]
    column: String,
    /// Replace existing files
    #[arg(long)]
    force: bool,
}

/// The values of `--from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum InputKind {
    /// Text, which is encoded
    Text,
    /// MindSpore's MindRecord files, each row of which is a document of token ids
    Mindrecord,
}

/// The values of `--documents`: [`DocumentFormat`] without the key of JSON lines, which is a flag of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DocumentKind {
    /// The whole file
    File,
    /// Each line
    Line,
    /// Each run of lines between blank lines
    BlankLine,
    /// Each line is a JSON object with the text under --text-key
    Jsonl,
}

/// The flags of `train-tokenizer`.
#[derive(Clone, Debug, clap::Args)]
pub struct TrainTokenizerArguments {
    /// Text files, folders or glob patterns such as 'books/*.txt'
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<String>,
    /// The tokenizer.json to write
    #[arg(long, short, value_name = "FILE")]
    pub(super) output: PathBuf,
    /// Maximum number of tokens
    #[arg(long, default_value_t = 8192, value_name = "N")]
    vocab_size: usize,
    /// Merge only pairs of tokens that occur at least this often
    #[arg(long, default_value_t = 2, value_name = "N")]
    min_frequency: u64,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

impl TokenizeArguments {
    /// The flags as [`tokenize`] takes them.
    ///
    /// # Errors
    /// If the tokenizer cannot be read.
    pub fn config(&self) -> Result<TokenizeConfig> {
        Ok(TokenizeConfig {
            inputs: self.inputs.clone(),
            documents: match self.documents {
                DocumentKind::File => DocumentFormat::File,
                DocumentKind::Line => DocumentFormat::Line,
                DocumentKind::BlankLine => DocumentFormat::BlankLine,
                DocumentKind::Jsonl => DocumentFormat::Jsonl(self.text_key.clone()),
            },
            codec: match &self.tokenizer {
                Some(file) => Codec::of_tokenizer(file, &self.eos_token, usize::MAX)?,
                None => Codec::Bytes { eod: 0 },
            },
            output: self.output.clone().unwrap_or_default(),
            format: self.format,
            force: self.force,
        })
    }

    /// Prints the records that --show asks for; false if it does not.
    ///
    /// # Errors
    /// Other inputs than a file of records and a model; records or a model that cannot be read.
    pub fn shows(&self) -> Result<bool> {
        let Some(count) = self.show else { return Ok(false) };
        let [data, model] = self.inputs.as_slice() else {
            return Err(Error::config(
                "--show",
                "expected a file of records and a model: tokenize --show 3 DATA MODEL",
            ));
        };
        let chat = ChatForm { template: self.chat_template.clone(), raw: self.raw, ..ChatForm::default() };
        show::show(Path::new(data), Path::new(model), count, &chat).map(|()| true)
    }

    /// Encodes or copies, with a progress bar on stderr if that is a terminal.
    ///
    /// # Errors
    /// As [`tokenize`] and [`copy_mindrecord`].
    pub fn run(&self) -> Result<Summary> {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let progress = |bytes, total| {
            bar.set_length(total);
            bar.set_position(bytes);
        };
        let Self { inputs, column, format, force, .. } = self;
        let output = self.output.as_deref().unwrap_or(Path::new(""));
        let done = match self.from {
            InputKind::Text => self.config().and_then(|config| tokenize(&config, progress)),
            InputKind::Mindrecord => copy_mindrecord(inputs, column, output, *format, *force, progress),
        };
        bar.finish_and_clear();
        done
    }
}

impl TrainTokenizerArguments {
    /// Trains a tokenizer and writes its file.
    ///
    /// # Errors
    /// As [`train_tokenizer`].
    pub fn run(&self) -> Result<Tokenizer> {
        train_tokenizer(&self.inputs, &self.output, self.vocab_size, self.min_frequency, self.force)
    }
}
