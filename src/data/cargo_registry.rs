//! The cargo registry loader: the Rust sources that cargo keeps on every machine that has built a crate. Text to train
//! on without a download.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::codec::Codec;
use super::config::{CargoRegistryConfig, DocumentFormat};
use super::corpus::Corpus;
use super::files::{self, InputFile};
use super::plural::plural;
use super::source::Loaded;
use super::stream::TokenStream;
use crate::error::{Error, Result};

/// Larger files are left out: most are generated tables and bindings, which would crowd out what people wrote.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// The one source of the loader.
pub(super) fn load(config: &CargoRegistryConfig, codec: &Codec) -> Result<Vec<Loaded>> {
    let home = std::env::var_os("CARGO_HOME")
        .filter(|home| !home.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (stream, sentence) = load_from(home.as_deref(), repository, config, codec)?;
    let whole = Loaded::whole(stream, "the cargo registry".to_string());
    Ok(vec![Loaded { sentence, eod: Some(codec.eod()?), ..whole }])
}

/// Reads the registry below `home`, or the sources of `repository` if there is none.
fn load_from(
    home: Option<&Path>,
    repository: &Path,
    config: &CargoRegistryConfig,
    codec: &Codec,
) -> Result<(TokenStream, String)> {
    let crates = home.map(crates_below).unwrap_or_default();
    let mut corpus = Corpus::new(Some(config.max_bytes), codec)?;
    let mut last = None;
    for (name, folder) in &crates {
        if corpus.is_full() {
            break;
        }
        let files = corpus.files;
        take(folder, &["rs"], &mut corpus)?;
        if corpus.files > files {
            last = Some(name);
        }
    }
    let origin = match (home, crates.keys().next(), last) {
        (Some(home), Some(first), Some(last)) => {
            format!("the cargo registry in {} ({first} to {last})", home.display())
        }
        _ => {
            for folder in ["src", "shaders"] {
                take(&repository.join(folder), &["rs", "wgsl", "wesl"], &mut corpus)?;
            }
            format!("{}, as no cargo registry was found", repository.display())
        }
    };
    if corpus.files == 0 {
        let message =
            "no Rust source found here or in the cargo registry; use TextDataLoader with text of your own";
        return Err(Error::file(repository, message));
    }
    let stream = corpus.finish()?;
    let sentence =
        format!("{} of {} from {origin}", corpus.size(&stream), plural(corpus.files, "source file"));
    Ok((stream, sentence))
}

/// The folder of each crate, by name and version. The folders above are named by a hash of the registry's host, on
/// which the order must not depend.
fn crates_below(home: &Path) -> BTreeMap<String, PathBuf> {
    let subfolders = |folder: &Path| -> Vec<PathBuf> {
        let entries =
            fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
        let mut folders: Vec<PathBuf> = entries.unwrap_or_default();
        folders.retain(|folder| folder.is_dir());
        folders.sort();
        folders
    };
    let mut crates = BTreeMap::new();
    for folder in subfolders(&home.join("registry/src")).iter().flat_map(|host| subfolders(host)) {
        if let Some(name) = folder.file_name() {
            // A second host has the same crate again.
            crates.entry(name.to_string_lossy().into_owned()).or_insert(folder);
        }
    }
    crates
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
    fn order_does_not_depend_on_the_host() {
        let (home, repository) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(home.path(), "registry/src/z-host/a-1.0/src/lib.rs", "a");
        write(home.path(), "registry/src/a-host/b-1.0/src/lib.rs", "b");
        write(home.path(), "registry/src/a-host/b-1.0/Cargo.toml", "no");
        write(home.path(), "registry/src/z-host/b-1.0/src/lib.rs", "twice");
        let config = CargoRegistryConfig { max_bytes: 100, eod_byte: 0 };
        let (stream, sentence) =
            load_from(Some(home.path()), repository.path(), &config, &Codec::Bytes { eod: 0 }).unwrap();
        assert_eq!(text(&stream), "a\0b\0");
        let home_name = home.path().display();
        let expected =
            format!("4 bytes of 2 source files from the cargo registry in {home_name} (a-1.0 to b-1.0)");
        assert_eq!(sentence, expected);
    }

    #[test]
    fn falls_back_to_the_repository() {
        let (home, repository) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = CargoRegistryConfig { max_bytes: 100, eod_byte: 0 };
        let error = load_from(Some(home.path()), repository.path(), &config, &Codec::Bytes { eod: 0 })
            .unwrap_err()
            .to_string();
        assert!(error.contains("no Rust source found"), "{error}");
        write(repository.path(), "src/lib.rs", "x");
        write(repository.path(), "shaders/rope.wgsl", "y");
        let (stream, sentence) =
            load_from(None, repository.path(), &config, &Codec::Bytes { eod: 0 }).unwrap();
        assert_eq!(text(&stream), "x\0y\0");
        assert!(sentence.ends_with("as no cargo registry was found"), "{sentence}");
    }
}
