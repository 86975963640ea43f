//! How to wait for a result that has to be polled.
//!
//! MPI's own busy wait would take a core away from a software adapter that computes.

use std::time::{Duration, Instant};

/// How long a wait only yields its core between two polls.
const EAGER: Duration = Duration::from_micros(200);

/// The shortest and the longest sleep between two polls.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

/// A wait that polls often at first and then ever less often: it takes next to nothing of a core that others compute
/// on, and lasts at most a tenth longer for it.
pub(super) struct Patience {
    since: Instant,
}

impl Patience {
    pub fn new() -> Self {
        Self { since: Instant::now() }
    }

    /// A message arrived: more may follow soon.
    pub fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// No message arrived.
    pub fn wait(&self) {
        let waited = self.since.elapsed();
        if waited < EAGER {
            std::thread::yield_now();
        } else {
            std::thread::sleep((waited / 10).clamp(NAPS[0], NAPS[1]));
        }
    }
}
