//! The `.idx` file, little endian: a header of 34 bytes; the length of each sequence in tokens (i32); its position in
//! the `.bin` file in bytes (i64); the document boundaries in sequences (i64), from 0 to the number of sequences; and
//! in multimodal data sets a mode (i8) for each sequence.

use std::io::{self, Write};
use std::sync::Arc;

use memmap2::Mmap;

use crate::data::token_encoding::TokenEncoding;

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const VERSION: u64 = 1;
/// Magic, version, code of the element type, number of sequences, number of boundaries.
const HEADER_BYTES: usize = 9 + 8 + 1 + 8 + 8;

/// The codes of element types that can be token ids; 6 and 7 are floating point.
const CODES: [(u8, TokenEncoding); 6] = [
    (1, TokenEncoding::U8),
    (2, TokenEncoding::I8),
    (3, TokenEncoding::I16),
    (4, TokenEncoding::I32),
    (5, TokenEncoding::I64),
    (8, TokenEncoding::U16),
];

/// The code of an element type; `None` if the format has none.
pub(super) fn code(encoding: TokenEncoding) -> Option<u8> {
    CODES.iter().find(|(_, known)| *known == encoding).map(|(code, _)| *code)
}

/// A memory-mapped index.
#[derive(Debug)]
pub(super) struct Index {
    map: Arc<Mmap>,
    /// How each token of the `.bin` file is stored.
    encoding: TokenEncoding,
    /// Number of sequences.
    sequences: usize,
    /// Number of document boundaries.
    boundaries: usize,
    /// Positions in `map`, in bytes, of the sequences' pointers and of the boundaries. Behind these a multimodal data
    /// set has the mode of each sequence, which is not read.
    pointers_at: usize,
    boundaries_at: usize,
}

/// The error says what is wrong with the file.
type Checked<T> = std::result::Result<T, String>;

impl Index {
    /// Reads the header and checks that the file has the size it promises.
    pub fn new(map: Arc<Mmap>) -> Checked<Self> {
        let Some((header, _)) = map.split_at_checked(HEADER_BYTES) else {
            return Err(format!("has {} bytes, fewer than the header of an index", map.len()));
        };
        if !header.starts_with(MAGIC) {
            return Err("is not an index of a Megatron data set: it does not start with MMIDIDX".to_string());
        }
        let version = word(header, 9);
        if version != VERSION {
            return Err(format!("has version {version}; only version {VERSION} is supported"));
        }
        let code = header[17];
        let Some((_, encoding)) = CODES.iter().find(|(known, _)| *known == code) else {
            let floats = if matches!(code, 6 | 7) { " (floating point)" } else { "" };
            return Err(format!("stores elements of type {code}{floats}, which are not token ids"));
        };
        let (sequences, boundaries) = (word(header, 18), word(header, 26));
        let wrong_size = || {
            format!(
                "promises {sequences} sequences and {boundaries} document boundaries, which its {} bytes do not hold",
                map.len()
            )
        };
        // A sequence takes 12 bytes, 13 with a mode, and a boundary 8. The numbers come from the file, so they may
        // overflow.
        let bytes = |count: u64, each: u64| count.checked_mul(each);
        let end = |each: u64| {
            bytes(sequences, each)?.checked_add(bytes(boundaries, 8)?)?.checked_add(HEADER_BYTES as u64)
        };
        let len = map.len() as u64;
        if end(12) != Some(len) && end(13) != Some(len) {
            return Err(wrong_size());
        }
        if boundaries == 0 {
            return Err("has no document boundary, not even the first".to_string());
        }
        // Both are now known to be below the size of the file.
        let (sequences, boundaries) = (sequences as usize, boundaries as usize);
        let pointers_at = HEADER_BYTES + 4 * sequences;
        let boundaries_at = pointers_at + 8 * sequences;
        Ok(Self { encoding: *encoding, sequences, boundaries, pointers_at, boundaries_at, map })
    }

