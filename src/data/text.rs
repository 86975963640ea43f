//! Text files as tokens: bytes, or what a tokenizer makes of them. A token that is no text ends each document.

use std::path::Path;

use super::codec::Codec;
use super::config::{DocumentFormat, TextConfig};
use super::documents;
use super::files;
use super::source::{Loaded, groups};
use super::stream::{Part, TokenStream};
use crate::error::{Error, Result};

/// Documents are encoded together once they have this many bytes, so that all cores have work.
pub(super) const BATCH_BYTES: usize = 4 << 20;

/// The sources of a text loader.
pub(super) fn load(config: &TextConfig, codec: &Codec) -> Result<Vec<Loaded>> {
    groups(&config.paths, &config.weights)
        .map(|(paths, weight)| {
            let (stream, sentence) = load_one(paths, config, codec)?;
            let whole = Loaded::whole(stream, paths.join(", "));
            Ok(Loaded { sentence, weight, eod: Some(codec.eod()?), ..whole })
        })
        .collect()
}

/// One stream of every file that `paths` name, and a sentence on what it took.
fn load_one(paths: &[String], config: &TextConfig, codec: &Codec) -> Result<(TokenStream, String)> {
    let wanted = |path: &Path| config.extensions.is_empty() || files::has_extension(path, &config.extensions);
    let list = files::expand(paths, wanted, files::CORRECT_DATASET)?;
    let mut corpus = Corpus::new(config.max_bytes, codec)?;
    for (path, is_found) in list.all() {
        if !corpus.is_full() {
            corpus.take_file(path, &config.documents, is_found)?;
        }
    }
    corpus.flush()?;
    if corpus.documents == 0 {
        return Err(nothing_found(paths, config, &corpus));
    }
    let sentence = corpus.sentence(&config.documents);
    Ok((corpus.into_stream(), sentence))
}

/// Documents as tokens, each followed by the end of the document, up to a limit.
pub(super) struct Corpus<'a> {
    codec: &'a Codec,
    tokens: Tokens,
    eod: u32,
    /// Documents that wait to be encoded together, and their bytes.
    waiting: Vec<String>,
    waiting_bytes: usize,
    /// Number of documents taken.
    pub documents: usize,
    /// Number of files they come from.
    pub files: usize,
    /// Number of files that were no text.
    pub skipped: usize,
    /// Number of documents without any text.
    empty: usize,
    /// Bytes of text taken, the ends of documents among them where they are bytes.
    bytes: usize,
    limit: usize,
}

/// One byte a token, or four.
enum Tokens {
    Bytes(Vec<u8>),
    Ids(Vec<u32>),
}

impl<'a> Corpus<'a> {
    /// An empty corpus that ends at `limit` bytes.
    ///
    /// # Errors
    /// If the tokenizer has no token that ends a document.
    pub fn new(limit: Option<u64>, codec: &'a Codec) -> Result<Self> {
        let tokens = match codec {
            Codec::Bytes { .. } => Tokens::Bytes(Vec::new()),
            Codec::Tokenizer { .. } => Tokens::Ids(Vec::new()),
        };
        Ok(Self {
            eod: codec.eod()?,
            codec,
            tokens,
            waiting: Vec::new(),
            waiting_bytes: 0,
            documents: 0,
            files: 0,
            skipped: 0,
            empty: 0,
            bytes: 0,
            limit: limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)),
        })
    }

    /// Whether the limit leaves no room for another document.
    pub fn is_full(&self) -> bool {
        self.bytes + 1 >= self.limit
    }

    /// Takes the documents of a file. One that was found, not named, is passed over where it is no text.
    ///
    /// # Errors
    /// If the file cannot be read or used; the text cannot be encoded.
    pub fn take_file(&mut self, path: &Path, format: &DocumentFormat, is_found: bool) -> Result<()> {
        let before = self.documents;
        let is_bytes = matches!(self.codec, Codec::Bytes { .. });
        let whole = *format == DocumentFormat::File;
        let taken = documents::for_each(path, format, is_found, |document| {
            if is_bytes && document.text.as_bytes().contains(&(self.eod as u8)) {
                if whole && is_found {
                    self.skipped += 1;
                    return Ok(false);
                }
                let place = document.line.map_or(String::new(), |line| format!("line {line}: "));
                let message = format!("{place}is not UTF-8 text without the byte {} (`eod_byte`)", self.eod);
                return Err(Error::file(path, message));
            }
            self.push(document.text)?;
            Ok(!self.is_full())
        });
        match taken {
            Ok(true) => {}
            Ok(false) => self.skipped += 1,
            // Bytes that are no UTF-8 are one more kind of file that a folder may hold beside its texts.
            Err(_) if is_bytes && whole && is_found && !is_utf8(path) => self.skipped += 1,
            Err(error) => return Err(error),
        }
        self.files += usize::from(self.documents > before);
        Ok(())
    }

    /// Takes a document, cut at the limit.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    fn push(&mut self, mut text: String) -> Result<()> {
        if text.is_empty() {
            self.empty += 1;
            return Ok(());
        }
        if self.is_full() {
            return Ok(());
        }
        let mut room = text.len().min(self.limit - self.bytes - 1);
        while !text.is_char_boundary(room) {
            room -= 1;
        }
        text.truncate(room);
        self.documents += 1;
        self.bytes += room + 1;
        match &mut self.tokens {
            Tokens::Bytes(bytes) => {
                bytes.extend_from_slice(text.as_bytes());
                bytes.push(self.eod as u8);
            }
            Tokens::Ids(_) => {
                self.waiting_bytes += text.len();
                self.waiting.push(text);
                if self.waiting_bytes >= BATCH_BYTES {
                    self.flush()?;
                }
            }
        }
        Ok(())
    }

    /// Encodes what waits.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn flush(&mut self) -> Result<()> {
        if let Tokens::Ids(ids) = &mut self.tokens {
            for document in self.codec.encode_all(&self.waiting)? {
                ids.extend(document);
                ids.push(self.eod);
            }
        }
        self.waiting.clear();
        self.waiting_bytes = 0;
        Ok(())
    }

    /// The tokens, all of which are encoded.
    pub fn into_stream(self) -> TokenStream {
        let mut stream = TokenStream::default();
        stream.push(match self.tokens {
            Tokens::Bytes(bytes) => Part::Bytes(bytes),
            Tokens::Ids(ids) => Part::Ids(ids),
        });
        stream
    }

    /// How much was taken: `7 bytes of text`, or `3 tokens of 7 bytes of text`.
    pub fn amount(&self) -> String {
        match &self.tokens {
            Tokens::Bytes(bytes) => format!("{} bytes", bytes.len()),
            // The end of a document is a token and no text.
            Tokens::Ids(ids) => {
                format!("{} {} of {} bytes", ids.len(), self.codec.unit(), self.bytes - self.documents)
            }
        }
    }

    fn sentence(&self, format: &DocumentFormat) -> String {
        let mut sentence = format!("{} of text from {}", self.amount(), plural(self.files, "file"));
        if *format != DocumentFormat::File {
            sentence += &format!(" in {}", plural(self.documents, "document"));
        }
        let passed_over = [("binary files", self.skipped), ("empty documents", self.empty)];
        let passed_over: Vec<String> = passed_over
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(what, count)| format!("{what} passed over: {count}"))
            .collect();
        if !passed_over.is_empty() {
            sentence += &format!(" ({})", passed_over.join(", "));
        }
        sentence
    }
}

