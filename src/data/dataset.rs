//! The data of a run: loaders turned into batches for training and evaluation.

use super::background_check::BackgroundCheck;
use super::batch::NO_LABEL;
use super::batches::{BatchSpec, Batches};
use super::codec::{Codec, TokenizerConfig};
use super::config::{DataConfig, Loader};
use super::content_hash::{DataHashes, HashParts};
use super::document_rules::DocumentRules;
use super::plural::plural;
use super::reading::{Reading, Stopped};
use super::record_samples::HeldOut;
use super::source::{Content, Loaded, Source};
use super::{cargo_registry, megatron, mindrecord, record_samples, text, token_file};
use crate::error::{Error, Result};

/// Streams in files of at most this many tokens are read before step 1, longer ones while the run trains.
const READ_AT_ONCE: u64 = 64 << 20;

/// Why a run cannot read data that only a program has.
const NO_LOADER: &str = "the configuration names no data: its batches came from a program's own memory; write `train_dataset: \
    {data_loader: {type: TextDataLoader, dataset_dir: FOLDER}}` or another loader";

/// Training and evaluation data, loaded and checked.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The batches of training.
    pub train: Batches,
    /// The batches of an evaluation, in the same order every time; `None` if nothing is held out.
    pub eval: Option<Batches>,
    /// Encodes and decodes the text of a sample.
    pub codec: Codec,
    /// For the log: a sentence for each source on what was read, and one on the split.
    pub summary: Vec<String>,
    /// All streams, of which the long ones are still to be read.
    readings: Vec<Reading>,
    train_hash: HashParts,
    eval_hash: Option<HashParts>,
}

impl Dataset {
    /// Loads the data of a run. The evaluation data is `eval`, or else the held-out part of `train`. If `eval` names
    /// no tokenizer, it uses that of `train`. `seed` shuffles if `train` has no seed of its own.
    ///
    /// # Errors
    /// If a file is missing or malformed, there is too little data for one step, or a token is outside the vocabulary.
    pub fn load(train: &DataConfig, eval: Option<&DataConfig>, spec: &BatchSpec, seed: u64) -> Result<Self> {
        let codec = codec(train, spec.vocab_size)?;
        let mut readings = Vec::new();
        let loaded = load_sources(train, &codec, spec, &mut readings, seed)?;
        let mut summary = sentences("training data", &loaded);
        let (learned, held_out): (Vec<_>, Vec<_>) =
            loaded.iter().map(|source| <(Source, Source)>::from(source.parts(train.eval_fraction))).unzip();
        let shuffle = train.shuffle.then_some(train.seed.unwrap_or(seed));
        let [samples, eval_samples] = samples(&train.loader);
        let rules = rules_of(train, &loaded)?;
        let batches = Batches::of_sources(learned, spec.clone(), shuffle, samples)?.with_rules(rules.clone());
        let eval = match eval {
            Some(config) => {
                let tokenizer = config.tokenizer.as_ref().or(train.tokenizer.as_ref());
                let (data, loaded) = EvalData::load(config, tokenizer, spec, &mut readings)?;
                summary.extend(sentences("evaluation data", &loaded));
                Some(data)
            }
            None if held_out.iter().all(|source| source.range.is_empty()) => None,
            None => {
                summary.push(split_sentence(&held_out, train.eval_samples));
                Some(EvalData { sources: held_out, rules, samples: eval_samples })
            }
        };
        let eval = eval.map(|eval| eval.batches(spec)).transpose()?;
        let train_hash = HashParts::of(&batches, &mut readings);
        let eval_hash = eval.as_ref().map(|eval| HashParts::of(eval, &mut readings));
        readings.iter().filter(|reading| is_read_at_once(reading)).try_for_each(|reading| {
            reading.read(|| false).map_err(|stopped| match stopped {
                Stopped::Fault(error) => error,
                Stopped::Cancelled => unreachable!("nothing asks a reading to stop while the data load"),
            })
        })?;
        Ok(Self { train: batches, eval, codec, summary, readings, train_hash, eval_hash })
    }

    /// Starts to check and to hash what was too long to be read when it was loaded. Batches are checked in any case, but a
    /// bad one may come up days later.
    pub(crate) fn check_in_background(&self) -> BackgroundCheck {
        let later = self.readings.iter().filter(|reading| !is_read_at_once(reading));
        BackgroundCheck::start(later.cloned().collect())
    }

