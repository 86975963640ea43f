//! Samples of differing lengths, each with the labels that enter the loss.
//!
//! A row of a batch is a window of a token stream or a sample. `source.rs` numbers both alike, so order, blends and
//! resuming make no difference between them. The padding of a sample follows it, so no real token sees it, and the loss
//! skips it; where attention keeps documents apart, it is a document of its own. Routers do route it: padding counts in
//! tallies, capacities and balance losses.

use std::ops::Range;
use std::sync::Arc;

use super::batch::NO_LABEL;
use super::sample_store::{Runs, SampleStore, StoredTokens};
use super::statistics::{self, fnv1a};
use super::stream::{Chunk, TokenStream};
use super::token_encoding::NO_TOKEN;
use crate::error::{Error, Result};

/// Samples: runs of token ids, one after the other in a stream. A row of a batch is one sample, cut or padded to the
/// length of a row. A sample may consist of several documents, which do not attend to each other.
#[derive(Clone, Debug)]
pub struct Samples {
    tokens: Arc<TokenStream>,
    /// For each token the token to predict from it, or [`NO_LABEL`].
    labels: Arc<TokenStream>,
    /// The end of each document, in tokens from the start of the stream.
    documents: Arc<Vec<u64>>,
    /// The end of each sample, in documents; `None`: each document is a sample.
    packed: Option<Vec<u64>>,
    /// Whether each two documents are answers of which the first is preferred.
    is_paired: bool,
}

impl Samples {
    /// Samples of one document each, with these ends in tokens from the start of the stream. A label is the id to
    /// predict from its token, or [`NO_LABEL`].
    ///
    /// # Panics
    /// If `ends` do not rise to the length of the stream, or there are not as many labels as tokens.
    #[track_caller]
    pub fn new(tokens: TokenStream, labels: TokenStream, ends: Vec<u64>) -> Self {
        assert!(ends.is_sorted(), "ends of samples must rise");
        assert_eq!(
            ends.last().copied().unwrap_or(0),
            tokens.len(),
            "the last sample must end with the stream"
        );
        assert_eq!(labels.len(), tokens.len(), "every token must have a label");
        let documents = Arc::new(ends);
        Self { tokens: Arc::new(tokens), labels: Arc::new(labels), documents, packed: None, is_paired: false }
    }

    /// Samples of one document each, which are runs of a store.
    pub(super) fn stored(store: Arc<SampleStore>, runs: Runs) -> Self {
        let stored = StoredTokens::of(store, runs);
        let documents = stored[0].ends.clone();
        let [tokens, labels] = stored.map(|tokens| {
            let mut stream = TokenStream::default();
            stream.push(Chunk::Stored(tokens));
            Arc::new(stream)
        });
        Self { tokens, labels, documents, packed: None, is_paired: false }
    }

    /// Samples of several of these documents each: `ends` is the end of each sample, in documents.
    ///
    /// # Panics
    /// If `ends` do not rise to the number of documents.
    #[track_caller]
    pub fn packed(self, ends: Vec<u64>) -> Self {
        assert!(ends.is_sorted(), "ends of samples must rise");
        let documents = self.documents.len() as u64;
        assert_eq!(
            ends.last().copied().unwrap_or(0),
            documents,
            "the last sample must end with the last document"
        );
        Self { packed: Some(ends), ..self }
    }

    /// The same samples of documents that are answers, two by two, of which the first is preferred.
    ///
    /// # Panics
    /// If a sample holds half a pair.
    #[track_caller]
    pub fn paired(self) -> Self {
        let ends = self.packed.as_deref().unwrap_or(&self.documents);
        assert!(
            self.packed.is_some() && ends.iter().all(|end| end % 2 == 0),
            "samples of pairs hold whole pairs"
        );
        Self { is_paired: true, ..self }
    }

    /// Whether samples are pairs of answers.
    pub fn is_paired(&self) -> bool {
        self.is_paired
    }

    /// Number of samples.
    pub fn len(&self) -> u64 {
        self.packed.as_ref().unwrap_or(&self.documents).len() as u64
    }

    /// Number of documents, or of pairs of them, in a range of samples: the number of samples before they were
    /// packed.
    pub(super) fn documents_in(&self, range: Range<u64>) -> u64 {
        let end_before = |sample: u64| match &self.packed {
            Some(ends) if sample > 0 => ends[sample as usize - 1],
            Some(_) => 0,
            None => sample,
        };
        (end_before(range.end) - end_before(range.start)) / if self.is_paired { 2 } else { 1 }
    }

    /// The name of samples in messages: rows, if they were packed from several documents.
    pub(super) fn unit(&self) -> &'static str {
        match &self.packed {
            Some(ends) if self.is_paired && 2 * ends.len() == self.documents.len() => "pairs",
            Some(_) => "rows",
            None => "samples",
        }
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token ids.
    pub fn tokens(&self) -> &Arc<TokenStream> {
        &self.tokens
    }

    /// For each token the token to predict from it, or [`NO_LABEL`].
    pub fn labels(&self) -> &Arc<TokenStream> {
        &self.labels
    }

