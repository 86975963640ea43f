//! Loaders of records: the samples that they form, beside those of MindFormers, and what they refuse.

use crate::configuration;
use gristmill::data::{Batch, LoadedData};
use std::path::Path;

const FOLDER: &str = "tests/data/samples";
/// What `original.py` wrote.
const ORIGINAL: &str = include_str!("../data/samples/original.json");
/// Id of targets that the loss ignores.
const IGNORED: u32 = u32::MAX;
const TOKENIZER: &str = "  tokenizer: {tokenizer_file: tests/data/samples/tokenizer.json, eos_token: </s>}";

/// A row of MindFormers: ids, and labels of which -100 is not predicted.
type Row = (Vec<u32>, Vec<u32>);

/// Loads `data_loader: {loader}` with the other keys `others`, in rows of `seq_length` tokens, one to a batch.
fn load(loader: &str, others: &str, seq_length: usize) -> Result<LoadedData, String> {
    configuration::load(&format!(
        "
model: {{ model_config: {{ type: LlamaConfig, hidden_size: 32, num_layers: 1, num_heads: 1, vocab_size: 512, seq_length: {seq_length} }} }}
runner_config: {{ epochs: 1, batch_size: 1 }}
optimizer: {{ type: AdamW }}
lr_schedule: {{ type: ConstantWarmUpLR, learning_rate: 1.e-3 }}
train_dataset:
  data_loader: {{ shuffle: False, {loader} }}
{others}
"
    ))
}

fn batches(data: &LoadedData) -> Vec<Batch> {
    (0..data.train.steps_per_epoch()).map(|step| data.train.batch(step).expect("a batch")).collect()
}

fn original(key: &str) -> Vec<Row> {
    let all: serde_json::Value = serde_json::from_str(ORIGINAL).expect("JSON");
    let numbers = |value: &serde_json::Value| -> Vec<u32> {
        let values = value.as_array().expect("a list").iter();
        values.map(|id| u32::try_from(id.as_i64().expect("a number")).unwrap_or(IGNORED)).collect()
    };
    all[key].as_array().expect("rows").iter().map(|row| (numbers(&row[0]), numbers(&row[1]))).collect()
}

#[test]
fn prompts_and_answers_are_the_original_s() {
    for (version, lengths, seq_length) in [
        (2, "  max_source_length: 64\n  max_target_length: 30", 95),
        (3, "  max_source_length: 32\n  max_target_length: 30", 63),
    ] {
        let loader = format!(
            "type: ADGenDataLoader, dataset_dir: {FOLDER}/adgen.jsonl, phase: train, version: {version}"
        );
        let data = load(&loader, &format!("{TOKENIZER}\n{lengths}"), seq_length).expect("data");
        let got: Vec<Row> = batches(&data).into_iter().map(|batch| (batch.tokens, batch.targets)).collect();
        assert_eq!(got, original(&format!("adgen_{version}")), "version {version}");
        assert!(data.summary[0].starts_with("training data: 3 samples of 1 file: "), "{}", data.summary[0]);
        assert!(data.summary[0].ends_with(" cut"), "{}", data.summary[0]);
    }
}

#[test]
fn alpacas_records_are_the_original_s() {
    let loader = format!(
        "type: CommonDataLoader, path: json, data_files: {FOLDER}/alpaca.json, handler: [{{type: AlpacaInstructDataHandler, seq_length: 640}}]"
    );
    let data = load(&loader, TOKENIZER, 640).expect("data");
    for (batch, (mut ids, mut labels)) in batches(&data).into_iter().zip(original("alpaca")) {
        ids.resize(640, 0);
        labels.resize(640, IGNORED);
        assert_eq!((batch.tokens, batch.targets), (ids, labels));
    }
    assert_eq!(data.train.steps_per_epoch(), 3);
}

/// Ready token ids of these lengths, in each of the two forms that labels have.
fn ready(path: &Path, shifted: bool) -> String {
    let line = |length: u32| {
        let ids: Vec<i64> = (10..10 + i64::from(length)).collect();
        let mut labels = ids.clone();
        labels[0] = -100;
        if shifted {
            labels.remove(0);
            labels.push(-100);
        }
        serde_json::json!({"input_ids": ids, "labels": labels}).to_string()
    };
    let text: Vec<String> = [3, 4, 2, 9, 6, 8].map(line).to_vec();
    std::fs::write(path, text.join("\n")).expect("a file");
    path.display().to_string()
}

