//! A small configuration in a folder of its own, trained by `train_gpt`.

use crate::launch::{assert_refused, run, train_gpt};
use crate::runs::{Setup, newest_checkpoint};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

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
    pub fn folder(&self) -> PathBuf {
        self.path("small")
    }

    /// The arguments of `train_gpt`, which writes a checkpoint after every step.
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
        assert_refused(name, &run(&mut self.command(extra)), expected);
    }

    /// A place with a run that was stopped after step 2 and left the checkpoints of steps 1 and 2.
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
        copy(&trained.folder(), &place.folder());
        place
    }

    /// The address at which the run is watched, once its log names it.
    pub fn watched_at(&self) -> String {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let log = std::fs::read_to_string(self.folder().join("log.txt")).unwrap_or_default();
            let said =
                log.split_once("this run can be watched at ").and_then(|(_, rest)| rest.split_once('\n'));
            if let Some((address, _)) = said {
                return address.to_string();
            }
            assert!(Instant::now() < deadline, "no address in the log:\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The newest checkpoint and its step.
    pub fn newest(&self) -> (u64, PathBuf) {
        newest_checkpoint(&self.folder()).expect("a checkpoint")
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
