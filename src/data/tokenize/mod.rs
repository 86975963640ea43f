//! Text files into files of token ids, so that training need not encode them again.

mod arguments;
mod writer;

use std::path::{Path, PathBuf};

pub use self::arguments::{TokenizeArguments, TrainTokenizerArguments};
use self::writer::TokenWriter;
use super::codec::Codec;
use super::config::{DocumentFormat, TokenizerConfig};
use super::documents::{self, Lines};
use super::files;
use super::output::Output;
use super::text::{BATCH_BYTES, plural};
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};

/// Which text to encode, how, and where to.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizeConfig {
    /// Files, folders (read recursively) and glob patterns.
    pub inputs: Vec<String>,
    /// What in a file is a document.
    pub documents: DocumentFormat,
    /// The tokenizer; without one bytes are tokens, of which 0 ends a document.
    pub tokenizer: Option<TokenizerConfig>,
    /// The `.bin` file, or the prefix of the `.bin` and the `.idx` file.
    pub output: PathBuf,
    /// What is written.
    pub format: TokenFormat,
    /// Whether files that exist are replaced.
    pub force: bool,
}

/// A format of token files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TokenFormat {
    /// Token ids of 16 bits, or of 32 where the vocabulary needs them, and nothing else, as nanoGPT has them.
    Plain,
    /// The same after a header that says which, as llm.c has them.
    #[value(name = "llm.c")]
    LlmC,
    /// Megatron's `.bin` and `.idx`.
    Megatron,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Documents written.
    pub documents: u64,
    /// Tokens written, the ends of documents among them.
    pub tokens: u64,
    /// Bytes of text read.
    pub bytes: u64,
    /// Files read.
    pub files: u64,
    /// Documents and lines without text, which were passed over.
    pub empty: u64,
    /// Binary files in folders, which were passed over.
    pub binary: u64,
    /// The files written.
    pub outputs: Vec<PathBuf>,
}

/// Encodes text into token files; each document is followed by the token that ends documents. `progress` is called now and
/// then with the bytes done and all bytes.
///
/// # Errors
/// If an input is missing, no UTF-8 or not what `documents` says; if the tokenizer cannot be read; if an output exists
/// or the disk is full. Nothing is left of an output that is not complete.
pub fn tokenize(config: &TokenizeConfig, mut progress: impl FnMut(u64, u64)) -> Result<Summary> {
    let codec = Codec::load(config.tokenizer.as_ref(), 0, usize::MAX)?;
    let inputs = input_files(&config.inputs, &config.documents)?;
    keep_apart(&inputs, &config.output)?;
    let total: u64 =
        inputs.iter().map(|(path, _)| path.metadata().map_or(0, |metadata| metadata.len())).sum();
    let writer = TokenWriter::create(&config.output, config.format, codec.vocab_size(), config.force)?;
    let mut encoder = Encoder {
        eod: codec.eod()?,
        codec: &codec,
        writer,
        waiting: Vec::new(),
        waiting_bytes: 0,
        summary: Summary::default(),
    };
    let mut before = 0;
    for (path, is_found) in &inputs {
        let is_text = documents::for_each(path, &config.documents, *is_found, |document| {
            encoder.push(path, document.text, document.line)?;
            progress(before + document.end, total);
            Ok(true)
        })?;
        encoder.summary.binary += u64::from(!is_text);
        encoder.summary.files += u64::from(is_text);
        before += path.metadata().map_or(0, |metadata| metadata.len());
        progress(before, total);
    }
    encoder.finish(&config.inputs)
}

/// Trains a tokenizer on text files and writes its `tokenizer.json`: byte-level BPE with `vocab_size` tokens at most,
/// see [`Tokenizer::train`].
///
/// # Errors
/// If an input is missing or no UTF-8, no input has text, the vocabulary is too small, or the output exists and not `force`.
pub fn train_tokenizer(
    inputs: &[String],
    output: &Path,
    vocab_size: usize,
    min_frequency: u64,
    force: bool,
) -> Result<Tokenizer> {
    Output::check_free(output, force)?;
    let files = input_files(inputs, &DocumentFormat::File)?;
    keep_apart(&files, output)?;
    let mut has_text = false;
    let text = files.into_iter().flat_map(|(path, is_found)| blocks(&path, is_found)).inspect(|block| {
        has_text |= block.as_ref().is_ok_and(|block| !block.trim().is_empty());
    });
    let tokenizer = Tokenizer::train(text, vocab_size, min_frequency)?;
    if !has_text {
        return Err(Error::file(inputs.join(", "), "hold no text to learn from; name files with text"));
    }
    let json = tokenizer.to_json()?;
    let mut file = Output::create(output, force)?;
    file.write(json.as_bytes())?;
    file.finish()?;
    Ok(tokenizer)
}