/// The rows are MindFormers'. Its handler shifts labels where it packs and not where it cuts, and lets the token 0 be
/// predicted after each document that it packs; here labels say which they are, and nothing is predicted there.
#[test]
fn rows_are_packed_as_the_original_packs_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let all: serde_json::Value = serde_json::from_str(ORIGINAL).expect("JSON");
    for (strategy, shifted) in [("pack", false), ("pack", true), ("truncate", false), ("truncate", true)] {
        let file = ready(&folder.path().join("ready.jsonl"), shifted);
        let loader = format!(
            "type: HFDataLoader, path: json, data_files: {file}, handler: [{{type: PackingHandler, pack_strategy: {strategy}}}]"
        );
        let data = load(&loader, "", 8).expect("data");
        let got: Vec<Vec<u32>> = batches(&data).into_iter().map(|batch| batch.tokens).collect();
        let expected: Vec<Vec<u32>> =
            serde_json::from_value(all[strategy]["input_ids"].clone()).expect("rows");
        assert_eq!(got, expected, "{strategy}");
        let targets: Vec<Vec<u32>> = batches(&data).into_iter().map(|batch| batch.targets).collect();
        if strategy == "pack" {
            let labels: Vec<Vec<i64>> =
                serde_json::from_value(all[strategy]["labels"].clone()).expect("rows");
            let wanted = labels.iter().map(|row| {
                row.iter().map(|label| if *label > 0 { *label as u32 } else { IGNORED }).collect::<Vec<_>>()
            });
            assert_eq!(targets, wanted.collect::<Vec<_>>());
        }
        let first = data.train.batch(0).expect("a batch");
        assert_eq!(
            (&first.starts[..8], &first.positions[..8]),
            (&[0, 0, 0, 3, 3, 3, 3, 7][..], &[0, 1, 2, 0, 1, 2, 3, 0][..])
        );
    }
}

#[test]
fn conversations_learn_the_assistants_turns() {
    let template = format!("{FOLDER}/chat/qwen2.jinja");
    let loader = format!(
        "type: SFTDataLoader, dataset_dir: {FOLDER}/chat/conversations.jsonl, dataset_name: multi-round-chat, chat_template: {template}"
    );
    let data = load(&loader, "", 300).expect("data");
    let batch = data.train.batch(0).expect("a batch");
    let learned: Vec<u8> =
        batch.targets.iter().filter(|target| **target != IGNORED).map(|target| *target as u8).collect();
    assert_eq!(String::from_utf8(learned).expect("text"), "Hi there.<|im_end|>\n");
}

#[test]
fn text_and_columns_under_other_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.jsonl");
    std::fs::write(&path, "{\"body\": \"ab\"}\n{\"body\": \"cde\"}\n{\"body\": \"f\"}").expect("a file");
    let loader = format!(
        "type: HFDataLoader, path: {}, handler: [{{type: rename_column, original_column_name: body, new_column_name: text}}, {{type: take, n: 2}}]",
        folder.path().display()
    );
    let data = load(&loader, "", 4).expect("data");
    let rows: Vec<Row> = batches(&data).into_iter().map(|batch| (batch.tokens, batch.targets)).collect();
    let (a, c) = (u32::from(b'a'), u32::from(b'c'));
    assert_eq!(
        rows,
        [
            (vec![a, a + 1, 0, 0], vec![a + 1, 0, IGNORED, IGNORED]),
            (vec![c, c + 1, c + 2, 0], vec![c + 1, c + 2, 0, IGNORED])
        ]
    );
}

/// The message about a file of this content, without its path.
fn refused(loader: &str, name: &str, content: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("a file");
    let loader = loader.replace("FILE", &path.display().to_string());
    let error = load(&loader, "", 64).err().unwrap_or("accepted".to_string());
    assert!(!error.contains('\n') && error.starts_with(&format!("{}: ", path.display())), "{error}");
    error.replace(&format!("{}: ", path.display()), "")
}

