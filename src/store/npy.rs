//! Vectors as NumPy's `.npy` files (the format of `numpy.lib.format`, versions 1 to 3).
//!
//! Written by hand, since the format is a header with three keys: the crates for it depend on a Python parser or
//! `ndarray`.

use std::fs;
use std::path::Path;

use crate::durable::{PathOrigin, read_error};
use crate::error::{Error, Result};

const MAGIC: &[u8] = b"\x93NUMPY";
/// The data start at a multiple of this many bytes.
const ALIGNMENT: usize = 64;

/// Writes a vector of float32 to `path`, which `place` chose.
///
/// # Errors
/// The file cannot be written.
pub fn write(place: PathOrigin, path: &Path, values: &[f32]) -> Result<()> {
    let mut bytes = header(values.len());
    values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    fs::write(path, bytes).map_err(|error| place.error(path, "write", &error))
}

/// Reads a vector of little-endian floats or integers of 16 to 64 bits.
///
/// # Errors
/// The file cannot be read, or is not such a vector or not complete.
pub fn read(path: &Path) -> Result<Vec<f64>> {
    let bytes = fs::read(path).map_err(|error| read_error(path, "read", &error))?;
    parse(&bytes).map_err(|reason| Error::file(path, format!("not a NumPy vector of numbers: {reason}")))
}

/// Magic bytes, version 1.0, length of the rest, and a Python dictionary padded with spaces.
fn header(count: usize) -> Vec<u8> {
    let dictionary = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}");
    let unpadded = MAGIC.len() + 4 + dictionary.len() + 1;
    let padding = unpadded.next_multiple_of(ALIGNMENT) - unpadded;
    let length = (dictionary.len() + padding + 1) as u16;
    let mut bytes = [MAGIC, &[1, 0], &length.to_le_bytes(), dictionary.as_bytes()].concat();
    bytes.resize(bytes.len() + padding, b' ');
    bytes.push(b'\n');
    bytes
}

fn parse(bytes: &[u8]) -> std::result::Result<Vec<f64>, String> {
    let cut = || "it ends too early".to_string();
    let rest = bytes.strip_prefix(MAGIC).ok_or("its first bytes are not NumPy's")?;
    let (version, rest) = rest.split_at_checked(2).ok_or_else(cut)?;
    let (length, rest) = rest.split_at_checked(if version[0] == 1 { 2 } else { 4 }).ok_or_else(cut)?;
    let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    let (dictionary, data) = rest.split_at_checked(length).ok_or_else(cut)?;
    let dictionary = std::str::from_utf8(dictionary).map_err(|_| "its header is not text")?;
    let descr = value(dictionary, "descr").ok_or("its header names no `descr`")?;
    let kind = descr.trim_matches(['\'', '"']);
    let shape = value(dictionary, "shape").ok_or("its header names no `shape`")?;
    let count: usize = shape
        .strip_prefix('(')
        .and_then(|inner| inner.trim().trim_end_matches(',').trim().parse().ok())
        .ok_or_else(|| format!("its shape is {}), not one number", shape.trim()))?;
    let size = kind.get(2..).and_then(|digits| digits.parse::<usize>().ok()).unwrap_or(0);
    if size == 0 || Some(data.len()) != count.checked_mul(size) {
        return Err(format!("it holds {} bytes, not {count} numbers of type `{kind}`", data.len()));
    }
    let number = |item: &[u8]| -> Option<f64> {
        Some(match kind {
            "<f2" => half::f16::from_le_bytes(item.try_into().ok()?).to_f64(),
            "<f4" => f32::from_le_bytes(item.try_into().ok()?).into(),
            "<f8" => f64::from_le_bytes(item.try_into().ok()?),
            "<i4" => i32::from_le_bytes(item.try_into().ok()?).into(),
            "<u4" => u32::from_le_bytes(item.try_into().ok()?).into(),
            "<i8" => i64::from_le_bytes(item.try_into().ok()?) as f64,
            _ => return None,
        })
    };
    let values: Option<Vec<f64>> = data.chunks_exact(size).map(number).collect();
    values.ok_or_else(|| format!("its type `{kind}` is none of <f2, <f4, <f8, <i4, <u4, <i8"))
}

/// The text after `'key':` up to the next key or the end of a tuple.
fn value<'a>(dictionary: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = dictionary.split_once(&format!("'{key}'"))?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let end = if rest.starts_with('(') { rest.find(')') } else { rest.find([',', '}']) };
    Some(rest[..end?].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_that_numpy_writes() {
        // numpy.save of numpy.array([1, 2.5], numpy.float32), as NumPy documents it: 128 bytes of header, then the
        // numbers.
        let mut expected = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        expected.extend(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }");
        expected.resize(127, b' ');
        expected.push(b'\n');
        expected.extend([0, 0, 128, 63, 0, 0, 32, 64]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        write(PathOrigin("a folder"), &path, &[1.0, 2.5]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), expected);
        assert_eq!(read(&path).unwrap(), [1.0, 2.5]);
        for count in [0, 1, 7, 99_999] {
            let values: Vec<f32> = (0..count).map(|index| index as f32).collect();
            write(PathOrigin("a folder"), &path, &values).unwrap();
            assert!((fs::read(&path).unwrap().len() - 4 * count).is_multiple_of(ALIGNMENT));
            assert!(read(&path).unwrap().iter().zip(&values).all(|(there, here)| *there == f64::from(*here)));
            assert_eq!(read(&path).unwrap().len(), count);
        }
    }

    fn file(kind: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let dictionary = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let length = (dictionary.len() as u32).to_le_bytes();
        [MAGIC, &[2, 0], &length, dictionary.as_bytes(), data].concat()
    }

    #[test]
    fn other_types_are_read() {
        assert_eq!(parse(&file("<f2", "(2,)", &[0, 0x68, 0, 0x3c])).unwrap(), [2048.0, 1.0]);
        assert_eq!(parse(&file("<i8", "(1,)", &2049i64.to_le_bytes())).unwrap(), [2049.0]);
        assert_eq!(parse(&file("<i4", "(1,)", &(-3i32).to_le_bytes())).unwrap(), [-3.0]);
        assert_eq!(parse(&file("<f8", "(1,)", &2.5f64.to_le_bytes())).unwrap(), [2.5]);
    }

    #[test]
    fn errors_say_why_a_file_is_not_a_vector() {
        let line = |bytes: &[u8]| parse(bytes).unwrap_err();
        assert_eq!(line(b"PK"), "its first bytes are not NumPy's");
        assert_eq!(line(b"\x93NUMPY\x01"), "it ends too early");
        assert_eq!(line(b"\x93NUMPY\x01\x00\xff\xff{"), "it ends too early");
        assert_eq!(line(&file("<f4", "(2, 3)", &[0; 24])), "its shape is (2, 3), not one number");
        assert_eq!(line(&file("<f4", "(2,)", &[0; 7])), "it holds 7 bytes, not 2 numbers of type `<f4`");
        assert_eq!(
            line(&file(">f4", "(1,)", &[0; 4])),
            "its type `>f4` is none of <f2, <f4, <f8, <i4, <u4, <i8"
        );
    }
}
