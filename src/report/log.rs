//! Where a run speaks: the terminal, above the progress bar without tearing it, and `log.txt` once its folder is known.
//!
//! Everything is said through `tracing`. The terminal shows the message alone; `log.txt` has time and level too.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use indicatif::MultiProgress;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{self, FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::error::Result;
use crate::store::durable::io_error;

/// The target of the lines of a step: in the file always, on the terminal only where no bar shows the same.
pub(super) const STEP_TARGET: &str = "gristmill::step";

/// How much a log that is attached to no file yet remembers. A run says a few lines before its folder exists.
const WAITING_BYTES: usize = 64 * 1024;

/// The process's log. A clone is the same log.
#[derive(Debug, Clone)]
pub struct Log {
    console: Console,
    file: FileLog,
}

impl Log {
    /// The process's log; the first call makes it the receiver of all `tracing` events from level INFO. Where the
    /// program has a receiver of its own already, that one keeps the events, and there is no `log.txt`.
    pub fn start() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self { console: Console::stderr(), file: FileLog::default() };
            // An error means exactly that another receiver is there.
            let _ = log.subscriber().try_init();
            log
        })
        .clone()
    }

    /// Appends the log to `path` from now on, beginning with what was said before there was a file. A later call goes
    /// on in another file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn attach(&self, path: &Path) -> Result<()> {
        self.file.attach(path, &self.console)
    }

    /// Stderr is a terminal, so a progress bar can be shown.
    pub fn is_interactive(&self) -> bool {
        !self.console.bars.is_hidden()
    }

    /// Where progress bars must be added for messages to leave them whole.
    pub(super) fn bars(&self) -> &MultiProgress {
        &self.console.bars
    }

    fn subscriber(&self) -> impl Subscriber + for<'a> LookupSpan<'a> + Send + Sync + 'static {
        let shows_bar = self.is_interactive();
        let on_console = filter_fn(move |event| !shows_bar || event.target() != STEP_TARGET);
        let console = fmt::layer().event_format(MessageOnly).with_writer(self.console.clone());
        let file = fmt::layer().with_ansi(false).with_target(false).with_writer(self.file.clone());
        tracing_subscriber::registry()
            .with(LevelFilter::INFO)
            .with(console.with_filter(on_console))
            .with(file)
    }
}

/// Stderr, shared with the progress bars.
#[derive(Debug, Clone)]
struct Console {
    bars: MultiProgress,
}

impl Console {
    fn stderr() -> Self {
        Self { bars: MultiProgress::new() }
    }
}

impl Write for Console {
    /// Prints whole lines. A terminal that is gone is no reason to end a run, so this never fails.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bars.is_hidden() {
            let _ = io::stderr().write_all(bytes);
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

impl MakeWriter<'_> for Console {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// A log file that may become known later than the first message.
#[derive(Debug, Clone, Default)]
struct FileLog {
    state: Arc<Mutex<FileState>>,
}

#[derive(Debug)]
enum FileState {
    /// No file yet: what was said so far, up to [`WAITING_BYTES`].
    Waiting(Vec<u8>),
    /// The file, and where to say it when it fails.
    Attached { file: File, path: PathBuf, console: Console },
    /// The file failed (and that was said): the run goes on without.
    Failed,
}

impl Default for FileState {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

impl FileLog {
    fn attach(&self, path: &Path, console: &Console) -> Result<()> {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let mut file = opened.map_err(|error| io_error(path, "open for writing", &error))?;
        let mut state = self.lock();
        if let FileState::Waiting(said) = &*state {
            file.write_all(said).map_err(|error| io_error(path, "write", &error))?;
        }
        *state = FileState::Attached { file, path: path.to_path_buf(), console: console.clone() };
        Ok(())
    }

    /// A panic elsewhere while the log was held leaves nothing half-done in it.
    fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for FileLog {
    /// Appends one event. A failure is said once on the terminal and never ends a run.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        match &mut *state {
            FileState::Waiting(said) if said.len() + bytes.len() <= WAITING_BYTES => {
                said.extend_from_slice(bytes)
            }
            FileState::Attached { file, path, console } => {
                if let Err(error) = file.write_all(bytes) {
                    // Not through `tracing`: this is inside one of its events.
                    let _ =
                        writeln!(console, "warning: {}; the log ends here", io_error(path, "write", &error));
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

impl MakeWriter<'_> for FileLog {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// The terminal's form of an event: what was said, with a word in front where it is not good news.
struct MessageOnly;

impl<S, N> FormatEvent<S, N> for MessageOnly
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        match *event.metadata().level() {
            Level::ERROR => writer.write_str("error: ")?,
            Level::WARN => writer.write_str("warning: ")?,
            _ => {}
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests;
