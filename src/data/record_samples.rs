//! The loaders of records: files of JSON or Parquet whose records become samples.
//!
//! Three steps: `records` reads JSON or Parquet into objects with their place in the file, `forms` makes tokens and
//! targets of each (prompts and answers, Alpaca, ready ids, conversations), and this file cuts, packs and counts
//! them.

use super::batch::NO_LABEL;
use super::codec::Codec;
use super::config::RecordsConfig;
use super::forms::{Formed, Former, Packer};
use super::notes::Notes;
use super::plural::plural;
use super::records;
use super::sample_collector::SampleCollector;
use super::samples::Samples;
use super::source::{Loaded, Split};
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use twox_hash::XxHash3_64;

/// How many samples are for evaluation, and by which seed they are drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldOut {
    pub samples: u64,
    pub seed: u64,
}

/// The source of a loader of records; samples are cut to `seq_length` tokens.
pub(super) fn load(
    config: &RecordsConfig,
    codec: &Codec,
    seq_length: usize,
    held_out: HeldOut,
) -> Result<Vec<Loaded>> {
    let former = Former::new(&config.form, codec)?;
    let files = records::files(&config.files, &format!("correct {}", config.keys))?;
    let mut taker = Taker::new(config, seq_length);
    for file in &files {
        records::for_each(&file.path, &mut |mut record| {
            for (old, new) in &config.renamed {
                let value = record.fields.remove(old).ok_or_else(|| record.missing(old))?;
                record.fields.insert(new.clone(), value);
                record.text.clear();
            }
            taker.push(former.form(&record)?);
            Ok(!taker.is_full())
        })?;
    }
    let name = config.files.join(", ");
    let (dropped, notes) = (taker.dropped_words(), taker.notes.lines());
    let lengths = format!("{} to {} tokens", taker.shortest.min(taker.longest), taker.longest);
    let (samples, sentence) = taker.finish(files.len());
    if samples.is_empty() {
        let message = format!(
            "no sample is left of {lengths} ({dropped}); raise model.model_config.seq_length, or name other data"
        );
        return Err(Error::file(name, message));
    }
    let eod = codec.eod().ok();
    let (samples, split) = held_out.split(samples, &name)?;
    Ok(vec![Loaded { sentence, notes, eod, split, ..Loaded::whole(samples, name) }])
}

impl HeldOut {
    /// The samples with those that are held out last, and which part of them is for training and which for evaluation.
    fn split(self, samples: Samples, name: &str) -> Result<(Samples, Option<Split>)> {
        let (total, held) = (samples.len(), self.samples);
        if held == 0 {
            return Ok((samples, None));
        }
        if held >= total {
            let message = format!(
                "has {total} samples, of which `eval_samples` {held} leave none to train on; lower it"
            );
            return Err(Error::file(name, message));
        }
        // By a hash of their place, so that a sample that is held out stays so when others are added behind it, as far as their
        // number allows.
        let hash = |place: &u64| XxHash3_64::oneshot_with_seed(self.seed, &place.to_le_bytes());
        let mut places: Vec<u64> = (0..total).collect();
        places.sort_by_key(hash);
        let drawn: BTreeSet<u64> = places.into_iter().take(held as usize).collect();
        let learned = (0..total).filter(|sample| !drawn.contains(sample));
        let split = (0..total - held, total - held..total);
        Ok((samples.reordered(learned.chain(drawn.iter().copied())), Some(split)))
    }
}

/// Takes samples and counts what becomes of them.
struct Taker {
    rows: Collector,
    seq_length: usize,
    most: u64,
    /// Records read.
    records: u64,
    /// Samples of which a part was cut off.
    cut: u64,
    /// Samples dropped because they have nothing to predict.
    unlabelled: u64,
    /// Tokens of the shortest sample, and of the longest.
    shortest: usize,
    longest: usize,
    /// Tokens of all samples, and those of them that are predicted.
    tokens: [u64; 2],
    notes: Notes,
}

enum Collector {
    Single(SampleCollector),
    Packed(Packer),
}

impl Taker {
    fn new(config: &RecordsConfig, seq_length: usize) -> Self {
        let rows = match config.packing {
            None => Collector::Single(SampleCollector::default()),
            Some(strategy) => Collector::Packed(Packer::new(strategy, seq_length)),
        };
        let most = config.most.unwrap_or(u64::MAX);
        let notes = Notes::default();
        Self {
            rows,
            seq_length,
            most,
            records: 0,
            cut: 0,
            unlabelled: 0,
            shortest: usize::MAX,
            longest: 0,
            tokens: [0; 2],
            notes,
        }
    }

