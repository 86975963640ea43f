//! A whole run from a configuration file, in a folder of its own.

use super::{Leased, Setup, metrics, newest_checkpoint};
use gristmill::infer::OpenedModel;
use gristmill::ranks::Ranks;
use gristmill::report::metrics::StepMetrics;
use gristmill::train::TrainingRun;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A run in a folder of its own, which disappears with it.
pub struct FolderRun {
    pub home: tempfile::TempDir,
    pub setup: Setup,
}

impl FolderRun {
    /// A run before its first step.
    pub fn new(setup: Setup) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let output_dir = format!("--output_dir={}", home.path().display());
        Self { home, setup: setup.with(&[&output_dir]) }
    }

    pub fn folder(&self) -> PathBuf {
        self.home.path().join(self.setup.name)
    }

    /// The step of the newest checkpoint.
    pub fn newest(&self) -> Option<u64> {
        newest_checkpoint(&self.folder()).map(|(step, _)| step)
    }

    /// The command line behind the configuration: resumes where there is a checkpoint.
    pub fn arguments(&self, stop_step: u64) -> Vec<String> {
        let mut arguments = self.setup.overrides.clone();
        arguments.push(format!("--stop_step={stop_step}"));
        if self.newest().is_some() {
            arguments.push("--resume_training=True".into());
        }
        arguments
    }

    /// Trains to `stop_step` in this process: from the start, or from the newest checkpoint.
    pub fn train(&self, stop_step: u64) -> &Self {
        let config = self.setup.write(self.home.path());
        let (arguments, before) = (self.arguments(stop_step), self.newest());
        let mut gpu = Leased::of_run(&self.setup.plan(), 0);
        let run = TrainingRun { gpu: Some(&mut gpu), ..TrainingRun::new(&config, &arguments) };
        let summary = pollster::block_on(run.train()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((summary.steps, summary.is_interrupted), (stop_step, false));
        assert_eq!(summary.loss.is_some(), before != Some(stop_step), "a loss is that of a step");
        self
    }

    /// The trained model.
    pub fn open(&self) -> OpenedModel {
        OpenedModel::open(&self.folder(), &[]).unwrap_or_else(|e| panic!("{e}"))
    }

    /// `run`, which goes on from where this one is.
    pub fn copy(&self, run: Self) -> Self {
        for (name, bytes) in files_below(&self.folder(), "") {
            let path = run.folder().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, bytes).expect("a copy");
        }
        run
    }

    /// What the run left in its folder so far.
    pub fn left(&self) -> Left {
        let (_, newest) = newest_checkpoint(&self.folder()).expect("a checkpoint");
        Left { checkpoint: files_below(&newest, ""), metrics: metrics(&self.folder()) }
    }
}

/// The files in `folder` and in those below it, under their paths in it.
fn files_below(folder: &Path, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    let files = entries.flat_map(|path| {
        let name = format!("{prefix}{}", path.file_name().expect("a name").to_string_lossy());
        match path.is_dir() {
            true => files_below(&path, &format!("{name}/")),
            false => [(name, std::fs::read(path).expect("a file"))].into(),
        }
    });
    files.collect()
}

/// What a run left in its folder, except for what depends on the clock.
#[derive(PartialEq)]
pub struct Left {
    /// Every file of the newest checkpoint: weights, moments, counters.
    pub checkpoint: BTreeMap<String, Vec<u8>>,
    pub metrics: Vec<StepMetrics>,
}

impl Left {
    /// Panics unless every file and every line of metrics equals that of `want`, a run that was never interrupted.
    #[track_caller]
    pub fn assert_equals(&self, name: &str, want: &Self) {
        for (file, bytes) in &want.checkpoint {
            assert!(
                self.checkpoint.get(file) == Some(bytes),
                "{name}: {file} differs from the uninterrupted run's"
            );
        }
        assert!(self.checkpoint.keys().eq(want.checkpoint.keys()), "{name}: {:?}", self.checkpoint.keys());
        for (got, want) in self.metrics.iter().zip(&want.metrics) {
            assert_eq!(got, want, "{name}");
        }
        assert_eq!(self.metrics.len(), want.metrics.len(), "{name}");
        let bytes: usize = want.checkpoint.values().map(Vec::len).sum();
        println!("{name}: {bytes} bytes of checkpoint and {} lines of metrics are equal", want.metrics.len());
    }
}
