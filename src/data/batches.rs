//! Windows of token streams and samples as rows of micro-batches, each a pure function of its number.
//!
//! Micro-batches are numbered in the order in which one rank takes them. Where several ranks share a step,
//! micro-batches are assigned round-robin, so the data that a step learns from do not depend on the number of ranks.
//!
//! Micro-batch m of data rank r among D is micro-batch m · D + r of a run on one rank that accumulates D times as
//! many. Everything that depends on the number (loss, dropout, balance losses, capacities) is therefore the same as in
//! that run, and sums over ranks are sums over micro-batches. An evaluation takes the micro-batches that one rank
//! would take; where they cannot be shared evenly, some ranks end with a micro-batch in which no target counts, so
//! that all ranks replay equally often.

use std::ops::Range;
use std::sync::Arc;

use super::batch::Batch;
use super::blend::Blend;
use super::document_rules::DocumentRules;
use super::source::{DataSource, SourceContent};
use super::statistics::{TokenCounts, fnv1a};
use super::stream::TokenStream;
use crate::error::{Error, Result};
use crate::random::{Permutation, SHUFFLE_STREAM};

/// The shape of batches, and which of them this rank takes. No size may be 0.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchSpec {
    /// Tokens of a row that the model reads.
    pub seq_length: usize,
    /// Rows in a micro-batch of one rank.
    pub batch_size: usize,
    /// Micro-batches in a step, over all ranks.
    pub micro_batches: usize,
    /// Size of the model's vocabulary: every token id must be below it.
    pub vocab_size: usize,
    /// Token id of targets that the loss skips.
    pub ignore_id: u32,
    /// Whether batches have a `position_order`, which learned positions need.
    pub sorts_positions: bool,
    /// Depth of multi-token prediction: how many tokens beyond the next are predicted; 0 for none.
    pub ahead: usize,
    /// Index of this rank among the ranks that share the data, from 0: it takes the micro-batches whose number modulo
    /// `world` is `rank`.
    pub rank: usize,
    /// How many ranks share the data.
    pub world: usize,
}

/// The rows (windows or samples) of one or more sources, as micro-batches.
///
/// The rows of one source are taken epoch by epoch; rows that do not fill a step are dropped. Several sources, or a
/// wanted number of samples, have no common end: each source starts its next epoch, in a new order, once all its rows
/// were taken.
#[derive(Clone, Debug)]
pub struct Batches {
    sources: Vec<DataSource>,
    spec: BatchSpec,
    rules: DocumentRules,
    rows_per_epoch: u64,
    steps_per_epoch: u64,
    /// Number of micro-batches that are taken, if not all.
    end: Option<u64>,
    /// Which source each row comes from; `None` if there is one source and no wanted number of samples.
    blend: Option<Blend>,
    /// Seed of the order of rows; `None`: rows come in the order of the files.
    shuffle: Option<u64>,
    /// For each pair of answers of the only source, their log-probabilities under the reference, if they are known
    /// beforehand.
    references: Option<Arc<Vec<[f32; 2]>>>,
}

/// Words of a pair in [`Batch::pairs`].
const PAIR_WORDS: usize = 4;

/// Distance between the random streams of two sources; the streams in between are the epochs of one source.
const SOURCE_STREAMS: u64 = 1 << 32;

