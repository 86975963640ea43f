//! Rows of `benches/history.csv`: the measurement, the adapter, the commit, the day and the machine.
#![allow(dead_code)] // each bench uses a part of it

use gristmill::device::Gpu;
use gristmill::kernels::Tier;
use std::path::Path;
use std::process::Command;

/// What a measurement was taken on.
pub struct Setting {
    /// The adapter's name, or the GPU that was compiled for.
    pub adapter: String,
    pub driver: String,
    pub backend: String,
    pub tier: Tier,
}

impl Setting {
    pub fn of(gpu: &Gpu) -> Self {
        let report = gpu.report();
        let (adapter, driver, backend) = (report.name.clone(), report.driver.clone(), report.backend.clone());
        Self { adapter, driver, backend, tier: gpu.capabilities().tier }
    }
}

/// Appends one row to `benches/history.csv` if `HISTORY` is set (`HISTORY=1 cargo bench`), so that a casual run does
/// not modify a tracked file.
pub fn append_history(setting: &Setting, bench: &str, metric: &str, value: f64) {
    if std::env::var_os("HISTORY").is_none() {
        return;
    }
    let row = [
        commit(),
        setting.adapter.clone(),
        setting.driver.clone(),
        setting.backend.clone(),
        setting.tier.name().to_string(),
        bench.to_string(),
        metric.to_string(),
        format!("{value:.4}"),
        output_of("date", &["-u", "+%Y-%m-%d"]),
        output_of("hostname", &[]),
    ];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/history.csv");
    let file = std::fs::OpenOptions::new().append(true).open(&path).map_err(csv::Error::from);
    let written = file.and_then(|file| csv::Writer::from_writer(file).write_record(&row));
    if let Err(error) = written {
        eprintln!("{}: {error}", path.display());
    }
}

/// The measured commit, with `-dirty` if code or dependencies differ from it; changes to other files do not matter.
fn commit() -> String {
    let clean = Command::new("git")
        .args(["diff", "--quiet", "HEAD", "--", "src", "shaders", "Cargo.toml", "Cargo.lock"])
        .status();
    let suffix = if clean.is_ok_and(|status| status.success()) { "" } else { "-dirty" };
    format!("{}{suffix}", output_of("git", &["rev-parse", "--short", "HEAD"]))
}

/// What a program prints; nothing if it cannot be run.
fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok();
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    text.unwrap_or_default().trim().to_string()
}
