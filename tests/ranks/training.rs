//! Whole runs of the program on two ranks.
//!
//! Threads and processes of MPI train bit for bit alike; processes that differ, or whose data do, are one line; an
//! interrupt before the first step ends all and leaves no run folder.

use crate::runs::Setup;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_gristmill");

/// A small run in a folder of its own.
struct Place {
    home: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { home: tempfile::tempdir().expect("a folder") }
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join("small")
    }

    /// The arguments of the program for two ranks, which save after every tenth step.
    fn arguments(&self, extra: &[&str]) -> Vec<String> {
        let config = Setup::new("small", "").write(self.home.path()).display().to_string();
        let output_dir = format!("--output_dir={}", self.home.path().display());
        let callbacks =
            "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 10, keep_checkpoint_max: 2}]";
        let arguments = ["train", &config, &output_dir, callbacks, "--use_parallel=True"];
        let parallel = ["--parallel_config.data_parallel=2"];
        arguments.iter().chain(&parallel).chain(extra).map(ToString::to_string).collect()
    }
}

/// A flag for evaluation data that take seconds to count before the first step.
fn slow_evaluation(place: &Place) -> String {
    let tokens = place.home.path().join("tokens.bin");
    std::fs::File::create(&tokens).and_then(|file| file.set_len(4 << 30)).expect("zeros");
    format!("--eval_dataset={{data_loader: {{type: TokenDataLoader, dataset_files: {}}}}}", tokens.display())
}

