//! Text files as bytes: vocabulary 256, one byte that ends each document.

use std::path::Path;

use super::config::TextConfig;
use super::files;
use super::stream::TokenStream;
use crate::error::{Error, Result};

/// The stream of a text loader and a sentence on what it took.
pub(super) fn load(config: &TextConfig) -> Result<(TokenStream, String)> {
    let wanted = |path: &Path| config.extensions.is_empty() || files::has_extension(path, &config.extensions);
    let list = files::expand(&config.paths, wanted)?;
    let mut corpus = Corpus::new(config.max_bytes, config.eod_byte);
    for path in &list.named {
        if !corpus.is_full() && !corpus.push(files::read(path)?) {
            let message = format!("is not UTF-8 text without the byte {} (`eod_byte`)", config.eod_byte);
            return Err(Error::file(path, message));
        }
    }
    for path in &list.found {
        if !corpus.is_full() {
            corpus.push(files::read(path)?);
        }
    }
    if corpus.files == 0 {
        return Err(nothing_found(config, corpus.skipped));
    }
    let mut sentence = format!("{} bytes of text from {}", corpus.bytes.len(), plural(corpus.files, "file"));
    if corpus.skipped > 0 {
        sentence += &format!(" (binary files passed over: {})", corpus.skipped);
    }
    Ok((TokenStream::from_bytes(corpus.bytes), sentence))
}

/// Documents joined by the end-of-document byte, up to a limit.
pub(super) struct Corpus {
    /// The documents, each followed by the end-of-document byte.
    pub bytes: Vec<u8>,
    /// Number of documents taken.
    pub files: usize,
    /// Number of files that were no text.
    pub skipped: usize,
    limit: usize,
    eod: u8,
}

impl Corpus {
    /// An empty corpus that ends at `limit` bytes.
    pub fn new(limit: Option<u64>, eod: u8) -> Self {
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Self { bytes: Vec::new(), files: 0, skipped: 0, limit, eod }
    }

    /// Whether the limit leaves no room for another document.
    pub fn is_full(&self) -> bool {
        self.bytes.len() + 1 >= self.limit
    }

    /// Takes a document, cut at the limit; false if it is no text or holds the end-of-document byte.
    pub fn push(&mut self, document: Vec<u8>) -> bool {
        let text = match String::from_utf8(document) {
            Ok(text) if !text.as_bytes().contains(&self.eod) => text,
            _ => {
                self.skipped += 1;
                return false;
            }
        };
        if text.is_empty() || self.is_full() {
            return true;
        }
        let mut room = text.len().min(self.limit - self.bytes.len() - 1);
        while !text.is_char_boundary(room) {
            room -= 1;
        }
        self.bytes.extend_from_slice(&text.as_bytes()[..room]);
        self.bytes.push(self.eod);
        self.files += 1;
        true
    }
}

/// `1 file`, `2 files`.
pub(super) fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn nothing_found(config: &TextConfig, skipped: usize) -> Error {
    let what = if skipped > 0 {
        format!("{} found, none of them UTF-8 text", plural(skipped, "file"))
    } else if config.extensions.is_empty() {
        "no text found".to_string()
    } else {
        format!("no text with the extension {}", config.extensions.join(", "))
    };
    Error::file(
        config.paths.join(", "),
        format!("{what}; name text files with `dataset_dir` or `dataset_files`"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(paths: &[&Path]) -> TextConfig {
        let paths = paths.iter().map(|path| path.display().to_string()).collect();
        TextConfig { paths, extensions: Vec::new(), max_bytes: None, eod_byte: 0 }
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
