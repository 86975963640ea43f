//! The data of a run: the sources that loaders have read, as batches for training and evaluation.

use super::background_check::BackgroundCheck;
use super::batch::NO_LABEL;
use super::batches::{BatchSpec, Batches};
use super::codec::Codec;
use super::document_rules::DocumentRules;
use super::notes::plural;
use super::source::{DataSource, LoadedSource, SourceContent};
use super::stream_pass::{Stopped, StreamPass, hash_of};
use crate::error::{Error, Result};

/// Streams in files of at most this many tokens are read before step 1, longer ones while the run trains.
const READ_AT_ONCE: u64 = 64 << 20;

/// The error when documents cannot be told apart.
const NO_END: &str = "files of token ids do not say which token ends a document, and eod_reset, reset_position_ids, \
    reset_attention_mask and eod_mask_loss need it: write `eod_token_id` under train_dataset, or `eod` \
    under the loader's `config`";

/// Training and evaluation data, loaded and checked.
#[derive(Clone, Debug)]
pub struct LoadedData {
    /// The batches of training.
    pub train: Batches,
    /// The batches of an evaluation, in the same order every time; `None` if nothing is held out.
    pub eval: Option<Batches>,
    /// Encodes and decodes the text of a sample.
    pub codec: Codec,
    /// For the log: a sentence for each source on the data that were read, and one on the split.
    pub summary: Vec<String>,
    /// One pass for each stream; the long streams are still to be read.
    passes: Vec<StreamPass>,
    train_hash: HashParts,
    eval_hash: Option<HashParts>,
}

impl LoadedData {
    /// The `batches` of `train`, and the batches of an evaluation: of `eval`, or else of the part of `train` that is
    /// held out.
    ///
    /// # Errors
    /// If there is no row to evaluate, or a token is outside the vocabulary.
    pub(crate) fn new(
        codec: Codec,
        train: &LoadedSources,
        batches: Batches,
        eval: Option<&LoadedSources>,
    ) -> Result<Self> {
        let spec = batches.spec();
        let mut passes = train.passes(spec.vocab_size);
        let mut summary = train.sentences("training data");
        let held_out = train.parts(1);
        let eval = match eval {
            Some(eval) => {
                passes.extend(eval.passes(spec.vocab_size));
                summary.extend(eval.sentences("evaluation data"));
                Some(eval.evaluation(eval.parts(0), eval.samples[0], spec)?)
            }
            None if held_out.iter().all(|source| source.range.is_empty()) => None,
            None => {
                summary.push(split_sentence(&held_out, train.eval_samples));
                Some(train.evaluation(held_out, train.samples[1], spec)?)
            }
        };
        let train_hash = HashParts::of(&batches, &mut passes);
        let eval_hash = eval.as_ref().map(|eval| HashParts::of(eval, &mut passes));
        passes.iter().filter(|pass| is_read_at_once(pass)).try_for_each(|pass| {
            pass.read(|| false).map_err(|stopped| match stopped {
                Stopped::Fault(error) => error,
                Stopped::Cancelled => unreachable!("nothing asks it to stop while the data load"),
            })
        })?;
        Ok(Self { train: batches, eval, codec, summary, passes, train_hash, eval_hash })
    }

    /// Starts to check and to hash the streams that were too long to be read when they were loaded. Batches are checked
    /// in any case, but a bad batch may come up only days later.
    pub(crate) fn check_in_background(&self) -> BackgroundCheck {
        let later = self.passes.iter().filter(|pass| !is_read_at_once(pass));
        BackgroundCheck::start(later.cloned().collect())
    }

    /// The hashes of the data: `None` until everything was read. Long data are read by the background check.
    pub(crate) fn hashes(&self) -> Option<DataHashes> {
        let eval = self.eval_hash.as_ref().map(|parts| parts.hash(&self.passes));
        let eval = eval.map_or(Some(None), |hash| hash.map(Some))?;
        Some(DataHashes { train: self.train_hash.hash(&self.passes)?, eval })
    }
}

/// Whether a stream is read when it is loaded: it is in memory, where it was written a moment ago, or it is short.
fn is_read_at_once(pass: &StreamPass) -> bool {
    pass.stream.is_in_memory() || pass.stream.len() <= READ_AT_ONCE
}

/// The sources of a data set as their loader read them, and how batches are made of them.
pub(crate) struct LoadedSources {
    pub loaded: Vec<LoadedSource>,
    /// How documents are treated.
    pub rules: DocumentRules,
    /// Number of samples of a training epoch and of an evaluation; `None`: as many as there are.
    pub samples: [Option<u64>; 2],
    /// Share of the tokens, at the end, that is held out for evaluation, where the loader does not split its data.
    pub eval_fraction: f64,
    /// Number of samples that the loader has held out by a hash.
    pub eval_samples: u64,
}

