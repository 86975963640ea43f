use std::fs;
use std::io::{self, Write};

use proptest::prelude::*;
use safetensors::SafeTensors;

use super::*;

fn info(name: &str, dtype: Dtype, shape: &[usize]) -> TensorInfo {
    TensorInfo { name: name.into(), dtype, shape: shape.to_vec() }
}

/// Bytes that differ from tensor to tensor and from place to place.
fn pattern(index: usize, size: usize) -> Vec<u8> {
    (0..size).map(|place| (place * 31 + index * 7 + 1) as u8).collect()
}

fn write(path: &Path, tensors: &[TensorInfo]) -> Result<()> {
    let metadata =
        HashMap::from([("format".to_owned(), "pt".to_owned()), ("step".to_owned(), "10".to_owned())]);
    TensorFile::write(path, tensors, metadata, |index, sink| {
        // Pieces of odd size, so that a tensor is never a single write.
        pattern(index, tensors[index].size_bytes().unwrap()).chunks(5).try_for_each(|piece| sink.put(piece))
    })
}

fn mixed() -> Vec<TensorInfo> {
    vec![
        info("layers.0.norm.weight", Dtype::BF16, &[3]),
        info("embedding", Dtype::F32, &[5, 4]),
        info("flags", Dtype::U8, &[7]),
        info("empty", Dtype::F32, &[0, 4]),
        info("step", Dtype::U64, &[]),
        info("layers.0.gate \"é\"", Dtype::F16, &[2, 1, 3]),
    ]
}

#[test]
fn reads_back_what_was_written_and_so_does_the_safetensors_crate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tensors = mixed();
    write(&path, &tensors).unwrap();

    let bytes = fs::read(&path).unwrap();
    let foreign_reader = SafeTensors::deserialize(&bytes).unwrap();
    let file = TensorFile::open(&path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    assert_eq!(file.names().len(), tensors.len());
    assert_eq!(foreign_reader.len(), tensors.len());
    for (index, tensor) in tensors.iter().enumerate() {
        let expected = pattern(index, tensor.size_bytes().unwrap());
        assert_eq!(file.tensor(&tensor.name).unwrap(), (&tensor.shape[..], tensor.dtype, &expected[..]));
        assert_eq!(foreign_reader.tensor(&tensor.name).unwrap().data(), expected);
        let width = tensor.dtype.bitsize() / 8;
        let address = file.tensor(&tensor.name).unwrap().2.as_ptr() as usize;
        assert_eq!(address % width, 0, "{} starts inside an element", tensor.name);
    }
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(header % 8, 0);
    let missing = file.tensor("layers.9").unwrap_err().to_string();
    assert!(missing.contains("model.safetensors: holds no tensor `layers.9`"), "{missing}");
}

#[test]
fn reads_what_the_safetensors_crate_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("foreign.safetensors");
    let data = pattern(0, 24);
    let view = safetensors::tensor::TensorView::new(Dtype::F32, vec![2, 3], &data).unwrap();
    fs::write(&path, safetensors::serialize([("w", view)], None).unwrap()).unwrap();
    let file = TensorFile::open(&path).unwrap();
    assert_eq!(file.tensor("w").unwrap(), (&[2, 3][..], Dtype::F32, &data[..]));
}

#[test]
fn equal_contents_are_equal_files() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| folder.path().join(name));
    paths.iter().for_each(|path| write(path, &mixed()).unwrap());
    assert_eq!(fs::read(&paths[0]).unwrap(), fs::read(&paths[1]).unwrap());
}

#[test]
fn every_truncation_is_one_line_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    write(&whole, &mixed()).unwrap();
    let bytes = fs::read(&whole).unwrap();
    let cut = folder.path().join("cut");
    for length in 0..bytes.len() {
        fs::write(&cut, &bytes[..length]).unwrap();
        let line = TensorFile::open(&cut).expect_err("a truncated file was accepted").to_string();
        assert!(line.contains("cut: ") && line.lines().count() == 1, "{line}");
        assert!(line.contains("truncated") || line.contains("cut off in its header"), "{length}: {line}");
    }
    fs::write(&cut, [&bytes[..], b"x"].concat()).unwrap();
    assert!(TensorFile::open(&cut).unwrap_err().to_string().contains("1 unknown bytes follow"));
}

