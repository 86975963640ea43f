//! The text loaders: files as tokens, byte by byte or through a tokenizer.

use std::path::Path;

use super::codec::Codec;
use super::config::{DocumentFormat, Paths};
use super::corpus::corpus_of;
use super::files::{self, DATASET_KEYS};
use super::notes::plural;
use super::sample_store::TextCounts;
use super::source::LoadedSource;
use super::stream::TokenStream;
use crate::error::{Error, Result};

/// The sources of a text loader, with at most `max_bytes` of text each. In folders and patterns only files with one of
/// `extensions` are read, or all files if there are none.
pub(crate) fn load(
    files: &Paths,
    documents: &DocumentFormat,
    extensions: &[String],
    max_bytes: Option<u64>,
    codec: &Codec,
) -> Result<Vec<LoadedSource>> {
    let load = |paths: &[String]| load_one(paths, documents, extensions, max_bytes, codec);
    let (sources, eod) = (LoadedSource::of_files(files, load)?, Some(codec.end()?));
    Ok(sources.into_iter().map(|source| LoadedSource { eod, ..source }).collect())
}

/// All files of `paths` as one stream, and a sentence on the text that was read.
fn load_one(
    paths: &[String],
    documents: &DocumentFormat,
    extensions: &[String],
    max_bytes: Option<u64>,
    codec: &Codec,
) -> Result<(TokenStream, String)> {
    let wanted = |path: &Path| extensions.is_empty() || files::has_extension(path, extensions);
    let files = files::expand(paths, wanted, &format!("correct {DATASET_KEYS}"))?;
    let found: Vec<bool> = files.iter().map(|file| file.is_found).collect(); // named files are not skipped
    let identity = codec.identity().map(|codec| format!("{codec} {documents:?} {found:?}"));
    let (stream, counts) = corpus_of(codec, max_bytes, identity, &files, &|corpus| {
        for file in &files {
            if corpus.is_full() {
                break;
            }
            corpus.take_file(file, documents)?;
        }
        Ok(())
    })?;
    if counts.documents == 0 {
        let has_tokens = files.iter().any(|file| files::has_extension(&file.path, &files::TOKEN_FILES));
        return Err(nothing_found(paths, extensions, &counts, has_tokens));
    }
    let sentence = counts.sentence(codec, &stream, documents);
    Ok((stream, sentence))
}

fn nothing_found(paths: &[String], extensions: &[String], counts: &TextCounts, has_tokens: bool) -> Error {
    let what = if counts.binary > 0 {
        format!("{} found, none of them UTF-8 text", plural(counts.binary, "file"))
    } else if counts.empty > 0 {
        format!("{} found, none with text", plural(counts.empty, "document"))
    } else if extensions.is_empty() {
        "no text found".to_string()
    } else {
        format!("no text with the extension {}", extensions.join(", "))
    };
    let tokens = if has_tokens { format!("; {}", files::TOKEN_LOADERS) } else { String::new() };
    Error::file(paths.join(", "), format!("{what}; name text files with {DATASET_KEYS}{tokens}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(paths: &[&Path], max_bytes: Option<u64>) -> Result<(TokenStream, String)> {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        load_one(&paths, &DocumentFormat::File, &[], max_bytes, &Codec::Bytes { eod: 0 })
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
        let (stream, sentence) = load(&[folder.path()], None).unwrap();
        assert_eq!(bytes(&stream), "é\0bee\0".as_bytes());
        assert_eq!(sentence, "7 bytes of text from 2 files (1 binary file skipped)");

        let (stream, _) = load(&[&folder.path().join("*.txt"), &b], None).unwrap();
        assert_eq!(bytes(&stream), b"bee\0bee\0");

        // The limit never cuts a character in two.
        assert_eq!(bytes(&load(&[folder.path()], Some(2)).unwrap().0), b"\0");
        assert_eq!(bytes(&load(&[folder.path()], Some(6)).unwrap().0), "é\0be\0".as_bytes());

        let error = load(&[&folder.path().join("binary")], None).unwrap_err().to_string();
        let expected = "binary: contains the byte 0, which ends documents (`eod_byte`); remove it, or choose another byte";
        assert!(error.ends_with(expected), "{error}");
    }

    #[test]
    fn token_ids_are_no_text_and_the_loader_that_reads_them_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.bin");
        // Ids that are not UTF-8, and ids that are text with zero bytes, which a tokenizer would encode.
        for ids in [[1u16, 0xff80, 3], [1, 2, 3]] {
            std::fs::write(&path, ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>()).unwrap();
            for paths in [&path, &folder.path().to_path_buf()] {
                let error = load(&[paths], None).unwrap_err().to_string();
                assert!(error.contains("`type: TokenDataLoader`") && !error.contains('\n'), "{error}");
            }
        }
    }

    #[test]
    fn an_empty_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = load(&[folder.path()], None).unwrap_err().to_string();
        let expected = "no text found; name text files with `dataset_dir` or `dataset_files`";
        assert_eq!(error, format!("{}: {expected}", folder.path().display()));
    }
}
