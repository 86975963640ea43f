//! The sources that loaders return: tokens or samples, their parts for training and for evaluation, and the rows that
//! they make.

use std::ops::Range;
use std::sync::Arc;

use super::batch::NO_LABEL;
use super::config::Paths;
use super::samples::{Samples, check_row};
use super::statistics::{TokenCounts, check_chunk, fingerprint};
use super::stream::TokenStream;
use crate::error::{Error, Result};

/// The content of a source, of which the rows of batches are made.
#[derive(Clone, Debug)]
pub enum SourceContent {
    /// Tokens that are cut into windows of equal length.
    Stream(Arc<TokenStream>),
    /// Samples, each of which is a row.
    Samples(Arc<Samples>),
}

impl SourceContent {
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

    /// The unit that [`len`](Self::len) counts.
    pub(super) fn unit(&self) -> &'static str {
        match self {
            Self::Stream(_) => "tokens",
            Self::Samples(samples) => samples.unit(),
        }
    }
}

impl From<TokenStream> for SourceContent {
    fn from(stream: TokenStream) -> Self {
        Self::Stream(Arc::new(stream))
    }
}

impl From<Samples> for SourceContent {
    fn from(samples: Samples) -> Self {
        Self::Samples(Arc::new(samples))
    }
}

/// Tokens or samples that batches are made of.
///
/// # Examples
///
/// Rows of two sources, three times as many of one as of the other:
///
/// ```
/// use gristmill::data::{BatchSpec, Batches, SampleCollector, DataSource};
///
/// # fn main() -> gristmill::error::Result<()> {
/// let source = |token: u32, weight: f64, name: &str| {
///     let mut samples = SampleCollector::default();
///     samples.push(&[token], &[token + 1]);
///     DataSource { weight, name: name.to_string(), ..samples.finish().into() }
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
pub struct DataSource {
    /// The tokens or samples.
    pub content: SourceContent,
    /// The part of `content` that is used, in tokens or in samples.
    pub range: Range<u64>,
    /// Share of the samples, relative to the weights of the other sources; above 0.
    pub weight: f64,
    /// The name of the source in messages.
    pub name: String,
}

impl<C: Into<SourceContent>> From<C> for DataSource {
    /// The whole content, as the only source.
    fn from(content: C) -> Self {
        let content = content.into();
        Self { range: 0..content.len(), content, weight: 1.0, name: "the data".to_string() }
    }
}

impl DataSource {
    /// Number of rows of `seq_length` tokens. Each sample is a row. A stream has a window every `seq_length` tokens,
    /// whatever documents it spans, so every token of a stream except the first is predicted once an epoch; the rest
    /// that does not fill a window is dropped.
    pub(super) fn rows(&self, seq_length: usize) -> u64 {
        let len = self.range.end.saturating_sub(self.range.start);
        match self.content {
            SourceContent::Samples(_) => len,
            SourceContent::Stream(_) => len.saturating_sub(1) / seq_length as u64, // the first has nothing before it
        }
    }

    /// Refuses a source without a row; messages call it `name`.
    ///
    /// # Errors
    /// If a stream is shorter than a window, or there is no sample.
    pub(super) fn check(&self, seq_length: usize, name: &str) -> Result<()> {
        if self.rows(seq_length) > 0 {
            return Ok(());
        }
        Err(Error::Plan(match self.content {
            SourceContent::Samples(_) => format!("{name} has no sample; name more data"),
            SourceContent::Stream(_) => format!(
                "seq_length {seq_length} is longer than {name}: a window takes {} tokens, {} were found; lower \
                 model.model_config.seq_length or name more data",
                seq_length + 1,
                self.range.end.saturating_sub(self.range.start)
            ),
        }))
    }

    /// Fills in the row with this number: its tokens, and for each token the one after it or
    /// [`NO_LABEL`](super::batch::NO_LABEL).
    ///
    /// # Errors
    /// If the row holds a token that is neither below `vocab_size` nor `pad`.
    pub(super) fn read(
        &self,
        row: u64,
        tokens: &mut [u32],
        targets: &mut [u32],
        vocab_size: usize,
        pad: Option<u32>,
    ) -> Result<()> {
        let stream = match &self.content {
            SourceContent::Stream(stream) => stream,
            SourceContent::Samples(samples) => {
                let sample = self.range.start + row;
                samples.read(sample, tokens, targets);
                return check_row(sample, tokens, targets, vocab_size, pad);
            }
        };
        let start = self.range.start + row * tokens.len() as u64;
        let end = start + tokens.len() as u64;
        stream.read(start..end, tokens);
        let last = tokens.len() - 1;
        targets[..last].copy_from_slice(&tokens[1..]);
        stream.read(end..end + 1, &mut targets[last..]);
        check_chunk(start, tokens, vocab_size, pad)?;
        check_chunk(start + 1, targets, vocab_size, pad)
    }

