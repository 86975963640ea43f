//! Drives Chromium, where there is one, by the DevTools protocol.

mod page;
mod pipe;

pub use self::page::{Page, View};

use self::pipe::Pipe;
use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Names that Chromium has on one system or another.
const NAMES: [&str; 5] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];

/// Without windows, without a sandbox (which containers often forbid), and silent on the network.
const FLAGS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--remote-debugging-pipe",
];

/// The protocol's pipes are descriptors 3 and 4, which a shell can give to a child and the standard library cannot.
const WITH_PIPES: &str = "exec \"$@\" 3<&0 4>&1 0</dev/null 1>&2";

/// A browser, which is killed when this is dropped.
pub struct Browser {
    pipe: RefCell<Pipe>,
    process: Child,
    /// The folder of its profile, which goes with it.
    profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser; `None` where none is installed, which this says loudly and which CI may not lack.
    pub fn start() -> Option<Self> {
        let Some(program) = installed() else {
            assert!(std::env::var_os("CI").is_none(), "no Chromium: `./setup.sh --browser` installs it");
            eprintln!("\nSKIPPED: no Chromium, so no page was opened; `./setup.sh --browser` installs it\n");
            return None;
        };
        let profile = tempfile::tempdir().expect("a folder");
        let log = profile.path().join("stderr.txt");
        let mut process = Command::new("sh")
            .args(["-c", WITH_PIPES, "sh"])
            .arg(program)
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("TMPDIR", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("a file"))
            .spawn()
            .expect("a shell");
        let pipe = RefCell::new(Pipe::to(&mut process, log));
        Some(Self { pipe, process, profile })
    }

    /// Opens an empty page in a window of its own, since a page behind another one is hidden and draws nothing.
    pub fn page(&self) -> Page<'_> {
        Page::new(&self.pipe)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Its own children end a little later, and write until then.
        for _ in 0..50 {
            if std::fs::remove_dir_all(self.profile.path()).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The address of a file.
pub fn file(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn installed() -> Option<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let mut paths = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    paths.find(|path| path.is_file())
}
