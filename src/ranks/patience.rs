//! How to wait for what must be asked for.

use std::time::{Duration, Instant};

/// How long a wait yields the core between two questions before it sleeps between them.
const EAGER: Duration = Duration::from_micros(200);

/// Between two questions, once it sleeps.
const NAP: Duration = Duration::from_micros(50);

/// A wait that asks often at first, and later sleeps so that others can use the core.
pub(super) struct Patience {
    since: Instant,
}

impl Patience {
    pub fn new() -> Self {
        Self { since: Instant::now() }
    }

    /// Something arrived: more may follow soon.
    pub fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// Nothing arrived.
    pub fn wait(&self) {
        if self.since.elapsed() < EAGER { std::thread::yield_now() } else { std::thread::sleep(NAP) }
    }
}
