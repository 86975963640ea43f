//! The columns of a data file, and how they store whole numbers.

#[derive(Clone, Debug)]
pub(super) struct Column {
    pub name: String,
    /// The type as a message shows it: `array of int32`.
    pub kind: String,
    /// The place of the column among the columns in the pages of arrays.
    pub place: usize,
    /// How the column's arrays are stored; `None` if it does not hold arrays of whole numbers.
    pub encoding: Option<Encoding>,
}

/// How an array of whole numbers is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Little-endian numbers of 32 bits, in files before version 3.0.
    Int32,
    /// Little-endian numbers of 64 bits, in files before version 3.0.
    Int64,
    /// The number of elements (32 bits, big-endian), then a code of two bits for each element, from the high bits of a
    /// byte to the low ones, and then the elements in 1, 2, 4 or 8 bytes (little-endian, signed), as their codes say.
    Compressed,
}

/// The numbers of one array. They end early if the bytes do.
#[derive(Clone, Debug)]
pub(super) struct Numbers<'a> {
    encoding: Encoding,
    widths: &'a [u8],
    bytes: &'a [u8],
    /// Number of the next element.
    next: usize,
    len: usize,
}

impl Encoding {
    /// Whether these bytes are an array: its numbers must end where the bytes end.
    pub fn fills(self, bytes: &[u8]) -> bool {
        self.numbers(bytes).is_some_and(|numbers| {
            let widths = (0..numbers.len).map(|number| numbers.width(number));
            widths.sum::<usize>() == numbers.bytes.len()
        })
    }

    /// The numbers of an array with these bytes; `None` if the bytes cannot be such an array.
    pub fn numbers(self, bytes: &[u8]) -> Option<Numbers<'_>> {
        let numbers = |widths, bytes, len| Numbers { encoding: self, widths, bytes, next: 0, len };
        match self {
            Self::Int32 => bytes.len().is_multiple_of(4).then(|| numbers(&[], bytes, bytes.len() / 4)),
            Self::Int64 => bytes.len().is_multiple_of(8).then(|| numbers(&[], bytes, bytes.len() / 8)),
            Self::Compressed => {
                let (len, rest) = bytes.split_first_chunk()?;
                let len = u32::from_be_bytes(*len) as usize;
                let (widths, elements) = rest.split_at_checked(len.div_ceil(4))?;
                // Each element takes at least a byte, so that a damaged length is noticed here.
                (len <= elements.len()).then(|| numbers(widths, elements, len))
            }
        }
    }
}

impl Numbers<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of an element.
    fn width(&self, number: usize) -> usize {
        match self.encoding {
            Encoding::Int32 => 4,
            Encoding::Int64 => 8,
            Encoding::Compressed => 1 << ((self.widths[number / 4] >> (6 - 2 * (number % 4))) & 3),
        }
    }
}

impl Iterator for Numbers<'_> {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        if self.next == self.len {
            return None;
        }
        let (own, rest) = self.bytes.split_at_checked(self.width(self.next))?;
        let is_negative = own.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut word = [if is_negative { 0xff } else { 0 }; 8];
        word[..own.len()].copy_from_slice(own);
        (self.bytes, self.next) = (rest, self.next + 1);
        Some(i64::from_le_bytes(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that mindspore 2.7.1 wrote for these numbers.
    #[test]
    fn compressed_numbers_of_every_width() {
        let bytes = [
            0, 0, 0, 21, 0x00, 0x45, 0x59, 0xaa, 0xbf, 0xc0, 0x00, 0x01, 0xff, 0x7f, 0x80, 0x00, 0x80, 0x7f,
            0xff, 0xff, 0x00, 0x00, 0x01, 0xff, 0x7f, 0x00, 0x80, 0x00, 0x00, 0x00, 0x80, 0xff, 0x7f, 0xff,
            0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0xff, 0xff, 0xff, 0x7f, 0x00, 0x00, 0x00,
            0x80, 0x00, 0x00, 0x00, 0x80, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x80,
        ];
        let numbers = Encoding::Compressed.numbers(&bytes).unwrap();
        assert_eq!(numbers.len(), 21);
        let (int, long) = (1i64 << 31, i64::MAX);
        let wanted = [
            0,
            1,
            -1,
            127,
            128,
            -128,
            -129,
            255,
            256,
            32767,
            32768,
            -32768,
            -32769,
            65535,
            65536,
            int - 1,
            -int,
            int,
            -int - 1,
            long,
            i64::MIN,
        ];
        assert_eq!(numbers.collect::<Vec<_>>(), wanted);
        let fills = |bytes: &[u8]| Encoding::Compressed.fills(bytes);
        assert!(fills(&bytes) && !fills(&bytes[..50]) && !fills(&[&bytes[..], &[0]].concat()));
        let cut = Encoding::Compressed.numbers(&bytes[..50]).unwrap();
        assert!(cut.count() < 21, "what is cut off is missing");
        assert!(Encoding::Compressed.numbers(&bytes[..12]).is_none());
        assert!(Encoding::Compressed.numbers(&[0xff; 64]).is_none());
    }

    #[test]
    fn plain_numbers() {
        let bytes = [1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff];
        assert_eq!(Encoding::Int32.numbers(&bytes).unwrap().collect::<Vec<_>>(), [1, -2]);
        assert_eq!(Encoding::Int64.numbers(&bytes).unwrap().collect::<Vec<_>>(), [1 - (2 << 32)]);
        assert!(Encoding::Int64.fills(&bytes) && !Encoding::Int32.fills(&bytes[1..]));
        assert!(Encoding::Int64.numbers(&bytes[1..]).is_none());
    }
}
