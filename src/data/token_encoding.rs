//! How files store a token id.

use std::fmt;

/// The stored form of a token id: a little-endian integer. Displayed as its NumPy name (`uint16`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenEncoding {
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
}

/// The value of a stored number that is not a token id, because it is negative or has more than 32 bits. No vocabulary
/// reaches this value, so the vocabulary check that every token passes refuses it.
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

    /// Appends the bytes of `tokens` to `out`.
    ///
    /// # Panics
    /// If a token is above [`largest`](Self::largest).
    #[track_caller]
    pub(super) fn encode(self, tokens: &[u32], out: &mut Vec<u8>) {
        let largest = tokens.iter().copied().max().unwrap_or(0);
        assert!(largest <= self.largest(), "token {largest} does not fit {self}");
        out.reserve(tokens.len() * self.bytes());
        for token in tokens {
            // Little endian: the low bytes come first, and those cut off are zeros.
            out.extend_from_slice(&u64::from(*token).to_le_bytes()[..self.bytes()]);
        }
    }

    /// Reads the tokens of `bytes`, [`bytes`](Self::bytes) each, into `out`; numbers that are not token ids become
    /// [`NO_TOKEN`].
    pub(super) fn decode(self, bytes: &[u8], out: &mut [u32]) {
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

impl fmt::Display for TokenEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::U32 => "uint32",
            Self::I32 => "int32",
            Self::I64 => "int64",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    #[should_panic(expected = "token 256 does not fit uint8")]
    fn a_token_that_does_not_fit_is_not_cut() {
        TokenEncoding::U8.encode(&[3, 256], &mut Vec::new());
    }
}