    /// Checks every number of the index against a `.bin` file of `bytes` bytes.
    pub fn check(&self, bytes: u64) -> Checked<()> {
        let width = self.encoding.bytes() as u64;
        let mut tokens = 0u64;
        for sequence in 0..self.sequences {
            let (length, pointer) = (self.raw_length(sequence), self.raw_pointer(sequence));
            let (Ok(length), Ok(pointer)) = (u32::try_from(length), u64::try_from(pointer)) else {
                return Err(format!("says that sequence {sequence} has {length} tokens from byte {pointer}"));
            };
            let end = pointer.checked_add(u64::from(length) * width);
            if end.is_none_or(|end| end > bytes) {
                return Err(format!(
                    "says that sequence {sequence} has {length} tokens from byte {pointer}, but the .bin file has {bytes} bytes"
                ));
            }
            tokens =
                tokens.checked_add(u64::from(length)).ok_or("promises more tokens than can be counted")?;
        }
        // The stream of all sequences must be addressable too.
        if tokens.checked_mul(width).is_none_or(|bytes| bytes > isize::MAX as u64) {
            return Err(format!("promises {tokens} tokens, more than can be mapped"));
        }
        let mut last = 0;
        for index in 0..self.boundaries {
            let boundary = self.raw_boundary(index);
            if boundary < last || (index == 0 && boundary != 0) {
                return Err(format!(
                    "has boundaries that do not rise from 0: number {index} is {boundary} after {last}"
                ));
            }
            last = boundary;
        }
        if last != self.sequences as i64 {
            return Err(format!("ends its last document at sequence {last} of {}", self.sequences));
        }
        Ok(())
    }

    /// How each token of the `.bin` file is stored.
    pub fn encoding(&self) -> TokenEncoding {
        self.encoding
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Number of document boundaries: one more than documents.
    pub fn boundaries(&self) -> usize {
        self.boundaries
    }

    /// Whether the file goes on behind the boundaries: with the mode of each sequence.
    pub fn has_modes(&self) -> bool {
        self.boundaries_at + 8 * self.boundaries < self.map.len()
    }

    /// Number of tokens of a sequence. Valid, like the two below, after [`check`](Self::check).
    pub fn length(&self, sequence: usize) -> u32 {
        self.raw_length(sequence) as u32
    }

    /// Position of a sequence in the `.bin` file, in bytes.
    pub fn pointer(&self, sequence: usize) -> u64 {
        self.raw_pointer(sequence) as u64
    }

    /// Number of the first sequence of a document.
    pub fn boundary(&self, document: usize) -> u64 {
        self.raw_boundary(document) as u64
    }

    #[track_caller]
    fn raw_length(&self, sequence: usize) -> i32 {
        assert!(sequence < self.sequences, "there is no sequence {sequence}");
        word(&self.map, HEADER_BYTES + 4 * sequence) as i32
    }

    #[track_caller]
    fn raw_pointer(&self, sequence: usize) -> i64 {
        assert!(sequence < self.sequences, "there is no sequence {sequence}");
        word(&self.map, self.pointers_at + 8 * sequence) as i64
    }

    #[track_caller]
    fn raw_boundary(&self, index: usize) -> i64 {
        assert!(index < self.boundaries, "there is no document boundary {index}");
        word(&self.map, self.boundaries_at + 8 * index) as i64
    }
}

/// The little-endian number in the eight bytes from `at`; bytes beyond the end count as 0.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.iter_mut().zip(&bytes[at..]).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(word)
}

/// Writes an index of sequences that are stored one after the other. `lengths` are in tokens, `boundaries` in
/// sequences.
pub(super) fn write(
    out: &mut impl Write,
    encoding: TokenEncoding,
    lengths: &[i32],
    boundaries: &[i64],
) -> io::Result<()> {
    let code =
        code(encoding).ok_or_else(|| io::Error::other("an index has no code for this element type"))?;
    out.write_all(MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&[code])?;
    out.write_all(&(lengths.len() as u64).to_le_bytes())?;
    out.write_all(&(boundaries.len() as u64).to_le_bytes())?;
    for length in lengths {
        out.write_all(&length.to_le_bytes())?;
    }
    let mut pointer = 0i64;
    for length in lengths {
        out.write_all(&pointer.to_le_bytes())?;
        pointer += i64::from(*length) * encoding.bytes() as i64;
    }
    boundaries.iter().try_for_each(|boundary| out.write_all(&boundary.to_le_bytes()))
}
