//! The check of streams that are too long to be read before step 1.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use super::statistics::check_chunk;
use super::stream::TokenStream;
use crate::error::Error;

/// A stream and the vocabulary that its tokens must fit.
#[derive(Clone, Debug)]
pub(super) struct Unchecked {
    pub stream: Arc<TokenStream>,
    pub vocab_size: usize,
    /// A token that may be outside the vocabulary, since a model never reads it.
    pub pad: Option<u32>,
}

/// Streams that a thread is checking while the run trains. Dropping it ends the thread.
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
    /// Starts reading `streams`. Where there are no threads nothing is checked: batches are, one by one.
    pub(super) fn start(streams: Vec<Unchecked>) -> Self {
        let shared = Arc::new(Shared::default());
        if !streams.is_empty() {
            let ours = shared.clone();
            let check = move || streams.iter().for_each(|stream| ours.check(stream));
            let _ = thread::Builder::new().name("data check".to_string()).spawn(check);
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
    fn check(&self, Unchecked { stream, vocab_size, pad }: &Unchecked) {
        // The error is `None` once nobody waits for it.
        let checked = stream.try_for_each_chunk(0..stream.len(), |start, chunk| {
            match self.is_dropped.load(Ordering::Relaxed) {
                true => Err(None),
                false => check_chunk(start, chunk, *vocab_size, *pad).map_err(Some),
            }
        });
        if let Err(Some(error)) = checked {
            let _ = self.fault.set(error); // only the first counts
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn unchecked(tokens: Vec<u8>) -> Unchecked {
        Unchecked { stream: Arc::new(TokenStream::from_bytes(tokens)), vocab_size: 9, pad: Some(11) }
    }

    #[test]
    fn the_first_bad_token_of_all_streams_is_named() {
        let mut long = vec![8; 300_000];
        long[200_000] = 10;
        let check =
            BackgroundCheck::start(vec![unchecked(vec![1, 11, 8]), unchecked(long), unchecked(vec![12])]);
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
