//! What MindSpore wrote is read as MindSpore reads it, and anything else is one line.

use super::{COLUMNS, SHARDS, copied, fixture};
use gristmill::data::mindrecord::MindRecordFile;
use proptest::prelude::*;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The rows of a column.
fn rows(file: &MindRecordFile, column: &str) -> Vec<Vec<i64>> {
    let column = file.column(column).unwrap_or_else(|error| panic!("{error}"));
    (0..file.rows()).map(|row| file.elements(row, column).collect()).collect()
}

/// The answer about a file that cannot be read, without its folder.
fn answer(path: &Path) -> String {
    let message = MindRecordFile::open(path).map(|_| ()).unwrap_err().to_string();
    assert!(!message.contains('\n'), "one line: {message}");
    let folder = format!("{}/", path.parent().expect("a folder").display());
    message.replacen(&folder, "", 1)
}

/// Both files read equal to what MindSpore reads from them.
#[test]
fn rows_are_those_that_mindspore_reads() {
    let json = fs::read_to_string(fixture("rows.json")).expect("a file");
    let wanted: Value = serde_json::from_str(&json).expect("JSON");
    for (files, columns) in [
        (&SHARDS[..], &["input_ids"][..]),
        (&[COLUMNS], &["input_ids", "labels", "attention_mask", "loss_mask"]),
    ] {
        let opened: Vec<_> = files
            .iter()
            .map(|file| MindRecordFile::open(&fixture(file)).unwrap_or_else(|error| panic!("{error}")))
            .collect();
        assert_eq!(opened[0].shards(), files);
        let wanted = wanted[files[0]].as_array().expect("rows");
        for column in columns {
            let found: Vec<_> = opened.iter().flat_map(|file| rows(file, column)).collect();
            let wanted: Vec<Vec<i64>> = wanted
                .iter()
                .map(|row| serde_json::from_value(row[column].clone()).expect("numbers"))
                .collect();
            assert_eq!(found, wanted, "{column} of {files:?}");
        }
    }
}

#[test]
fn columns_that_are_no_arrays_of_whole_numbers() {
    let file = MindRecordFile::open(&fixture(COLUMNS)).expect("a file");
    let answer = |column: &str| {
        let message = file.column(column).map(|_| ()).unwrap_err().to_string();
        message.split_once(": ").expect("a path").1.to_string()
    };
    let remedy = "write token ids as arrays of int32 or int64";
    assert_eq!(answer("weight"), format!("column `weight` has the type array of float32; {remedy}"));
    assert_eq!(answer("filling"), format!("column `filling` has the type bytes; {remedy}"));
    assert_eq!(answer("number"), format!("column `number` has the type int32; {remedy}"));
    let names = "attention_mask, filling, input_ids, labels, loss_mask, name, number, weight";
    assert_eq!(answer("ids"), format!("has no column `ids`; name one of {names} in `input_columns`"));
}

#[test]
fn data_files_that_are_cut_or_of_another_kind() {
    let (_folder, path) = copied(&[COLUMNS]);
    let bytes = fs::read(&path).expect("a file");
    let cut = |len: usize| {
        fs::write(&path, &bytes[..len]).expect("a file");
        answer(&path)
    };
    let again = "it was cut; copy it again";
    assert_eq!(cut(bytes.len() - 1), format!("columns.mindrecord: ends within page 2: {again}"));
    assert_eq!(cut(30_000), format!("columns.mindrecord: ends within page 0: {again}"));
    assert_eq!(cut(100), format!("columns.mindrecord: ends within its header: {again}"));
    let other = "columns.mindrecord: is not a MindRecord file: it does not start with a header in JSON";
    assert_eq!(cut(0), other);
    fs::write(&path, "a file of text").expect("a file");
    assert_eq!(answer(&path), other);
    fs::write(&path, replaced(&bytes, b"\"version\":\"3.0\"", b"\"version\":\"4.0\"")).expect("a file");
    assert_eq!(answer(&path), "columns.mindrecord: has version `4.0`; versions 2.0 and 3.0 are read");
}

