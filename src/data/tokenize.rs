//! Text files encoded into files of token ids, so that training does not have to encode them again.

mod mindrecord;
mod train_tokenizer;
mod writer;

pub use self::mindrecord::copy_mindrecord;
pub use self::train_tokenizer::train_tokenizer;

use std::fmt;
use std::path::{Path, PathBuf};

use self::writer::TokenWriter;
use super::codec::Codec;
use super::config::DocumentFormat;
use super::documents::{self, Document};
use super::files::{self, InputFile};
use super::notes::{plural, skipped};
use super::pending::Pending;
use crate::error::{Error, Result};

/// The text to encode, and where to write the token ids.
#[derive(Clone, Debug)]
pub struct TokenizeConfig {
    /// Files, folders (searched recursively) and glob patterns.
    pub inputs: Vec<String>,
    /// The unit of an input that counts as one document.
    pub documents: DocumentFormat,
    /// How text becomes token ids.
    pub codec: Codec,
    /// Path of the `.bin` file, or the common path of the `.bin` and `.idx` files, without the ending.
    pub output: PathBuf,
    /// The file format to write.
    pub format: TokenFormat,
    /// Whether existing files are replaced.
    pub force: bool,
}

/// A format of token files. `--help` shows the lines on its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum TokenFormat {
    /// Token ids and nothing else: 16 bits each, or 32 if the vocabulary needs them (nanoGPT)
    Plain,
    /// The same after the header of llm.c
    #[cfg_attr(feature = "cli", value(name = "llm.c"))]
    LlmC,
    /// Megatron's .bin and .idx files
    Megatron,
}

/// Encodes text into token files; each document is followed by the token that ends a document. Calls `progress` now and
/// then with the number of input bytes done and the total number of input bytes.
///
/// # Errors
/// If an input is missing, is not UTF-8 or is not in the format `documents`; if an output exists and not `force`, or
/// the disk is full. An incomplete output is removed.
pub fn tokenize(config: &TokenizeConfig, mut progress: impl FnMut(u64, u64)) -> Result<Summary> {
    let codec = &config.codec;
    let inputs = expand(&config.inputs, &config.documents)?;
    check_output(&inputs, &config.output)?;
    let size = |file: &InputFile| file.path.metadata().map_or(0, |metadata| metadata.len());
    let total: u64 = inputs.iter().map(size).sum();
    let writer = TokenWriter::create(&config.output, config.format, codec.vocab_size(), config.force)?;
    let pending = Pending::new(codec)?;
    let mut documents = DocumentWriter { codec, pending, writer, summary: Summary::default() };
    let mut before = 0;
    for file in &inputs {
        let is_text = documents::for_each(file, &config.documents, |document| {
            let end = document.end;
            documents.push(&file.path, document)?;
            progress(before + end, total);
            Ok(true)
        })?;
        documents.summary.binary += u64::from(!is_text);
        documents.summary.files += u64::from(is_text);
        before += size(file);
        progress(before, total);
    }
    documents.finish(&config.inputs)
}

/// Documents on their way into a token file.
struct DocumentWriter<'a> {
    codec: &'a Codec,
    pending: Pending<'a>,
    writer: TokenWriter,
    summary: Summary,
}

impl DocumentWriter<'_> {
    /// Takes a document that was read from `path`.
    fn push(&mut self, path: &Path, document: Document) -> Result<()> {
        if let Some(eod) = self.codec.eod_byte_in(&document.text) {
            let message = format!("contains the byte {eod}, which ends documents");
            return Err(document.error(path, &format!("{message}; remove it, or name a --tokenizer")));
        }
        if document.text.is_empty() {
            self.summary.empty += 1;
            return Ok(());
        }
        self.summary.bytes += document.text.len() as u64;
        if self.pending.push(document.text) { self.write_pending() } else { Ok(()) }
    }

    fn write_pending(&mut self) -> Result<()> {
        for ids in self.pending.encode()? {
            self.summary.documents += 1;
            self.summary.tokens += ids.len() as u64;
            self.writer.document(&ids)?;
        }
        Ok(())
    }

    fn finish(mut self, inputs: &[String]) -> Result<Summary> {
        self.write_pending()?;
        if self.summary.documents == 0 {
            let empty = plural(self.summary.empty, "empty document");
            let message = format!("no text found ({empty}); name files with text");
            return Err(Error::file(inputs.join(", "), message));
        }
        Ok(Summary { outputs: self.writer.finish()?, ..self.summary })
    }
}

/// The result of one call of [`tokenize`] or [`copy_mindrecord`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of documents written.
    pub documents: u64,
    /// Number of tokens written, including the token that ends each document.
    pub tokens: u64,
    /// Bytes read, of text or of MindRecord files.
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

/// The files that `paths` name; in folders and patterns, only files from which `documents` are read.
///
/// # Errors
/// If a path does not exist, or there are no files.
pub(super) fn expand(paths: &[String], documents: &DocumentFormat) -> Result<Vec<InputFile>> {
    let extension = documents.extension();
    let wanted = |path: &Path| extension.is_none_or(|one| files::has_extension(path, &[one]));
    let files = files::expand(paths, wanted, "name files, folders or patterns that exist")?;
    if files.is_empty() {
        let what = extension.map_or("files".to_string(), |extension| format!("*.{extension} files"));
        return Err(Error::file(paths.join(", "), format!("no {what} found; name files with text")));
    }
    Ok(files)
}

/// Refuses to overwrite an input.
///
/// # Errors
/// If `output` is one of `inputs`.
pub(super) fn check_output(inputs: &[InputFile], output: &Path) -> Result<()> {
    let Ok(output) = output.canonicalize() else { return Ok(()) }; // it does not exist yet
    let is_output = |file: &&InputFile| file.path.canonicalize().is_ok_and(|path| path == output);
    let message = "is an input and would be overwritten; choose another --output";
    inputs.iter().find(is_output).map_or(Ok(()), |file| Err(Error::file(&file.path, message)))
}