#[cfg(unix)]
#[test]
fn an_interrupt_before_the_first_step_ends_all_threads() {
    let place = Place::new();
    let eval = slow_evaluation(&place);
    let mut command = Command::new(PROGRAM);
    command
        .args(place.arguments(&["--do_eval=True", "--eval_batches=1000000000", &eval]))
        .args(["--ranks", "2"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("the program");
    while !place.folder().join("config.yaml").exists() {
        assert!(child.try_wait().expect("the process").is_none(), "it has ended before it made its folder");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let sent = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill").success());
    let output = child.wait_with_output().expect("the process");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert_eq!(stderr.matches("interrupted before the first step").count(), 1, "{stderr}");
    assert!(!place.folder().exists(), "it refuses the next start");
}

#[cfg(all(feature = "mpi", unix))]
mod on_processes {
    use super::{PROGRAM, Place, slow_evaluation};
    use crate::noted;
    use crate::runs::{metrics, newest_checkpoint};
    use crate::transports::{self, Ended, Job};
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::process::Command;
    use std::thread::sleep;
    use std::time::Duration;

    /// A part of each matrix, of the tokens and of the vocabulary on each of two ranks.
    const MATRICES: [&str; 3] = [
        "--parallel_config={data_parallel: 1, model_parallel: 2, use_seq_parallel: True, vocab_emb_dp: False}",
        "--parallel_config.data_parallel=1",
        "--runner_config.gradient_accumulation_steps=2",
    ];

    /// Two stages of a pipeline instead of two ranks that share a batch, with an embedding on both.
    const STAGES: [&str; 3] = [
        "--parallel_config={data_parallel: 1, pipeline_stage: 2, micro_batch_num: 3}",
        "--parallel_config.data_parallel=1",
        "--model.model_config.tie_word_embeddings=True",
    ];

    impl Place {
        /// Trains on threads of one process.
        fn train_on_threads(&self, extra: &[&str]) {
            let output = Command::new(PROGRAM)
                .args(self.arguments(extra))
                .args(["--ranks", "2"])
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .output()
                .expect("the program");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }

        /// The newest step that was saved, and the tensors that all ranks wrote with it, by file.
        fn weights(&self) -> (u64, BTreeMap<String, Vec<u8>>) {
            let (step, folder) = newest_checkpoint(&self.folder()).expect("a checkpoint");
            let paths =
                std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
            let tensors = paths.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
            let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
            let files: BTreeMap<_, _> =
                tensors.map(|path| (name(&path), std::fs::read(&path).expect("tensors"))).collect();
            assert!(!files.is_empty(), "a checkpoint has tensors");
            (step, files)
        }

        /// Starts to train on processes.
        fn start_processes(&self, extra: &[&str]) -> Job {
            let arguments = self.arguments(extra);
            let program: Vec<&str> =
                [PROGRAM].into_iter().chain(arguments.iter().map(String::as_str)).collect();
            Job::start_noted(2, self.home.path(), &program)
        }

        fn train_on_processes(&self, extra: &[&str]) {
            let Ended { exit_code, stderr, .. } = self.start_processes(extra).end();
            assert_eq!(exit_code, Some(0), "{stderr}");
        }

        /// Waits until there are checkpoints.
        fn wait_for_checkpoint(&self, job: &mut Job) {
            while newest_checkpoint(&self.folder()).is_none() {
                assert!(job.is_running(), "the run has ended before its first checkpoint");
                sleep(Duration::from_millis(20));
            }
        }

        fn signal(&self, signal: &str, rank: usize) -> bool {
            noted::signal(self.home.path(), signal, rank)
        }

        /// What the program says where rank 1 has `other` flags behind the `own` ones of rank 0, and how it ends.
        fn train_apart(&self, own: &[&str], other: &[&str]) -> Ended {
            let [own, other] = [own, other].map(|extra| self.arguments(extra));
            let command =
                [&[PROGRAM.to_string()], &own[..], &[":", "-n", "1", PROGRAM].map(String::from), &other[..]];
            let command = command.concat();
            transports::run_mpirun(1, &command.iter().map(String::as_str).collect::<Vec<_>>())
        }
    }

    /// One byte that the fingerprint of the data does not see: one line of the first rank, and exit code 2.
    #[test]
    fn processes_that_differ_are_refused() {
        let place = Place::new();
        let text = std::fs::read("tests/data/mill.txt").expect("a text");
        let file = |name: &str, text: &[u8]| {
            let path = place.home.path().join(name);
            std::fs::write(&path, text).expect("a text");
            format!("--train_dataset.data_loader.dataset_files={}", path.display())
        };
        let text = text.repeat(1000);
        let mut one_byte = text.clone();
        one_byte[8_000] ^= 1;
        let [same, one_byte] = [file("same.txt", &text), file("one_byte.txt", &one_byte)];
        let Ended { exit_code, stderr, .. } = place.train_apart(&[&same], &[&same, &one_byte]);
        let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!((exit_code, errors.len()), (Some(2), 1), "{stderr}");
        assert!(errors[0].starts_with("error: rank 1: its data have the hash "), "{stderr}");
        assert!(!place.folder().exists(), "a run that is refused makes no folder");
    }

    /// Corpora that are too long to be read before the first step.
    #[test]
    fn copies_that_turn_out_to_be_unlike_end_the_run_unsaved() {
        let place = Place::new();
        let [own, other] = ["own.bin", "other.bin"].map(|name| {
            let path = place.home.path().join(name);
            let file = std::fs::File::create(&path).expect("a file");
            file.set_len(2 * ((64 << 20) + 100_000)).expect("a length");
            let at = if name == "own.bin" { 0 } else { 1 };
            std::os::unix::fs::FileExt::write_at(&file, &[at], 10_000).expect("a byte");
            format!(
                "--train_dataset={{data_loader: {{type: TokenDataLoader, dataset_files: {}}}}}",
                path.display()
            )
        });
        let few = "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 100000}]";
        let stop = "--stop_step=5000";
        let Ended { exit_code, stderr, .. } = place.train_apart(&[&own, few, stop], &[&other, few, stop]);
        let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!((exit_code, errors.len()), (Some(2), 1), "{stderr}");
        assert!(errors[0].starts_with("error: rank 1: its data have the hash "), "{stderr}");
        assert_eq!(newest_checkpoint(&place.folder()), None, "it was saved");
    }

    #[test]
    fn an_interrupt_before_the_first_step_ends_all_ranks() {
        let place = Place::new();
        let eval = slow_evaluation(&place);
        let mut job = place.start_processes(&["--do_eval=True", "--eval_batches=1000000000", &eval]);
        while !place.folder().join("config.yaml").exists() {
            assert!(job.is_running(), "the run has ended before it made its folder");
            sleep(Duration::from_millis(1));
        }
        assert!(place.signal("-TERM", 1), "rank 1 runs");
        let Ended { exit_code, stderr, .. } = job.end();
        assert_eq!(exit_code, Some(130), "{stderr}");
        assert_eq!(stderr.matches("interrupted before the first step").count(), 1, "{stderr}");
        assert!(!place.folder().exists(), "it refuses the next start");
    }

    #[test]
    fn threads_and_processes_train_alike() {
        for spread in [&[][..], &STAGES, &MATRICES] {
            let [threads, processes] = [Place::new(), Place::new()];
            let flags = [spread, &["--stop_step=4"]].concat();
            threads.train_on_threads(&flags);
            processes.train_on_processes(&flags);
            assert_eq!(metrics(&threads.folder()), metrics(&processes.folder()));
            assert!(threads.weights() == processes.weights(), "other weights");
        }
    }

    #[test]
    fn a_killed_rank_ends_the_others_and_the_run_resumes() {
        let place = Place::new();
        let mut job = place.start_processes(&[]);
        place.wait_for_checkpoint(&mut job);
        assert!(place.signal("-KILL", 1), "rank 1 runs");
        assert_ne!(job.end().exit_code, Some(0));
        assert!(!noted::is_there(place.home.path(), 0), "rank 0 outlives the job");
        let (step, _) = place.weights();
        let stop_step = format!("--stop_step={}", step + 2);
        place.train_on_processes(&["--resume_training=True", &stop_step]);
        let whole = Place::new();
        whole.train_on_threads(&[&stop_step]);
        assert_eq!(metrics(&place.folder()), metrics(&whole.folder()));
        assert!(place.weights() == whole.weights(), "other weights than those of a run that was not killed");
    }

    #[test]
    fn a_signal_to_any_rank_saves_the_run() {
        let place = Place::new();
        let mut job = place.start_processes(&[]);
        place.wait_for_checkpoint(&mut job);
        assert!(place.signal("-TERM", 1), "rank 1 runs");
        let Ended { exit_code, stderr, .. } = job.end();
        assert_eq!(exit_code, Some(0), "{stderr}");
        assert_eq!(stderr.matches("interrupted after step").count(), 1, "{stderr}");
    }
}
