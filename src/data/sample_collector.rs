//! Samples formed one after the other, in memory.

use super::samples::Samples;
use super::stream::{Chunk, TokenStream};

/// Collects samples in memory.
///
/// # Examples
///
/// ```
/// use gristmill::data::{NO_LABEL, SampleCollector};
///
/// let mut samples = SampleCollector::default();
/// samples.push(&[5, 6, 7], &[NO_LABEL, 7, 8]); // a question of two tokens, an answer of one, an end
/// samples.push(&[9, 6], &[NO_LABEL, 2]);
/// assert_eq!(samples.finish().len(), 2);
/// ```
#[derive(Debug, Default)]
pub struct SampleCollector {
    tokens: Vec<u32>,
    targets: Vec<u32>,
    documents: Vec<u64>,
    packed: Vec<u64>,
}

impl SampleCollector {
    /// Appends a sample: its token ids, and for each token the id to predict from it or [`NO_LABEL`](super::NO_LABEL).
    ///
    /// # Panics
    /// If the two differ in length.
    #[track_caller]
    pub fn push(&mut self, tokens: &[u32], targets: &[u32]) {
        self.push_document(tokens, targets);
        self.end_sample();
    }

    /// Appends a document to the sample that [`end_sample`](Self::end_sample) ends.
    ///
    /// # Panics
    /// If tokens and targets differ in length.
    #[track_caller]
    pub(crate) fn push_document(&mut self, tokens: &[u32], targets: &[u32]) {
        assert_eq!(tokens.len(), targets.len(), "every token must have a target");
        self.tokens.extend_from_slice(tokens);
        self.targets.extend_from_slice(targets);
        self.documents.push(self.tokens.len() as u64);
    }

    /// Ends a sample. It consists of the documents that were appended since the last sample ended.
    pub(crate) fn end_sample(&mut self) {
        self.packed.push(self.documents.len() as u64);
    }

    /// Returns the collected samples.
    pub fn finish(self) -> Samples {
        let stream = |ids| {
            let mut stream = TokenStream::default();
            stream.push(Chunk::Ids(ids));
            stream
        };
        let is_packed = self.packed.len() != self.documents.len();
        let samples = Samples::new(stream(self.tokens), stream(self.targets), self.documents);
        if is_packed { samples.packed(self.packed) } else { samples }
    }
}
