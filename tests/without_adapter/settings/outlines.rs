//! What files become, written to a folder, to compare two states of the code: see `tests/outlines.sh`.

use gristmill::settings::{Override, RunConfig};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The configurations in a folder, sorted.
fn configurations(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    paths.sort();
    paths
}

/// The notices, the decisions and config.yaml of a file, or its faults.
fn outline(path: &Path, flags: &[&str]) -> String {
    let overrides = Override::parse_all(flags.to_vec()).expect("flags");
    let config = match RunConfig::outline(path, &overrides, None) {
        Ok(config) => config,
        Err(error) => return format!("{error}\n"),
    };
    let mut text = config.notices.join("\n");
    config.data_faults.iter().for_each(|error| write!(text, "\n{error}").expect("a string"));
    for (key, value) in config.plan.decisions() {
        write!(text, "\n{key}: {value}").expect("a string");
    }
    text + "\n" + &config.plan.to_yaml()
}

/// Does nothing where `GRISTMILL_OUTLINES` names no folder: what it writes is for a comparison, and not right or wrong
/// itself.
#[test]
fn outlines_are_written_where_a_folder_is_named() {
    let Some(folder) = std::env::var_os("GRISTMILL_OUTLINES").map(PathBuf::from) else { return };
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let theirs = std::env::var_os("GRISTMILL_MINDFORMERS_YAML").map(PathBuf::from);
    for path in [Some(ours), theirs].into_iter().flatten().flat_map(|folder| configurations(&folder)) {
        for (kind, flags) in [("single", &["--as-single"][..]), ("ranks", &[])] {
            let name = path.file_stem().expect("a name").to_string_lossy();
            let file = folder.join(format!("{name}.{kind}.txt"));
            std::fs::write(&file, outline(&path, flags))
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
    }
}