impl LoadedSources {
    /// Sets the end of documents to the token that the loader appends, if the rules name none.
    ///
    /// # Errors
    /// If rules need such a token, and there is none.
    pub fn with_ends(mut self) -> Result<Self> {
        self.rules.eod = self.rules.eod.or(self.loaded.first().and_then(|source| source.eod));
        if self.rules.eod.is_none() && self.rules.need_eod() {
            return Err(Error::Plan(NO_END.to_string()));
        }
        Ok(self)
    }

    /// The batches of training, in the random order of the seed `shuffle` if it is given.
    ///
    /// # Errors
    /// If there is too little data for one step.
    pub fn batches(&self, spec: &BatchSpec, shuffle: Option<u64>) -> Result<Batches> {
        let batches = Batches::of_sources(self.parts(0), spec.clone(), shuffle, self.samples[0])?;
        Ok(batches.with_rules(self.rules.clone()))
    }

    /// The batches of an evaluation of `sources`, in the order of the files, for steps of one micro-batch.
    fn evaluation(
        &self,
        sources: Vec<DataSource>,
        samples: Option<u64>,
        spec: &BatchSpec,
    ) -> Result<Batches> {
        let spec = BatchSpec { micro_batches: 1, ..spec.clone() };
        let batches = Batches::of_evaluation(sources, spec, samples);
        let in_evaluation = |error| {
            Error::Plan(format!(
                "evaluation data: {error} (a larger eval_fraction, or an eval_dataset of its own)"
            ))
        };
        batches.map(|batches| batches.with_rules(self.rules.clone())).map_err(in_evaluation)
    }

    /// The parts of all sources for training (`part` 0) or for evaluation (`part` 1).
    fn parts(&self, part: usize) -> Vec<DataSource> {
        self.loaded.iter().map(|source| source.parts(self.eval_fraction)[part].clone()).collect()
    }

    /// One pass for each stream.
    fn passes(&self, vocab_size: usize) -> Vec<StreamPass> {
        let pad = self.rules.pad;
        let streams = self.loaded.iter().flat_map(|loaded| match &loaded.source.content {
            SourceContent::Stream(stream) => vec![(stream, pad)],
            SourceContent::Samples(samples) => {
                vec![(samples.tokens(), pad), (samples.labels(), Some(NO_LABEL))]
            }
        });
        streams.map(|(stream, pad)| StreamPass::new(stream.clone(), vocab_size, pad)).collect()
    }

    /// A sentence for each source, with its share of the samples if there are several.
    fn sentences(&self, what: &str) -> Vec<String> {
        let total: f64 = self.loaded.iter().map(|loaded| loaded.source.weight).sum();
        let share = |source: &DataSource| match self.loaded.len() {
            1 => String::new(),
            _ => format!(" ({:.1} % of the samples)", 100.0 * source.weight / total),
        };
        let lines = |loaded: &LoadedSource| {
            let lines = [&loaded.sentence].into_iter().chain(&loaded.notes);
            lines.map(|line| format!("{what}{}: {line}", share(&loaded.source))).collect::<Vec<_>>()
        };
        self.loaded.iter().flat_map(lines).collect()
    }
}

/// A sentence on the part of the data that is held out: `drawn` samples that a hash has drawn, or the end of the data
/// if `drawn` is 0.
fn split_sentence(held_out: &[DataSource], drawn: u64) -> String {
    let count: u64 = held_out.iter().map(|source| source.range.end - source.range.start).sum();
    match held_out {
        [one] => {
            let (len, unit) = (one.content.len(), one.content.unit());
            // Samples are drawn before they share rows.
            let (which, how) = match drawn {
                0 if one.range.end == len => ("the last ".to_string(), ""),
                0 => (String::new(), ""),
                _ if unit == "rows" => (format!("{}, drawn by the seed, in ", plural(drawn, "sample")), ""),
                _ => (String::new(), ", drawn by the seed"),
            };
            format!("evaluation data: {which}{count} of these {len} {unit}{how}")
        }
        several => {
            let unit = several.first().map_or("tokens", |one| one.content.unit());
            format!("evaluation data: {count} {unit} of these {} sources", several.len())
        }
    }
}

/// Hashes of everything that a run may read of its data: tokens, labels, the ends of samples, and the settings that
/// decide how they are read. Equal data have equal hashes, whatever files they lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHashes {
    /// Hash of the training data.
    pub train: u64,
    /// Hash of the evaluation data, if there are any.
    pub eval: Option<u64>,
}