#[test]
fn a_damaged_length_of_a_row() {
    let (_folder, path) = copied(&SHARDS[..1]);
    let mut bytes = fs::read(&path).expect("a file");
    bytes[16384] += 1;
    fs::write(&path, &bytes).expect("a file");
    assert_eq!(answer(&path), "shards.mindrecord0: page 0 is malformed; copy the file again");
}

/// A row of one column is an array: the number of elements, two bits for the width of each, the elements.
#[test]
fn arrays_that_do_not_fill_their_row() {
    let (_folder, path) = copied(&SHARDS[..1]);
    let bytes = fs::read(&path).expect("a file");
    assert_eq!(bytes[16392..16397], [0, 0, 0, 17, 0], "the length and the widths of the first row");
    for (at, damaged) in [(16395, 16), (16395, 18), (16392, 1), (16396, 0x40)] {
        let mut bytes = bytes.clone();
        bytes[at] = damaged;
        fs::write(&path, &bytes).expect("a file");
        let wanted =
            "shards.mindrecord0: row 0 is malformed: its columns do not fill it; copy the file again";
        assert_eq!(answer(&path), wanted, "byte {at}");
    }
}

/// The lengths of `filling`, which is followed by other columns, and of `weight`, the last column of a row.
#[test]
fn columns_that_do_not_fill_their_row() {
    let (_folder, path) = copied(&[COLUMNS]);
    let bytes = fs::read(&path).expect("a file");
    let weight = [8u64.to_be_bytes(), bytemuck::cast([0.5f32; 2])].concat();
    for (sound, column) in [(10_000u64, &10_000u64.to_be_bytes()[..]), (8, &weight)] {
        let found = bytes.windows(column.len()).enumerate().filter(|(_, window)| *window == column);
        let places: Vec<usize> = found.map(|(at, _)| at).collect();
        assert_eq!(places.len(), 5, "one a row");
        for (row, at) in places.into_iter().enumerate() {
            for length in [0, sound - 1, sound + 1, u64::MAX] {
                let mut bytes = bytes.clone();
                bytes[at..at + 8].copy_from_slice(&length.to_be_bytes());
                fs::write(&path, &bytes).expect("a file");
                let wanted = "is malformed: its columns do not fill it; copy the file again";
                assert_eq!(
                    answer(&path),
                    format!("columns.mindrecord: row {row} {wanted}"),
                    "{length} bytes"
                );
            }
        }
    }
}

/// `bytes` with every `from` replaced by `to` of the same length.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let places: Vec<_> = bytes
        .windows(from.len())
        .enumerate()
        .filter(|(_, window)| *window == from)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty(), "{} must occur", String::from_utf8_lossy(from));
    places.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to));
    bytes
}

/// Reads all columns of a file; what is wrong with it is one line.
fn read_all(path: &Path) {
    match MindRecordFile::open(path) {
        Ok(file) => {
            let names: Vec<String> = file.columns().map(str::to_string).collect();
            for column in names.iter().filter_map(|name| file.column(name).ok()) {
                for row in 0..file.rows() {
                    assert_eq!(file.elements(row, column).count(), file.len_of(row, column));
                }
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "one line: {error}"),
    }
}

/// Where bytes of a file are damaged: mostly where something is written.
fn places(pages: std::ops::Range<usize>) -> impl Strategy<Value = Vec<(usize, u8)>> {
    let place = prop_oneof![4 => 0..1200usize, 2 => pages, 1 => 0..60_000usize];
    proptest::collection::vec((place, any::<u8>()), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A damaged or cut file is read or refused; it neither panics nor takes memory that the file does not have.
    #[test]
    fn damaged_files(
        changes in places(16_384..16_700),
        len in prop_oneof![8 => Just(usize::MAX), 1 => 0..49_230usize],
    ) {
        let (_folder, path) = copied(&SHARDS[..1]);
        let mut bytes = fs::read(&path).expect("a file");
        for (place, byte) in changes {
            let place = place % bytes.len();
            // A digit stays one, or hardly any header would be JSON.
            let is_digit = bytes[place].is_ascii_digit();
            bytes[place] = if is_digit { b'0' + byte % 10 } else { bytes[place] ^ byte };
        }
        bytes.truncate(len);
        fs::write(&path, bytes).expect("a file");
        read_all(&path);
    }
}