/// `1 file`, `2 files`.
pub(super) fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn is_utf8(path: &Path) -> bool {
    files::read(path).is_ok_and(|bytes| std::str::from_utf8(&bytes).is_ok())
}

fn nothing_found(paths: &[String], config: &TextConfig, corpus: &Corpus) -> Error {
    let what = if corpus.skipped > 0 {
        format!("{} found, none of them UTF-8 text", plural(corpus.skipped, "file"))
    } else if corpus.empty > 0 {
        format!("{} found, none with text", plural(corpus.empty, "document"))
    } else if config.extensions.is_empty() {
        "no text found".to_string()
    } else {
        format!("no text with the extension {}", config.extensions.join(", "))
    };
    Error::file(paths.join(", "), format!("{what}; name text files with `dataset_dir` or `dataset_files`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(paths: &[&Path]) -> TextConfig {
        let paths = paths.iter().map(|path| path.display().to_string()).collect();
        TextConfig {
            paths,
            weights: Vec::new(),
            documents: DocumentFormat::File,
            extensions: Vec::new(),
            max_bytes: None,
            eod_byte: 0,
        }
    }

    fn load(config: &TextConfig) -> Result<(TokenStream, String)> {
        load_one(&config.paths, config, &Codec::Bytes { eod: config.eod_byte })
    }

    fn bytes(stream: &TokenStream) -> Vec<u8> {
        let mut tokens = vec![0; stream.len() as usize];
        stream.read(0..stream.len(), &mut tokens);
        tokens.into_iter().map(|token| token as u8).collect()
    }

    #[test]
    fn reads_folders_globs_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        let b = write("b.txt", b"bee");
        write("a/a.md", "é".as_bytes());
        write("binary", &[1, 0, 2]);
        write(".hidden", b"no");
        let (stream, sentence) = load(&config(&[folder.path()])).unwrap();
        assert_eq!(bytes(&stream), "é\0bee\0".as_bytes());
        assert_eq!(sentence, "7 bytes of text from 2 files (binary files passed over: 1)");

        let (stream, _) = load(&config(&[&folder.path().join("*.txt"), &b])).unwrap();
        assert_eq!(bytes(&stream), b"bee\0bee\0");

        // The limit never cuts a character in two.
        let capped = TextConfig { max_bytes: Some(2), ..config(&[folder.path()]) };
        assert_eq!(bytes(&load(&capped).unwrap().0), b"\0");
        let capped = TextConfig { max_bytes: Some(6), ..config(&[folder.path()]) };
        assert_eq!(bytes(&load(&capped).unwrap().0), "é\0be\0".as_bytes());

        let error = load(&config(&[&folder.path().join("binary")])).unwrap_err().to_string();
        assert!(error.ends_with("binary: is not UTF-8 text without the byte 0 (`eod_byte`)"), "{error}");
    }

    #[test]
    fn an_empty_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = load(&config(&[folder.path()])).unwrap_err().to_string();
        let expected = "no text found; name text files with `dataset_dir` or `dataset_files`";
        assert_eq!(error, format!("{}: {expected}", folder.path().display()));
    }
}
