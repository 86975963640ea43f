//! Processes that leave their numbers, so that signals can be sent to them.
#![cfg(all(feature = "mpi", unix))]

use crate::transports::Job;
use std::path::{Path, PathBuf};
use std::process::Command;

impl Job {
    /// [`Job::start`], where each process leaves its number in a file of `folder`.
    pub fn start_noted(size: usize, folder: &Path, program: &[&str]) -> Self {
        let noted = note(folder, "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}");
        let note = format!("echo $$ > \"{}\"; exec \"$@\"", noted.display());
        Self::start(size, &[&["sh", "-c", &note, "sh"], program].concat())
    }
}

/// Sends `signal` to the process of `rank` that has left its number in `folder`, and returns whether it was there.
pub fn signal(folder: &Path, signal: &str, rank: usize) -> bool {
    let process = std::fs::read_to_string(note(folder, &rank.to_string())).unwrap_or_default();
    let sent = Command::new("kill").args([signal, process.trim()]).output().expect("kill");
    !process.is_empty() && sent.status.success()
}

/// Where the process of `rank` leaves its number.
pub fn note(folder: &Path, rank: &str) -> PathBuf {
    folder.join(format!("process.{rank}"))
}
