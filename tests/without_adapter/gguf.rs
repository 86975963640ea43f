//! Files of llama.cpp: what is written of each folder in `tests/data/folders`, keys and tensors with their sums, or the
//! line that refuses it. tests/transformers/gguf.py has llama.cpp compute with such files.
//!
//! `UPDATE_GOLDEN=1 cargo test --release --test without_adapter gguf::` writes `tests/golden/gguf.txt` again.

use crate::configs::assert_golden;
use gristmill::infer::OpenedModel;
use gristmill::store::gguf::GgufType;
use pmetal_gguf::{GgufModel, MetadataValue};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// A tokenizer of 128 letters without merges, since most of the folders have none.
fn tokenizer() -> Value {
    let letters = (0..).filter_map(char::from_u32).filter(|letter| letter.is_alphanumeric()).take(128);
    let vocab: Map<String, Value> =
        letters.zip(0..).map(|(letter, id)| (letter.to_string(), json!(id))).collect();
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": level,
        "post_processor": null, "decoder": level, "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// A copy of the folder `name`, with a tokenizer.
fn copied(name: &str, to: &Path) -> PathBuf {
    let (from, to) = (format!("tests/data/folders/{name}"), to.join(name));
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    if !to.join("tokenizer.json").exists() {
        fs::write(to.join("tokenizer.json"), tokenizer().to_string()).unwrap();
        fs::write(to.join("tokenizer_config.json"), r#"{"eos_token": "0"}"#).unwrap();
    }
    to
}

/// What the file holds.
fn content(file: &Path) -> String {
    let model = GgufModel::open(file).unwrap();
    let mut text = String::new();
    let mut keys: Vec<_> = model.metadata_content().metadata.iter().collect();
    keys.sort_by_key(|(key, _)| *key);
    for (key, value) in keys {
        match value {
            MetadataValue::Array(list) => writeln!(text, "{key} = {} values", list.len()),
            MetadataValue::String(value) => writeln!(text, "{key} = {value:?}"),
            value => writeln!(text, "{key} = {value:?}"),
        }
        .unwrap();
    }
    for info in model.tensors_in_disk_order() {
        let sum = crc32c::crc32c(model.tensor_data(&info.name).unwrap());
        writeln!(text, "{} {:?} {:?} {sum:08x}", info.name, info.dimensions, info.dtype).unwrap();
    }
    text
}

#[test]
fn folders_become_files_or_are_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let mut names: Vec<String> = fs::read_dir("tests/data/folders")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_string())
        .collect();
    names.sort_unstable();
    let mut text = String::new();
    for name in names {
        let folder = copied(&name, home.path());
        let file = folder.join("model.gguf");
        let written =
            OpenedModel::open(&folder, &[]).and_then(|model| model.write_gguf(&file, GgufType::F16));
        writeln!(text, "# {name}").unwrap();
        match written {
            Ok(written) => {
                written.notices.iter().for_each(|notice| writeln!(text, "notice: {notice}").unwrap());
                text += &content(&file);
                assert!(!folder.join("model.gguf.tmp").exists());
            }
            Err(error) => {
                let line = error.to_string().replace(&home.path().display().to_string(), "");
                assert!(!line.contains('\n') && !file.exists(), "{line}");
                writeln!(text, "{}", line.split(" (but of").next().unwrap()).unwrap();
            }
        }
    }
    assert_golden(Path::new("tests/golden/gguf.txt"), &text);
}

#[test]
fn a_file_has_the_types_that_are_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let folder = copied("qwen2", home.path());
    let model = OpenedModel::open(&folder, &[]).unwrap();
    for kind in GgufType::ALL {
        let file = home.path().join(format!("{}.gguf", kind.name()));
        let written = model.write_gguf(&file, kind).unwrap();
        let types = content(&file);
        let of = |name: &str| {
            let line = types
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap_or_else(|| panic!("{name} in {types}"));
            line.split(' ').nth_back(1).unwrap().to_lowercase().replace("_", "")
        };
        let table = if kind == GgufType::Q4_0 { "q80".to_string() } else { kind.name().replace('_', "") };
        assert_eq!(of("token_embd.weight"), table);
        assert_eq!(of("blk.1.attn_norm.weight"), "f32");
        assert_eq!(of("blk.0.attn_q.weight"), kind.name().replace('_', ""));
        // 48 columns are one and a half blocks.
        let down = if kind.name().starts_with('q') { "f16".to_string() } else { kind.name().to_string() };
        assert_eq!(
            (of("blk.0.ffn_down.weight"), written.unquantised),
            (down, if kind.name().starts_with('q') { 2 } else { 0 })
        );
        let line = model.write_gguf(&file, kind).unwrap_err().to_string();
        assert!(line.contains("is there already"), "{line}");
    }
}
