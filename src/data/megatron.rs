//! Megatron's data sets: token ids in a `.bin` file, and an `.idx` file with the starts of sequences and documents.

mod index;
mod writer;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use memmap2::Mmap;

use self::index::Index;
pub use self::writer::MegatronWriter;
use super::config::Paths;
use super::files;
use super::notes::plural;
use super::source::LoadedSource;
use super::stream::{Chunk, MappedTokens, TokenStream};
use super::token_encoding::TokenEncoding;
use crate::error::{Error, Result};

/// The endings of the two files.
const ENDINGS: [&str; 2] = [".bin", ".idx"];

/// A pair of memory-mapped files whose index was checked: it points nowhere outside the token ids.
#[derive(Debug)]
pub struct MegatronDataset {
    index: Index,
    tokens: Arc<Mmap>,
    bin: PathBuf,
}

impl MegatronDataset {
    /// Opens `prefix.bin` and `prefix.idx`; `prefix` may have either ending.
    ///
    /// # Errors
    /// If a file is missing, or the index is malformed or does not fit the `.bin` file.
    pub fn open(prefix: &str) -> Result<Self> {
        let (bin, idx) = paths(prefix);
        for path in [&idx, &bin] {
            if !path.is_file() {
                let message = "no such file; `data_path` names weights and prefixes: the paths of a .bin and an .idx file without these endings";
                return Err(Error::file(path, message));
            }
        }
        let tokens = files::map(&bin)?;
        let index = Index::new(files::map(&idx)?).and_then(|index| {
            index.check(tokens.len() as u64)?;
            Ok(index)
        });
        let index = index.map_err(|message| {
            Error::file(&idx, format!("{message}; write the pair of .bin and .idx files again"))
        })?;
        Ok(Self { index, tokens, bin })
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.index.sequences()
    }

    /// Number of documents.
    pub fn documents(&self) -> usize {
        self.index.boundaries() - 1
    }

    /// The numbers of the sequences of a document.
    ///
    /// # Panics
    /// If there are fewer documents.
    #[track_caller]
    pub fn document(&self, document: usize) -> Range<usize> {
        self.index.boundary(document) as usize..self.index.boundary(document + 1) as usize
    }

    /// The token ids of a sequence; stored values that are not token ids read as `u32::MAX`.
    ///
    /// # Panics
    /// If there are fewer sequences.
    #[track_caller]
    pub fn sequence(&self, sequence: usize) -> Vec<u32> {
        let mut stream = TokenStream::default();
        self.push_run(
            &mut stream,
            self.index.pointer(sequence) as usize,
            self.index.length(sequence) as usize,
        );
        let mut ids = vec![0; stream.len() as usize];
        stream.read(0..stream.len(), &mut ids);
        ids
    }

    /// How each token is stored.
    pub fn encoding(&self) -> TokenEncoding {
        self.index.encoding()
    }

    /// All sequences in order. Sequences that follow each other in the file are one part of the stream.
    pub fn stream(&self) -> TokenStream {
        let mut stream = TokenStream::default();
        let width = self.index.encoding().bytes();
        let (mut start, mut len) = (0, 0usize);
        for sequence in 0..self.sequences() {
            let (pointer, length) =
                (self.index.pointer(sequence) as usize, self.index.length(sequence) as usize);
            if len > 0 && pointer != start + len * width {
                self.push_run(&mut stream, start, len);
                len = 0;
            }
            if len == 0 {
                start = pointer;
            }
            len += length;
        }
        self.push_run(&mut stream, start, len);
        stream
    }

    /// Number of tokens in the first `documents` documents.
    fn tokens_of(&self, documents: usize) -> u64 {
        let sequences = self.index.boundary(documents) as usize;
        (0..sequences).map(|sequence| u64::from(self.index.length(sequence))).sum()
    }

    fn push_run(&self, stream: &mut TokenStream, start: usize, len: usize) {
        let tokens = MappedTokens::new(self.tokens.clone(), start, len, self.index.encoding());
        // `open` has checked each sequence, and the sequences of a run follow each other.
        stream.push(Chunk::Mapped(
            tokens.unwrap_or_else(|| unreachable!("{} ends within a sequence", self.bin.display())),
        ));
    }
}

/// The sources of a Megatron loader. `shares` are the shares of each source's documents, in order, for training, for
/// evaluation, and for neither; they sum to 1.
pub(crate) fn load(prefixes: &Paths, shares: [f64; 3]) -> Result<Vec<LoadedSource>> {
    let groups = prefixes.groups().into_iter();
    groups.map(|(prefixes, weight)| load_one(&prefixes[0], weight, shares)).collect()
}

fn load_one(prefix: &str, weight: f64, shares: [f64; 3]) -> Result<LoadedSource> {
    let dataset = MegatronDataset::open(prefix)?;
    let stream = dataset.stream();
    if stream.is_empty() {
        return Err(Error::file(
            &dataset.bin,
            "contains no tokens; write it again, or leave it out of `data_path`",
        ));
    }
    let borders = split(dataset.documents(), shares).map(|documents| dataset.tokens_of(documents));
    let sentence = format!(
        "{} tokens of {} mapped from {}",
        stream.len(),
        plural(dataset.documents() as u64, "document"),
        dataset.bin.display()
    );
    let modes =
        format!("{prefix}: the modes of its sequences are not read, and all of them are trained as text");
    let notes = dataset.index.has_modes().then_some(modes).into_iter().collect();
    let whole = LoadedSource::whole(stream, prefix.to_string(), weight, sentence);
    Ok(LoadedSource { notes, split: Some((0..borders[0], borders[0]..borders[1])), ..whole })
}

/// The number of documents before the end of the training part, and before the end of the evaluation part after it.
fn split(documents: usize, [train, eval, _]: [f64; 3]) -> [usize; 2] {
    let border = |share: f64| ((share * documents as f64).round() as usize).min(documents);
    [border(train), border(train + eval)]
}

/// The paths of the `.bin` and the `.idx` file.
fn paths(prefix: &str) -> (PathBuf, PathBuf) {
    let prefix = ENDINGS.iter().find_map(|ending| prefix.strip_suffix(ending)).unwrap_or(prefix);
    let [bin, idx] = ENDINGS.map(|ending| PathBuf::from(format!("{prefix}{ending}")));
    (bin, idx)
}
