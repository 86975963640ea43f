//! What a loader hands over: a stream of tokens, and which of them are for training and which for evaluation.

use std::ops::Range;
use std::sync::Arc;

use super::stream::TokenStream;

/// Tokens that batches are dealt from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The tokens.
    pub stream: Arc<TokenStream>,
    /// Those of them that are used.
    pub range: Range<u64>,
    /// Its share among the sources, in proportion to the other weights.
    pub weight: f64,
    /// What messages call it.
    pub name: String,
}

/// One source as its loader read it.
#[derive(Debug)]
pub(super) struct Loaded {
    pub stream: Arc<TokenStream>,
    /// The tokens to learn from and those to evaluate on, where the loader itself divides them.
    pub split: Option<(Range<u64>, Range<u64>)>,
    /// The token that ends its documents, as far as the loader knows.
    pub eod: Option<u32>,
    pub weight: f64,
    /// The path that was written.
    pub name: String,
    /// What was taken, for the log.
    pub sentence: String,
}

impl Loaded {
    /// A stream that is used whole.
    pub fn whole(stream: TokenStream, name: String) -> Self {
        Self { stream: Arc::new(stream), split: None, eod: None, weight: 1.0, name, sentence: String::new() }
    }

    /// The tokens to learn from and, at the end, the share `eval_fraction` to evaluate on.
    pub fn ranges(&self, eval_fraction: f64) -> (Range<u64>, Range<u64>) {
        if let Some(split) = &self.split {
            return split.clone();
        }
        let tokens = self.stream.len();
        let kept = (tokens as f64 * eval_fraction) as u64;
        let border = tokens - kept.min(tokens);
        (0..border, border..tokens)
    }

    /// The part `range` of it.
    pub fn part(&self, range: Range<u64>) -> Source {
        Source { stream: self.stream.clone(), range, weight: self.weight, name: self.name.clone() }
    }
}

/// The paths of each source and its weight: each path is a source where there are weights, else all are one together.
pub(super) fn groups<'a>(
    paths: &'a [String],
    weights: &'a [f64],
) -> Box<dyn Iterator<Item = (&'a [String], f64)> + 'a> {
    if weights.is_empty() {
        Box::new(std::iter::once((paths, 1.0)))
    } else {
        Box::new(paths.chunks(1).zip(weights.iter().copied()))
    }
}