impl Batches {
    /// The windows of `range` of a stream, in the random order of the seed `shuffle` if it is given.
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
        let source = DataSource::from(SourceContent::Stream(stream));
        Self::of_sources(vec![DataSource { range, ..source }], spec, shuffle, None)
    }

    /// The rows of `sources`, in proportion to their weights. An epoch has `samples` rows; without that number, it has
    /// as many rows as all sources together.
    ///
    /// # Errors
    /// If a source is shorter than a window or has no sample, or an epoch has fewer rows than a step takes.
    ///
    /// # Panics
    /// If there is no source, a weight is not above 0, or a size in `spec` is 0.
    ///
    /// # Examples
    ///
    /// Samples in memory, in which only some tokens are learned:
    ///
    /// ```
    /// use gristmill::data::{BatchSpec, Batches, NO_LABEL, SampleCollector};
    ///
    /// # fn main() -> gristmill::error::Result<()> {
    /// let mut samples = SampleCollector::default();
    /// samples.push(&[5, 6, 7], &[NO_LABEL, 7, 8]); // what to predict from each token
    /// samples.push(&[9, 6], &[NO_LABEL, 2]);
    /// let spec = BatchSpec {
    ///     seq_length: 4,
    ///     batch_size: 2,
    ///     micro_batches: 1,
    ///     vocab_size: 16,
    ///     ignore_id: 15,
    ///     sorts_positions: false,
    ///     ahead: 0,
    ///     rank: 0,
    ///     world: 1,
    /// };
    /// let batches = Batches::of_sources(vec![samples.finish().into()], spec, None, None)?;
    /// let batch = batches.batch(0)?;
    /// assert_eq!(batch.tokens, [5, 6, 7, 0, 9, 6, 0, 0]);
    /// assert_eq!(batch.targets, [15, 7, 8, 15, 15, 2, 15, 15]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn of_sources(
        sources: Vec<DataSource>,
        spec: BatchSpec,
        shuffle: Option<u64>,
        samples: Option<u64>,
    ) -> Result<Self> {
        let batches = Self::of_rows(sources, spec, shuffle, samples)?;
        let Self { sources, spec, rows_per_epoch, .. } = &batches;
        if batches.steps_per_epoch == 0 {
            let per_step = batches.rows_per_step();
            let has = if samples.is_some() { "`sizes` asks for" } else { "the data has" };
            let (rows, remedy) = match sources[0].content {
                SourceContent::Stream(_) => (
                    format!("windows of {} tokens", spec.seq_length),
                    "batch_size, gradient_accumulation_steps or seq_length",
                ),
                SourceContent::Samples(_) => {
                    ("samples".to_string(), "batch_size or gradient_accumulation_steps")
                }
            };
            return Err(Error::Plan(format!(
                "a step takes {per_step} {rows}, {has} {rows_per_epoch}: lower {remedy}, or name more data"
            )));
        }
        Ok(batches)
    }

    /// The rows of `sources` for an evaluation: all of them once, in their order. If they do not fill the last
    /// micro-batch, the rest of it has no target that counts, so that the loss does not depend on the number of rows in
    /// a micro-batch.
    ///
    /// # Errors
    /// If a source is shorter than a window or has no sample.
    ///
    /// # Panics
    /// If there is no source, a weight is not above 0, or a size in `spec` is 0.
    #[track_caller]
    pub fn of_evaluation(sources: Vec<DataSource>, spec: BatchSpec, samples: Option<u64>) -> Result<Self> {
        let batches = Self::of_rows(sources, spec, None, samples)?;
        let end = Some(batches.rows_per_epoch.div_ceil(batches.spec.batch_size as u64));
        Ok(Self { end, ..batches })
    }

    #[track_caller]
    fn of_rows(
        sources: Vec<DataSource>,
        spec: BatchSpec,
        shuffle: Option<u64>,
        samples: Option<u64>,
    ) -> Result<Self> {
        let sizes = [spec.seq_length, spec.batch_size, spec.micro_batches, spec.world];
        assert!(!sizes.contains(&0), "no size of a batch may be 0: {spec:?}");
        let weights: Vec<f64> = sources.iter().map(|source| source.weight).collect();
        let is_one = sources.len() == 1;
        for source in &sources {
            source.check(spec.seq_length, if is_one { "the data" } else { &source.name })?;
        }
        let all = sources.iter().fold(0u64, |sum, source| sum.saturating_add(source.rows(spec.seq_length)));
        let rows_per_epoch = samples.unwrap_or(all);
        let blend = (!is_one || samples.is_some()).then(|| Blend::new(&weights));
        let rules = DocumentRules::default();
        let batches = Self {
            sources,
            spec,
            rules,
            rows_per_epoch,
            steps_per_epoch: 0,
            end: None,
            blend,
            shuffle,
            references: None,
        };
        Ok(Self { steps_per_epoch: rows_per_epoch / batches.rows_per_step(), ..batches })
    }

    fn rows_per_step(&self) -> u64 {
        (self.spec.batch_size as u64).saturating_mul(self.spec.micro_batches as u64)
    }

    /// Number of rows that exist in micro-batch `number`: all but in the last micro-batch of an evaluation.
    fn rows_in(&self, number: u64) -> usize {
        let rows = self.spec.batch_size as u64;
        let left = self.rows_per_epoch.saturating_sub(number.saturating_mul(rows));
        if self.end.is_some() { left.min(rows) as usize } else { self.spec.batch_size }
    }

    /// These batches with documents treated by `rules`.
    #[must_use]
    pub fn with_rules(self, rules: DocumentRules) -> Self {
        Self { rules, ..self }
    }

    /// Only the first `count` micro-batches of the first epoch, or all that it has. An evaluation takes these.
    #[must_use]
    pub fn first(self, count: u64) -> Self {
        let end = Some(count.min(self.micro_steps_per_epoch()));
        Self { end, ..self }
    }

    /// The shape of the batches.
    pub fn spec(&self) -> &BatchSpec {
        &self.spec
    }

    /// How documents are treated.
    pub fn rules(&self) -> &DocumentRules {
        &self.rules
    }

    /// Number of rows in an epoch, including those that do not fill a step.
    pub fn rows_per_epoch(&self) -> u64 {
        self.rows_per_epoch
    }

    /// Number of samples in these rows: several samples may share a row. For windows of a text it is the number of
    /// rows.
    pub fn samples_per_epoch(&self) -> u64 {
        let samples = |source: &DataSource| match &source.content {
            SourceContent::Samples(samples) => samples.documents_in(source.range.clone()),
            SourceContent::Stream(_) => source.rows(self.spec.seq_length),
        };
        self.sources.iter().map(samples).sum()
    }

    /// Number of whole steps in an epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// Number of micro-batches in an epoch, over all ranks: its steps times `micro_batches`, or the number to which
    /// [`first`](Self::first) limits them.
    pub fn micro_steps_per_epoch(&self) -> u64 {
        self.end.unwrap_or(self.steps_per_epoch * self.spec.micro_batches as u64)
    }

    /// Number of these micro-batches that each rank takes. It is the same for all ranks: where the
    /// [`first`](Self::first) ones cannot be shared evenly, some ranks end with a micro-batch in which no target
    /// counts.
    pub(crate) fn micro_steps_of_rank(&self) -> u64 {
        self.micro_steps_per_epoch().div_ceil(self.spec.world as u64)
    }

    /// Number of tokens that step `step`, counted from 1, learns from over all ranks, without the padding of samples.
    pub(crate) fn tokens_of_step(&self, step: u64) -> u64 {
        let all = self.spec.micro_batches as u64;
        let first = step.saturating_sub(1) * all;
        let rows =
            (first..first + all).flat_map(|number| (0..self.spec.batch_size).map(move |row| (number, row)));
        let tokens = rows.map(|(number, row)| {
            let (source, row) = self.locate(number, row);
            source.tokens_in(row, self.spec.seq_length)
        });
        tokens.sum()
    }

    /// The part of each source that these batches come from, in tokens or in samples.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        self.sources.iter().map(|source| source.range.clone()).collect()
    }

    /// The streams of tokens and labels, in order, each with the part of it that rows are made of.
    pub(super) fn streams(&self) -> Vec<(&Arc<TokenStream>, Range<u64>)> {
        self.sources.iter().flat_map(DataSource::streams).collect()
    }

    /// Unigram entropy, in nats, of the targets of an epoch.
    pub(crate) fn unigram_entropy(&self) -> f64 {
        let rows = (self.micro_steps_per_epoch() * self.spec.batch_size as u64).min(self.rows_per_epoch);
        let wanted = self.blend.as_ref().map_or_else(|| vec![rows], |blend| blend.counts(rows));
        let mut counts = TokenCounts::default();
        for (source, wanted) in self.sources.iter().zip(wanted) {
            source.count_targets(wanted, self.spec.seq_length, &mut counts);
        }
        counts.entropy()
    }

    /// A hash of a sample of the data, of the weights of its sources and of the document rules. It is known without
    /// reading all of the data, so that a resumed run notices at once that they have changed. Checkpoints store it: it
    /// must not change for the same data.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0;
        for source in &self.sources {
            let own = source.fingerprint();
            // The weight of a single source decides nothing.
            hash =
                if self.sources.len() == 1 { own } else { fnv1a(hash ^ own, &source.weight.to_le_bytes()) };
        }
        if self.rules.need_eod() || self.rules.pad.is_some() {
            hash = fnv1a(hash, self.rules.fingerprint_text().as_bytes());
        }
        if self.blend.is_some() {
            hash = fnv1a(hash, &self.rows_per_epoch.to_le_bytes());
        }
        hash
    }

    /// This rank's micro-batch number `micro_step`, counted from 0 at the start of training, through all epochs. Among
    /// the micro-batches of all ranks it is number `micro_step * world + rank`.
    ///
    /// # Errors
    /// If the micro-batch holds a token outside the vocabulary.
    pub fn batch(&self, micro_step: u64) -> Result<Batch> {
        let mut batch = Batch::default();
        self.fill(micro_step, &mut batch)?;
        Ok(batch)
    }

    /// [`batch`](Self::batch) into an existing batch; allocates nothing if that batch has been filled before.
    ///
    /// # Errors
    /// If the micro-batch holds a token outside the vocabulary.
    pub fn fill(&self, micro_step: u64, batch: &mut Batch) -> Result<()> {
        let (seq_length, vocab_size, pad) = (self.spec.seq_length, self.spec.vocab_size, self.rules.pad);
        let wanted = micro_step * self.spec.world as u64 + self.spec.rank as u64;
        let number = self.end.map_or(wanted, |end| wanted.min(end - 1));
        batch.resize(self.spec.batch_size * seq_length, self.spec.sorts_positions);
        let rows = batch.tokens.chunks_mut(seq_length).zip(batch.targets.chunks_mut(seq_length));
        for (index, (tokens, targets)) in rows.enumerate() {
            let (source, row) = self.locate(number, index);
            source.read(row, tokens, targets, vocab_size, pad)?;
        }
        batch.derive(seq_length, &self.rules, self.spec.ignore_id);
        let present = if number == wanted { self.rows_in(number) } else { 0 };
        batch.targets[present * seq_length..].fill(self.spec.ignore_id);
        for index in 0..self.spec.batch_size {
            let (source, row) = self.locate(number, index);
            let first = index * seq_length;
            source.for_each_document(row, seq_length, |part| {
                batch.isolate(first + part.start..first + part.end, seq_length)
            });
        }
        self.fill_pairs(number, present, batch);
        batch.sort();
        batch.look_ahead(self.spec.ahead, seq_length, self.spec.ignore_id);
        Ok(())
    }

    /// Fills in the places of the pairs in the `present` rows of micro-batch `number`, if the data are pairs.
    fn fill_pairs(&self, number: u64, present: usize, batch: &mut Batch) {
        let seq_length = self.spec.seq_length;
        let words = self.spec.batch_size * seq_length / PAIR_WORDS * PAIR_WORDS;
        for (array, is_wanted) in [
            (&mut batch.pairs, self.sources[0].pairs().is_some()),
            (&mut batch.references, self.references.is_some()),
        ] {
            array.clear();
            array.resize(if is_wanted { words } else { 0 }, 0);
        }
        let mut place = 0;
        for index in 0..present {
            let (source, row) = self.locate(number, index);
            let Some(pairs) = source.pairs() else { continue };
            let first = index * seq_length;
            pairs.for_each_pair(source.range.start + row, seq_length, |pair, ends| {
                let words = ends.map(|end| (first + end) as u32);
                batch.pairs[place..][..PAIR_WORDS].copy_from_slice(&[words[0], words[1], words[2], 1]);
                if let Some(references) = &self.references {
                    let [chosen, rejected] = references[pair as usize].map(f32::to_bits);
                    batch.references[place..][..PAIR_WORDS].copy_from_slice(&[chosen, 0, rejected, 0]);
                }
                place += PAIR_WORDS;
            });
        }
    }

    /// Sets the log-probabilities under a reference of all pairs of the data, by the number of the pair.
    pub(crate) fn set_references(&mut self, references: Vec<[f32; 2]>) {
        self.references = Some(Arc::new(references));
    }

    /// The pairs of all rows of the data, for one rank: rows that are learned from and rows that are held out, in
    /// their order.
    pub(crate) fn of_all_pairs(&self) -> Result<Self> {
        let whole = |source: &DataSource| DataSource { range: 0..source.content.len(), ..source.clone() };
        let spec = BatchSpec { micro_batches: 1, rank: 0, world: 1, ..self.spec.clone() };
        let sources = self.sources.iter().map(whole).collect();
        Ok(Self::of_evaluation(sources, spec, None)?.with_rules(self.rules.clone()))
    }

    /// Number of pairs of answers in all of the data.
    pub(crate) fn pairs(&self) -> u64 {
        let of_source =
            |source: &DataSource| source.pairs().map_or(0, |pairs| pairs.documents_in(0..pairs.len()));
        self.sources.first().map_or(0, of_source)
    }

    /// The numbers of the pairs in micro-batch `number`, in the order of their places.
    pub(crate) fn pairs_in(&self, number: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for index in 0..self.rows_in(number) {
            let (source, row) = self.locate(number, index);
            if let Some(pairs) = source.pairs() {
                pairs.for_each_pair(source.range.start + row, self.spec.seq_length, |pair, _| {
                    numbers.push(pair)
                });
            }
        }
        numbers
    }

    /// Whether these batches are made of the pairs of `others`.
    pub(crate) fn shares_pairs(&self, others: &Self) -> bool {
        match (self.sources[0].pairs(), others.sources[0].pairs()) {
            (Some(own), Some(theirs)) => Arc::ptr_eq(own.tokens(), theirs.tokens()),
            _ => false,
        }
    }

    /// A hash of a sample of all pairs of the data.
    pub(crate) fn fingerprint_of_pairs(&self) -> u64 {
        self.sources[0].pairs().map_or(0, |pairs| pairs.fingerprint(0..pairs.len()))
    }

    /// The source of row `index` of micro-batch `number` (counted over all ranks), and the number of that row in the
    /// source.
    fn locate(&self, number: u64, index: usize) -> (&DataSource, u64) {
        let (rows_per_batch, row) = (self.spec.batch_size as u64, index.min(self.rows_in(number) - 1) as u64);
        let (index, epoch, sample) = match &self.blend {
            None => {
                let (epoch, within) =
                    (number / self.micro_steps_per_epoch(), number % self.micro_steps_per_epoch());
                (0, epoch, within * rows_per_batch + row)
            }
            Some(blend) => {
                let (index, sample) = blend.at(number * rows_per_batch + row);
                let count = self.sources[index].rows(self.spec.seq_length);
                (index, sample / count, sample % count)
            }
        };
        let source = &self.sources[index];
        let stream = SHUFFLE_STREAM + index as u64 * SOURCE_STREAMS + epoch;
        let shuffled = |seed| Permutation::new(source.rows(self.spec.seq_length), seed, stream).at(sample);
        (source, self.shuffle.map_or(sample, shuffled))
    }
}

#[cfg(test)]
mod tests;
