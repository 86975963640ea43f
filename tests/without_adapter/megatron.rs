//! Megatron's `.bin` and `.idx` files: read, written, and refused if inconsistent.

use crate::configuration;
use gristmill::data::megatron::{MegatronDataset, MegatronWriter};
use gristmill::data::{LoadedData, TokenEncoding};
use std::path::Path;

/// An index written from the description of the format, without the crate's code.
#[derive(Clone)]
struct Idx {
    magic: [u8; 9],
    version: u64,
    code: u8,
    sequences: u64,
    boundaries: u64,
    lengths: Vec<i32>,
    pointers: Vec<i64>,
    documents: Vec<i64>,
    modes: Vec<u8>,
}

impl Idx {
    fn new(code: u8, width: i64, lengths: &[i32], documents: &[i64]) -> Self {
        let mut pointer = 0;
        let mut next = |length: &i32| {
            pointer += i64::from(*length) * width;
            pointer - i64::from(*length) * width
        };
        Self {
            magic: *b"MMIDIDX\0\0",
            version: 1,
            code,
            sequences: lengths.len() as u64,
            boundaries: documents.len() as u64,
            pointers: lengths.iter().map(&mut next).collect(),
            lengths: lengths.to_vec(),
            documents: documents.to_vec(),
            modes: Vec::new(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.push(self.code);
        bytes.extend(self.sequences.to_le_bytes());
        bytes.extend(self.boundaries.to_le_bytes());
        bytes.extend(self.lengths.iter().flat_map(|length| length.to_le_bytes()));
        bytes.extend(self.pointers.iter().flat_map(|pointer| pointer.to_le_bytes()));
        bytes.extend(self.documents.iter().flat_map(|document| document.to_le_bytes()));
        bytes.extend(&self.modes);
        bytes
    }
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn write(folder: &Path, name: &str, bin: &[u8], idx: &[u8]) -> String {
    let prefix = folder.join(name).display().to_string();
    std::fs::write(format!("{prefix}.bin"), bin).expect("a file");
    std::fs::write(format!("{prefix}.idx"), idx).expect("a file");
    prefix
}

/// Reads a pair of files and writes its sequences to another pair.
fn copy(from: &str, to: &str) -> [Vec<u8>; 2] {
    let dataset = MegatronDataset::open(from).unwrap_or_else(|e| panic!("{e}"));
    let mut writer = MegatronWriter::create(to, dataset.encoding(), false).unwrap_or_else(|e| panic!("{e}"));
    for document in 0..dataset.documents() {
        for sequence in dataset.document(document) {
            writer.sequence(&dataset.sequence(sequence)).unwrap_or_else(|e| panic!("{e}"));
        }
        writer.end_document();
    }
    writer.finish().unwrap_or_else(|e| panic!("{e}"));
    [".bin", ".idx"].map(|ending| std::fs::read(format!("{to}{ending}")).expect("a file"))
}

#[test]
fn reading_and_writing_gives_the_same_bytes() {
    let folder = place();
    for (code, encoding) in [
        (1, TokenEncoding::U8),
        (2, TokenEncoding::I8),
        (3, TokenEncoding::I16),
        (4, TokenEncoding::I32),
        (5, TokenEncoding::I64),
        (8, TokenEncoding::U16),
    ] {
        let width = encoding.bytes();
        let tokens: Vec<u64> = (0..12).map(|i| i * 11).chain([u64::from(encoding.largest())]).collect();
        let bin: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()[..width].to_vec()).collect();
        // Five sequences, one of them empty, in three documents, one of them empty.
        let mut idx = Idx::new(code, width as i64, &[4, 0, 3, 5, 1], &[0, 2, 2, 5]);
        for modes in [&[][..], &[0, 1, 0, 1, 1]] {
            idx.modes = modes.to_vec();
            let name = format!("{code}_{}", modes.len());
            let from = write(folder.path(), &name, &bin, &idx.bytes());
            let dataset = MegatronDataset::open(&from).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((dataset.sequences(), dataset.documents(), dataset.encoding()), (5, 3, encoding));
            assert_eq!(dataset.sequence(2), [44, 55, 66]);
            let copied = copy(&from, &format!("{from}_copy"));
            let without_modes = Idx { modes: Vec::new(), ..idx.clone() };
            assert!(copied[0] == bin && copied[1] == without_modes.bytes(), "{encoding:?}: the copy differs");
        }
    }
}

#[test]
fn sequences_may_lie_anywhere() {
    let folder = place();
    let bin: Vec<u8> = (0..10u16).flat_map(u16::to_le_bytes).collect();
    let mut idx = Idx::new(8, 2, &[3, 2, 2], &[0, 1, 3]);
    idx.pointers = vec![14, 2, 6];
    let prefix = write(folder.path(), "order", &bin, &idx.bytes());
    // The prefix or either file name will do.
    for prefix in [prefix.clone(), format!("{prefix}.bin"), format!("{prefix}.idx")] {
        let stream = MegatronDataset::open(&prefix).unwrap_or_else(|e| panic!("{e}")).stream();
        let mut tokens = vec![0; stream.len() as usize];
        stream.read(0..stream.len(), &mut tokens);
        assert_eq!(tokens, [7, 8, 9, 1, 2, 3, 4]);
    }
}

#[test]
fn an_inconsistent_index_is_refused() {
    let folder = place();
    let good = Idx::new(8, 2, &[3, 2, 2], &[0, 1, 3]);
    let with = |change: &dyn Fn(&mut Idx)| {
        let mut idx = good.clone();
        change(&mut idx);
        idx.bytes()
    };
    let cut = |len: usize| good.bytes()[..len].to_vec();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "has 0 bytes, fewer than the header of an index"),
        (cut(33), "has 33 bytes, fewer than the header"),
        (cut(90), "promises 3 sequences and 3 document boundaries, which its 90 bytes do not hold"),
        (with(&|idx| idx.magic[0] = b'X'), "is not an index of a Megatron data set"),
        (with(&|idx| idx.version = 2), "has version 2; only version 1 is supported"),
        (with(&|idx| idx.code = 7), "stores elements of type 7 (floating point), which are not token ids"),
        (with(&|idx| idx.code = 9), "stores elements of type 9, which are not token ids"),
        (with(&|idx| idx.sequences = 4), "promises 4 sequences"),
        (with(&|idx| idx.sequences = u64::MAX), "promises 18446744073709551615 sequences"),
        (with(&|idx| idx.sequences = u64::MAX / 12 + 1), "sequences and 3 document boundaries"),
        (with(&|idx| idx.boundaries = 1 << 61), "promises 3 sequences and 2305843009213693952"),
        (with(&|idx| (idx.boundaries, idx.documents) = (0, Vec::new())), "has no document boundary"),
        (with(&|idx| idx.lengths[1] = -2), "says that sequence 1 has -2 tokens"),
        (
            with(&|idx| idx.lengths[2] = i32::MAX),
            "sequence 2 has 2147483647 tokens from byte 10, but the .bin file has 14 bytes",
        ),
        (with(&|idx| idx.pointers[0] = -1), "from byte -1"),
        (
            with(&|idx| idx.pointers[2] = 11),
            "sequence 2 has 2 tokens from byte 11, but the .bin file has 14 bytes",
        ),
        (with(&|idx| idx.pointers[2] = i64::MAX), "sequence 2 has 2 tokens from byte 9223372036854775807"),
        (with(&|idx| idx.documents[0] = 1), "number 0 is 1 after 0"),
        (with(&|idx| idx.documents[1] = -4), "number 1 is -4 after 0"),
        (with(&|idx| idx.documents[1] = 9), "number 2 is 3 after 9"),
        (with(&|idx| idx.documents[2] = 2), "ends its last document at sequence 2 of 3"),
    ];
    for (idx, expected) in cases {
        let prefix = write(folder.path(), "lies", &[0; 14], &idx);
        let error = MegatronDataset::open(&prefix)
            .map(|dataset| dataset.sequences())
            .expect_err(expected)
            .to_string();
        assert!(error.starts_with(&format!("{prefix}.idx: ")) && error.contains(expected), "{error}");
        assert!(
            error.ends_with("; write the pair of .bin and .idx files again") && !error.contains('\n'),
            "{error}"
        );
    }
    let error = MegatronDataset::open("no/such")
        .map(|dataset| dataset.sequences())
        .expect_err("no files")
        .to_string();
    assert!(
        error.starts_with("no/such.idx: no such file; `data_path` names weights and prefixes"),
        "{error}"
    );
}

