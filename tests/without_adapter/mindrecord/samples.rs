//! Batches of `MindDataset`, and its rows as files of token ids.

use super::{COLUMNS, SHARDS, copied, fixture};
use crate::configuration::{load, plan};
use gristmill::data::tokenize::{TokenFormat, copy_mindrecord};
use gristmill::data::{Batch, LoadedData};
use std::fs;
use std::path::Path;

const TEXT: &str = "tests/data/mill.txt";

/// The target of a token without a label: no id of the vocabulary, as `ignore_token_id` is negative.
const NONE: u32 = u32::MAX;

/// A configuration with this loader and these keys of `train_dataset`, one sample a step.
fn yaml(loader: &str, others: &str, vocab_size: usize, seq_length: usize) -> String {
    format!(
        "
model:
  model_config: {{ vocab_size: {vocab_size}, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: {seq_length} }}
lr_schedule: {{ learning_rate: 1e-3 }}
runner_config: {{ batch_size: 1 }}
train_dataset: {{ data_loader: {{ shuffle: False, {loader} }}, {others} }}
"
    )
}

fn mindrecord(paths: &str, others: &str) -> Result<LoadedData, String> {
    load(&yaml(&format!("type: MindDataset, {paths}"), others, 100_000, 16))
}

fn batches(data: &LoadedData) -> Vec<Batch> {
    (0..data.train.micro_steps_per_epoch()).map(|step| data.train.batch(step).expect("a batch")).collect()
}

fn dir(path: &Path) -> String {
    format!("dataset_dir: '{}'", path.display())
}

/// The first shard stands for both, as do the folder and the list; all are the windows of the text. What is beside a
/// data file as its index does not matter.
#[test]
fn rows_are_the_samples() {
    let text = format!("type: TextDataLoader, dataset_files: {TEXT}, max_bytes: 210");
    let wanted = batches(&load(&yaml(&text, "", 100_000, 16)).expect("data"));
    assert_eq!(wanted.len(), 13);
    let of_rows = |paths: &str| mindrecord(paths, "").unwrap_or_else(|error| panic!("{paths}: {error}"));
    let (folder, first) = copied(&SHARDS);
    fs::write(folder.path().join("shards.mindrecord0.db"), "no index").expect("a file");
    let listed = format!("dataset_files: ['{}', '{}']", first.display(), fixture(SHARDS[1]).display());
    for paths in [dir(&first), dir(folder.path()), listed] {
        let data = of_rows(&paths);
        assert_eq!(batches(&data), wanted, "{paths}");
        assert_eq!(data.summary, ["training data: 13 samples of 16 tokens mapped from 2 MindRecord files"]);
        assert_eq!(data.train.fingerprint(), of_rows(&dir(&first)).train.fingerprint());
    }
    let other =
        of_rows(&format!("dataset_files: ['{}', '{}']", fixture(SHARDS[1]).display(), first.display()));
    assert_ne!(other.train.fingerprint(), of_rows(&dir(&first)).train.fingerprint());
}

