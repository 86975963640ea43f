//! Rows of `benches/history.csv`: the measurement, the adapter and the commit.
#![allow(dead_code)] // each bench uses a part of it

use gristmill::device::Gpu;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Appends one row to `benches/history.csv` if `HISTORY` is set (`HISTORY=1 cargo bench`), so that a casual run does not
/// modify a tracked file.
pub fn append_history(gpu: &Gpu, bench: &str, metric: &str, value: f64) {
    if std::env::var_os("HISTORY").is_none() {
        return;
    }
    let report = gpu.report();
    let row = format!(
        "{},{},{},{},{},{bench},{metric},{value:.4}\n",
        commit(),
        quoted(&report.name),
        quoted(&report.driver),
        report.backend,
        gpu.capabilities().tier.name(),
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/history.csv");
    let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
    if let Err(error) = file.and_then(|mut file| file.write_all(row.as_bytes())) {
        eprintln!("{}: {error}", path.display());
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "'"))
}

/// The measured commit, with `-dirty` if code or dependencies differ from it; changes to other files do not matter.
fn commit() -> String {
    let git = |arguments: &[&str]| Command::new("git").args(arguments).output();
    let name = git(&["rev-parse", "--short", "HEAD"]).ok().and_then(|o| String::from_utf8(o.stdout).ok());
    let is_clean = git(&["diff", "--quiet", "HEAD", "--", "src", "shaders", "Cargo.toml", "Cargo.lock"]);
    let suffix = if is_clean.is_ok_and(|output| output.status.success()) { "" } else { "-dirty" };
    format!("{}{suffix}", name.unwrap_or_default().trim())
}
