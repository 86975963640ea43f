//! Streams that are too long to be read before step 1 are read while the run trains.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use super::stream_pass::{Stopped, StreamPass};
use crate::error::Error;

/// Streams that a thread checks and hashes while the run trains. Dropping this value asks the thread to end.
#[derive(Debug)]
pub struct BackgroundCheck {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    fault: OnceLock<Error>,
    is_dropped: AtomicBool,
}

impl BackgroundCheck {
    /// Starts `passes`. If no thread can be started, batches are checked one by one, and the data have no hash.
    pub(super) fn start(passes: Vec<StreamPass>) -> Self {
        let shared = Arc::new(Shared::default());
        if !passes.is_empty() {
            let ours = shared.clone();
            let check = move || passes.iter().for_each(|pass| ours.check(pass));
            if let Err(error) = thread::Builder::new().name("data check".to_string()).spawn(check) {
                tracing::warn!(
                    "no thread can read the data ahead ({error}): checkpoints know them by their fingerprint alone"
                );
            }
        }
        Self { shared }
    }

    /// The first token outside the vocabulary, once it has been found.
    pub fn fault(&self) -> Option<&Error> {
        self.shared.fault.get()
    }
}

impl Drop for BackgroundCheck {
    fn drop(&mut self) {
        self.shared.is_dropped.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn check(&self, pass: &StreamPass) {
        if let Err(Stopped::Fault(error)) = pass.read(|| self.is_dropped.load(Ordering::Relaxed)) {
            let _ = self.fault.set(error); // only the first counts
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::stream::TokenStream;
    use std::time::Duration;

    fn pass(tokens: Vec<u8>) -> StreamPass {
        StreamPass::new(Arc::new(TokenStream::from_bytes(tokens)), 9, Some(11))
    }

    #[test]
    fn the_first_bad_token_of_all_streams_is_named() {
        let mut long = vec![8; 300_000];
        long[200_000] = 10;
        let check = BackgroundCheck::start(vec![pass(vec![1, 11, 8]), pass(long), pass(vec![12])]);
        while check.fault().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        let line = check.fault().map(Error::to_string).unwrap_or_default();
        assert!(
            line.starts_with("token 10 at position 200000 of the data is outside vocab_size 9"),
            "{line}"
        );
    }
}