/// Llama in MindFormers: nothing is predicted from padding, nor where the label says so, unless a loss mask says it
/// all.
#[test]
fn labels_and_masks() {
    let ids = [1, 127, 128, 32767, 32768, 70000, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    let row = |row: u32, len: usize| -> Vec<u32> {
        let id = |at: usize| if at >= len { 0 } else { ids[at] };
        std::iter::once(row + 1).chain((1..17).map(id)).collect()
    };
    let path = dir(&fixture(COLUMNS));
    for (columns, is_target) in [
        ("[input_ids]", (|at, len| at < len) as fn(usize, usize) -> bool),
        ("[input_ids, labels]", |at, len| at >= 3 && at + 1 < len),
        ("[input_ids, labels, attention_mask]", |at, len| at >= 3 && at + 1 < len),
        ("[input_ids, loss_mask]", |at, _| at % 3 != 0),
    ] {
        let data =
            mindrecord(&path, &format!("input_columns: {columns}")).unwrap_or_else(|error| panic!("{error}"));
        for (index, batch) in batches(&data).into_iter().enumerate() {
            let (row, len) = (row(index as u32, 17 - 3 * index), 17 - 3 * index);
            let targets = (0..16).map(|at| if is_target(at, len) { row[at + 1] } else { NONE });
            assert_eq!(batch.tokens, row[..16], "{columns}");
            assert_eq!(batch.targets, targets.collect::<Vec<_>>(), "row {index} of {columns}");
        }
    }
    let unpadded = mindrecord(&path, "pad_token_id: -1").expect("data");
    assert!(batches(&unpadded).iter().all(|batch| !batch.targets.contains(&NONE)));
    // Rows as long as the sequence have labels that are shifted.
    let shifted =
        yaml(&format!("type: MindDataset, {path}"), "input_columns: [input_ids, labels]", 100_000, 17);
    let first = &batches(&load(&shifted).expect("data"))[0];
    assert_eq!((first.tokens.clone(), &first.targets[4..]), (row(0, 17), &row(0, 17)[4..]));
}

#[test]
fn documents_within_a_row() {
    let keys = "eod_token_id: 2, eod_reset: True";
    let data = mindrecord(&dir(&fixture(COLUMNS)), keys).unwrap_or_else(|error| panic!("{error}"));
    let first = &batches(&data)[0];
    assert_eq!(first.positions[..9], [0, 1, 2, 3, 4, 5, 6, 0, 1]);
    assert_eq!((first.starts[6], first.starts[7]), (0, 7));
}

#[test]
fn what_does_not_fit_is_one_line() {
    let answer = |paths: &str, others: &str| {
        let message = mindrecord(paths, others).map(|_| ()).unwrap_err();
        assert!(!message.contains('\n'), "one line: {message}");
        message
    };
    let (folder, first) = copied(&SHARDS);
    let ends = |message: String, end: &str| assert!(message.ends_with(end), "{message}");
    let long =
        load(&yaml(&format!("type: MindDataset, {}", dir(&first)), "", 256, 24)).map(|_| ()).unwrap_err();
    let wanted = "shards.mindrecord0: row 0 has 17 tokens, and for a seq_length of 24 a row has 25; set model.model_config.seq_length \
                  to 16, or write rows of that length";
    ends(long, wanted);
    ends(
        answer(&dir(&first), "input_columns: [input_ids, labels]"),
        "shards.mindrecord0: has no column `labels`; name one of input_ids in `input_columns`",
    );
    ends(
        answer(&dir(&first), "input_columns: [input_ids, position_ids]"),
        "`input_columns`: MindDataset does not read `position_ids`; name some of input_ids, loss_mask, labels, target_ids, \
         attention_mask, input_mask",
    );
    ends(answer(&dir(&first), "input_columns: [labels]"), "`input_columns`: names no `input_ids`; add it");
    let small =
        load(&yaml(&format!("type: MindDataset, {}", dir(&first)), "", 100, 16)).map(|_| ()).unwrap_err();
    assert!(small.contains("is outside vocab_size 100"), "{small}");

    fs::remove_file(folder.path().join(SHARDS[1])).expect("a file");
    let missing = "shards.mindrecord1: no such file; it is one of the 2 that `shards.mindrecord0` was written with: copy it beside \
                   that file, or list the files to read in `dataset_files`";
    ends(answer(&dir(&first), ""), missing);
    ends(answer(&dir(folder.path()), ""), missing);
    let empty = tempfile::tempdir().expect("a folder");
    ends(
        answer(&dir(empty.path()), ""),
        "no *.mindrecord file found; name one with `dataset_dir` or `dataset_files`",
    );
    let lost = answer(&dir(&empty.path().join("x.mindrecord")), "");
    ends(lost, "x.mindrecord: no such file or folder; correct `dataset_dir` or `dataset_files`");
}

/// Their rows as our token files, in each format.
#[test]
fn rows_as_token_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("rows.bin");
    let path = output.display();
    for (format, loader) in [
        (TokenFormat::Plain, format!("type: TokenDataLoader, dataset_files: '{path}'")),
        (
            TokenFormat::Megatron,
            format!("type: BlendedMegatronDatasetDataLoader, config: {{ data_path: '{path}' }}"),
        ),
    ] {
        let copy = |file: &str, column: &str, force: bool| {
            let inputs = [fixture(file).display().to_string()];
            copy_mindrecord(&inputs, column, &output, format, force, |_, _| {})
        };
        let summary = copy(SHARDS[0], "input_ids", true).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((summary.documents, summary.tokens, summary.files), (13, 13 * 17, 2));
        let data = load(&yaml(&loader, "", 256, 17)).unwrap_or_else(|error| panic!("{error}"));
        let text = fs::read(TEXT).expect("a text");
        let first: Vec<u32> = text[..17].iter().map(|byte| u32::from(*byte)).collect();
        assert_eq!(data.train.batch(0).expect("a batch").tokens, first, "{format:?}");
        assert!(copy(SHARDS[0], "input_ids", false).is_err());
        let negative = copy(COLUMNS, "labels", true).unwrap_err().to_string();
        assert!(
            negative.contains("columns.mindrecord: row 0 has a value that is not a token id"),
            "{negative}"
        );
    }
}

#[test]
fn settings_without_a_folder_wait_for_one() {
    let text = yaml("type: MindDataset, dataset_dir: ''", "", 256, 16);
    let message = plan(&text, &[]).map(|_| ()).unwrap_err().to_string();
    assert!(message.contains("needs `dataset_dir` or `dataset_files`"), "{message}");
    let plan =
        plan(&text, &["--train_dataset_dir", "a.mindrecord"]).unwrap_or_else(|error| panic!("{error}"));
    let keys = &plan.settings.train_dataset.keys;
    assert_eq!(
        (keys.input_columns.clone(), keys.pad_token_id),
        (Some(vec!["input_ids".to_string()]), Some(0))
    );
    // Files of MindFormers name a class of tokenizer beside them.
    let others = "tokenizer: {type: GPT2Tokenizer, max_length: 1025}";
    let data = mindrecord(&dir(&fixture(COLUMNS)), others).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(data.train.rows_per_epoch(), 5);
}
