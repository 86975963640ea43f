//! The cargo registry loader: the Rust sources of this crate's dependencies, which cargo keeps on every machine that
//! has built it. Text to train on without a download.
//!
//! The text does not depend on what else lies in the registry: it consists of the packages in `Cargo.lock`, in their
//! order. Packages that cargo downloads only on some platforms or for some features are left out everywhere.

mod locked;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use self::locked::packages;
use super::codec::Codec;
use super::config::DocumentFormat;
use super::corpus::{Corpus, corpus_of};
use super::files::{self, InputFile};
use super::notes::plural;
use super::source::LoadedSource;
use super::stream::TokenStream;
use crate::error::{Error, Result};

/// Larger files are left out: most are generated tables and bindings, which would crowd out the code that people wrote.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// The packages of this version of the crate, sorted by name and version.
const LOCK: &str = include_str!("../../Cargo.lock");

/// The only source of the loader, with at most `max_bytes` of text.
pub(crate) fn load(max_bytes: u64, codec: &Codec) -> Result<Vec<LoadedSource>> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (stream, sentence) = load_from(cargo_home().as_deref(), repository, LOCK, max_bytes, codec)?;
    let whole = LoadedSource::whole(stream, "the cargo registry".to_string(), 1.0, sentence);
    Ok(vec![LoadedSource { eod: Some(codec.end()?), ..whole }])
}

/// The folder in which cargo keeps the registry.
fn cargo_home() -> Option<PathBuf> {
    let named = std::env::var_os("CARGO_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    named.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
}

/// Reads the packages of `lock` in the registry below `home`, or the sources of `repository` if none of them is there.
fn load_from(
    home: Option<&Path>,
    repository: &Path,
    lock: &str,
    max_bytes: u64,
    codec: &Codec,
) -> Result<(TokenStream, String)> {
    let folders = home.map(folders_below).unwrap_or_default();
    let origin = RefCell::new(String::new());
    let (stream, counts) = corpus_of(codec, Some(max_bytes), None, &[], &|corpus| {
        let (mut taken, mut missing) = (Vec::new(), Vec::new());
        for package in packages(lock) {
            if corpus.is_full() {
                break;
            }
            match folders.get(&package) {
                Some(folder) => {
                    take(folder, &["rs"], corpus)?;
                    taken.push(package);
                }
                None => missing.push(package),
            }
        }
        *origin.borrow_mut() = match (home, taken.first(), taken.last()) {
            (Some(home), Some(first), Some(last)) if corpus.counts.files > 0 => {
                format!("the cargo registry in {} ({first} to {last}{})", home.display(), without(&missing))
            }
            _ => {
                for folder in ["src", "shaders"] {
                    take(&repository.join(folder), &["rs", "wgsl", "wesl"], corpus)?;
                }
                format!("{}, as no cargo registry was found", repository.display())
            }
        };
        Ok(())
    })?;
    if counts.files == 0 {
        let message =
            "no Rust source found here or in the cargo registry; use TextDataLoader with text of your own";
        return Err(Error::file(repository, message));
    }
    let (size, files) = (counts.size(codec, &stream), plural(counts.files, "source file"));
    let sentence = format!("{size} of {files} from {}", origin.into_inner());
    Ok((stream, sentence))
}

/// Says which packages could not be read.
fn without(missing: &[String]) -> String {
    match missing {
        [] => String::new(),
        [first, rest @ ..] => {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            format!(
                ", without {first}{more}, not downloaded: `cargo fetch` in gristmill's repository adds what is missing"
            )
        }
    }
}

/// The folder of each package in the registry, by name and version. Each package folder lies in a folder that is named
/// by a hash of the registry's host.
fn folders_below(home: &Path) -> HashMap<String, PathBuf> {
    let subfolders = |folder: &Path| -> Vec<PathBuf> {
        let entries =
            fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
        let mut folders: Vec<PathBuf> = entries.unwrap_or_default();
        folders.retain(|folder| folder.is_dir());
        folders.sort();
        folders
    };
    let mut found = HashMap::new();
    for folder in subfolders(&home.join("registry/src")).iter().flat_map(|host| subfolders(host)) {
        if let Some(name) = folder.file_name() {
            // A second host may have the same crate again.
            found.entry(name.to_string_lossy().into_owned()).or_insert(folder);
        }
    }
    found
}

/// Adds the source files below `folder` to the corpus, until it is full.
fn take(folder: &Path, extensions: &[&str], corpus: &mut Corpus<'_>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    let is_small = |path: &Path| fs::metadata(path).is_ok_and(|metadata| metadata.len() <= MAX_FILE_BYTES);
    let mut found = Vec::new();
    files::walk(folder, &|path| files::has_extension(path, extensions) && is_small(path), &mut found)?;
    for path in found {
        if corpus.is_full() {
            break;
        }
        corpus.take_file(&InputFile { path, is_found: true }, &DocumentFormat::File)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::locked::tests::LOCK;
    use super::*;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(stream: &TokenStream) -> String {
        let mut tokens = vec![0; stream.len() as usize];
        stream.read(0..stream.len(), &mut tokens);
        tokens.into_iter().map(|token| token as u8 as char).collect()
    }

    #[test]
    fn the_text_is_that_of_the_locked_packages_whatever_else_is_there() {
        let (home, repository) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let load =
            || load_from(Some(home.path()), repository.path(), LOCK, 100, &Codec::Bytes { eod: 0 }).unwrap();
        write(home.path(), "registry/src/z-host/a-1.0.0/src/lib.rs", "a");
        write(home.path(), "registry/src/a-host/b-2.0.0/src/lib.rs", "b");
        let (stream, sentence) = load();
        assert_eq!(text(&stream), "a\0b\0");
        let home_name = home.path().display();
        let expected =
            format!("4 bytes of 2 source files from the cargo registry in {home_name} (a-1.0.0 to b-2.0.0");
        let remedy = ", without b-1.0.0, not downloaded: `cargo fetch` in gristmill's repository adds what is missing)";
        assert_eq!(sentence, format!("{expected}{remedy}"));

        write(home.path(), "registry/src/a-host/b-1.0.0/src/lib.rs", "c");
        let whole = load();
        for other in
            ["a-host/a-0.9.0/src/lib.rs", "a-host/aa-1.0.0/lib.rs", "a-host/windows-link-1.0.0/lib.rs"]
        {
            write(home.path(), &format!("registry/src/{other}"), "other");
        }
        write(home.path(), "registry/src/a-host/b-2.0.0/Cargo.toml", "no");
        write(home.path(), "registry/src/z-host/b-2.0.0/src/lib.rs", "twice");
        let (stream, sentence) = load();
        assert_eq!((text(&stream), sentence), (text(&whole.0), whole.1));
        assert_eq!(text(&stream), "a\0c\0b\0");
    }

    #[test]
    fn falls_back_to_the_repository() {
        let (home, repository) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let error = load_from(Some(home.path()), repository.path(), LOCK, 100, &Codec::Bytes { eod: 0 })
            .unwrap_err()
            .to_string();
        assert!(error.contains("no Rust source found"), "{error}");
        write(repository.path(), "src/lib.rs", "x");
        write(repository.path(), "shaders/rope.wgsl", "y");
        let (stream, sentence) =
            load_from(None, repository.path(), LOCK, 100, &Codec::Bytes { eod: 0 }).unwrap();
        assert_eq!(text(&stream), "x\0y\0");
        assert!(sentence.ends_with("as no cargo registry was found"), "{sentence}");
    }
}
