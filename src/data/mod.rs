//! Text and token files as batches. The order of the data is a pure function of (seed, epoch, step):
//! to resume, ask for the next number.

mod batch;
mod batches;
mod blend;
mod cargo_registry;
mod codec;
mod config;
mod decoding;
mod document_rules;
mod documents;
mod files;
pub mod megatron;
mod output;
mod source;
mod statistics;
mod stream;
mod text;
mod token_file;
pub mod tokenize;
pub mod tokenizer;

pub use batch::{Ahead, Batch};
pub use batches::{BatchSpec, Batches};
pub use codec::Codec;
pub use config::{
    CargoRegistryConfig, DataConfig, DocumentFormat, Loader, MegatronConfig, TextConfig, TokenType,
    TokenizerConfig, TokensConfig,
};
pub use decoding::Decoding;
pub use document_rules::DocumentRules;
pub use source::Source;
pub use statistics::{check_vocabulary, fingerprint, unigram_entropy};
pub use stream::{MappedTokens, Part, TokenEncoding, TokenStream};

use crate::error::{Error, Result};
use source::Loaded;

/// Up to this size every token is checked against the vocabulary before step 1; larger data is checked batch by batch.
const CHECKED_TOKENS: u64 = 64 << 20;

/// Training and evaluation data, loaded and checked.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// What the model learns from.
    pub train: Batches,
    /// What it is judged by, always in the same order.
    pub eval: Option<Batches>,
    /// How the text of a sample becomes tokens and back.
    pub codec: Codec,
    /// A sentence per source on what was taken, and one on the split.
    pub summary: Vec<String>,
}

impl Dataset {
    /// Loads the data of a run. Evaluation reads `eval` or, without it, the part of the training data that is kept for it.
    /// Where `eval` names no tokenizer, that of `train` is its own.
    ///
    /// # Errors
    /// If a file is missing or broken, there is too little data for one step, or a token is outside the vocabulary.
    pub fn load(train: &DataConfig, eval: Option<&DataConfig>, spec: &BatchSpec, seed: u64) -> Result<Self> {
        let codec = codec_of(train, train.tokenizer.as_ref(), spec.vocab_size)?;
        let loaded = load_sources(train, &codec, spec.vocab_size)?;
        let mut summary = sentences("training data", &loaded);
        let (learned, kept): (Vec<_>, Vec<_>) = loaded
            .iter()
            .map(|source| source.ranges(train.eval_fraction))
            .zip(&loaded)
            .map(|((learned, kept), source)| (source.part(learned), source.part(kept)))
            .unzip();
        let shuffle = train.shuffle.then_some(train.seed.unwrap_or(seed));
        let [samples, eval_samples] = samples(&train.loader);
        let rules = rules_of(train, &loaded)?;
        let learning =
            Batches::of_sources(learned, spec.clone(), shuffle, samples)?.with_rules(rules.clone());
        let spec = BatchSpec { gradient_accumulation_steps: 1, ..spec.clone() };
        let (sources, rules, samples) = if let Some(config) = eval {
            let own =
                codec_of(config, config.tokenizer.as_ref().or(train.tokenizer.as_ref()), spec.vocab_size)?;
            let loaded = load_sources(config, &own, spec.vocab_size)?;
            summary.extend(sentences("evaluation data", &loaded));
            let parts = loaded.iter().map(|source| source.part(source.ranges(0.0).0));
            // An evaluation data set is used as a training one would be: whole, or the training part of its split.
            (parts.collect(), rules_of(config, &loaded)?, self::samples(&config.loader)[0])
        } else if kept.iter().all(|source| source.range.is_empty()) {
            return Ok(Self { train: learning, eval: None, codec, summary });
        } else {
            summary.push(split_sentence(&kept));
            (kept, rules, eval_samples)
        };
        let eval =
            Batches::of_sources(sources, spec, None, samples).map_err(|error| in_evaluation(&error))?;
        Ok(Self { train: learning, eval: Some(eval.with_rules(rules)), codec, summary })
    }
}

/// How the text of `config` becomes the tokens of a model of `vocab_size`.
///
/// # Errors
/// If the tokenizer cannot be read, or has more tokens than the model.
pub fn codec(config: &DataConfig, vocab_size: usize) -> Result<Codec> {
    codec_of(config, config.tokenizer.as_ref(), vocab_size)
}

fn codec_of(config: &DataConfig, tokenizer: Option<&TokenizerConfig>, vocab_size: usize) -> Result<Codec> {
    let eod = match &config.loader {
        Loader::Text(config) => config.eod_byte,
        Loader::CargoRegistry(config) => config.eod_byte,
        Loader::Tokens(_) | Loader::Megatron(_) => 0,
    };
    Codec::load(tokenizer, eod, vocab_size)
}

/// The sources of a loader, checked against the vocabulary.
fn load_sources(config: &DataConfig, codec: &Codec, vocab_size: usize) -> Result<Vec<Loaded>> {
    let loaded = match &config.loader {
        Loader::Text(config) => text::load(config, codec)?,
        Loader::Tokens(config) => token_file::load(config)?,
        Loader::Megatron(config) => megatron::load(config)?,
        Loader::CargoRegistry(config) => cargo_registry::load(config, codec)?,
    };
    for source in loaded.iter().filter(|source| source.stream.len() <= CHECKED_TOKENS) {
        check_vocabulary(&source.stream, vocab_size, config.documents.pad)?;
    }
    Ok(loaded)
}

/// The rules of a data set with the token that ends documents: the one written, else the one that the loader writes.
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

/// Samples of a training epoch and of an evaluation, where the loader says how many.
fn samples(loader: &Loader) -> [Option<u64>; 2] {
    match loader {
        Loader::Megatron(config) => config.sizes.map(|size| Some(size).filter(|size| *size > 0)),
        _ => [None; 2],
    }
}

fn sentences(what: &str, loaded: &[Loaded]) -> Vec<String> {
    let total: f64 = loaded.iter().map(|source| source.weight).sum();
    let share = |source: &Loaded| match loaded.len() {
        1 => String::new(),
        _ => format!(" ({:.1} % of the samples)", 100.0 * source.weight / total),
    };
    loaded.iter().map(|source| format!("{what}{}: {}", share(source), source.sentence)).collect()
}

fn split_sentence(kept: &[Source]) -> String {
    let count: u64 = kept.iter().map(|source| source.range.end - source.range.start).sum();
    match kept {
        [one] if one.range.end == one.stream.len() => {
            format!("evaluation data: the last {count} of these {} tokens", one.stream.len())
        }
        [one] => format!("evaluation data: {count} of these {} tokens", one.stream.len()),
        several => format!("evaluation data: {count} tokens of these {} sources", several.len()),
    }
}

fn in_evaluation(error: &Error) -> Error {
    Error::Plan(format!("evaluation data: {error} (a larger eval_fraction, or an eval_dataset of its own)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &std::path::Path) -> DataConfig {
        let loader = Loader::Text(TextConfig {
            paths: vec![path.display().to_string()],
            weights: Vec::new(),
            documents: DocumentFormat::File,
            extensions: Vec::new(),
            max_bytes: None,
            eod_byte: 0,
        });
        let documents = DocumentRules::default();
        DataConfig { loader, tokenizer: None, shuffle: true, seed: None, eval_fraction: 0.0, documents }
    }

    fn spec() -> BatchSpec {
        BatchSpec {
            seq_length: 8,
            batch_size: 2,
            gradient_accumulation_steps: 2,
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
        let spec = BatchSpec { batch_size: 1, gradient_accumulation_steps: 1, ..spec };
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
