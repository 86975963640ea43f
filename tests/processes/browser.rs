//! Opens pages in Chromium, where there is one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names that Chromium has on one system or another.
const NAMES: [&str; 5] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];

/// What a page has become after its script ran.
pub struct Opened {
    /// The document up to its data, without the places where its words may break.
    pub dom: String,
    /// What was written to the console.
    pub console: Vec<String>,
}

impl Opened {
    /// The attribute `data-NAME` of the document's root.
    pub fn mark(&self, name: &str) -> Option<&str> {
        let (_, root) = self.dom.split_once("<html")?;
        let (attributes, _) = root.split_once('>')?;
        let (_, value) = attributes.split_once(&format!("data-{name}=\""))?;
        value.split_once('"').map(|(value, _)| value)
    }

    /// Asserts that the page drew this many charts and that nothing went wrong.
    #[track_caller]
    pub fn assert_drawn(&self, charts: usize) {
        assert_eq!((self.mark("errors"), self.console.as_slice()), (None, &[][..]), "errors of the page");
        assert_eq!(self.mark("charts"), Some(charts.to_string().as_str()), "charts, in:\n{:.2000}", self.dom);
    }
}

/// Opens the page at `path`; `None` without a browser, which this says loudly and which CI may not be.
pub fn open(path: &Path) -> Option<Opened> {
    let Some(browser) = browser() else {
        assert!(std::env::var_os("CI").is_none(), "no Chromium: `./setup.sh --browser` installs it");
        eprintln!("\nSKIPPED: no Chromium, so no page was opened; `./setup.sh --browser` installs it\n");
        return None;
    };
    let profile = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(browser);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--dump-dom",
    ]);
    command.args([
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--enable-logging=stderr",
    ]);
    command.args(["--virtual-time-budget=3000", "--window-size=1280,900"]);
    command
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", path.display()));
    let output = command.stdin(Stdio::null()).output().expect("Chromium starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "Chromium failed:\n{stderr}");
    let console = stderr.lines().filter(|line| line.contains("CONSOLE")).map(str::to_string).collect();
    let document = String::from_utf8_lossy(&output.stdout);
    let dom =
        document.split("<script type=\"application/json\"").next().unwrap_or_default().replace("<wbr>", "");
    Some(Opened { dom, console })
}

fn browser() -> Option<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let paths = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    paths.into_iter().find(|path| path.is_file())
}
