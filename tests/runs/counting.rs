//! What a rank sends. Benches use this file, too.

use gristmill::error::Result;
use gristmill::ranks::Transport;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A transport that counts the bytes that its rank sends.
pub struct Counting<T> {
    inner: T,
    sent: Arc<AtomicU64>,
}

impl<T> Counting<T> {
    /// Adds what is sent over `inner` to `sent`.
    pub fn new(inner: T, sent: Arc<AtomicU64>) -> Self {
        Self { inner, sent }
    }
}

impl<T: Transport> Transport for Counting<T> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn local_rank(&self) -> usize {
        self.inner.local_rank()
    }

    fn exchange(&mut self, outgoing: &[(usize, &[u8])], incoming: &mut [(usize, &mut [u8])]) -> Result<()> {
        let bytes: usize = outgoing.iter().map(|(_, bytes)| bytes.len()).sum();
        self.sent.fetch_add(bytes as u64, Ordering::SeqCst);
        self.inner.exchange(outgoing, incoming)
    }

    fn abort(&mut self) {
        self.inner.abort();
    }
}