#[test]
fn a_writer_refuses_what_it_cannot_store() {
    let folder = place();
    let prefix = folder.path().join("pair").display().to_string();
    let error = |result: gristmill::error::Result<MegatronWriter>| {
        result.map(drop).expect_err("an error").to_string()
    };
    assert!(
        error(MegatronWriter::create(&prefix, TokenEncoding::U32, false)).contains("has no code for uint32")
    );
    let mut writer = MegatronWriter::create(&prefix, TokenEncoding::U8, false).expect("a writer");
    let error_of = writer.sequence(&[3, 256]).expect_err("too large").to_string();
    assert!(
        error_of.ends_with("token 256 does not fit uint8; write the file with a wider type"),
        "{error_of}"
    );
    drop(writer);
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 0, "an unfinished writer left a file");
    std::fs::write(format!("{prefix}.idx"), "old").expect("a file");
    assert!(error(MegatronWriter::create(&prefix, TokenEncoding::U8, false)).contains("pair.idx: exists; "));
    assert_eq!(
        (MegatronWriter::encoding_for(65_499), MegatronWriter::encoding_for(65_500)),
        (TokenEncoding::U16, TokenEncoding::I32)
    );
}

/// The data of `loader`, unshuffled by default, or the error's line.
fn load(loader: &str, others: &str) -> Result<LoadedData, String> {
    configuration::load(&format!(
        "
model:
  model_config: {{ vocab_size: 200, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 4 }}
lr_schedule: {{ learning_rate: 1e-3 }}
runner_config: {{ batch_size: 1 }}
train_dataset:
  data_loader: {{ type: BlendedMegatronDatasetDataLoader, datasets_type: GPTDataset, shuffle: False, {loader} }}
{others}
"
    ))
}

