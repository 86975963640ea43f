//! Progress of reading much data, for a display.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How far a reading has got.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Approximate number of bytes of files that became tokens.
    pub bytes: u64,
    /// Number of bytes of all files.
    pub total: u64,
    /// Number of records or documents.
    pub records: u64,
    /// Number of tokens that they became.
    pub tokens: u64,
    /// Time since the start.
    pub elapsed: Duration,
}

/// A function that is told several times a second how far a reading has got, and gets `None` at its end.
pub type Listener = fn(Option<&Progress>);

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// Tells `listener` of all readings of this process from now on; only the first call has an effect.
pub fn show_by(listener: Listener) {
    let _ = LISTENER.set(listener);
}

const INTERVAL: Duration = Duration::from_millis(200);

/// A reading whose progress is shown.
pub(super) struct Shown {
    progress: Progress,
    started: Instant,
    next: Duration,
}

impl Shown {
    /// Starts to show a reading of `total` bytes.
    pub fn new(total: u64) -> Self {
        let progress = Progress { bytes: 0, total, records: 0, tokens: 0, elapsed: Duration::ZERO };
        Self { progress, started: Instant::now(), next: INTERVAL }
    }

    /// Counts a record or a document.
    pub fn add(&mut self, bytes: u64, tokens: u64) {
        self.progress.bytes = self.progress.total.min(self.progress.bytes + bytes);
        self.progress.records += 1;
        self.progress.tokens += tokens;
        let elapsed = self.started.elapsed();
        if elapsed >= self.next {
            self.next = elapsed + INTERVAL;
            self.progress.elapsed = elapsed;
            LISTENER.get().iter().for_each(|show| show(Some(&self.progress)));
        }
    }

    /// The progress so far.
    pub fn so_far(&self) -> Progress {
        Progress { elapsed: self.started.elapsed(), ..self.progress }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        LISTENER.get().iter().for_each(|show| show(None));
    }
}
