//! The documents of a text file, in order.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::config::DocumentFormat;
use super::files::{self, InputFile};
use crate::error::{Error, Result};

/// One document of a file.
#[derive(Debug, PartialEq)]
pub(super) struct Document {
    /// The document's text, which may be empty.
    pub text: String,
    /// Number of the line in which the document starts, counted from 1; `None` if the document is a whole file.
    pub line: Option<u64>,
    /// Position of the document's end in the file, in bytes.
    pub end: u64,
}

impl Document {
    /// An error about this document of the file `path`.
    pub fn error(&self, path: &Path, message: &str) -> Error {
        let line = self.line.map_or(String::new(), |line| format!("line {line}: "));
        Error::file(path, format!("{line}{message}"))
    }
}

/// Calls `visit` with each document of `file` until it returns false. Returns whether the file was read as text: where
/// whole files are documents, a binary file that was found (not named) is skipped.
///
/// # Errors
/// If the file cannot be read or is not UTF-8, or a line of JSON is malformed; the errors of `visit`.
pub(super) fn for_each(
    file: &InputFile,
    format: &DocumentFormat,
    mut visit: impl FnMut(Document) -> Result<bool>,
) -> Result<bool> {
    if *format == DocumentFormat::File {
        let Some(text) = files::read_text(file)? else { return Ok(false) };
        visit(Document { end: text.len() as u64, text, line: None })?;
        return Ok(true);
    }
    let mut lines = Lines::open(&file.path)?;
    while let Some(document) = lines.document(format)? {
        if !visit(document)? {
            break;
        }
    }
    Ok(true)
}

/// The lines of a text file, read one at a time.
pub(super) struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    /// The current line, including its line ending.
    line: Vec<u8>,
    /// Number of the current line, counted from 1; 0 before the first.
    number: u64,
    /// Position of the current line's end in the file, in bytes.
    end: u64,
}

impl Lines {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| files::unreadable(path, &error))?;
        let reader = BufReader::with_capacity(1 << 18, file);
        Ok(Self { path: path.to_path_buf(), reader, line: Vec::new(), number: 0, end: 0 })
    }

    /// The next line with its line ending (`\n` or `\r\n`); `None` at the end of the file.
    ///
    /// # Errors
    /// If the file cannot be read, or the line is not UTF-8.
    pub fn next(&mut self) -> Result<Option<&str>> {
        self.line.clear();
        let read = self
            .reader
            .read_until(b'\n', &mut self.line)
            .map_err(|error| files::unreadable(&self.path, &error))?;
        if read == 0 {
            return Ok(None);
        }
        let start = self.end;
        self.end += read as u64;
        self.number += 1;
        match std::str::from_utf8(&self.line) {
            Ok(line) if self.number == 1 => Ok(Some(line.strip_prefix('\u{feff}').unwrap_or(line))),
            Ok(line) => Ok(Some(line)),
            Err(error) => Err(files::not_utf8(&self.path, start + error.valid_up_to() as u64)),
        }
    }

    fn document(&mut self, format: &DocumentFormat) -> Result<Option<Document>> {
        if *format == DocumentFormat::BlankLine {
            return self.paragraph();
        }
        let Some(line) = self.next()? else { return Ok(None) };
        let text = match format {
            DocumentFormat::Jsonl(key) => text_of(line, key).map_err(|problem| (key, problem)),
            _ => Ok(without_end(line).to_string()),
        };
        let (line, end) = (Some(self.number), self.end);
        match text {
            Ok(text) => Ok(Some(Document { text, line, end })),
            Err((key, problem)) => {
                let message = format!(
                    "line {}: {problem}; each line must be an object with text under `{key}`",
                    self.number
                );
                Err(Error::file(&self.path, message))
            }
        }
    }

    /// The next run of non-blank lines.
    fn paragraph(&mut self) -> Result<Option<Document>> {
        let (mut text, mut first) = (String::new(), None);
        while let Some(line) = self.next()? {
            let is_blank = line.trim().is_empty();
            if !is_blank {
                text.push_str(line);
                first = first.or(Some(self.number));
            } else if first.is_some() {
                break;
            }
        }
        text.truncate(without_end(&text).len());
        Ok(first.map(|line| Document { text, line: Some(line), end: self.end }))
    }
}

