//! Writes `metrics.jsonl`, a line for each step.

use super::instrument::{Instrument, StepReport};
use super::metrics::StartMetrics;
use crate::durable::AppendFile;
use crate::error::Result;
use crate::store::OUTPUT_DIR;
use serde::Serialize;
use std::path::Path;

/// Appends steps to a `metrics.jsonl`. Each line is written at once, so a kill loses no line.
#[derive(Debug)]
pub struct MetricsWriter(AppendFile);

impl MetricsWriter {
    /// Opens `path` for appending and creates it if it is missing.
    ///
    /// # Errors
    /// The file cannot be opened for writing.
    pub fn open(path: &Path) -> Result<Self> {
        AppendFile::open(OUTPUT_DIR, path).map(Self)
    }

    /// Appends one line.
    ///
    /// # Errors
    /// The disk is full or fails; the line is then written together with a later one.
    pub fn write(&mut self, metrics: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(metrics).expect("numbers and strings are JSON");
        line.push(b'\n');
        self.0.append(&line)
    }
}

impl Instrument for MetricsWriter {
    fn step(&mut self, report: &StepReport<'_>) -> Result<()> {
        self.write(report.metrics)
    }

    fn start(&mut self, evaluation: &StartMetrics) -> Result<()> {
        self.write(evaluation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::metrics::StepMetrics;
    use crate::store::run_folder::truncate_after;
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    fn metrics(step: u64) -> StepMetrics {
        StepMetrics { step, ..StepMetrics::default() }
    }

    #[test]
    fn a_resumed_run_writes_no_step_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        assert_eq!(truncate_after(&path, 3).unwrap(), 0, "no file, no lines");
        let mut writer = MetricsWriter::open(&path).unwrap();
        (1..=5).for_each(|step| writer.write(&metrics(step)).unwrap());
        drop(writer);
        // Killed inside a line, inside a character.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"step\":2,\"lo\xe2\x96").unwrap();

        assert_eq!(truncate_after(&path, 3).unwrap(), 3);
        let mut writer = MetricsWriter::open(&path).unwrap();
        (4..=6).for_each(|step| writer.write(&metrics(step)).unwrap());
        let text = fs::read_to_string(&path).unwrap();
        let steps: Vec<u64> =
            text.lines().map(|line| serde_json::from_str::<StepMetrics>(line).unwrap().step).collect();
        assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_named() {
        let mut writer = MetricsWriter::open(Path::new("/dev/full")).unwrap();
        let line = writer.write(&metrics(1)).unwrap_err().to_string();
        assert!(line.starts_with("/dev/full: cannot write: disk full"), "{line}");
    }
}
