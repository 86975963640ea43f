//! A stream of token ids in memory or mapped from files.

use std::ops::Range;

use memmap2::Mmap;

/// Token ids one after the other. Parts (the shards of a data set) read as one stream.
#[derive(Debug, Default)]
pub struct TokenStream {
    parts: Vec<Part>,
    /// Where each part ends in the stream, in tokens.
    ends: Vec<u64>,
}

/// One contiguous run of tokens and how it is stored. Files are little endian.
#[derive(Debug)]
pub enum Part {
    /// One byte per token, in memory.
    Bytes(Vec<u8>),
    /// Two bytes per token, mapped; the tokens start at the byte `offset`.
    U16 {
        /// The whole file.
        map: Mmap,
        /// Length of the header in bytes.
        offset: usize,
    },
    /// Four bytes per token, mapped; the tokens start at the byte `offset`.
    U32 {
        /// The whole file.
        map: Mmap,
        /// Length of the header in bytes.
        offset: usize,
    },
}

impl TokenStream {
    /// A stream of bytes, each its own token.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        let mut stream = Self::default();
        stream.push(Part::Bytes(bytes));
        stream
    }

    /// Appends a part.
    pub fn push(&mut self, part: Part) {
        let end = self.len() + part.len() as u64;
        self.parts.push(part);
        self.ends.push(end);
    }

    /// Number of tokens.
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the tokens of `range` into `out`.
    ///
    /// # Panics
    /// If `range` leaves the stream or its length is not `out.len()`.
    #[track_caller]
    pub fn read(&self, range: Range<u64>, out: &mut [u32]) {
        assert_eq!(range.end - range.start, out.len() as u64, "the buffer must be as long as the range");
        assert!(range.end <= self.len(), "tokens {range:?} were asked of a stream of {}", self.len());
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

    /// Calls `visit` with the tokens of `range`, at most 64 Ki at a time, in order; stops at its first error.
    pub fn try_for_each_chunk<E>(
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

impl Part {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::U16 { map, offset } => (map.len() - offset) / 2,
            Self::U32 { map, offset } => (map.len() - offset) / 4,
        }
    }

    fn read(&self, start: usize, out: &mut [u32]) {
        match self {
            Self::Bytes(bytes) => {
                let source = &bytes[start..start + out.len()];
                out.iter_mut().zip(source).for_each(|(token, byte)| *token = u32::from(*byte));
            }
            Self::U16 { map, offset } => {
                let (words, _) = map[offset + 2 * start..].as_chunks::<2>();
                out.iter_mut()
                    .zip(words)
                    .for_each(|(token, word)| *token = u32::from(u16::from_le_bytes(*word)));
            }
            Self::U32 { map, offset } => {
                let (words, _) = map[offset + 4 * start..].as_chunks::<4>();
                out.iter_mut().zip(words).for_each(|(token, word)| *token = u32::from_le_bytes(*word));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_read_as_one() {
        let mut stream = TokenStream::from_bytes(vec![0, 1, 2]);
        stream.push(Part::Bytes(Vec::new()));
        stream.push(Part::Bytes(vec![3, 4]));
        stream.push(Part::Bytes(vec![5]));
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
    #[should_panic(expected = "asked of a stream of 3")]
    fn reading_past_the_end_panics() {
        TokenStream::from_bytes(vec![1, 2, 3]).read(2..4, &mut [0; 2]);
    }
}
