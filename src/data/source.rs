//! What a loader returns: a stream of tokens, and which of them are for training and for evaluation.

use std::ops::Range;
use std::sync::Arc;

use super::stream::TokenStream;

/// Tokens that batches are made of.
#[derive(Clone, Debug)]
pub struct Source {
    /// The tokens.
    pub stream: Arc<TokenStream>,
    /// The part of `stream` that is used, in tokens.
    pub range: Range<u64>,
    /// Share of the samples, relative to the weights of the other sources; above 0.
    pub weight: f64,
    /// The name of the source in messages.
    pub name: String,
}

/// One source as its loader read it.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The tokens.
    pub stream: Arc<TokenStream>,
    /// The parts of `stream` for training and for evaluation, in tokens; `None` if the loader does not split its data.
    pub split: Option<(Range<u64>, Range<u64>)>,
    /// Id of the token that ends documents; `None` if the loader does not know it.
    pub eod: Option<u32>,
    /// Share of the samples, relative to the weights of the other sources; above 0.
    pub weight: f64,
    /// The path as the configuration writes it.
    pub name: String,
    /// What was read, for the log.
    pub sentence: String,
}

impl Loaded {
    /// A source of weight 1 that is not split, without an end of documents or a sentence.
    pub fn whole(stream: TokenStream, name: String) -> Self {
        Self { stream: Arc::new(stream), split: None, eod: None, weight: 1.0, name, sentence: String::new() }
    }

    /// The tokens for training and for evaluation: the loader's split, or else the last `eval_fraction` of the stream
    /// is for evaluation.
    pub fn ranges(&self, eval_fraction: f64) -> (Range<u64>, Range<u64>) {
        if let Some(split) = &self.split {
            return split.clone();
        }
        let tokens = self.stream.len();
        let kept = (tokens as f64 * eval_fraction) as u64;
        let border = tokens - kept.min(tokens);
        (0..border, border..tokens)
    }

    /// The tokens of `range` as a source.
    pub fn source(&self, range: Range<u64>) -> Source {
        Source { stream: self.stream.clone(), range, weight: self.weight, name: self.name.clone() }
    }
}
