//! Whole samples: the tokens of each, and which of them are predicted, in memory or in a mapped file.
//!
//! The run's own choices (lengths, rows, held-out samples) are applied afterwards, as runs of words ([`StoredTokens`]),
//! so that one store serves all runs that read the same data. A word is a token in 24 bits: its id, and whether the
//! next token is predicted from it. All integers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 64 | header: [`MAGIC`]; numbers of words, samples and bytes of notes; XXH3 of these and all that follows; zeros |
//! | 3 each | words: the tokens of each sample, and one more where its last token predicts one that is not in it |
//! | 8 each | samples: the end of each in words, and two flags |
//! | the rest | notes: what of the records was not read |

mod runs;
mod writer;

pub(super) use self::runs::Runs;
pub use self::runs::StoredTokens;
pub(super) use self::writer::{StoreWriter, Written};
use super::notes::Notes;
use memmap2::Mmap;
use std::hash::Hasher;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// The first bytes of a store. Another layout has another number.
const MAGIC: [u8; 16] = *b"gristmill data 1";
const HEADER_BYTES: usize = 64;
const WORD_BYTES: usize = 3;
const SAMPLE_BYTES: usize = 8;
/// The bit of a word that says that the next token is predicted.
const PREDICTS: u32 = 1 << 23;
/// The ids of tokens are below this, eight times the largest vocabulary that is published.
pub(super) const MOST_TOKENS: u32 = PREDICTS;
/// The flags of a sample beside its end: it has one word more than tokens; a part of its record was cut off.
const HAS_NEXT: u64 = 1 << 63;
const IS_CUT: u64 = 1 << 62;

/// Notes on the parts of records that were not read: `said` by every loader, and `beside` ready ids by commands of this
/// program only.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct StoredNotes {
    pub said: Notes,
    pub beside: Notes,
    /// Counts of the text that was read. Text has documents in place of records.
    pub text: Option<TextCounts>,
}

/// Counts of the text that was read from files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct TextCounts {
    /// Number of documents taken.
    pub documents: u64,
    /// Number of files with at least one of them.
    pub files: u64,
    /// Number of files that were skipped because they are not text.
    pub binary: u64,
    /// Number of documents that were skipped because they have no text.
    pub empty: u64,
    /// Bytes of text taken, and one for the end of each document.
    pub bytes: u64,
}

/// Samples in memory or in a file.
#[derive(Debug)]
pub(super) struct SampleStore {
    bytes: Bytes,
    words: usize,
    samples: usize,
    pub notes: StoredNotes,
}

#[derive(Debug)]
enum Bytes {
    Memory(Vec<u8>),
    Mapped(Arc<Mmap>),
}

/// A sample of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// The number of the sample's first word.
    pub start: u64,
    /// The number of the sample's tokens.
    pub tokens: usize,
    /// Whether the last token predicts one that is not in the sample, and has a word of its own.
    pub has_next: bool,
    /// Whether a part of the sample's record was cut off.
    pub is_cut: bool,
}

/// A sample as a model learns it.
#[cfg(feature = "cli")]
pub(crate) struct LearnedSample {
    pub tokens: Vec<u32>,
    /// Whether each token is predicted from those before it.
    pub is_learned: Vec<bool>,
}

impl SampleStore {
    /// The samples of a file; `None` if it is not a store, has another layout, or is damaged.
    pub fn open(map: Arc<Mmap>) -> Option<Self> {
        Self::of(Bytes::Mapped(map))
    }

    fn of(bytes: Bytes) -> Option<Self> {
        let all = bytes.all();
        let header = all.get(..HEADER_BYTES)?;
        if header[..MAGIC.len()] != MAGIC {
            return None;
        }
        let number = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
        let sizes = [number(16)?, number(24)?, number(32)?].map(|size| usize::try_from(size).ok());
        let [Some(words), Some(samples), Some(notes)] = sizes else { return None };
        let body = words.checked_mul(WORD_BYTES)?.checked_add(samples.checked_mul(SAMPLE_BYTES)?)?;
        let length = HEADER_BYTES.checked_add(body)?.checked_add(notes)?;
        if all.len() != length || number(40)? != checksum(header, &all[HEADER_BYTES..]) {
            return None;
        }
        let notes = serde_json::from_slice(&all[length - notes..]).ok()?;
        Some(Self { bytes, words, samples, notes })
    }

    /// All words, in order.
    pub fn whole(self: Arc<Self>) -> StoredTokens {
        let mut runs = Runs::default();
        if self.words > 0 {
            runs.push(0, self.words as u64);
        }
        let [tokens, _] = StoredTokens::of(self, runs);
        tokens
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.samples
    }

    /// Number of bytes of the whole store.
    pub fn bytes(&self) -> u64 {
        self.bytes.all().len() as u64
    }

    /// The samples, in order.
    pub fn samples(&self) -> impl Iterator<Item = Stored> {
        let entries = &self.bytes.all()[HEADER_BYTES + self.words * WORD_BYTES..];
        let (entries, _) = entries[..self.samples * SAMPLE_BYTES].as_chunks::<SAMPLE_BYTES>();
        let mut start = 0;
        entries.iter().map(move |entry| {
            let entry = u64::from_le_bytes(*entry);
            let end = entry & !(HAS_NEXT | IS_CUT);
            let has_next = entry & HAS_NEXT != 0;
            let tokens = (end - start) as usize - usize::from(has_next);
            let sample = Stored { start, tokens, has_next, is_cut: entry & IS_CUT != 0 };
            start = end;
            sample
        })
    }

    /// How many of the first `tokens` tokens of a sample predict the next one.
    pub fn predicted(&self, sample: &Stored, tokens: usize) -> usize {
        let words = self.words(sample.start as usize, sample.tokens.min(tokens));
        words.filter(|word| word & PREDICTS != 0).count()
    }

    /// The tokens of a sample, with the one that its last token predicts.
    #[cfg(feature = "cli")]
    pub fn learned(&self, sample: &Stored) -> LearnedSample {
        let count = sample.tokens + usize::from(sample.has_next);
        let words: Vec<u32> = self.words(sample.start as usize, count).collect();
        let predicts = words.iter().map(|word| word & PREDICTS != 0);
        let is_learned = std::iter::once(false).chain(predicts).take(count).collect();
        LearnedSample { tokens: words.iter().map(|word| word & !PREDICTS).collect(), is_learned }
    }

    /// `count` words from number `start`.
    fn words(&self, start: usize, count: usize) -> impl Iterator<Item = u32> {
        let first = HEADER_BYTES + start * WORD_BYTES;
        let (words, _) = self.bytes.all()[first..first + count * WORD_BYTES].as_chunks::<WORD_BYTES>();
        words.iter().map(|[low, middle, high]| u32::from_le_bytes([*low, *middle, *high, 0]))
    }

    /// Whether the store is in memory.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.bytes, Bytes::Memory(_))
    }
}

impl Bytes {
    fn all(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

/// The checksum of the sizes in a header and of everything after the header.
fn checksum(header: &[u8], rest: &[u8]) -> u64 {
    let mut hasher = XxHash3_64::new();
    hasher.write(rest);
    hasher.write(&header[..40]);
    hasher.finish()
}

#[cfg(test)]
mod tests;
