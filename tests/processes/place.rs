//! A small configuration in a folder of its own, and what `train_gpt` makes of it there.
#![allow(dead_code)] // each test binary uses its own part

use crate::launch::{self, refused, train_gpt};
use crate::runs::Setup;
use gristmill::train::checkpoint_folder::CheckpointFolder;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// A small configuration in a folder of its own.
pub struct Place {
    pub home: tempfile::TempDir,
    pub setup: Setup,
}

impl Place {
    pub fn new() -> Self {
        Self { home: tempfile::tempdir().expect("a folder"), setup: Setup::new("small", "") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The run's folder.
    pub fn run(&self) -> PathBuf {
        self.path("small")
    }

    /// What follows the program's name; a checkpoint is written after every step.
    pub fn arguments(&self, extra: &[&str]) -> Vec<String> {
        let config = self.setup.write(self.home.path()).display().to_string();
        let output_dir = format!("--output_dir={}", self.home.path().display());
        let callbacks =
            "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 1, keep_checkpoint_max: 2}]";
        let mut arguments = vec![config, output_dir, callbacks.into(), "--stop_step=4".into()];
        arguments.extend(extra.iter().map(|argument| argument.to_string()));
        arguments
    }

    pub fn command(&self, extra: &[&str]) -> Command {
        train_gpt(self.arguments(extra))
    }

    #[track_caller]
    pub fn refuses(&self, name: &str, extra: &[&str], expected: &[&str]) {
        refused(name, &launch::run(&mut self.command(extra)), expected);
    }

    /// With the checkpoints of steps 1 and 2 in it, as a run leaves them that was stopped there.
    pub fn with_run() -> Self {
        static TRAINED: OnceLock<Place> = OnceLock::new();
        let trained = TRAINED.get_or_init(|| {
            let place = Self::new();
            let arguments = place.arguments(&["--stop_step=2"]);
            pollster::block_on(gristmill::train::run(
                Path::new(&arguments[0]),
                &arguments[1..],
                Arc::default(),
            ))
            .unwrap_or_else(|e| panic!("{e}"));
            place
        });
        let place = Self::new();
        copy(&trained.run(), &place.run());
        place
    }

    pub fn newest(&self) -> (u64, PathBuf) {
        CheckpointFolder::new(self.run().join("checkpoint"), 0)
            .latest()
            .expect("a folder")
            .expect("a checkpoint")
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("a file");
        }
    }
}
