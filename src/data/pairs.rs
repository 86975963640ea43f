//! Pairs of answers as rows: the samples of a store, two by two, of which the first is preferred.
//!
//! A row holds whole pairs. Each answer is a document of its own, and the chosen one comes first.

use super::notes::plural;
use super::record_samples::HeldOut;
use super::sample_formats::{PackStrategy, fill_rows};
use super::sample_store::{Runs, SampleStore, Stored};
use super::samples::Samples;
use super::source::Split;
use crate::error::{Error, Result};
use std::sync::Arc;

/// The fewest tokens of an answer with its prompt, of which one predicts another.
const LEAST: usize = 2;

/// The parts of two answers that are in a row: first word, and number of words.
type Pair = [(u64, u64); 2];

/// The rows of `store` as samples, in which rows to evaluate on come last; how they are divided; and a sentence on
/// them.
///
/// # Errors
/// If nothing is left.
pub(super) fn rows(
    store: Arc<SampleStore>,
    files: usize,
    seq_length: usize,
    packing: Option<PackStrategy>,
    held_out: HeldOut,
    name: &str,
) -> Result<(Samples, Option<Split>, String)> {
    let samples: Vec<Stored> = store.samples().collect();
    let (records, mut cut, mut unlearned, mut longest) = (samples.len() / 2, 0, 0, 0);
    let mut tokens = [0u64; 2];
    let mut pairs: Vec<Pair> = Vec::with_capacity(records);
    for both in samples.chunks_exact(2) {
        let whole = [both[0].tokens, both[1].tokens];
        longest = longest.max(whole[0] + whole[1]);
        let kept = shares(whole, seq_length);
        let predicted = [0, 1].map(|side| store.predicted(&both[side], kept[side]));
        if predicted.contains(&0) || kept.iter().any(|kept| *kept < LEAST) {
            unlearned += 1;
            continue;
        }
        cut += u64::from(kept != whole);
        tokens[0] += (kept[0] + kept[1]) as u64;
        tokens[1] += (predicted[0] + predicted[1]) as u64;
        pairs.push([0, 1].map(|side| (both[side].start, kept[side] as u64)));
    }
    if pairs.is_empty() {
        let message = format!(
            "no pair is left of {records}, the longest of {longest} tokens: both answers need a token to learn within half a row; raise model.model_config.seq_length, or name other data"
        );
        return Err(Error::file(name, message));
    }
    let learned = match held_out.drawn(pairs.len() as u64, "pairs", name)? {
        None => pairs.len(),
        Some(is_drawn) => {
            let marked = pairs.into_iter().enumerate().map(|(place, pair)| (is_drawn(place as u64), pair));
            let (last, first): (Vec<_>, Vec<_>) = marked.partition(|(is_drawn, _)| *is_drawn);
            let learned = first.len();
            pairs = first.into_iter().chain(last).map(|(_, pair)| pair).collect();
            learned
        }
    };
    let (mut documents, mut ends) = (Runs::with_capacity(2 * pairs.len()), Vec::new());
    let mut rows_learned = 0;
    for (number, part) in [&pairs[..learned], &pairs[learned..]].into_iter().enumerate() {
        for row in packed(part, seq_length, packing) {
            for (start, length) in row.iter().flat_map(|place| part[*place]) {
                documents.push(start, length);
            }
            ends.push(documents.len() as u64);
        }
        if number == 0 {
            rows_learned = ends.len() as u64;
        }
    }
    let rows = ends.len() as u64;
    let notes = [(unlearned, "dropped with nothing to predict in an answer"), (cut, "cut")];
    let notes: Vec<String> =
        notes.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    let sentence = format!(
        "{} of {}{}: {} tokens, {} of them predicted, the longest pair has {longest}{}{}",
        plural(records as u64, "pair"),
        plural(files as u64, "file"),
        packing.map_or(String::new(), |_| format!(" packed into {}", plural(rows, "row"))),
        tokens[0],
        tokens[1],
        if notes.is_empty() { "" } else { "; " },
        notes.join(", ")
    );
    let split = (held_out.samples > 0).then_some((0..rows_learned, rows_learned..rows));
    Ok((Samples::stored(store, documents).packed(ends).paired(), split, sentence))
}

/// How many tokens of two answers a row of `room` tokens takes: all, or else at most half of it of each, and of one
/// what a shorter one leaves.
fn shares([chosen, rejected]: [usize; 2], room: usize) -> [usize; 2] {
    let half = room / 2;
    match chosen + rejected <= room {
        true => [chosen, rejected],
        false => [
            chosen.min(half.max(room.saturating_sub(rejected))),
            rejected.min(half.max(room.saturating_sub(chosen))),
        ],
    }
}

/// The pairs of each row, by their places.
fn packed(pairs: &[Pair], room: usize, packing: Option<PackStrategy>) -> Vec<Vec<usize>> {
    let length = |place: usize| (pairs[place][0].1 + pairs[place][1].1) as usize;
    match packing {
        None => (0..pairs.len()).map(|place| vec![place]).collect(),
        Some(PackStrategy::BestFit) => {
            let filled = fill_rows(pairs.len(), length, room);
            filled.rows().map(|row| row.iter().map(|place| *place as usize).collect()).collect()
        }
        // Pairs are not cut at the end of a row.
        Some(PackStrategy::Pack | PackStrategy::Truncate) => {
            let (mut rows, mut filled) = (Vec::<Vec<usize>>::new(), room);
            for place in 0..pairs.len() {
                if filled + length(place) > room {
                    rows.push(Vec::new());
                    filled = 0;
                }
                filled += length(place);
                rows.last_mut().expect("a row was begun").push(place);
            }
            rows
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_have_what_the_other_leaves() {
        for (whole, kept) in
            [([3, 5], [3, 5]), ([3, 9], [3, 5]), ([9, 3], [5, 3]), ([9, 9], [4, 4]), ([4, 9], [4, 4])]
        {
            assert_eq!(shares(whole, 8), kept, "{whole:?}");
        }
    }

    #[test]
    fn pairs_are_not_divided_among_rows() {
        let pairs: Vec<Pair> = [(1, 2), (3, 3), (1, 1), (2, 3)].map(|(a, b)| [(0, a), (0, b)]).to_vec();
        assert_eq!(packed(&pairs, 8, None).len(), 4);
        assert_eq!(packed(&pairs, 8, Some(PackStrategy::Pack)), [vec![0], vec![1, 2], vec![3]]);
        assert_eq!(packed(&pairs, 8, Some(PackStrategy::BestFit)), [vec![1, 2], vec![3, 0]]);
    }
}