    /// Fills a row with a sample: the ids that the model reads, and for each the id to predict or [`NO_LABEL`]. The
    /// rest of the row is token 0 without a label; tokens that do not fit are cut off. Returns the number of tokens of
    /// the sample in the row.
    ///
    /// # Panics
    /// If there are fewer samples, or the buffers differ in length.
    #[track_caller]
    pub fn read(&self, sample: u64, tokens: &mut [u32], targets: &mut [u32]) -> usize {
        assert_eq!(tokens.len(), targets.len(), "tokens and targets must have the same length");
        let range = self.tokens_of(sample..sample + 1);
        let count = tokens.len().min((range.end - range.start) as usize);
        let (own, padding) = tokens.split_at_mut(count);
        let (labels, unlabelled) = targets.split_at_mut(count);
        padding.fill(0);
        unlabelled.fill(NO_LABEL);
        let read = range.start..range.start + count as u64;
        self.tokens.read(read.clone(), own);
        self.labels.read(read, labels);
        count
    }

    /// Number of tokens of a sample in a row of `seq_length` tokens.
    pub(super) fn tokens_in(&self, sample: u64, seq_length: usize) -> u64 {
        let range = self.tokens_of(sample..sample + 1);
        (range.end - range.start).min(seq_length as u64)
    }

    /// Calls `visit` with the part of a row of `seq_length` tokens that each document of a sample takes, and with the
    /// part of the padding, if anything follows the first document.
    pub(super) fn for_each_document(
        &self,
        sample: u64,
        seq_length: usize,
        mut visit: impl FnMut(Range<usize>),
    ) {
        let range = self.tokens_of(sample..sample + 1);
        let count = seq_length.min((range.end - range.start) as usize);
        let documents = self.documents_of(sample);
        let mut start = 0;
        for end in self.documents[documents].iter().map(|end| ((end - range.start) as usize).min(count)) {
            if start < end {
                visit(start..end);
                start = end;
            }
        }
        if start < seq_length {
            visit(start..seq_length);
        }
    }

    /// Calls `visit` with the number of each pair of a sample, and where in a row of `seq_length` tokens its chosen
    /// answer begins, its rejected one begins, and that one ends.
    pub(super) fn for_each_pair(
        &self,
        sample: u64,
        seq_length: usize,
        mut visit: impl FnMut(u64, [usize; 3]),
    ) {
        let range = self.tokens_of(sample..sample + 1);
        let documents = self.documents_of(sample);
        let end_of = |document: usize| (self.documents[document] - range.start) as usize;
        let mut start = 0;
        for chosen in documents.step_by(2) {
            let [middle, end] = [end_of(chosen), end_of(chosen + 1)];
            assert!(end <= seq_length, "a pair lies within its row");
            visit(chosen as u64 / 2, [start, middle, end]);
            start = end;
        }
    }

    /// The part of the stream that a range of samples takes.
    ///
    /// # Panics
    /// If there are fewer samples.
    #[track_caller]
    pub(crate) fn tokens_of(&self, samples: Range<u64>) -> Range<u64> {
        self.end_before(samples.start)..self.end_before(samples.end)
    }

    /// A hash of a range of samples, by which a resumed run notices that its data have changed. Checkpoints store it:
    /// it must not change.
    pub(super) fn fingerprint(&self, samples: Range<u64>) -> u64 {
        let tokens = self.tokens_of(samples.clone());
        let mut hash = statistics::fingerprint(&self.tokens, tokens.clone());
        hash = fnv1a(hash, b"shifted"); // how labels are aligned with their tokens, for which there were several ways
        hash = fnv1a(hash, &statistics::fingerprint(&self.labels, tokens).to_le_bytes());
        for sample in samples {
            for end in &self.documents[self.documents_of(sample)] {
                hash = fnv1a(hash, &end.to_le_bytes());
            }
            hash = fnv1a(hash, b";");
        }
        hash
    }

    /// The numbers of the documents of a sample.
    fn documents_of(&self, sample: u64) -> Range<usize> {
        match &self.packed {
            None => sample as usize..sample as usize + 1,
            Some(ends) => {
                let start = if sample == 0 { 0 } else { ends[sample as usize - 1] };
                start as usize..ends[sample as usize] as usize
            }
        }
    }

    /// The end of the last of the first `samples` samples, in tokens.
    fn end_before(&self, samples: u64) -> u64 {
        assert!(samples <= self.len(), "sample {samples} was requested of {}", self.len());
        match samples {
            0 => 0,
            samples => {
                let documents = self.documents_of(samples - 1).end;
                if documents == 0 { 0 } else { self.documents[documents - 1] }
            }
        }
    }
}

/// Checks the tokens and the targets of a row: sample number `sample`, counted from 0.
pub(super) fn check_row(
    sample: u64,
    tokens: &[u32],
    targets: &[u32],
    vocab_size: usize,
    pad: Option<u32>,
) -> Result<()> {
    let is_outside = |id: &u32| *id as usize >= vocab_size && Some(*id) != pad;
    let token = tokens.iter().find(|id| is_outside(id)).map(|id| ("token", id));
    let label = || targets.iter().find(|id| is_outside(id) && **id != NO_LABEL).map(|id| ("label", id));
    let Some((what, bad)) = token.or_else(label) else { return Ok(()) };
    let number = sample + 1;
    Err(Error::Plan(match *bad {
        NO_TOKEN => format!(
            "sample {number} of the data has a value that is not a token id, but negative or wider than 32 bits: write the file again"
        ),
        bad => format!(
            "{what} {bad} of sample {number} of the data is outside vocab_size {vocab_size}: raise model.model_config.vocab_size, or correct the \
             data or their tokenizer"
        ),
    }))
}

#[cfg(test)]
mod tests;
