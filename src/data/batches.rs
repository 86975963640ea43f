//! Windows of token streams dealt into micro-batches, each a pure function of its number.

use std::ops::Range;
use std::sync::Arc;

use super::batch::Batch;
use super::blend::Blend;
use super::document_rules::DocumentRules;
use super::source::Source;
use super::statistics::{self, check_chunk, fnv1a};
use super::stream::TokenStream;
use crate::error::{Error, Result};
use crate::random::{Permutation, SHUFFLE_STREAM};

/// How windows are dealt.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchSpec {
    /// Tokens a window feeds to the model.
    pub seq_length: usize,
    /// Windows in a micro-batch of one rank.
    pub batch_size: usize,
    /// Micro-batches in a step.
    pub gradient_accumulation_steps: usize,
    /// Number of different tokens.
    pub vocab_size: usize,
    /// The target that the loss ignores.
    pub ignore_id: u32,
    /// Whether batches come with their tokens sorted by position.
    pub sorts_positions: bool,
    /// How many places further ahead tokens and targets are wanted.
    pub ahead: usize,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
}

/// Ranges of token streams as micro-batches. Windows take `seq_length + 1` tokens, whatever documents they span, and start
/// every `seq_length`, so each token of a range but the first is predicted once an epoch; what does not fill a window is
/// dropped.
///
/// One source is dealt epoch by epoch, and what does not fill a step is dropped too. Several sources, or a wanted number of
/// samples, are dealt without end: each source starts its next epoch, in a new order, when its windows are through.
#[derive(Clone, Debug)]
pub struct Batches {
    sources: Vec<Windows>,
    spec: BatchSpec,
    rules: DocumentRules,
    /// Windows of an epoch.
    windows: u64,
    steps_per_epoch: u64,
    /// Which source a window is from; without it there is one source.
    blend: Option<Blend>,
    /// Seed of the order; without one, windows come as they lie.
    shuffle: Option<u64>,
}

/// The windows of one source.
#[derive(Clone, Debug)]
struct Windows {
    source: Source,
    count: u64,
}

/// Epochs of a source, between two sources, in the numbers of random streams.
const SOURCE_STREAMS: u64 = 1 << 32;

impl Batches {
    /// Deals the windows of `range`, shuffled by the seed `shuffle`.
    ///
    /// # Errors
    /// If the range is shorter than a window or has fewer windows than a step takes.
    ///
    /// # Panics
    /// If a size in `spec` is 0.
    #[track_caller]
    pub fn new(
        stream: Arc<TokenStream>,
        range: Range<u64>,
        spec: BatchSpec,
        shuffle: Option<u64>,
    ) -> Result<Self> {
        let source = Source { stream, range, weight: 1.0, name: "the data".to_string() };
        Self::of_sources(vec![source], spec, shuffle, None)
    }

    /// Deals the windows of `sources` in proportion to their weights. An epoch has `samples` windows; without a number, as
    /// many as all sources together.
    ///
    /// # Errors
    /// If a source is shorter than a window, or an epoch has fewer windows than a step takes.
    ///
    /// # Panics
    /// If there is no source, a weight is not above 0, or a size in `spec` is 0.
    #[track_caller]
    pub fn of_sources(
        sources: Vec<Source>,
        spec: BatchSpec,
        shuffle: Option<u64>,
        samples: Option<u64>,
    ) -> Result<Self> {
        let sizes = [spec.seq_length, spec.batch_size, spec.gradient_accumulation_steps, spec.world];
        assert!(!sizes.contains(&0), "a batch has rows, and rows have tokens: {spec:?}");
        let weights: Vec<f64> = sources.iter().map(|source| source.weight).collect();
        let is_one = sources.len() == 1;
        let sources: Vec<Windows> =
            sources.into_iter().map(|source| windows_of(source, &spec, is_one)).collect::<Result<_>>()?;
        let all = sources.iter().fold(0u64, |sum, windows| sum.saturating_add(windows.count));
        let windows = samples.unwrap_or(all);
        let per_step = sizes[1..].iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
        let steps_per_epoch = windows / per_step;
        if steps_per_epoch == 0 {
            let (seq_length, has) =
                (spec.seq_length, if samples.is_some() { "`sizes` asks for" } else { "the data has" });
            return Err(Error::Plan(format!(
                "a step takes {per_step} windows of {seq_length} tokens, {has} {windows}: lower batch_size, gradient_accumulation_steps or seq_length, or name more data"
            )));
        }
        let blend = (!is_one || samples.is_some()).then(|| Blend::new(&weights));
        let rules = DocumentRules::default();
        Ok(Self { sources, spec, rules, windows, steps_per_epoch, blend, shuffle })
    }

    /// Treats documents by `rules`.
    #[must_use]
    pub fn with_rules(self, rules: DocumentRules) -> Self {
        Self { rules, ..self }
    }

    /// How the windows are dealt.
    pub fn spec(&self) -> &BatchSpec {
        &self.spec
    }

    /// How documents are treated.
    pub fn rules(&self) -> &DocumentRules {
        &self.rules
    }

