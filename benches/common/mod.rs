//! Rows for `benches/history.csv`: what was measured, on what, at which commit.
#![allow(dead_code)] // each bench uses its own part

use gristmill::device::Gpu;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Appends one row to `benches/history.csv` where the environment asks for it (`HISTORY=1 cargo bench`): a casual run
/// shall not change a tracked file.
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

/// The commit measured; `-dirty` if the code differs from it. Other files, this list of rows among them, do not count.
fn commit() -> String {
    let git = |arguments: &[&str]| Command::new("git").args(arguments).output();
    let name = git(&["rev-parse", "--short", "HEAD"]).ok().and_then(|o| String::from_utf8(o.stdout).ok());
    let is_clean = git(&["diff", "--quiet", "HEAD", "--", "src", "shaders", "Cargo.toml", "Cargo.lock"]);
    let suffix = if is_clean.is_ok_and(|output| output.status.success()) { "" } else { "-dirty" };
    format!("{}{suffix}", name.unwrap_or_default().trim())
}
