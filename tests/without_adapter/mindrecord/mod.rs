//! MindSpore's MindRecord files: `make.py` in tests/data/mindrecord wrote the ones that are read here.

mod files;
mod samples;

use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const COLUMNS: &str = "columns.mindrecord";
const SHARDS: [&str; 2] = ["shards.mindrecord0", "shards.mindrecord1"];

/// A file of the folder that `make.py` filled.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mindrecord").join(name)
}

/// A folder with copies of data files.
fn copied(names: &[&str]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    for name in names {
        fs::copy(fixture(name), folder.path().join(name)).expect("a file");
    }
    let path = folder.path().join(names[0]);
    (folder, path)
}
