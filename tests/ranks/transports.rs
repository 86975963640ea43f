//! Runs a test on ranks of every transport.

use gristmill::ranks::{Ranks, Transport, in_process, launcher, mpi};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long the ranks of a job may take to end when one of them has ended.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// How a job of processes ended.
pub struct Ended {
    pub exit_code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `body` on 1 to 5 threads, and on 2 and on 4 processes where there is MPI. `test` is the name of the test that calls
/// this, which is what these processes run.
pub fn on_every_transport(test: &str, body: fn(&Ranks)) {
    if is_process() {
        return body(&Ranks::start(mpi::connect).expect("a process of mpirun"));
    }
    (1..=5).for_each(|size| on_threads(size, body));
    if cfg!(feature = "mpi") {
        for size in [2, 4] {
            let ended = run_processes(size, test);
            let passed = ended.stdout.matches("test result: ok. 1 passed").count();
            let output = format!("{}\n{}", ended.stdout, ended.stderr);
            assert_eq!((passed, ended.exit_code), (size, Some(0)), "{test} on {size} processes: {output}");
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
    let mut command = Command::new("mpirun");
    command.args(["-n", &size.to_string()]).args(program);
    // Open MPI refuses more processes than cores, and root.
    for name in ["ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"] {
        command.env(format!("OMPI_{name}"), "1");
    }
    let start = Instant::now();
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun");
    let (stdout, stderr) = (collect(job.stdout.take()), collect(job.stderr.take()));
    while job.try_wait().expect("the state of mpirun").is_none() {
        if start.elapsed() > ENDS_WITHIN {
            kill(&mut job);
            let [stdout, stderr] = [stdout, stderr].map(|text| text.join().expect("no panic"));
            panic!("{program:?} on {size} processes does not end:\n{stdout}\n{stderr}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    let exit_code = job.wait().expect("the state of mpirun").code();
    let [stdout, stderr] = [stdout, stderr].map(|text| text.join().expect("no panic"));
    Ended { exit_code, stdout, stderr }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Kills `mpirun` and with it its processes.
fn kill(job: &mut Child) {
    let _ = job.kill();
    let _ = job.wait();
}
