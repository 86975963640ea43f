//! The destinations of log messages: the terminal, above the progress bar, and `log.txt` once the run folder is known.
//!
//! All messages are `tracing` events. The terminal shows only the text; `log.txt` also has time and level. Warnings and
//! errors also go to `events.jsonl`, among the other events of a run.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::{Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{self, FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use super::bars::MultiProgress;
use super::events::Event;
use crate::error::Result;
use crate::store::OUTPUT_DIR;

/// The target of messages that only `log.txt` has: the console shows them in another form, or the program prints them
/// itself, and an error that ends a run is an event of its own.
pub(crate) const FILE_TARGET: &str = "gristmill::file";

/// The target of messages in that other form, which never go to the file.
pub(super) const CONSOLE_TARGET: &str = "gristmill::console";

/// Most bytes that a log keeps before it has a file. A run logs a few lines before its folder exists.
const WAITING_BYTES: usize = 64 * 1024;

/// The log of the process. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Log {
    console: Console,
    text: FileLog,
    events: FileLog,
}

impl Log {
    /// The log of the process; the first call installs it as the subscriber of `tracing` events of level INFO and
    /// above. If the program has already installed a subscriber of its own, that subscriber gets the events, and
    /// `log.txt` stays empty.
    pub fn start() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            // The only error is that another subscriber is installed.
            let _ = log.subscriber().try_init();
            log
        })
        .clone()
    }

    /// Appends to these files from now on, starting with the messages logged before there were files. A later call
    /// switches to other files.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn attach(&self, text: &Path, events: &Path) -> Result<()> {
        self.text.attach(text, &self.console)?;
        self.events.attach(events, &self.console)
    }

    /// Appends `event` to the file of events.
    pub(crate) fn note(&self, event: Event) {
        // Never fails: a file that cannot be written must not end a run.
        let _ = self.events.clone().write_all(event.line().as_bytes());
    }

    /// Whether stderr is a terminal, which can show a progress bar.
    pub(crate) fn is_interactive(&self) -> bool {
        !self.console.bars.is_hidden()
    }

    /// The bars to which progress bars must be added so that messages do not tear them.
    pub(super) fn bars(&self) -> &MultiProgress {
        &self.console.bars
    }

    /// Adds a bar for work outside of a run, which messages do not tear.
    #[cfg(feature = "cli")]
    pub(crate) fn add_bar(&self, bar: super::bars::ProgressBar) -> super::bars::ProgressBar {
        self.console.bars.add(bar)
    }

    fn subscriber(&self) -> impl Subscriber + for<'a> LookupSpan<'a> + Send + Sync + 'static {
        let on_console = filter_fn(|event| event.target() != FILE_TARGET);
        let in_text = filter_fn(|event| event.target() != CONSOLE_TARGET);
        let is_event = filter_fn(|event| *event.level() <= Level::WARN && event.target() != FILE_TARGET);
        let Self { console, text, events } = self.clone();
        let console = fmt::layer().event_format(Form::Plain).with_writer(move || console.clone());
        let text = fmt::layer().with_ansi(false).with_target(false).with_writer(move || text.clone());
        let events = fmt::layer().event_format(Form::Event).with_writer(move || events.clone());
        tracing_subscriber::registry()
            .with(LevelFilter::INFO)
            .with(console.with_filter(on_console))
            .with(text.with_filter(in_text))
            .with(events.with_filter(is_event))
    }
}

/// Whether the last line of the process has been printed on stderr.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Prints the last line of a process that is about to exit: messages logged after it no longer reach the console.
#[cfg(feature = "cli")]
pub(crate) fn say_last(line: &str) {
    let mut stderr = io::stderr().lock();
    HAS_ENDED.store(true, Ordering::Relaxed);
    let _ = writeln!(stderr, "{line}");
}

/// Stderr, shared with the progress bars.
#[derive(Debug, Clone, Default)]
struct Console {
    bars: MultiProgress,
}

impl Write for Console {
    /// Prints whole lines. Never fails: a closed terminal must not end a run.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bars.is_hidden() {
            let mut stderr = io::stderr().lock();
            if !HAS_ENDED.load(Ordering::Relaxed) {
                let _ = stderr.write_all(bytes);
            }
        } else {
            let text = String::from_utf8_lossy(bytes);
            let _ = self.bars.println(text.strip_suffix('\n').unwrap_or(&text));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file of lines whose path may become known after the first one.
#[derive(Debug, Clone, Default)]
struct FileLog {
    state: Arc<Mutex<FileState>>,
}

#[derive(Debug)]
enum FileState {
    /// No file yet: the messages logged so far, up to [`WAITING_BYTES`].
    Waiting(Vec<u8>),
    /// The file, and the console to report its failure on.
    Attached { file: File, path: PathBuf, console: Console },
    /// The file failed, which was reported: the run continues without it.
    Failed,
}

impl Default for FileState {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

impl FileLog {
    fn attach(&self, path: &Path, console: &Console) -> Result<()> {
        let mut file =
            open_lines(path).map_err(|error| OUTPUT_DIR.error(path, "open for writing", &error))?;
        let mut state = self.lock();
        if let FileState::Waiting(kept) = &*state {
            file.write_all(kept).map_err(|error| OUTPUT_DIR.error(path, "write", &error))?;
        }
        *state = FileState::Attached { file, path: path.to_path_buf(), console: console.clone() };
        Ok(())
    }

    /// A poisoned lock is fine: no panic can leave the state half changed.
    fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a file to append lines. If its last line was cut off by a kill, it gets a line feed, so that it does not
/// swallow the next line.
fn open_lines(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

impl Write for FileLog {
    /// Appends one event. A failure is reported once on the terminal and never ends a run.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        match &mut *state {
            FileState::Waiting(kept) if kept.len() + bytes.len() <= WAITING_BYTES => {
                kept.extend_from_slice(bytes)
            }
            FileState::Attached { file, path, console } => {
                if let Err(error) = file.write_all(bytes) {
                    // Not through `tracing`: this is inside one of its events.
                    let _ = writeln!(
                        console,
                        "warning: {}; it ends here",
                        OUTPUT_DIR.error(path, "write", &error)
                    );
                    *state = FileState::Failed;
                }
            }
            FileState::Waiting(_) | FileState::Failed => {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The form of a message outside of `log.txt`.
enum Form {
    /// On the terminal: the text, after `error:` or `warning:` at those levels.
    Plain,
    /// A line of `events.jsonl`.
    Event,
}

impl<S, N> FormatEvent<S, N> for Form
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> std::fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        writer.write_str(&match (self, *event.metadata().level()) {
            (Self::Plain, Level::ERROR) => format!("error: {text}\n"),
            (Self::Plain, Level::WARN) => format!("warning: {text}\n"),
            (Self::Plain, _) => text + "\n",
            (Self::Event, Level::ERROR) => Event::Error { text }.line(),
            (Self::Event, _) => Event::Warning { text }.line(),
        })
    }
}

#[cfg(all(test, feature = "cli"))] // they draw bars
mod tests;