    /// Number of windows in an epoch.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Whole steps in an epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// Micro-batches in an epoch: its steps times `gradient_accumulation_steps`.
    pub fn micro_steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch * self.spec.gradient_accumulation_steps as u64
    }

    /// The tokens of each source that these batches come from.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        self.sources.iter().map(|windows| windows.source.range.clone()).collect()
    }

    /// Entropy of single tokens in nats over what an epoch predicts, at most `batches` micro-batches of it.
    pub fn unigram_entropy(&self, batches: u64) -> f64 {
        let windows = batches.min(self.micro_steps_per_epoch()) * self.windows_per_batch();
        let counts = self.blend.as_ref().map_or_else(|| vec![windows], |blend| blend.counts(windows));
        let stretches = self.sources.iter().zip(counts).map(|(Windows { source, count }, wanted)| {
            let start = source.range.start + 1;
            let end = start + wanted.min(*count) * self.spec.seq_length as u64;
            (&*source.stream, start..end)
        });
        statistics::unigram_entropy_of(stretches)
    }

    /// A number that changes with the data, with the weights and with how documents are treated; a resumed run compares it.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0;
        for Windows { source, .. } in &self.sources {
            let own = statistics::fingerprint(&source.stream, source.range.clone());
            // One source that is treated plainly keeps the number that checkpoints of older versions hold.
            hash =
                if self.sources.len() == 1 { own } else { fnv1a(hash ^ own, &source.weight.to_le_bytes()) };
        }
        if self.rules.need_eod() || self.rules.pad.is_some() {
            hash = fnv1a(hash, self.rules.fingerprint_text().as_bytes());
        }
        if self.blend.is_some() {
            hash = fnv1a(hash, &self.windows.to_le_bytes());
        }
        hash
    }

    /// The micro-batch with the number `micro_step`, counted from the start of training through all epochs.
    ///
    /// # Errors
    /// If it holds a token outside the vocabulary.
    pub fn batch(&self, micro_step: u64) -> Result<Batch> {
        let mut batch = Batch::default();
        self.fill(micro_step, &mut batch)?;
        Ok(batch)
    }

    /// [`Batches::batch`] into a batch that exists; allocates nothing once it has been filled.
    ///
    /// # Errors
    /// If it holds a token outside the vocabulary.
    pub fn fill(&self, micro_step: u64, batch: &mut Batch) -> Result<()> {
        let (seq_length, vocab_size, pad) = (self.spec.seq_length, self.spec.vocab_size, self.rules.pad);
        batch.resize(self.spec.batch_size * seq_length, self.spec.sorts_positions);
        for row in 0..self.spec.batch_size {
            let (source, window) = self.locate(micro_step, row);
            let start = source.range.start + window * seq_length as u64;
            let columns = row * seq_length..(row + 1) * seq_length;
            let (tokens, targets) = (&mut batch.tokens[columns.clone()], &mut batch.targets[columns]);
            source.stream.read(start..start + seq_length as u64, tokens);
            targets[..seq_length - 1].copy_from_slice(&tokens[1..]);
            let end = start + seq_length as u64;
            source.stream.read(end..end + 1, &mut targets[seq_length - 1..]);
            check_chunk(start, tokens, vocab_size, pad)?;
            check_chunk(end, &targets[seq_length - 1..], vocab_size, pad)?;
        }
        batch.index(seq_length, &self.rules, self.spec.ignore_id);
        batch.look_ahead(self.spec.ahead, seq_length, self.spec.ignore_id);
        Ok(())
    }

    /// The source of a row of a micro-batch, and which of its windows it is.
    fn locate(&self, micro_step: u64, row: usize) -> (&Source, u64) {
        // Ranks take turns, so that the windows of a step do not depend on their number.
        let turn = (row * self.spec.world + self.spec.rank) as u64;
        let (index, epoch, sample) = match &self.blend {
            None => {
                let (epoch, within) =
                    (micro_step / self.micro_steps_per_epoch(), micro_step % self.micro_steps_per_epoch());
                (0, epoch, within * self.windows_per_batch() + turn)
            }
            Some(blend) => {
                let (index, sample) = blend.at(micro_step * self.windows_per_batch() + turn);
                let count = self.sources[index].count;
                (index, sample / count, sample % count)
            }
        };
        let Windows { source, count } = &self.sources[index];
        let stream = SHUFFLE_STREAM + index as u64 * SOURCE_STREAMS + epoch;
        let window = self.shuffle.map_or(sample, |seed| Permutation::new(*count, seed, stream).at(sample));
        (source, window)
    }

    /// Windows that one micro-batch takes on all ranks together.
    fn windows_per_batch(&self) -> u64 {
        (self.spec.batch_size * self.spec.world) as u64
    }
}

fn windows_of(source: Source, spec: &BatchSpec, is_one: bool) -> Result<Windows> {
    let (tokens, seq_length) = (source.range.end.saturating_sub(source.range.start), spec.seq_length as u64);
    if tokens <= seq_length {
        let what = if is_one { "the data" } else { source.name.as_str() };
        return Err(Error::Plan(format!(
            "seq_length {seq_length} is longer than {what}: a window takes {} tokens, {tokens} were found; lower model.model_config.seq_length or name more data",
            seq_length + 1
        )));
    }
    Ok(Windows { count: (tokens - 1) / seq_length, source })
}

#[cfg(test)]
mod tests;
