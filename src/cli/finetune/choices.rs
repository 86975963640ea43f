//! The choices that `finetune` makes from the number of samples: how many are held out, how many a step takes, how long
//! the run is, and how often it evaluates. `benches/LOG.md` has the measurements.

use crate::data::SampleLengths;

/// Number of samples that a step learns from.
pub const SAMPLES_PER_STEP: usize = 8;
/// One of this many samples is held out.
const SAMPLES_PER_HELD_OUT: usize = 20;
/// At least this many samples are held out, if that leaves most of them for training.
const FEWEST_HELD_OUT: usize = 16;
const MOST_HELD_OUT: usize = 200;
/// At most one of this many samples is held out.
const MOST_SHARE: usize = 5;
/// With fewer samples than this, none is held out: an evaluation on one or two would be chance.
const FEWEST_SAMPLES: usize = 10;
/// Least number of steps of a run, as far as `MOST_EPOCHS` epochs have that many.
const FEWEST_STEPS: u64 = 100;
const MOST_EPOCHS: u64 = 25;
/// Number of evaluations of a run, and of checkpoints.
const LOOKS: u64 = 10;
/// Least number of steps between two evaluations. Forward alone costs a third of the work of learning, so an evaluation
/// of 16 samples costs as much as two thirds of a step.
const FEWEST_BETWEEN: u64 = 4;
/// Samples share rows if that saves this share of the rows.
const SAVED_ROWS: f64 = 0.1;
/// The share of the samples that are not cut.
const WHOLE_SAMPLES: f64 = 0.99;

/// The number of `samples` that are held out: 5 %, but 16 to 200 if there are enough.
pub fn held_out(samples: usize) -> usize {
    match samples {
        ..FEWEST_SAMPLES => 0,
        _ => (samples / SAMPLES_PER_HELD_OUT).clamp(FEWEST_HELD_OUT, MOST_HELD_OUT).min(samples / MOST_SHARE),
    }
}

/// The fewest epochs of `steps` steps that make a run of some length.
pub fn epochs(steps: u64) -> u64 {
    FEWEST_STEPS.div_ceil(steps.max(1)).min(MOST_EPOCHS)
}

/// Number of steps between evaluations, and between checkpoints, in a run of `steps`.
pub fn interval(steps: u64) -> u64 {
    (steps / LOOKS).max(FEWEST_BETWEEN.min(steps)).max(1)
}

/// Whether `samples` should share `rows`: that saves enough rows, and a row has no more samples than a step is to take.
pub fn packs(samples: u64, rows: u64) -> bool {
    (rows as f64) < samples as f64 * (1.0 - SAVED_ROWS) && samples <= rows * SAMPLES_PER_STEP as u64
}

/// Number of rows in a step, so that it has about as many samples as without packing, with `samples` in `rows`.
pub fn rows_per_step(samples: usize, rows: usize) -> usize {
    let of_row = samples as f64 / rows.max(1) as f64;
    (SAMPLES_PER_STEP as f64 / of_row.max(1.0)).round().max(1.0) as usize
}

/// A length, a multiple of 16, that nearly all of `lengths` do not exceed.
pub fn most_lengths(lengths: &SampleLengths) -> usize {
    lengths.quantile(WHOLE_SAMPLES).map_or(16, |length| length.next_multiple_of(16))
}

/// A tenth of a rate, without the digits that a division appends.
pub fn tenth(rate: f64) -> f64 {
    format!("{:.9e}", rate / 10.0).parse().unwrap_or(rate / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_samples_are_held_out_and_seen_often() {
        assert_eq!(
            [9, 10, 20, 79, 80, 300, 400, 5_000, 100_000].map(held_out),
            [0, 2, 4, 15, 16, 16, 20, 200, 200]
        );
        // 20, 300 and 5,000 records, without those that are held out.
        assert_eq!([2, 35, 600].map(epochs), [25, 3, 1]);
        assert_eq!([0, 1, 9, 20, 105, 600].map(interval), [1, 1, 4, 4, 10, 60]);
    }

    #[test]
    fn a_step_of_packed_rows_has_about_as_many_samples() {
        assert_eq!(
            [(300, 300), (300, 151), (300, 75), (300, 10)]
                .map(|(samples, rows)| rows_per_step(samples, rows)),
            [8, 4, 2, 1]
        );
        assert_eq!(
            [(300, 270), (300, 269), (300, 38), (300, 37), (0, 0)]
                .map(|(samples, rows)| packs(samples, rows)),
            [false, true, true, false, false]
        );
    }

    #[test]
    fn a_rate_has_no_digits_of_a_division() {
        assert_eq!([1e-5, 2e-4, 3e-4].map(tenth).map(|rate| format!("{rate:e}")), ["1e-6", "2e-5", "3e-5"]);
        assert_eq!(most_lengths(&SampleLengths::default()), 16);
        let most =
            |long: usize| most_lengths(&[vec![20; 99], vec![900; long]].concat().into_iter().collect());
        assert_eq!([most(1), most(2)], [32, 912]);
    }
}