    /// The hashes of the data: `None` until everything was read, which for long data the background check does.
    pub(crate) fn hashes(&self) -> Option<DataHashes> {
        let eval = self.eval_hash.as_ref().map(|parts| parts.hash(&self.readings));
        let eval = eval.map_or(Some(None), |hash| hash.map(Some))?;
        Some(DataHashes { train: self.train_hash.hash(&self.readings)?, eval })
    }
}

/// Whether a stream is read when it is loaded: it is in memory, and was written there a moment ago, or it is short.
fn is_read_at_once(reading: &Reading) -> bool {
    reading.stream.is_in_memory() || reading.stream.len() <= READ_AT_ONCE
}

/// The codec of `config` for a model of `vocab_size` tokens.
///
/// # Errors
/// If the tokenizer cannot be read, or has more tokens than the model.
pub fn codec(config: &DataConfig, vocab_size: usize) -> Result<Codec> {
    codec_of(&config.loader, config.tokenizer.as_ref(), vocab_size)
}

/// What an evaluation reads.
struct EvalData {
    sources: Vec<Source>,
    rules: DocumentRules,
    /// Number of samples; `None`: all.
    samples: Option<u64>,
}

impl EvalData {
    /// An evaluation data set is read like a training one: whole, or the training part of the loader's split.
    fn load(
        config: &DataConfig,
        tokenizer: Option<&TokenizerConfig>,
        spec: &BatchSpec,
        readings: &mut Vec<Reading>,
    ) -> Result<(Self, Vec<Loaded>)> {
        let codec = codec_of(&config.loader, tokenizer, spec.vocab_size)?;
        let loaded = load_sources(config, &codec, spec, readings, 0)?; // of which nothing is held out
        let sources = loaded.iter().map(|source| source.parts(0.0)[0].clone()).collect();
        let data = Self { sources, rules: rules_of(config, &loaded)?, samples: samples(&config.loader)[0] };
        Ok((data, loaded))
    }

    /// Its batches, in the order of the files, for steps of one micro-batch.
    fn batches(self, spec: &BatchSpec) -> Result<Batches> {
        let spec = BatchSpec { micro_batches: 1, ..spec.clone() };
        let batches = Batches::of_evaluation(self.sources, spec, self.samples);
        let in_evaluation = |error| {
            Error::Plan(format!(
                "evaluation data: {error} (a larger eval_fraction, or an eval_dataset of its own)"
            ))
        };
        batches.map(|batches| batches.with_rules(self.rules)).map_err(in_evaluation)
    }
}

fn codec_of(loader: &Loader, tokenizer: Option<&TokenizerConfig>, vocab_size: usize) -> Result<Codec> {
    let eod = match loader {
        Loader::Text(config) => config.eod_byte,
        Loader::CargoRegistry(config) => config.eod_byte,
        Loader::Tokens(_)
        | Loader::Megatron(_)
        | Loader::MindRecord(_)
        | Loader::Records(_)
        | Loader::Memory => 0,
    };
    Codec::load(tokenizer, eod, vocab_size)
}

/// The sources of a loader, with their streams added to `readings`. `seed` draws the samples that are held out.
fn load_sources(
    config: &DataConfig,
    codec: &Codec,
    spec: &BatchSpec,
    readings: &mut Vec<Reading>,
    seed: u64,
) -> Result<Vec<Loaded>> {
    let held_out = config.eval_samples;
    let loaded = match &config.loader {
        Loader::Text(config) => text::load(config, codec)?,
        Loader::Tokens(config) => token_file::load(config)?,
        Loader::Megatron(config) => megatron::load(config)?,
        Loader::MindRecord(config) => mindrecord::load(config, spec.seq_length)?,
        Loader::Records(config) => {
            record_samples::load(config, codec, spec.seq_length, HeldOut { samples: held_out, seed })?
        }
        Loader::CargoRegistry(config) => cargo_registry::load(config, codec)?,
        Loader::Memory => return Err(Error::Plan(NO_LOADER.to_string())),
    };
    let (vocab_size, pad) = (spec.vocab_size, config.documents.pad);
    for loaded in &loaded {
        let streams = match &loaded.source.content {
            Content::Stream(stream) => vec![(stream, pad)],
            Content::Samples(samples) => vec![(samples.tokens(), pad), (samples.labels(), Some(NO_LABEL))],
        };
        let streams = streams.into_iter();
        readings.extend(streams.map(|(stream, pad)| Reading::new(stream.clone(), vocab_size, pad)));
    }
    Ok(loaded)
}