/// Refuses to write over what is read.
fn keep_apart(inputs: &[(PathBuf, bool)], output: &Path) -> Result<()> {
    let Ok(output) = output.canonicalize() else { return Ok(()) }; // it does not exist yet
    let is_output = |(path, _): &&(PathBuf, bool)| path.canonicalize().is_ok_and(|path| path == output);
    match inputs.iter().find(is_output) {
        None => Ok(()),
        Some((path, _)) => Err(Error::file(path, "is read and would be written over; name another --output")),
    }
}

/// Documents on their way into a file, encoded together so that all cores have work.
struct Encoder<'a> {
    codec: &'a Codec,
    eod: u32,
    writer: TokenWriter,
    waiting: Vec<String>,
    waiting_bytes: usize,
    summary: Summary,
}

impl Encoder<'_> {
    fn push(&mut self, path: &Path, text: String, line: Option<u64>) -> Result<()> {
        if text.is_empty() {
            self.summary.empty += 1;
            return Ok(());
        }
        if let Codec::Bytes { eod } = self.codec
            && text.as_bytes().contains(eod)
        {
            let place = line.map_or(String::new(), |line| format!("line {line}: "));
            let message =
                format!("{place}holds the byte {eod}, which ends documents; name a tokenizer, or remove it");
            return Err(Error::file(path, message));
        }
        self.waiting_bytes += text.len();
        self.waiting.push(text);
        if self.waiting_bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        for mut ids in self.codec.encode_all(&self.waiting)? {
            ids.push(self.eod);
            self.summary.documents += 1;
            self.summary.tokens += ids.len() as u64;
            self.writer.document(&ids)?;
        }
        self.summary.bytes += self.waiting_bytes as u64;
        self.waiting.clear();
        self.waiting_bytes = 0;
        Ok(())
    }

    fn finish(mut self, inputs: &[String]) -> Result<Summary> {
        self.flush()?;
        if self.summary.documents == 0 {
            let empty = plural(self.summary.empty as usize, "empty document");
            let message = format!("hold no text ({empty}); name files with text");
            return Err(Error::file(inputs.join(", "), message));
        }
        Ok(Summary { outputs: self.writer.finish()?, ..self.summary })
    }
}

/// The files that `inputs` name, and whether each was found rather than named.
fn input_files(inputs: &[String], documents: &DocumentFormat) -> Result<Vec<(PathBuf, bool)>> {
    let is_jsonl = matches!(documents, DocumentFormat::Jsonl(_));
    let wanted = |path: &Path| !is_jsonl || files::has_extension(path, &["jsonl".to_string()]);
    let list = files::expand(inputs, wanted, "name files, folders or patterns that exist")?;
    let files: Vec<_> = list.all().map(|(path, is_found)| (path.to_path_buf(), is_found)).collect();
    if files.is_empty() {
        let what = if is_jsonl { "*.jsonl files" } else { "files" };
        return Err(Error::file(inputs.join(", "), format!("no {what} found; name files with text")));
    }
    Ok(files)
}

/// The text of a file in blocks of whole lines, so that a corpus larger than memory can be trained on.
fn blocks(path: &Path, is_found: bool) -> Box<dyn Iterator<Item = Result<String>> + Send> {
    const BLOCK_BYTES: usize = 1 << 16;
    let lines = match files::is_binary(path) {
        Ok(true) if is_found => return Box::new(std::iter::empty()),
        Ok(_) => Lines::open(path),
        Err(error) => Err(error),
    };
    let mut lines = match lines {
        Ok(lines) => lines,
        Err(error) => return Box::new(std::iter::once(Err(error))),
    };
    Box::new(std::iter::from_fn(move || {
        let mut block = String::new();
        while block.len() < BLOCK_BYTES {
            match lines.next() {
                Ok(Some(line)) => block.push_str(line),
                Ok(None) => break,
                Err(error) => return Some(Err(error)),
            }
        }
        (!block.is_empty()).then_some(Ok(block))
    }))
}
