//! The loaders of records: files of JSON or Parquet whose records become samples.
//!
//! Loading has three steps. `records` reads JSON or Parquet into objects with their place in the file. `sample_formats`
//! makes tokens and targets of each object (prompts and answers, Alpaca, ready ids, conversations), and `record_store`
//! keeps them. This file cuts, holds out, packs and counts the samples.

use super::codec::Codec;
use super::config::RecordFiles;
use super::notes::plural;
use super::pairs;
use super::record_store;
use super::sample_formats::{Form, Former, PackStrategy, Packed};
use super::sample_store::{Runs, SampleStore};
use super::samples::Samples;
use super::source::{LoadedSource, Split};
use crate::error::{Error, Result};
use std::collections::BinaryHeap;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// The number of samples for evaluation, and the seed by which they are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldOut {
    pub samples: u64,
    pub seed: u64,
}

/// The source of a loader of records: samples of at most `seq_length` tokens, which share rows by `packing`.
pub(crate) fn load(
    files: &RecordFiles,
    form: &Form,
    packing: Option<PackStrategy>,
    codec: &Codec,
    seq_length: usize,
    held_out: HeldOut,
) -> Result<Vec<LoadedSource>> {
    let (store, count) = record_store::load(files, &Former::new(form, codec)?)?;
    let name = files.paths.join(", ");
    let notes = store.notes.said.lines();
    let eod = codec.eod().ok();
    if matches!(form, Form::Preference(_)) {
        let (samples, split, sentence) = pairs::rows(store, count, seq_length, packing, held_out, &name)?;
        return Ok(vec![LoadedSource {
            notes,
            eod,
            split,
            ..LoadedSource::whole(samples, name, 1.0, sentence)
        }]);
    }
    let mut taken = Taken::of(&store, seq_length, packing);
    let (samples, split) = taken.rows(store, seq_length, held_out, &name)?;
    if samples.is_empty() {
        let (dropped, longest) = (taken.dropped_words(), taken.longest);
        let message = format!(
            "no sample is left of {} to {longest} tokens ({dropped}); raise model.model_config.seq_length, or name other data",
            taken.shortest.min(longest)
        );
        return Err(Error::file(name, message));
    }
    let sentence = taken.sentence(&samples, count);
    Ok(vec![LoadedSource { notes, eod, split, ..LoadedSource::whole(samples, name, 1.0, sentence) }])
}

impl HeldOut {
    /// Moves the samples that are held out behind the samples to learn from, both in order, and returns the number of
    /// samples to learn from.
    fn move_last(self, samples: &mut Runs, name: &str) -> Result<usize> {
        let drawn = self.drawn(samples.len() as u64, "samples", name)?;
        Ok(drawn.map_or(samples.len(), |is_drawn| samples.move_last(is_drawn)))
    }

    /// Whether each of `total` places is held out; `None` if none is. Messages call what is there `unit`.
    pub fn drawn(self, total: u64, unit: &str, name: &str) -> Result<Option<impl Fn(u64) -> bool>> {
        let held = self.samples;
        if held == 0 {
            return Ok(None);
        }
        if held >= total {
            let message = format!(
                "has {total} {unit}, of which `eval_samples` {held} leave none to train on; lower it"
            );
            return Err(Error::file(name, message));
        }
        // Samples are drawn by a hash of their place, so that a sample that is held out stays held out when other
        // samples are added behind it, as far as the number of held-out samples allows.
        let hash = move |place: u64| XxHash3_64::oneshot_with_seed(self.seed, &place.to_le_bytes());
        let mut smallest = BinaryHeap::with_capacity(held as usize + 1);
        for place in 0..total {
            smallest.push((hash(place), place));
            if smallest.len() as u64 > held {
                smallest.pop();
            }
        }
        let last = smallest.pop();
        Ok(Some(move |place| Some((hash(place), place)) <= last))
    }
}

/// Samples that are taken, and counts of the others.
struct Taken {
    /// The part that is left of each sample.
    samples: Runs,
    packing: Option<PackStrategy>,
    /// Number of records read.
    records: u64,
    /// Number of samples from which a part was cut off.
    cut: u64,
    /// Number of samples dropped because they have nothing to predict.
    unlabelled: u64,
    /// Number of samples dropped because they are longer than a row.
    too_long: u64,
    /// Number of tokens of the shortest sample, and of the longest.
    shortest: usize,
    longest: usize,
    /// Number of tokens of all samples, and how many of them are predicted.
    tokens: [u64; 2],
}

impl Taken {
    fn of(store: &SampleStore, seq_length: usize, packing: Option<PackStrategy>) -> Self {
        let records = store.len() as u64;
        let samples = Runs::with_capacity(store.len());
        let mut taken = Self {
            samples,
            packing,
            records,
            cut: 0,
            unlabelled: 0,
            too_long: 0,
            shortest: usize::MAX,
            longest: 0,
            tokens: [0; 2],
        };
        let most = if packing.is_none_or(PackStrategy::cuts_samples) { seq_length } else { usize::MAX };
        for sample in store.samples() {
            taken.shortest = taken.shortest.min(sample.tokens);
            taken.longest = taken.longest.max(sample.tokens);
            let (tokens, predicted) = (sample.tokens.min(most), store.predicted(&sample, most));
            if predicted == 0 {
                taken.unlabelled += 1;
                continue;
            }
            taken.cut += u64::from(sample.is_cut || tokens < sample.tokens);
            taken.tokens[0] += tokens as u64;
            taken.tokens[1] += predicted as u64;
            taken.samples.push(sample.start, tokens as u64);
        }
        taken
    }

