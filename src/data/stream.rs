//! Token ids in memory or memory-mapped files, read as one stream.

use std::ops::Range;
use std::sync::Arc;

use memmap2::Mmap;

use super::mindrecord::TokensOfRows;
use super::sample_store::StoredTokens;
use super::token_encoding::TokenEncoding;

/// A sequence of token ids. Its parts (the shards of a data set) read as one.
#[derive(Debug, Default)]
pub struct TokenStream {
    parts: Vec<Chunk>,
    /// The end of each part, in tokens from the start of the stream.
    ends: Vec<u64>,
}

/// One contiguous run of tokens, by how it is stored.
#[derive(Debug)]
pub enum Chunk {
    /// One byte per token, in memory.
    Bytes(Vec<u8>),
    /// Token ids in memory.
    Ids(Vec<u32>),
    /// Token ids in a memory-mapped file.
    Mapped(MappedTokens),
    /// Tokens or targets of the rows of a memory-mapped file.
    Rows(TokensOfRows),
    /// Tokens or targets of samples that were formed.
    Stored(StoredTokens),
}

/// A run of tokens in a memory-mapped file.
#[derive(Clone, Debug)]
pub struct MappedTokens {
    map: Arc<Mmap>,
    /// Position of the first token, in bytes from the start of the file.
    offset: usize,
    /// Number of tokens.
    len: usize,
    /// How each token is stored.
    encoding: TokenEncoding,
}

impl MappedTokens {
    /// The `len` tokens from byte `offset` of `map`; `None` if the file ends before the tokens do.
    pub fn new(map: Arc<Mmap>, offset: usize, len: usize, encoding: TokenEncoding) -> Option<Self> {
        let end = len.checked_mul(encoding.bytes())?.checked_add(offset)?;
        (end <= map.len()).then_some(Self { map, offset, len, encoding })
    }

    fn read(&self, start: usize, out: &mut [u32]) {
        let width = self.encoding.bytes();
        let first = self.offset + start * width;
        self.encoding.decode(&self.map[first..first + out.len() * width], out);
    }
}

impl TokenStream {
    /// A stream in which every byte is a token.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        let mut stream = Self::default();
        stream.push(Chunk::Bytes(bytes));
        stream
    }

    /// Appends a part.
    pub fn push(&mut self, part: Chunk) {
        let end = self.len() + part.len() as u64;
        self.parts.push(part);
        self.ends.push(end);
    }

    /// Number of tokens.
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether the stream has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the whole stream is in memory, not in a file.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.parts.iter().all(|part| match part {
            Chunk::Bytes(_) | Chunk::Ids(_) => true,
            Chunk::Mapped(_) | Chunk::Rows(_) => false,
            Chunk::Stored(tokens) => tokens.is_in_memory(),
        })
    }

    /// Copies the tokens of `range` into `out`.
    ///
    /// # Panics
    /// If `range` reaches beyond the end of the stream, or its length is not `out.len()`.
    #[track_caller]
    pub fn read(&self, range: Range<u64>, out: &mut [u32]) {
        assert_eq!(range.end - range.start, out.len() as u64, "the buffer must be as long as the range");
        assert!(range.end <= self.len(), "tokens {range:?} were requested from a stream of {}", self.len());
        let mut index = self.ends.partition_point(|&end| end <= range.start);
        let (mut at, mut out) = (range.start, out);
        while !out.is_empty() {
            let part = &self.parts[index];
            let start = (at - (self.ends[index] - part.len() as u64)) as usize;
            let count = out.len().min(part.len() - start);
            let (head, rest) = out.split_at_mut(count);
            part.read(start, head);
            (at, out, index) = (at + count as u64, rest, index + 1);
        }
    }

    /// Calls `visit` with each chunk of `range` in order, at most 64 Ki tokens, and the position of its first token in
    /// the stream. Stops at the first error and returns it.
    pub(crate) fn try_for_each_chunk<E>(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(u64, &[u32]) -> Result<(), E>,
    ) -> Result<(), E> {
        const CHUNK: u64 = 1 << 16;
        let mut buffer = vec![0; CHUNK.min(range.end.saturating_sub(range.start)) as usize];
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + CHUNK);
            let chunk = &mut buffer[..(end - start) as usize];
            self.read(start..end, chunk);
            visit(start, chunk)?;
            start = end;
        }
        Ok(())
    }
}

impl Chunk {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Ids(ids) => ids.len(),
            Self::Mapped(tokens) => tokens.len,
            Self::Rows(rows) => rows.len(),
            Self::Stored(tokens) => tokens.len(),
        }
    }

    fn read(&self, start: usize, out: &mut [u32]) {
        match self {
            Self::Bytes(bytes) => {
                let source = &bytes[start..start + out.len()];
                out.iter_mut().zip(source).for_each(|(token, byte)| *token = u32::from(*byte));
            }
            Self::Ids(ids) => out.copy_from_slice(&ids[start..start + out.len()]),
            Self::Mapped(tokens) => tokens.read(start, out),
            Self::Rows(rows) => rows.read(start, out),
            Self::Stored(tokens) => tokens.read(start, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_read_as_one() {
        let mut stream = TokenStream::from_bytes(vec![0, 1, 2]);
        stream.push(Chunk::Bytes(Vec::new()));
        stream.push(Chunk::Ids(vec![3, 4]));
        stream.push(Chunk::Bytes(vec![5]));
        assert_eq!(stream.len(), 6);
        for start in 0..=6 {
            for end in start..=6 {
                let mut out = vec![99; (end - start) as usize];
                stream.read(start..end, &mut out);
                assert_eq!(out, (start as u32..end as u32).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    #[should_panic(expected = "requested from a stream of 3")]
    fn reading_past_the_end_panics() {
        TokenStream::from_bytes(vec![1, 2, 3]).read(2..4, &mut [0; 2]);
    }
}