/// The text under `key` of a line of JSON; a blank line is an empty document. The error says what is wrong with the
/// line.
fn text_of(line: &str, key: &str) -> std::result::Result<String, String> {
    use serde_json::Value;
    if line.trim().is_empty() {
        return Ok(String::new());
    }
    match serde_json::from_str(line) {
        Ok(Value::Object(mut object)) => match object.remove(key) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(format!("`{key}` is not a string")),
            None => Err(format!("has no key `{key}`")),
        },
        Ok(_) => Err("is not an object".to_string()),
        Err(error) => {
            let message = error.to_string();
            let reason = message.split(" at line ").next().unwrap_or_default();
            Err(format!("is not valid JSON ({reason} at column {})", error.column()))
        }
    }
}

fn without_end(line: &str) -> &str {
    let line = line.strip_suffix('\n').unwrap_or(line);
    line.strip_suffix('\r').unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8], format: &DocumentFormat) -> std::result::Result<Vec<Document>, String> {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(temporary.path(), content).unwrap();
        let file = InputFile { path: temporary.path().to_path_buf(), is_found: false };
        let mut documents = Vec::new();
        let done = for_each(&file, format, |document| {
            documents.push(document);
            Ok(true)
        });
        let name = format!("{}: ", file.path.display());
        done.map(|_| documents).map_err(|error| error.to_string().replace(&name, ""))
    }

    fn texts(content: &str, format: &DocumentFormat) -> Vec<String> {
        read(content.as_bytes(), format).unwrap().into_iter().map(|document| document.text).collect()
    }

    fn jsonl() -> DocumentFormat {
        DocumentFormat::Jsonl("text".to_string())
    }

    #[test]
    fn every_format() {
        let text = "one\r\n\n\ntwo\nthree\n \nfour";
        assert_eq!(texts(text, &DocumentFormat::File), [text]);
        assert_eq!(texts(text, &DocumentFormat::Line), ["one", "", "", "two", "three", " ", "four"]);
        assert_eq!(texts(text, &DocumentFormat::BlankLine), ["one", "two\nthree", "four"]);
        let lines = "\u{feff}{\"text\": \"a\\nb\", \"id\": 1}\n\n{\"id\": [2], \"text\": \"\"}\n{\"text\":\"\\u00e9\"}";
        assert_eq!(texts(lines, &jsonl()), ["a\nb", "", "", "é"]);
        let paragraphs = read(text.as_bytes(), &DocumentFormat::BlankLine).unwrap();
        let places: Vec<_> = paragraphs.iter().map(|document| (document.line, document.end)).collect();
        assert_eq!(places, [(Some(1), 6), (Some(4), 19), (Some(7), 23)]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let error = |content: &[u8]| read(content, &jsonl()).unwrap_err();
        let good = "{\"text\": \"x\"}\n";
        let rest = "; each line must be an object with text under `text`";
        for (line, problem) in [
            ("{\"text\": \"x\"", "is not valid JSON (EOF while parsing an object at column 12)"),
            ("[1]", "is not an object"),
            ("{\"Text\": \"x\"}", "has no key `text`"),
            ("{\"text\": null}", "`text` is not a string"),
        ] {
            assert_eq!(error(format!("{good}{line}").as_bytes()), format!("line 2: {problem}{rest}"));
        }
        let broken = "is not UTF-8 text at byte 19; convert the file to UTF-8";
        assert_eq!(error(b"{\"text\": \"x\"}\nabc: \xff\n"), broken);
        assert_eq!(read(b"{\"text\": \"x\"}\nabc: \xff\n", &DocumentFormat::File).unwrap_err(), broken);
    }

    proptest::proptest! {
        /// Whatever a file holds, the result is documents or an error of one line.
        #[test]
        fn no_line_panics(content in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..80), cut in 0usize..40) {
            let mut mixed = b"{\"text\": \"a b\"}\n{\"text\": \"\\ud83d\\ude00\", \"x\": [1, {}]}\n".to_vec();
            mixed.truncate(cut);
            mixed.extend(content);
            for format in [DocumentFormat::File, DocumentFormat::Line, DocumentFormat::BlankLine] {
                if let Err(message) = read(&mixed, &format) {
                    proptest::prop_assert!(!message.contains('\n'), "{message}");
                }
            }
        }
    }
}