    /// The rows of batches, with held-out rows last, and the ranges of rows for training and for evaluation. Samples
    /// are held out before they are packed.
    fn rows(
        &mut self,
        store: Arc<SampleStore>,
        seq_length: usize,
        held_out: HeldOut,
        name: &str,
    ) -> Result<(Samples, Option<Split>)> {
        let mut runs = std::mem::take(&mut self.samples);
        if runs.len() == 0 {
            return Ok((Samples::stored(store, runs), None));
        }
        let learned = held_out.move_last(&mut runs, name)?;
        let (samples, learned) = match self.packing {
            None => (Samples::stored(store, runs), learned as u64),
            Some(strategy) => {
                let mut packed = Packed::default();
                let [learned, _] = [0..learned, learned..runs.len()].map(|part| {
                    strategy.pack(seq_length, &runs, part, &mut packed);
                    packed.ends.len() as u64
                });
                let Packed { documents, ends, dropped } = packed;
                self.too_long = dropped;
                let is_packed = ends.len() != documents.len();
                let samples = Samples::stored(store, documents);
                (if is_packed { samples.packed(ends) } else { samples }, learned)
            }
        };
        let split = (held_out.samples > 0).then_some((0..learned, learned..samples.len()));
        Ok((samples, split))
    }

    /// A message on the samples that were dropped.
    fn dropped_words(&self) -> String {
        let words = [
            (self.unlabelled, "dropped with nothing to predict within seq_length"),
            (self.too_long, "dropped as longer than seq_length"),
        ];
        let said = words.iter().filter(|(count, _)| *count > 0);
        said.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
    }

    fn sentence(&self, rows: &Samples, files: usize) -> String {
        let Self { records, longest, tokens: [tokens, predicted], .. } = self;
        let mut notes = vec![self.dropped_words()];
        if self.cut > 0 {
            notes.push(format!("{} cut", self.cut));
        }
        notes.retain(|note| !note.is_empty());
        let notes = if notes.is_empty() { String::new() } else { format!("; {}", notes.join(", ")) };
        let packed =
            self.packing.map_or(String::new(), |_| format!(" packed into {}", plural(rows.len(), "row")));
        format!(
            "{} of {}{packed}: {tokens} tokens, {predicted} of them predicted, the longest sample has {longest}{notes}",
            plural(*records, "sample"),
            plural(files as u64, "file")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty samples of two tokens, as [`load`] takes them.
    fn rows(strategy: Option<PackStrategy>, held_out: HeldOut) -> Result<(Vec<Vec<u32>>, Option<Split>)> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ids.jsonl");
        let lines: String =
            (0..20).map(|first| format!("{{\"input_ids\": [{first}, {}]}}\n", first + 100)).collect();
        std::fs::write(&file, lines).unwrap();
        let files = RecordFiles { paths: vec![file.display().to_string()], ..RecordFiles::default() };
        let loaded = load(&files, &Form::Columns, strategy, &Codec::Bytes { eod: 0 }, 4, held_out)?.remove(0);
        let crate::data::SourceContent::Samples(samples) = &loaded.source.content else { panic!("samples") };
        let row = |sample| {
            let (mut tokens, mut targets) = (vec![0; 4], vec![0; 4]);
            let count = samples.read(sample, &mut tokens, &mut targets);
            tokens.truncate(count);
            tokens
        };
        Ok(((0..samples.len()).map(row).collect(), loaded.split))
    }

    #[test]
    fn samples_are_held_out_by_the_seed_before_they_are_packed() {
        let packs =
            [None, Some(PackStrategy::Pack), Some(PackStrategy::Truncate), Some(PackStrategy::BestFit)];
        let (single, _) = rows(None, HeldOut { samples: 4, seed: 1 }).unwrap();
        for strategy in packs {
            let (plain, split) = rows(strategy, HeldOut { samples: 0, seed: 1 }).unwrap();
            assert_eq!(split, None);
            let of_row = if strategy.is_some() { 2 } else { 1 };
            assert_eq!(plain.len(), 20 / of_row);
            let (one, ranges) = rows(strategy, HeldOut { samples: 4, seed: 1 }).unwrap();
            let (learned, all) = (16 / of_row as u64, 20 / of_row as u64);
            assert_eq!(ranges, Some((0..learned, learned..all)));
            assert!(one[..learned as usize].is_sorted() && one[learned as usize..].is_sorted());
            // The same samples are held out, however they are packed.
            assert_eq!(one.concat(), single.concat(), "{strategy:?}");
            let mut sorted = one.concat();
            sorted.sort_unstable();
            let mut all = plain.concat();
            all.sort_unstable();
            assert_eq!(sorted, all);
            assert_ne!(one, rows(strategy, HeldOut { samples: 4, seed: 2 }).unwrap().0);
        }
        let error = rows(None, HeldOut { samples: 20, seed: 1 }).unwrap_err().to_string();
        assert!(
            error.contains("has 20 samples, of which `eval_samples` 20 leave none to train on"),
            "{error}"
        );
    }
}
