//! A stream of token ids in memory or mapped from files.

use std::ops::Range;
use std::sync::Arc;

use memmap2::Mmap;

/// Token ids one after the other. Parts (the shards of a data set) read as one stream.
#[derive(Debug, Default)]
pub struct TokenStream {
    parts: Vec<Part>,
    /// Where each part ends in the stream, in tokens.
    ends: Vec<u64>,
}

/// One contiguous run of tokens and how it is stored.
#[derive(Debug)]
pub enum Part {
    /// One byte per token, in memory.
    Bytes(Vec<u8>),
    /// Token ids in memory.
    Ids(Vec<u32>),
    /// Token ids in a mapped file.
    Mapped(MappedTokens),
}

/// A run of tokens in a mapped file.
#[derive(Clone, Debug)]
pub struct MappedTokens {
    map: Arc<Mmap>,
    /// Where the first token starts, in bytes.
    offset: usize,
    /// Number of tokens.
    len: usize,
    encoding: TokenEncoding,
}

/// How files store a token id: an integer, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenEncoding {
    /// 8 bits.
    U8,
    /// 8 bits with a sign.
    I8,
    /// 16 bits.
    U16,
    /// 16 bits with a sign.
    I16,
    /// 32 bits.
    U32,
    /// 32 bits with a sign.
    I32,
    /// 64 bits with a sign.
    I64,
}

/// What a stored number reads as that is no token id: one that is negative or has more than 32 bits.
/// No vocabulary reaches it, so the check that every token goes through refuses it.
pub(super) const NO_TOKEN: u32 = u32::MAX;

impl TokenEncoding {
    /// Bytes of a token.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// The largest token id that can be stored.
    pub fn largest(self) -> u32 {
        match self {
            Self::U8 => u8::MAX.into(),
            Self::I8 => i8::MAX as u32,
            Self::U16 => u16::MAX.into(),
            Self::I16 => i16::MAX as u32,
            Self::I32 => i32::MAX as u32,
            Self::U32 | Self::I64 => NO_TOKEN - 1,
        }
    }

    /// Appends the bytes of `tokens`, none of which may be above [`largest`](Self::largest), to `out`.
    pub(super) fn encode(self, tokens: &[u32], out: &mut Vec<u8>) {
        out.reserve(tokens.len() * self.bytes());
        for token in tokens {
            // A token id is not negative, so its two's complement is its low bytes and zeros.
            out.extend_from_slice(&u64::from(*token).to_le_bytes()[..self.bytes()]);
        }
    }

    fn decode(self, bytes: &[u8], out: &mut [u32]) {
        fn each<const N: usize>(bytes: &[u8], out: &mut [u32], token: impl Fn([u8; N]) -> i64) {
            let (words, _) = bytes.as_chunks::<N>();
            let id = |word: &[u8; N]| u32::try_from(token(*word)).unwrap_or(NO_TOKEN);
            out.iter_mut().zip(words).for_each(|(out, word)| *out = id(word));
        }
        match self {
            Self::U8 => each(bytes, out, |[byte]: [u8; 1]| i64::from(byte)),
            Self::I8 => each(bytes, out, |byte| i64::from(i8::from_le_bytes(byte))),
            Self::U16 => each(bytes, out, |word| i64::from(u16::from_le_bytes(word))),
            Self::I16 => each(bytes, out, |word| i64::from(i16::from_le_bytes(word))),
            Self::U32 => each(bytes, out, |word| i64::from(u32::from_le_bytes(word))),
            Self::I32 => each(bytes, out, |word| i64::from(i32::from_le_bytes(word))),
            Self::I64 => each(bytes, out, i64::from_le_bytes),
        }
    }
}

impl MappedTokens {
    /// The `len` tokens that start at the byte `offset` of `map`; `None` if the file ends before they do.
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
            Self::Ids(ids) => ids.len(),
            Self::Mapped(tokens) => tokens.len,
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
        stream.push(Part::Ids(vec![3, 4]));
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

    #[test]
    fn numbers_that_are_no_ids_read_as_one_that_no_vocabulary_has() {
        let decoded = |encoding: TokenEncoding, bytes: &[u8]| {
            let mut out = vec![0; bytes.len() / encoding.bytes()];
            encoding.decode(bytes, &mut out);
            out
        };
        assert_eq!(decoded(TokenEncoding::I8, &[5, 0xff]), [5, NO_TOKEN]);
        assert_eq!(decoded(TokenEncoding::I16, &[1, 1, 0, 0x80]), [257, NO_TOKEN]);
        assert_eq!(decoded(TokenEncoding::I64, &[7, 0, 0, 0, 0, 0, 0, 0]), [7]);
        assert_eq!(decoded(TokenEncoding::I64, &[7, 0, 0, 0, 1, 0, 0, 0]), [NO_TOKEN]);
        for encoding in [TokenEncoding::U8, TokenEncoding::U16, TokenEncoding::I32, TokenEncoding::I64] {
            let mut bytes = Vec::new();
            encoding.encode(&[0, 3, encoding.largest()], &mut bytes);
            assert_eq!(decoded(encoding, &bytes), [0, 3, encoding.largest()], "{encoding:?}");
        }
    }
}
