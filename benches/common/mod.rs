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

fn commit() -> String {
    let git = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let text = git.ok().and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    text.trim().to_string()
}
