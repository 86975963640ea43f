//! The program as a user starts it: a process of its own, its exit code and what it wrote.
#![allow(dead_code)] // each test binary uses its own part

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::SystemTime;

/// The example `train_gpt`, which `cargo test` builds into the folder `examples` beside that of this test.
///
/// # Panics
/// Where it is missing or older than the sources: `cargo test --test NAME` does not build examples.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this test's own path");
    let folder = test.parent().and_then(Path::parent).expect("PROFILE/deps/TEST");
    let program = folder.join("examples").join(format!("train_gpt{}", std::env::consts::EXE_SUFFIX));
    let built = modified(&program);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let newest =
        ["src", "shaders", "examples/train_gpt.rs"].map(|path| newest(&root.join(path))).into_iter().max();
    assert!(
        built.is_some() && built >= newest.flatten(),
        "{} is missing or out of date: run `cargo build --release --example train_gpt` first",
        program.display()
    );
    program
}

/// `train_gpt` with `arguments`, run from the repository's root.
pub fn train_gpt(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(program());
    command.args(arguments);
    at_home(&mut command);
    command
}

/// Lets `command` run as tests want it: from the repository's root, asking for backtraces that must not come.
pub fn at_home(command: &mut Command) {
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).env("RUST_BACKTRACE", "1");
    // Where this is not set, as on most servers, the Wayland library below the Vulkan loader complains on stderr.
    command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
}

/// What a process that ended left.
pub struct Ended {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

impl Ended {
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "exit code, after:\n{}", self.stderr);
        self
    }
}

/// Holds the process to the promise: `error: ` once, at the last line, with everything in `expected`; no panic.
#[track_caller]
pub fn refused(name: &str, ended: &Ended, expected: &[&str]) {
    let Ended { code, stderr, .. } = ended;
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    println!("{name}: {}", lines.join("\n"));
    assert_eq!(*code, Some(2), "{name}: exit code, after:\n{stderr}");
    assert_eq!(lines.len(), 1, "{name}: not one error line:\n{stderr}");
    assert_eq!(
        stderr.lines().last(),
        lines.first().copied(),
        "{name}: the error is not the last line:\n{stderr}"
    );
    for text in ["panicked", "RUST_BACKTRACE", "stack backtrace"] {
        assert!(!stderr.contains(text), "{name}: a panic shows:\n{stderr}");
    }
    for text in expected {
        assert!(lines[0].contains(text), "{name}: `{text}` is not in: {}", lines[0]);
    }
}

pub fn run(command: &mut Command) -> Ended {
    command.output().expect("the process starts").into()
}

/// Starts a process whose output is taken by [`end`].
pub fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the process starts")
}

pub fn end(child: Child) -> Ended {
    child.wait_with_output().expect("the process ends").into()
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|data| data.modified()).ok()
}

/// When the newest file at or below `path` was changed.
fn newest(path: &Path) -> Option<SystemTime> {
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().filter_map(|entry| newest(&entry.path())).max(),
        Err(_) => modified(path),
    }
}
