//! The container of event files, TensorFlow's TFRecord: each record is its length (u64, little endian), a checksum of
//! the length, the data, and a checksum of the data. A checksum is CRC-32C, rotated and shifted so that checksums of
//! data that contains checksums stay good.

use std::io::{ErrorKind, Read, Result};

/// Bytes before and after the data of a record.
const HEAD: usize = 12;
const TAIL: usize = 4;

/// Longer records are damage: an event has a few kilobytes.
const LONGEST: u64 = 256 << 20;

/// `data` as a record.
pub(super) fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(HEAD + data.len() + TAIL);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked(&length).to_le_bytes());
    record.extend_from_slice(data);
    record.extend_from_slice(&masked(data).to_le_bytes());
    record
}

/// The data of the next record, and the number of bytes that it takes in the file; `None` at the end, which may be a
/// partial or damaged record.
pub(super) fn next(file: &mut impl Read) -> Result<Option<(Vec<u8>, u64)>> {
    let mut head = [0; HEAD];
    if !fill(file, &mut head)? {
        return Ok(None);
    }
    let (length, checksum) = head.split_at(8);
    let bytes = u64::from_le_bytes(length.try_into().expect("8 bytes"));
    if checksum != masked(length).to_le_bytes() || bytes > LONGEST {
        return Ok(None);
    }
    let mut data = vec![0; bytes as usize];
    let mut checksum = [0; TAIL];
    let is_whole = fill(file, &mut data)? && fill(file, &mut checksum)?;
    let is_good = is_whole && checksum == masked(&data).to_le_bytes();
    Ok(is_good.then(|| (data, (HEAD + TAIL) as u64 + bytes)))
}

/// Whether the file has enough bytes to fill `bytes`.
fn fill(file: &mut impl Read, bytes: &mut [u8]) -> Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn masked(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        // RFC 3720, B.4: 32 bytes of zeros.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked(&[0; 32]), 0x8a91_36aa_u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn records_are_read_up_to_the_first_that_is_not_whole() {
        let records: Vec<u8> = [&b"one"[..], b"", b"three"].into_iter().flat_map(record).collect();
        let read = |mut bytes: &[u8]| {
            let mut all = Vec::new();
            while let Some((data, _)) = next(&mut bytes).unwrap() {
                all.push(String::from_utf8(data).unwrap());
            }
            all
        };
        assert_eq!(read(&records), ["one", "", "three"]);
        for length in 0..records.len() {
            let whole = [19, 35].into_iter().filter(|end| *end <= length).count();
            assert_eq!(read(&records[..length]).len(), whole, "{length} bytes");
        }
        for place in 19..35 {
            let mut damaged = records.clone();
            damaged[place] ^= 0x10;
            assert_eq!(read(&damaged), ["one"], "byte {place}");
        }
    }
}
