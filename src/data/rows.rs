//! The rows of one source.

use std::ops::Range;
use std::sync::Arc;

use super::batch::NO_LABEL;
use super::samples::check_row;
use super::source::{Content, Source};
use super::statistics::{TokenCounts, check_chunk, fingerprint};
use super::stream::TokenStream;
use crate::error::{Error, Result};

/// The rows of a source, `seq_length` tokens each: one for each sample, or windows of the stream, whatever documents they
/// span, one every `seq_length` tokens. So every token of a stream but the first is predicted once an epoch; the rest that
/// does not fill a window is dropped.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// The tokens or samples.
    pub source: Source,
    /// Number of rows.
    pub count: u64,
    seq_length: usize,
}

impl Rows {
    /// The rows of `source`; messages call it `name`.
    ///
    /// # Errors
    /// If a stream is shorter than a window, or there is no sample.
    pub fn new(source: Source, seq_length: usize, name: &str) -> Result<Self> {
        let len = source.range.end.saturating_sub(source.range.start);
        let count = match source.content {
            Content::Samples(_) => len,
            Content::Stream(_) => len.saturating_sub(1) / seq_length as u64, // the first has nothing before it
        };
        if count == 0 {
            return Err(Error::Plan(match source.content {
                Content::Samples(_) => format!("{name} has no sample; name more data"),
                Content::Stream(_) => format!(
                    "seq_length {seq_length} is longer than {name}: a window takes {} tokens, {len} were found; lower model.model_config.seq_length or name more data",
                    seq_length + 1
                ),
            }));
        }
        Ok(Self { source, count, seq_length })
    }

    /// Fills in the row with this number: its tokens, and for each the token after it or
    /// [`NO_LABEL`](super::batch::NO_LABEL).
    ///
    /// # Errors
    /// If it holds a token that is neither below `vocab_size` nor `pad`.
    pub fn read(
        &self,
        row: u64,
        tokens: &mut [u32],
        targets: &mut [u32],
        vocab_size: usize,
        pad: Option<u32>,
    ) -> Result<()> {
        let stream = match &self.source.content {
            Content::Stream(stream) => stream,
            Content::Samples(samples) => {
                let sample = self.source.range.start + row;
                samples.read(sample, tokens, targets);
                return check_row(sample, tokens, targets, vocab_size, pad);
            }
        };
        let start = self.source.range.start + row * self.seq_length as u64;
        let end = start + self.seq_length as u64;
        stream.read(start..end, tokens);
        let last = self.seq_length - 1;
        targets[..last].copy_from_slice(&tokens[1..]);
        stream.read(end..end + 1, &mut targets[last..]);
        check_chunk(start, tokens, vocab_size, pad)?;
        check_chunk(start + 1, targets, vocab_size, pad)
    }

    /// Calls `visit` with the part of a row that each document of a sample takes, and with that of the padding. The
    /// documents of a stream are found by the token that ends them.
    pub fn for_each_document(&self, row: u64, visit: impl FnMut(Range<usize>)) {
        if let Content::Samples(samples) = &self.source.content {
            samples.for_each_document(self.source.range.start + row, self.seq_length, visit);
        }
    }

    /// Tokens of a row that are no padding.
    pub fn tokens_in(&self, row: u64) -> u64 {
        match &self.source.content {
            Content::Samples(samples) => samples.tokens_in(self.source.range.start + row, self.seq_length),
            Content::Stream(_) => self.seq_length as u64,
        }
    }

    /// Adds the targets of the first `rows` rows.
    pub fn count_targets(&self, rows: u64, counts: &mut TokenCounts) {
        let start = self.source.range.start;
        match &self.source.content {
            Content::Stream(stream) => {
                counts
                    .add_range(stream, start + 1..start + 1 + rows.min(self.count) * self.seq_length as u64);
            }
            Content::Samples(samples) => {
                let (mut tokens, mut targets) = (vec![0; self.seq_length], vec![0; self.seq_length]);
                for sample in start..start + rows.min(self.count) {
                    samples.read(sample, &mut tokens, &mut targets);
                    counts.add(targets.iter().filter(|target| **target != NO_LABEL));
                }
            }
        }
    }

    /// The streams of tokens and labels, each with the part of it that rows are made of.
    pub fn streams(&self) -> Vec<(&Arc<TokenStream>, Range<u64>)> {
        let range = self.source.range.clone();
        match &self.source.content {
            Content::Stream(stream) => vec![(stream, range)],
            Content::Samples(samples) => {
                let range = samples.tokens_of(range);
                vec![(samples.tokens(), range.clone()), (samples.labels(), range)]
            }
        }
    }

    /// A hash of a sample of the tokens and labels.
    pub fn fingerprint(&self) -> u64 {
        match &self.source.content {
            Content::Stream(stream) => fingerprint(stream, self.source.range.clone()),
            Content::Samples(samples) => samples.fingerprint(self.source.range.clone()),
        }
    }
}
