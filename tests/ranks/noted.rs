//! Processes that leave their numbers, so that signals can be sent to them.
#![cfg(feature = "mpi")]

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
    send(signal, &process(folder, rank))
}

/// Whether the process of `rank` that has left its number in `folder` runs.
pub fn is_there(folder: &Path, rank: usize) -> bool {
    is_running(&process(folder, rank))
}

/// Whether `process` runs. One that has ended is listed, as a zombie, until somebody asks how: Open MPI's mpirun does
/// not.
pub fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let is_zombie = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'));
    send("-0", process) && !is_zombie
}

/// Where the process of `rank` leaves its number.
pub fn note(folder: &Path, rank: &str) -> PathBuf {
    folder.join(format!("process.{rank}"))
}

fn process(folder: &Path, rank: usize) -> String {
    std::fs::read_to_string(note(folder, &rank.to_string())).unwrap_or_default().trim().to_string()
}

fn send(signal: &str, process: &str) -> bool {
    let sent = || Command::new("kill").args([signal, process]).output().expect("kill").status.success();
    !process.is_empty() && sent()
}
