//! What a loader returns: tokens or samples, and which of them are for training and for evaluation.

use std::ops::Range;
use std::sync::Arc;

use super::samples::Samples;
use super::stream::TokenStream;

/// What rows of batches are made of.
#[derive(Clone, Debug)]
pub enum Content {
    /// Tokens that are cut into windows of equal length.
    Stream(Arc<TokenStream>),
    /// Samples, each of which is a row.
    Samples(Arc<Samples>),
}

impl Content {
    /// Number of tokens, or of samples.
    pub fn len(&self) -> u64 {
        match self {
            Self::Stream(stream) => stream.len(),
            Self::Samples(samples) => samples.len(),
        }
    }

    /// Whether there is nothing to make rows of.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What [`len`](Self::len) counts.
    pub(super) fn unit(&self) -> &'static str {
        match self {
            Self::Stream(_) => "tokens",
            Self::Samples(samples) => samples.unit(),
        }
    }
}

impl From<TokenStream> for Content {
    fn from(stream: TokenStream) -> Self {
        Self::Stream(Arc::new(stream))
    }
}

impl From<Samples> for Content {
    fn from(samples: Samples) -> Self {
        Self::Samples(Arc::new(samples))
    }
}

/// Tokens or samples that batches are made of.
///
/// # Examples
///
/// Rows of two sources, of one three times as many as of the other:
///
/// ```
/// use gristmill::data::{BatchSpec, Batches, SampleCollector, Source};
///
/// # fn main() -> gristmill::error::Result<()> {
/// let source = |token: u32, weight: f64, name: &str| {
///     let mut samples = SampleCollector::default();
///     samples.push(&[token], &[token + 1]);
///     Source { weight, name: name.to_string(), ..samples.finish().into() }
/// };
/// let spec = BatchSpec {
///     seq_length: 1,
///     batch_size: 4,
///     micro_batches: 1,
///     vocab_size: 16,
///     ignore_id: 15,
///     sorts_positions: false,
///     ahead: 0,
///     rank: 0,
///     world: 1,
/// };
/// let sources = vec![source(3, 3.0, "much"), source(7, 1.0, "little")];
/// let mut tokens = Batches::of_sources(sources, spec, None, Some(4))?.batch(0)?.tokens;
/// tokens.sort();
/// assert_eq!(tokens, [3, 3, 3, 7]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Source {
    /// The tokens or samples.
    pub content: Content,
    /// The part of `content` that is used, in tokens or in samples.
    pub range: Range<u64>,
    /// Share of the samples, relative to the weights of the other sources; above 0.
    pub weight: f64,
    /// The name of the source in messages.
    pub name: String,
}

impl<C: Into<Content>> From<C> for Source {
    /// All of it, as the only source.
    fn from(content: C) -> Self {
        let content = content.into();
        Self { range: 0..content.len(), content, weight: 1.0, name: "the data".to_string() }
    }
}

/// The parts for training and for evaluation.
pub(super) type Split = (Range<u64>, Range<u64>);

/// One source as its loader read it.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The tokens or samples.
    pub content: Content,
    /// The parts of `content` for training and for evaluation, in tokens or in samples; `None` if the loader does not split its data.
    pub split: Option<Split>,
    /// Id of the token that ends documents; `None` if the loader does not know it.
    pub eod: Option<u32>,
    /// Share of the samples, relative to the weights of the other sources; above 0.
    pub weight: f64,
    /// The path as the configuration writes it.
    pub name: String,
    /// What was read, for the log.
    pub sentence: String,
    /// What of records was not read.
    pub notes: Vec<String>,
}

impl Loaded {
    /// A source of weight 1 that is not split, without an end of documents or a sentence.
    pub fn whole(content: impl Into<Content>, name: String) -> Self {
        Self {
            content: content.into(),
            split: None,
            eod: None,
            weight: 1.0,
            name,
            sentence: String::new(),
            notes: Vec::new(),
        }
    }

    /// The parts for training and for evaluation: the loader's split, or else the last `eval_fraction` is for evaluation.
    pub fn ranges(&self, eval_fraction: f64) -> (Range<u64>, Range<u64>) {
        if let Some(split) = &self.split {
            return split.clone();
        }
        let len = self.content.len();
        let kept = (len as f64 * eval_fraction) as u64;
        let border = len - kept.min(len);
        (0..border, border..len)
    }

    /// The tokens or samples of `range` as a source.
    pub fn source(&self, range: Range<u64>) -> Source {
        Source { content: self.content.clone(), range, weight: self.weight, name: self.name.clone() }
    }
}