#[test]
fn foreign_and_hostile_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("foreign");
    let with_header = |json: &str| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    let last = u64::MAX;
    let most = last / 8;
    // Ranges that add up to the largest number there is: a reader that adds the header's length to it overflows.
    let overflow: Vec<String> = (0..8)
        .map(|part| (most * part, if part == 7 { last - 7 } else { most * (part + 1) }))
        .map(|(start, end)| {
            let length = end - start;
            format!(r#""t{start}":{{"dtype":"U8","shape":[{length}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    let hostile = [
        b"PK\x03\x04 a zip archive of another program".to_vec(),
        with_header("not json"),
        with_header(r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}}"#),
        with_header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#),
        with_header(r#"{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#),
        with_header(&format!(r#"{{"a":{{"dtype":"F32","shape":[{most},{most}],"data_offsets":[0,4]}}}}"#)),
        with_header(&format!("{{{}}}", overflow.join(","))),
    ];
    for bytes in hostile {
        fs::write(&path, &bytes).unwrap();
        let line = TensorFile::open(&path).unwrap_err().to_string();
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("not a safetensors file") || line.contains("truncated"), "{line}");
    }
    assert!(TensorFile::open(folder.path()).is_err(), "a folder is not a file");
    let line = TensorFile::open(&folder.path().join("none")).unwrap_err().to_string();
    assert!(line.ends_with("none: cannot open: no such file or folder"), "{line}");
}

#[test]
fn a_tensor_of_the_wrong_length_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let tensors = [info("w", Dtype::F32, &[2])];
    for (size, difference) in [(7, "1 fewer"), (12, "4 more")] {
        let written =
            TensorFile::write(&path, &tensors, HashMap::new(), |_, sink| sink.put(&pattern(0, size)));
        let line = written.unwrap_err().to_string();
        assert!(line.contains(&format!("tensor `w` was given {difference} bytes")), "{line}");
    }
    let twice = [info("w", Dtype::F32, &[1]), info("w", Dtype::F32, &[1])];
    assert!(write(&path, &twice).unwrap_err().to_string().contains("`w` is taken"));
    let huge = [info("w", Dtype::F32, &[usize::MAX, 2])];
    let written = TensorFile::write(&path, &huge, HashMap::new(), |_, _| Ok(()));
    assert!(written.unwrap_err().to_string().contains("no whole number of bytes"));
}

/// A disk with room for `room` bytes.
struct SmallDisk {
    room: usize,
}

impl Write for SmallDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.room);
        self.room -= taken;
        if taken == 0 && !bytes.is_empty() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_named_wherever_it_strikes() {
    let tensors = mixed();
    let full = |room| {
        let mut file = TensorWriter::begin(SmallDisk { room }, Path::new("w.bin"), &tensors, HashMap::new())?;
        for index in file.order() {
            let mut sink = file.sink(index);
            sink.put(&pattern(index, sink.missing_bytes))?;
            sink.finish()?;
        }
        file.end()
    };
    let mut room = 0;
    while let Err(error) = full(room) {
        let line = error.to_string();
        assert!(line.starts_with("w.bin: cannot write: disk full"), "{room}: {line}");
        room += 1;
    }
    let data: usize = tensors.iter().filter_map(TensorInfo::size_bytes).sum();
    assert!(room > data, "the write succeeded with {room} bytes of room");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_headers_never_panic(place in 0usize..400, value: u8) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged");
        write(&path, &mixed()).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let place = place % bytes.len();
        bytes[place] = value;
        fs::write(&path, &bytes).unwrap();
        if let Ok(file) = TensorFile::open(&path) {
            for name in file.names() {
                let (_, _, _) = file.tensor(&name).unwrap();
            }
        }
    }
}