    fn is_full(&self) -> bool {
        self.records >= self.most
    }

    fn push(&mut self, mut sample: Formed) {
        self.records += 1;
        self.notes.add(std::mem::take(&mut sample.notes));
        self.shortest = self.shortest.min(sample.tokens.len());
        self.longest = self.longest.max(sample.tokens.len());
        if let Collector::Single(_) = self.rows {
            sample.is_cut |= sample.tokens.len() > self.seq_length;
            sample.tokens.truncate(self.seq_length);
            sample.targets.truncate(self.seq_length);
        }
        let predicted = sample.targets.iter().filter(|target| **target != NO_LABEL).count();
        if predicted == 0 {
            self.unlabelled += 1;
            return;
        }
        self.cut += u64::from(sample.is_cut);
        self.tokens[0] += sample.tokens.len() as u64;
        self.tokens[1] += predicted as u64;
        match &mut self.rows {
            Collector::Single(rows) => rows.push(&sample.tokens, &sample.targets),
            Collector::Packed(packer) => packer.push(&sample),
        }
    }

    /// What was dropped, in words.
    fn dropped_words(&self) -> String {
        let too_long = match &self.rows {
            Collector::Single(_) => 0,
            Collector::Packed(packer) => packer.dropped,
        };
        let words = [
            (self.unlabelled, "dropped with nothing to predict within seq_length"),
            (too_long, "dropped as longer than seq_length"),
        ];
        let said = words.iter().filter(|(count, _)| *count > 0);
        said.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
    }

    fn finish(self, files: usize) -> (Samples, String) {
        let [tokens, predicted] = self.tokens;
        let mut notes = vec![self.dropped_words()];
        if self.cut > 0 {
            notes.push(format!("{} cut", self.cut));
        }
        let (longest, records) = (self.longest, self.records);
        let (samples, packed) = match self.rows {
            Collector::Single(rows) => (rows.finish(), String::new()),
            Collector::Packed(packer) => {
                let rows = packer.finish().finish();
                let packed = format!(" packed into {}", plural(rows.len(), "row"));
                (rows, packed)
            }
        };
        notes.retain(|note| !note.is_empty());
        let notes = if notes.is_empty() { String::new() } else { format!("; {}", notes.join(", ")) };
        let sentence = format!(
            "{} of {}{packed}: {tokens} tokens, {predicted} of them predicted, the longest sample has {longest}{notes}",
            plural(records, "sample"),
            plural(files as u64, "file")
        );
        (samples, sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::PackStrategy;

    #[test]
    fn samples_are_held_out_by_the_seed() {
        let samples = |strategy: Option<PackStrategy>| {
            let config = RecordsConfig {
                files: Vec::new(),
                keys: "",
                form: crate::data::Form::Columns,
                packing: strategy,
                renamed: Vec::new(),
                most: None,
            };
            let mut taker = Taker::new(&config, 4);
            for first in 0..20 {
                let tokens = vec![first, first + 100];
                taker.push(Formed { targets: tokens.clone(), tokens, ..Formed::default() });
            }
            taker.finish(1).0
        };
        let rows = |samples: &Samples| -> Vec<Vec<u32>> {
            let row = |sample| {
                let (mut tokens, mut targets) = (vec![0; 4], vec![0; 4]);
                let count = samples.read(sample, &mut tokens, &mut targets);
                tokens.truncate(count);
                tokens
            };
            (0..samples.len()).map(row).collect()
        };
        for (strategy, total, held) in [(None, 20, 5), (Some(PackStrategy::Pack), 10, 3)] {
            let plain = rows(&samples(strategy));
            let split = |seed| HeldOut { samples: held, seed }.split(samples(strategy), "records").unwrap();
            let (one, ranges) = split(1);
            assert_eq!(ranges, Some((0..total - held, total - held..total)));
            let one = rows(&one);
            assert!(one[..(total - held) as usize].is_sorted() && one[(total - held) as usize..].is_sorted());
            let mut all = one.clone();
            all.sort();
            assert_eq!(all, plain);
            assert_eq!(one, rows(&split(1).0));
            assert_ne!(one, rows(&split(2).0));
        }
        assert_eq!(
            rows(&HeldOut { samples: 0, seed: 1 }.split(samples(None), "").unwrap().0),
            rows(&samples(None))
        );
        let error = HeldOut { samples: 20, seed: 1 }.split(samples(None), "records").unwrap_err().to_string();
        assert!(
            error.contains("has 20 samples, of which `eval_samples` 20 leave none to train on"),
            "{error}"
        );
    }
}
