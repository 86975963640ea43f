//! Text and token files as batches. The order of the data is a pure function of (seed, epoch, step):
//! to resume, ask for the next number.

mod batch;
mod batches;
mod cargo_registry;
mod config;
mod files;
mod statistics;
mod stream;
mod text;
mod token_file;

use std::ops::Range;
use std::sync::Arc;

pub use batch::Batch;
pub use batches::{BatchSpec, Batches};
pub use config::{CargoRegistryConfig, DataConfig, Loader, TextConfig, TokenType, TokensConfig};
pub use statistics::{check_vocabulary, fingerprint, unigram_entropy};
pub use stream::{Part, TokenStream};

use crate::error::{Error, Result};

/// Up to this size every token is checked against the vocabulary before step 1; larger data is checked batch by batch.
const CHECKED_TOKENS: u64 = 64 << 20;

/// Training and evaluation data, loaded and checked.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// What the model learns from.
    pub train: Batches,
    /// What it is judged by, always in the same order.
    pub eval: Option<Batches>,
    /// A sentence per source on what was taken, and one on the split.
    pub summary: Vec<String>,
}

impl Dataset {
    /// Loads the data of a run. Evaluation reads `eval` or, without it, the share that `train.eval_fraction` keeps.
    ///
    /// # Errors
    /// If a file is missing or broken, there is too little data for one step, or a token is outside the vocabulary.
    pub fn load(train: &DataConfig, eval: Option<&DataConfig>, spec: &BatchSpec, seed: u64) -> Result<Self> {
        let (stream, sentence) = load_stream(&train.loader, spec.vocab_size)?;
        let mut summary = vec![format!("training data: {sentence}")];
        let (learned, kept) = split(stream.len(), train.eval_fraction);
        let shuffle = train.shuffle.then_some(train.seed.unwrap_or(seed));
        let learning = Batches::new(stream.clone(), learned, spec.clone(), shuffle)?;
        let (stream, range) = if let Some(config) = eval {
            let (stream, sentence) = load_stream(&config.loader, spec.vocab_size)?;
            summary.push(format!("evaluation data: {sentence}"));
            let range = 0..stream.len();
            (stream, range)
        } else if kept.is_empty() {
            return Ok(Self { train: learning, eval: None, summary });
        } else {
            let (count, all) = (kept.end - kept.start, stream.len());
            summary.push(format!("evaluation data: the last {count} of these {all} tokens"));
            (stream, kept)
        };
        let spec = BatchSpec { gradient_accumulation_steps: 1, ..spec.clone() };
        let eval = Batches::new(stream, range, spec, None).map_err(|error| in_evaluation(&error))?;
        Ok(Self { train: learning, eval: Some(eval), summary })
    }
}

/// The tokens of a loader, checked against the vocabulary, and a sentence on what was taken.
///
/// # Errors
/// If a file is missing or broken, or a token is outside the vocabulary.
pub fn load_stream(loader: &Loader, vocab_size: usize) -> Result<(Arc<TokenStream>, String)> {
    let (stream, sentence) = match loader {
        Loader::Text(config) => text::load(config)?,
        Loader::Tokens(config) => token_file::load(config)?,
        Loader::CargoRegistry(config) => cargo_registry::load(config)?,
    };
    if stream.len() <= CHECKED_TOKENS {
        check_vocabulary(&stream, vocab_size)?;
    }
    Ok((Arc::new(stream), sentence))
}

/// The tokens to learn from and the tail kept for evaluation.
fn split(tokens: u64, eval_fraction: f64) -> (Range<u64>, Range<u64>) {
    let kept = (tokens as f64 * eval_fraction) as u64;
    let border = tokens - kept.min(tokens);
    (0..border, border..tokens)
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
            extensions: Vec::new(),
            max_bytes: None,
            eod_byte: 0,
        });
        DataConfig { loader, shuffle: true, seed: None, eval_fraction: 0.0 }
    }

    fn spec() -> BatchSpec {
        BatchSpec {
            seq_length: 8,
            batch_size: 2,
            gradient_accumulation_steps: 2,
            vocab_size: 256,
            sorts_positions: false,
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
        assert_eq!((data.train.range(), data.eval.unwrap().range()), (0..900, 900..1000));
        assert_eq!(data.summary[1], "evaluation data: the last 100 of these 1000 tokens");

        let data = Dataset::load(&text(&long), Some(&text(&short)), &spec(), 0).unwrap();
        assert_eq!((data.train.range(), data.eval.unwrap().range()), (0..1000, 0..100));
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