/// The rules of a data set. If they name no token that ends documents, it is the one that the loader appends.
fn rules_of(config: &DataConfig, loaded: &[Loaded]) -> Result<DocumentRules> {
    let eod = config.documents.eod.or(loaded.first().and_then(|source| source.eod));
    let rules = DocumentRules { eod, ..config.documents.clone() };
    if rules.need_eod() && eod.is_none() {
        return Err(Error::Plan(
            "files of token ids do not say which token ends a document, and eod_reset, reset_position_ids, reset_attention_mask and eod_mask_loss need it: write `eod_token_id` under train_dataset, or `eod` under the loader's `config`".to_string(),
        ));
    }
    Ok(rules)
}

/// Number of samples of a training epoch and of an evaluation; `None` if the loader does not say.
fn samples(loader: &Loader) -> [Option<u64>; 2] {
    match loader {
        Loader::Megatron(config) => config.sizes.map(|size| Some(size).filter(|size| *size > 0)),
        _ => [None; 2],
    }
}

/// A sentence for each source, with its share of the samples if there are several.
fn sentences(what: &str, loaded: &[Loaded]) -> Vec<String> {
    let total: f64 = loaded.iter().map(|source| source.source.weight).sum();
    let share = |source: &Loaded| match loaded.len() {
        1 => String::new(),
        _ => format!(" ({:.1} % of the samples)", 100.0 * source.source.weight / total),
    };
    let lines = |source: &Loaded| {
        let lines = [&source.sentence].into_iter().chain(&source.notes);
        lines.map(|line| format!("{what}{}: {line}", share(source))).collect::<Vec<_>>()
    };
    loaded.iter().flat_map(lines).collect()
}

/// Which part of the data is held out: so many samples that a hash has `drawn`, if any, or else the end.
fn split_sentence(held_out: &[Source], drawn: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::config::{DocumentFormat, Paths, TextConfig};

    fn text(path: &std::path::Path) -> DataConfig {
        let loader = Loader::Text(TextConfig {
            data_path: Paths { paths: vec![path.display().to_string()], weights: Vec::new() },
            documents: DocumentFormat::File,
            extensions: Vec::new(),
            max_bytes: None,
            eod_byte: 0,
        });
        let documents = DocumentRules::default();
        DataConfig {
            loader,
            tokenizer: None,
            shuffle: true,
            seed: None,
            eval_fraction: 0.0,
            eval_samples: 0,
            documents,
        }
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
        let by_fraction = DataConfig { eval_fraction: 0.1, ..text(&long) };
        let data = Dataset::load(&by_fraction, None, &spec(), 0).unwrap();
        assert_eq!([data.train.ranges(), data.eval.unwrap().ranges()].concat(), [0..900, 900..1000]);
        assert_eq!(data.summary[1], "evaluation data: the last 100 of these 1000 tokens");

        let data = Dataset::load(&text(&long), Some(&text(&short)), &spec(), 0).unwrap();
        assert_eq!([data.train.ranges(), data.eval.unwrap().ranges()].concat(), [0..1000, 0..100]);
        assert!(Dataset::load(&text(&long), None, &spec(), 0).unwrap().eval.is_none());
    }

    #[test]
    fn a_context_longer_than_the_data() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("short");
        std::fs::write(&path, "too short").unwrap();
        let spec = BatchSpec { seq_length: 4096, ..spec() };
        let error = Dataset::load(&text(&path), None, &spec, 0).unwrap_err().to_string();
        assert!(error.starts_with(
            "seq_length 4096 is longer than the data: a window takes 4097 tokens, 10 were found"
        ));
        std::fs::write(&path, "x".repeat(10_000)).unwrap();
        let kept = DataConfig { eval_fraction: 0.1, ..text(&path) };
        let spec = BatchSpec { batch_size: 1, micro_batches: 1, ..spec };
        let error = Dataset::load(&kept, None, &spec, 0).unwrap_err().to_string();
        assert!(error.starts_with("evaluation data: seq_length 4096 is longer than the data"), "{error}");
    }

    #[test]
    fn a_small_vocabulary_is_refused_before_training() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "text".repeat(100)).unwrap();
        let spec = BatchSpec { vocab_size: 100, ..spec() };
        let error = Dataset::load(&text(&path), None, &spec, 0).unwrap_err().to_string();
        assert!(
            error.starts_with("token 116 at position 0 of the data is outside vocab_size 100"),
            "{error}"
        );
    }
}