#[test]
fn what_is_wrong_with_a_record_is_one_line_with_its_place() {
    let adgen = "type: ADGenDataLoader, dataset_dir: FILE, version: 3";
    let good = "{\"content\": \"a\", \"summary\": \"b\"}\n";
    for (line, message) in [
        (
            "{\"content\": \"a\", \"sumary\": \"b\"}",
            "line 2: has no key `summary`, only `content`, `sumary`; correct the record, or the names of its columns",
        ),
        ("{\"content\": \"a\", \"summary\": 3}", "line 2: expected text under `summary`, found a number"),
        (
            "{\"content\": \"a\", \"summary\": \" \"}",
            "line 2: `summary` is empty; fill it in, or remove the record",
        ),
        (
            "{\"content\": \"a\", ",
            "line 2: is not valid JSON (EOF while parsing a value at column 16); expected a JSON object on each line, or an array of objects",
        ),
    ] {
        assert_eq!(refused(adgen, "x.json", &format!("{good}{line}")), message);
    }
    let empty = refused(adgen, "x.json", "");
    assert_eq!(empty, "has no record; expected a JSON object on each line, or an array of objects");
    let hub = "type: HFDataLoader, path: json, data_files: FILE";
    for (line, message) in [
        (
            "{\"a\": 1}",
            "line 1: has no key `input_ids`, only `a`; correct the record, or the names of its columns",
        ),
        ("{\"input_ids\": [1, -3]}", "line 1: `input_ids` holds -3, which is not a token id"),
        ("{\"input_ids\": [1, \"x\"]}", "line 1: expected whole numbers in `input_ids`"),
        (
            "{\"input_ids\": [1, 2], \"labels\": [1]}",
            "line 1: has 2 `input_ids` and 1 `labels`; each token needs a label",
        ),
        (
            "{\"input_ids\": [1, 2, 3], \"labels\": [3, 1, 2]}",
            "line 1: its `labels` are neither the `input_ids` nor these shifted by one; write -100 for tokens that are not predicted",
        ),
        (
            "{\"input_ids\": [7]}",
            "no sample is left of 1 to 1 tokens (1 dropped with nothing to predict within seq_length); raise model.model_config.seq_length, or name other data",
        ),
    ] {
        assert_eq!(refused(hub, "x.jsonl", line), message);
    }
    let parquet = refused(hub, "x.parquet", "PAR1 is not enough");
    assert!(parquet.starts_with("cannot be read as Parquet ("), "{parquet}");
    let chat = "type: SFTDataLoader, dataset_dir: FILE, chat_template: tests/data/samples/chat/qwen2.jinja";
    let silent = refused(chat, "x.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}");
    assert_eq!(
        silent,
        "line 1: has no turn of the assistant, so nothing is to be learned; complete or remove the record"
    );
}

#[test]
fn what_is_wrong_with_the_keys_is_one_line() {
    for (loader, message) in [
        ("type: HFDataLoader, path: json", "type: needs `data_files`"),
        (
            "type: HFDataLoader, path: owner/data",
            "path: `owner/data` is a data set of the Hugging Face hub, from which nothing is downloaded",
        ),
        (
            "type: HFDataLoader, path: ./a, split: 'train[:9]'",
            "split: `train[:9]` is a part of a split; write a handler",
        ),
        (
            "type: HFDataLoader, path: json, data_files: {test: a}",
            "data_files: has no files of the split `train`",
        ),
        (
            "type: HFDataLoader, path: json, data_files: a, split: test",
            "split: files are the split `train`, unless `data_files` is a section with `test`",
        ),
        (
            "type: HFDataLoader, path: ./a, handler: [{type: remove_columns, column_names: [b, labels]}]",
            "handler: `remove_columns` takes `labels`, which makes the samples",
        ),
        ("type: HFDataLoader, path: ./a, handler: [{type: filter}]", "handler: unknown type `filter`"),
        (
            "type: HFDataLoader, path: ./a, handler: [{type: take}]",
            "handler: `take` needs a number of rows above 0",
        ),
        (
            "type: HFDataLoader, path: ./a, handler: [{type: PackingHandler, seq_length: 9}]",
            "handler: seq_length 9 of `PackingHandler` differs",
        ),
        (
            "type: HFDataLoader, path: ./a, handler: [{type: PackingHandler}, {type: take, n: 3}]",
            "handler: `PackingHandler` must be the last one",
        ),
        (
            "type: ADGenDataLoader, dataset_dir: a",
            "type: version 1, the default, forms samples for GLM's prefix mask, which is not built; write `version: 3`",
        ),
        (
            "type: ADGenDataLoader, dataset_dir: a, version: 3, origin_columns: [a]",
            "origin_columns: expected the names of two columns",
        ),
        ("type: ADGenDataLoader, version: 3", "type: needs `dataset_dir` or `dataset_files`"),
        (
            "type: SFTDataLoader, dataset_dir: a, dataset_name: tnews",
            "dataset_name: not built yet (found `tnews`); write `multi-round-chat`",
        ),
    ] {
        let error = load(loader, "", 64).err().unwrap_or("accepted".to_string());
        assert!(error.contains(message) && !error.contains('\n'), "{loader}: {error}");
    }
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_is_read_uncompressed_and_with_snappy() {
    for codec in ["none", "snappy"] {
        let loader = format!("type: HFDataLoader, path: parquet, data_files: {FOLDER}/{codec}.parquet");
        let data = load(&loader, "", 4).expect("data");
        let rows: Vec<Row> = batches(&data).into_iter().map(|batch| (batch.tokens, batch.targets)).collect();
        let first = (vec![5, 6, 7, 8], vec![IGNORED, 7, 8, IGNORED]);
        assert_eq!(rows, [first, (vec![9, 10, 0, 0], vec![10, IGNORED, IGNORED, IGNORED])], "{codec}");
    }
    let loader = format!("type: HFDataLoader, path: parquet, data_files: {FOLDER}/zstd.parquet");
    let error = load(&loader, "", 4).err().unwrap_or_default();
    assert!(error.contains("zstd.parquet: cannot be read as Parquet (") && !error.contains('\n'), "{error}");
}