/// Ten documents of five tokens: four that count up from `first`, and the end of the document, 9.
fn ten_documents(folder: &Path, name: &str, first: u16) -> String {
    let tokens = (0..50).map(|i| if i % 5 == 4 { 9 } else { first + i });
    let bin: Vec<u8> = tokens.flat_map(u16::to_le_bytes).collect();
    let idx = Idx::new(8, 2, &[5; 10], &(0..=10).collect::<Vec<_>>());
    write(folder, name, &bin, &idx.bytes())
}

#[test]
fn samples_span_documents_and_documents_are_split() {
    let folder = place();
    let prefix = ten_documents(folder.path(), "ten", 10);
    let data = load(&format!("config: {{ data_path: ['1', '{prefix}'], split: '8, 2, 0', eod: 9 }}"), "")
        .expect("data");
    let eval = data.eval.as_ref().expect("a part for evaluation");
    assert_eq!([data.train.ranges(), eval.ranges()].concat(), [0..40, 40..50]);
    assert_eq!(data.summary[1], "evaluation data: the last 10 of these 50 tokens");
    // Windows of 4 + 1 tokens across the ends of documents; targets are the tokens shifted by one.
    let first = data.train.batch(1).expect("a batch");
    assert_eq!((first.tokens, first.targets), (vec![9, 15, 16, 17], vec![15, 16, 17, 18]));
    let third =
        load(&format!("config: {{ data_path: '{prefix}', split: '0.5, 0.2, 0.3' }}"), "").expect("data");
    assert_eq!([third.train.ranges(), third.eval.expect("a part").ranges()].concat(), [0..25, 25..35]);
    let sized = load(&format!("sizes: [30, 0, 0], config: {{ data_path: '{prefix}' }}"), "").expect("data");
    assert_eq!(sized.train.steps_per_epoch(), 30, "an epoch has 30 samples although there are 12 windows");
    assert!(sized.eval.is_none());
}