impl DataHashes {
    /// One number, other than 0, that stands for both hashes.
    pub fn combined(&self) -> u64 {
        hash_of(&[self.train, self.eval.unwrap_or(0)]).max(1)
    }
}

/// The parts of the hash of some batches.
#[derive(Clone, Debug)]
pub(super) struct HashParts {
    /// The fingerprint of lengths, weights, ends of samples and rules, for which no stream needs to be read.
    fingerprint: u64,
    /// The number of a pass and the number of a part of its stream, for each part.
    parts: Vec<(usize, usize)>,
}

impl HashParts {
    /// The parts of the hash of `batches`; the parts of their streams are added to `passes`.
    pub fn of(batches: &Batches, passes: &mut [StreamPass]) -> Self {
        let parts = batches.streams().into_iter().filter_map(|(stream, range)| {
            let index = passes.iter().position(|pass| pass.is_of(stream))?;
            Some((index, passes[index].add_part(range)))
        });
        Self { parts: parts.collect(), fingerprint: batches.fingerprint() }
    }

    /// The hash, once all of the `passes` that it needs were read.
    pub fn hash(&self, passes: &[StreamPass]) -> Option<u64> {
        let parts = self.parts.iter().map(|(pass, part)| passes[*pass].hash(*part));
        let numbers: Option<Vec<u64>> = [Some(self.fingerprint)].into_iter().chain(parts).collect();
        numbers.map(|numbers| hash_of(&numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::config::{DocumentFormat, Paths};
    use crate::data::text;

    const BYTES: Codec = Codec::Bytes { eod: 0 };

    fn sources(path: &std::path::Path, eval_fraction: f64) -> LoadedSources {
        let files = Paths { paths: vec![path.display().to_string()], weights: Vec::new() };
        let loaded = text::load(&files, &DocumentFormat::File, &[], None, &BYTES).unwrap();
        let rules = DocumentRules::default();
        LoadedSources { loaded, rules, samples: [None; 2], eval_fraction, eval_samples: 0 }
            .with_ends()
            .unwrap()
    }

    fn load(train: &LoadedSources, eval: Option<&LoadedSources>, spec: &BatchSpec) -> Result<LoadedData> {
        LoadedData::new(BYTES, train, train.batches(spec, Some(0))?, eval)
    }

    fn spec() -> BatchSpec {
        BatchSpec {
            seq_length: 8,
            batch_size: 2,
            micro_batches: 2,
            vocab_size: 256,
            ignore_id: u32::MAX,
            sorts_positions: false,
            ahead: 0,
            rank: 0,
            world: 1,
        }
    }

    #[test]
    fn splits_by_fraction_or_by_file() {
        let folder = tempfile::tempdir().unwrap();
        let (long, short) = (folder.path().join("long"), folder.path().join("short"));
        std::fs::write(&long, "x".repeat(999)).unwrap();
        std::fs::write(&short, "y".repeat(99)).unwrap();
        let data = load(&sources(&long, 0.1), None, &spec()).unwrap();
        assert_eq!([data.train.ranges(), data.eval.unwrap().ranges()].concat(), [0..900, 900..1000]);
        assert_eq!(data.summary[1], "evaluation data: the last 100 of these 1000 tokens");

        let long = sources(&long, 0.0);
        let data = load(&long, Some(&sources(&short, 0.0)), &spec()).unwrap();
        assert_eq!([data.train.ranges(), data.eval.unwrap().ranges()].concat(), [0..1000, 0..100]);
        assert!(load(&long, None, &spec()).unwrap().eval.is_none());
    }

    #[test]
    fn a_context_longer_than_the_data() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("short");
        std::fs::write(&path, "too short").unwrap();
        let spec = BatchSpec { seq_length: 4096, ..spec() };
        let error = load(&sources(&path, 0.0), None, &spec).unwrap_err().to_string();
        assert!(error.starts_with(
            "seq_length 4096 is longer than the data: a window takes 4097 tokens, 10 were found"
        ));
        std::fs::write(&path, "x".repeat(10_000)).unwrap();
        let spec = BatchSpec { batch_size: 1, micro_batches: 1, ..spec };
        let error = load(&sources(&path, 0.1), None, &spec).unwrap_err().to_string();
        assert!(error.starts_with("evaluation data: seq_length 4096 is longer than the data"), "{error}");
    }

    #[test]
    fn a_small_vocabulary_is_refused_before_training() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "text".repeat(100)).unwrap();
        let spec = BatchSpec { vocab_size: 100, ..spec() };
        let error = load(&sources(&path, 0.0), None, &spec).unwrap_err().to_string();
        assert!(
            error.starts_with("token 116 at position 0 of the data is outside vocab_size 100"),
            "{error}"
        );
    }
}
