//! Runs a test on ranks of every transport.

use gristmill::ranks::{Ranks, Transport, in_process, launcher, mpi};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long the ranks of a job may take to end when one of them has ended.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// How a job of processes ended.
pub struct Ended {
    pub exit_code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `body` on 1 to 5 threads, and on 2 and on 4 processes where there is MPI. `test` is the name of the test that
/// calls this, which is what these processes run.
pub fn on_every_transport(test: &str, body: fn(&Ranks)) {
    if is_process() {
        return body(&Ranks::start(mpi::connect).expect("a process of mpirun"));
    }
    (1..=5).for_each(|size| on_threads(size, body));
    if cfg!(feature = "mpi") {
        for size in [2, 4] {
            let ended = run_processes(size, test);
            // Their lines may be mixed; a process that finds no test of this name says `0 passed`.
            let ran = ended.stdout.contains("1 passed") && !ended.stdout.contains("0 passed");
            let output = format!("{}\n{}", ended.stdout, ended.stderr);
            assert!(ran && ended.exit_code == Some(0), "{test} on {size} processes: {output}");
        }
    }
}

/// Runs `body` on each of `size` ranks, threads of this process.
pub fn on_threads(size: usize, body: impl Fn(&Ranks) + Sync) {
    thread::scope(|scope| {
        for end in in_process::connect(size) {
            let connect = || Ok(Box::new(end) as Box<dyn Transport>);
            scope.spawn(|| body(&Ranks::start(connect).expect("a thread")));
        }
    });
}

/// Whether this process is one of several that `mpirun` has started.
pub fn is_process() -> bool {
    launcher::processes() > 1
}

/// Runs the test with the name `test` on `size` processes.
///
/// # Panics
/// If they have not ended after 30 s.
pub fn run_processes(size: usize, test: &str) -> Ended {
    let program = std::env::current_exe().expect("the path of this test");
    let program = program.to_str().expect("UTF-8");
    run_mpirun(size, &[program, "--exact", test, "--nocapture"])
}

/// Runs the command `program` on `size` processes.
///
/// # Panics
/// If they have not ended after 30 s.
pub fn run_mpirun(size: usize, program: &[&str]) -> Ended {
    Job::start(size, program).end()
}

/// Processes that `mpirun` has started.
pub struct Job {
    mpirun: Child,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
}

impl Job {
    /// Starts the command `program` on `size` processes, in the repository's root.
    pub fn start(size: usize, program: &[&str]) -> Self {
        let mut command = Command::new("mpirun");
        command.args(["-n", &size.to_string()]).args(program).current_dir(env!("CARGO_MANIFEST_DIR"));
        // Open MPI refuses more processes than cores, and root.
        for name in ["ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"] {
            command.env(format!("OMPI_{name}"), "1");
        }
        let mut mpirun =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun starts");
        let (stdout, stderr) = (collect(mpirun.stdout.take()), collect(mpirun.stderr.take()));
        Self { mpirun, stdout, stderr }
    }

    pub fn is_running(&mut self) -> bool {
        self.mpirun.try_wait().expect("the state of mpirun").is_none()
    }

    /// Waits until all processes have ended.
    ///
    /// # Panics
    /// If that takes more than 30 s.
    pub fn end(mut self) -> Ended {
        let start = Instant::now();
        while self.is_running() && start.elapsed() < ENDS_WITHIN {
            thread::sleep(Duration::from_millis(20));
        }
        let is_late = self.is_running();
        if is_late {
            // Its processes end with it.
            self.mpirun.kill().expect("mpirun");
        }
        let exit_code = self.mpirun.wait().expect("the state of mpirun").code();
        let [stdout, stderr] = [self.stdout, self.stderr].map(|text| text.join().expect("no panic"));
        assert!(!is_late, "the processes do not end:\n{stdout}\n{stderr}");
        Ended { exit_code, stdout, stderr }
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