#[test]
fn the_loaders_own_keys_reach_the_batches() {
    let folder = place();
    let prefix = ten_documents(folder.path(), "ten", 10);
    let batch = |keys: &str, others: &str| {
        let data = load(&format!("config: {{ data_path: '{prefix}', eod: 9, {keys} }}"), others);
        data.unwrap_or_else(|e| panic!("{e}")).train.batch(1).expect("a batch")
    };
    assert_eq!(batch("eod_mask_loss: True", "").targets, [u32::MAX, 16, 17, 18]);
    assert_eq!(batch("reset_position_ids: True", "").positions, [0, 0, 1, 2]);
    for isolating in ["reset_attention_mask: True", "create_compressed_eod_mask: True, eod_pad_length: 128"] {
        let batch = batch(isolating, "");
        assert_eq!((batch.starts, batch.ends), (vec![0, 1, 1, 1], vec![1, 4, 4, 4]));
        assert_eq!(batch.positions, [0, 1, 2, 3]);
    }
    let both = batch("pad: 16", "  eod_reset: True");
    assert_eq!((both.tokens, both.targets), (vec![9, 15, 0, 17], vec![15, u32::MAX, 17, 18]));
    assert_eq!((both.positions, both.starts), (vec![0, 0, 1, 2], vec![0, 1, 1, 1]));
}

#[test]
fn blends_and_ids_outside_the_vocabulary() {
    let folder = place();
    let (a, b) = (ten_documents(folder.path(), "a", 10), ten_documents(folder.path(), "b", 100));
    let data = load(&format!("config: {{ data_path: ['3', '{a}', '1', '{b}'] }}"), "").expect("data");
    assert_eq!(data.summary.len(), 2);
    assert!(
        data.summary[1]
            .starts_with("training data (25.0 % of the samples): 50 tokens of 10 documents mapped from ")
    );
    let of_b = (0..24)
        .filter(|step| data.train.batch(*step).expect("a batch").tokens.iter().any(|token| *token >= 100));
    assert_eq!(of_b.count(), 6);

    // A multimodal data set has a mode for each sequence.
    let mut idx = Idx::new(8, 2, &[20], &[0, 1]);
    idx.modes = vec![1];
    let bin: Vec<u8> = (0..20u16).flat_map(u16::to_le_bytes).collect();
    let prefix = write(folder.path(), "modes", &bin, &idx.bytes());
    let data = load(&format!("config: {{ data_path: '{prefix}' }}"), "").expect("data");
    let note = "the modes of its sequences are not read, and all of them are trained as text";
    assert!(data.summary.iter().any(|line| line.ends_with(note)), "{:?}", data.summary);

    // -1 is no token id; loading checks every token that would be read.
    let bin: Vec<u8> = (0..20i32).map(|i| if i == 7 { -1 } else { i }).flat_map(i32::to_le_bytes).collect();
    let prefix = write(folder.path(), "negative", &bin, &Idx::new(4, 4, &[20], &[0, 1]).bytes());
    let error = load(&format!("config: {{ data_path: '{prefix}' }}"), "")
        .map(|data| data.summary)
        .expect_err("no id");
    assert!(error.starts_with("the value at position 7 of the data is not a token id"), "{error}");
    let empty = write(folder.path(), "empty", &[], &Idx::new(4, 4, &[], &[0]).bytes());
    let error =
        load(&format!("config: {{ data_path: '{empty}' }}"), "").map(|data| data.summary).expect_err("empty");
    assert!(error.contains("empty.bin: contains no tokens"), "{error}");
}

proptest::proptest! {
    /// Any index gives either a data set that can be read completely or an error of one line.
    #[test]
    fn no_index_panics(
        at in 0usize..96,
        garbage in proptest::collection::vec(proptest::prelude::any::<u8>(), 1..17),
        len in 0usize..110,
        keep in proptest::prelude::any::<bool>(),
    ) {
        let folder = place();
        let mut idx = Idx::new(8, 2, &[3, 2, 2], &[0, 1, 3]).bytes();
        for (byte, new) in idx.iter_mut().skip(at).zip(garbage) {
            *byte = new;
        }
        if !keep {
            idx.resize(len, 1);
        }
        let prefix = write(folder.path(), "fuzz", &[7; 14], &idx);
        match MegatronDataset::open(&prefix) {
            Ok(dataset) => {
                let stream = dataset.stream();
                let mut tokens = vec![0; stream.len() as usize];
                stream.read(0..stream.len(), &mut tokens);
                let counted: usize = (0..dataset.sequences()).map(|i| dataset.sequence(i).len()).sum();
                proptest::prop_assert_eq!(counted, tokens.len());
                let sequences: usize = (0..dataset.documents()).map(|document| dataset.document(document).len()).sum();
                proptest::prop_assert_eq!(sequences, dataset.sequences());
            }
            Err(error) => proptest::prop_assert!(!error.to_string().contains('\n')),
        }
    }
}
