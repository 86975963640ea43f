//! The header of llm.c's token files: 256 little-endian i32, of which the first three are a magic number, a version
//! and the number of tokens; the rest are zeros.

use super::token_encoding::TokenEncoding;

pub(super) const HEADER_BYTES: usize = 256 * 4;

/// Magic number and version, and how the tokens that follow are stored: for GPT-2's vocabulary
/// (`dev/data/tinyshakespeare.py` and others write it), and for Llama 3's.
const KINDS: [([u32; 2], TokenEncoding); 2] =
    [([20_240_520, 1], TokenEncoding::U16), ([20_240_801, 7], TokenEncoding::U32)];

/// The properties of the tokens after a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// How each token is stored.
    pub encoding: TokenEncoding,
    /// Number of tokens.
    pub tokens: u32,
}

impl Header {
    /// The header at the start of `bytes`, if there is one.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.get(..HEADER_BYTES)?.as_chunks::<4>();
        let word = |index: usize| u32::from_le_bytes(words[index]);
        let (_, encoding) = KINDS.into_iter().find(|(magic, _)| *magic == [word(0), word(1)])?;
        Some(Self { encoding, tokens: word(2) })
    }

    /// The bytes of the header.
    ///
    /// # Panics
    /// If llm.c has no files with this encoding.
    pub fn bytes(self) -> Vec<u8> {
        let kind = KINDS.iter().find(|(_, encoding)| *encoding == self.encoding);
        let Some(([magic, version], _)) = kind else { panic!("llm.c stores no tokens as {}", self.encoding) };
        let mut bytes: Vec<u8> =
            [*magic, *version, self.tokens].into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.resize(HEADER_BYTES, 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_as_written() {
        for encoding in [TokenEncoding::U16, TokenEncoding::U32] {
            let header = Header { encoding, tokens: 300 };
            assert_eq!(header.bytes().len(), HEADER_BYTES);
            assert_eq!(Header::read(&header.bytes()), Some(header));
        }
        assert_eq!(Header::read(&[0; HEADER_BYTES]), None);
        assert_eq!(Header::read(&[0; 3]), None);
    }
}