    /// Calls `visit` with the part of a row of `seq_length` tokens that each document of a sample takes, and with the
    /// part of the padding. The documents of a stream are found by the token that ends them.
    pub(super) fn for_each_document(&self, row: u64, seq_length: usize, visit: impl FnMut(Range<usize>)) {
        if let SourceContent::Samples(samples) = &self.content {
            samples.for_each_document(self.range.start + row, seq_length, visit);
        }
    }

    /// The samples, if they are pairs of answers.
    pub(super) fn pairs(&self) -> Option<&Samples> {
        match &self.content {
            SourceContent::Samples(samples) if samples.is_paired() => Some(samples),
            SourceContent::Samples(_) | SourceContent::Stream(_) => None,
        }
    }

    /// Number of tokens in a row of `seq_length` tokens that are not padding.
    pub(super) fn tokens_in(&self, row: u64, seq_length: usize) -> u64 {
        match &self.content {
            SourceContent::Samples(samples) => samples.tokens_in(self.range.start + row, seq_length),
            SourceContent::Stream(_) => seq_length as u64,
        }
    }

    /// Counts the targets of the first `rows` rows of `seq_length` tokens.
    pub(super) fn count_targets(&self, rows: u64, seq_length: usize, counts: &mut TokenCounts) {
        let (start, rows) = (self.range.start, rows.min(self.rows(seq_length)));
        match &self.content {
            SourceContent::Stream(stream) => {
                counts.add_range(stream, start + 1..start + 1 + rows * seq_length as u64);
            }
            SourceContent::Samples(samples) => {
                let (mut tokens, mut targets) = (vec![0; seq_length], vec![0; seq_length]);
                for sample in start..start + rows {
                    samples.read(sample, &mut tokens, &mut targets);
                    counts.add(targets.iter().filter(|target| **target != NO_LABEL));
                }
            }
        }
    }

    /// The streams of tokens and labels, each with the part of it that rows are made of.
    pub(super) fn streams(&self) -> Vec<(&Arc<TokenStream>, Range<u64>)> {
        let range = self.range.clone();
        match &self.content {
            SourceContent::Stream(stream) => vec![(stream, range)],
            SourceContent::Samples(samples) => {
                let range = samples.tokens_of(range);
                vec![(samples.tokens(), range.clone()), (samples.labels(), range)]
            }
        }
    }

    /// A hash of a sample of the tokens and labels.
    pub(super) fn fingerprint(&self) -> u64 {
        match &self.content {
            SourceContent::Stream(stream) => fingerprint(stream, self.range.clone()),
            SourceContent::Samples(samples) => samples.fingerprint(self.range.clone()),
        }
    }
}

/// The parts for training and for evaluation, in tokens or in samples.
pub(super) type Split = (Range<u64>, Range<u64>);

/// A source as its loader read it.
#[derive(Debug)]
pub(crate) struct LoadedSource {
    /// The whole content as a source.
    pub source: DataSource,
    /// The parts for training and for evaluation; `None` if the loader does not split its data.
    pub split: Option<Split>,
    /// Id of the token that ends documents; `None` if the loader does not know it.
    pub eod: Option<u32>,
    /// A sentence for the log on the data that were read.
    pub sentence: String,
    /// Notes on the parts of records that were not read.
    pub notes: Vec<String>,
}

impl LoadedSource {
    /// A source of each group of `files`, which `load` reads; with it comes the sentence for the log.
    ///
    /// # Errors
    /// The errors of `load`.
    pub fn of_files<C: Into<SourceContent>>(
        files: &Paths,
        load: impl Fn(&[String]) -> Result<(C, String)>,
    ) -> Result<Vec<Self>> {
        let source = |(paths, weight): (&[String], f64)| {
            let (content, sentence) = load(paths)?;
            Ok(Self::whole(content, paths.join(", "), weight, sentence))
        };
        files.groups().into_iter().map(source).collect()
    }

    /// All of `content` as a source that is not split and has no known end of documents; `name` is the path as the
    /// configuration writes it.
    pub fn whole(content: impl Into<SourceContent>, name: String, weight: f64, sentence: String) -> Self {
        let source = DataSource { weight, name, ..content.into().into() };
        Self { source, split: None, eod: None, sentence, notes: Vec::new() }
    }

    /// The parts for training and for evaluation: the loader's split, or else the last `eval_fraction` of the data is
    /// for evaluation.
    pub fn parts(&self, eval_fraction: f64) -> [DataSource; 2] {
        let len = self.source.range.end;
        let (learned, held_out) = self.split.clone().unwrap_or_else(|| {
            let kept = (len as f64 * eval_fraction) as u64;
            let border = len - kept.min(len);
            (0..border, border..len)
        });
        [learned, held_out].map(|range| DataSource { range, ..self.source.clone() })
    }
}
