//! Starts the programs as a user does, and holds their exit codes and output.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::SystemTime;

/// The example `train_gpt`, which `cargo test` builds into the folder `examples` next to this test's folder.
///
/// # Panics
/// If it is missing or older than the sources, because `cargo test --test NAME` does not build examples.
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

/// `train_gpt` with `arguments`, in the repository's root.
pub fn train_gpt(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(program());
    command.args(arguments);
    in_repository(&mut command);
    command
}

/// `gristmill` with `arguments`, in the repository's root.
pub fn gristmill(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    command.args(arguments);
    in_repository(&mut command);
    command
}

/// Sets the working directory to the repository's root, and asks for the backtraces that must not appear.
pub fn in_repository(command: &mut Command) {
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).env("RUST_BACKTRACE", "1");
    // As on most servers. A program must not let a library below the Vulkan loader complain of that.
    command.env_remove("XDG_RUNTIME_DIR");
    // No test reaches the Hub, or what this user has of it.
    command.env("HF_HUB_OFFLINE", "1").env("HF_HUB_CACHE", "/nowhere");
}

/// Hides all Vulkan drivers: both of the loader's variables name an empty list.
pub fn without_adapter(command: &mut Command) -> &mut Command {
    command.env("VK_ICD_FILENAMES", "/dev/null").env("VK_DRIVER_FILES", "/dev/null")
}

/// The exit code and output of a process.
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

/// Asserts a refusal: exit code 2, one line `error: `, which comes last and contains every text in `expected`, and no
/// panic.
#[track_caller]
pub fn assert_refused(name: &str, ended: &Ended, expected: &[&str]) {
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

/// Starts a process whose output [`end`] collects.
pub fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the process starts")
}

pub fn end(child: Child) -> Ended {
    child.wait_with_output().expect("the process ends").into()
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|data| data.modified()).ok()
}

/// The latest modification at or below `path`.
fn newest(path: &Path) -> Option<SystemTime> {
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().filter_map(|entry| newest(&entry.path())).max(),
        Err(_) => modified(path),
    }
}
