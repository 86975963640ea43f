//! The windows of one source.

use super::source::Source;
use crate::error::{Error, Result};

/// The windows of a source: `seq_length + 1` tokens each, whatever documents they span, one every `seq_length` tokens.
/// So every token of the source but the first is predicted once an epoch; the rest that does not fill a window is
/// dropped.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// The tokens.
    pub source: Source,
    /// Number of windows.
    pub count: u64,
    seq_length: usize,
}

impl Windows {
    /// The windows of `source`; messages call it `name`.
    ///
    /// # Errors
    /// If the source is shorter than a window.
    pub fn new(source: Source, seq_length: usize, name: &str) -> Result<Self> {
        let tokens = source.range.end.saturating_sub(source.range.start);
        let predicted = tokens.saturating_sub(1); // the first has nothing before it
        let count = predicted / seq_length as u64;
        if count == 0 {
            return Err(Error::Plan(format!(
                "seq_length {seq_length} is longer than {name}: a window takes {} tokens, {tokens} were found; lower model.model_config.seq_length or name more data",
                seq_length + 1
            )));
        }
        Ok(Self { source, count, seq_length })
    }

    /// Copies the window with this number: its first `seq_length` tokens, and for each the token after it. Returns the
    /// position of the window in the stream of the source.
    pub fn read(&self, window: u64, tokens: &mut [u32], targets: &mut [u32]) -> u64 {
        let start = self.source.range.start + window * self.seq_length as u64;
        let end = start + self.seq_length as u64;
        self.source.stream.read(start..end, tokens);
        let last = self.seq_length - 1;
        targets[..last].copy_from_slice(&tokens[1..]);
        self.source.stream.read(end..end + 1, &mut targets[last..]);
        start
    }
}
