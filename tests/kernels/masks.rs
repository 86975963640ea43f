//! The statistics of dropout masks, on words of the host's generator: dropout.rs shows that the device draws the same
//! words, attention.rs that it applies them.
//!
//! Each statistic is a sum of many terms, scaled to mean 0 and standard deviation 1, and must lie within [`SIGMAS`] of
//! 0. A correct generator fails about once in a hundred thousand, a faulty one by a wide margin. The sum of squares of
//! K such statistics has mean K and variance K (2 + excess); the excess kurtosis of a scaled sum of n terms with fourth
//! moment m is (m - 3) / n.

use crate::draws::DropoutWords;
use gristmill::element::Element::U32;
use gristmill::ops::dropout::{Dropout, DropoutState};
use gristmill::record::{BufferId, PersistentId, State, Tensor};

const SIGMAS: f64 = 5.0;

/// Tokens and channels of a mask. The channels are no multiple of 4, the words of a draw, so rows have a pad.
const ROWS: usize = 384;
const COLS: usize = 254;

/// What a mask is drawn from.
#[derive(Clone, Copy, Debug)]
struct Place {
    seed: u64,
    site: u32,
    step: u32,
    micro_step: u32,
}

const PLACE: Place = Place { seed: 7, site: 4, step: 9, micro_step: 1 };

/// A mask with scaled elements: (d - p) / sqrt(p (1 - p)), where d is 1 for a dropped element and 0 otherwise.
struct Mask {
    values: Vec<f64>,
    /// The mean of an element's fourth power.
    fourth_moment: f64,
}

impl Mask {
    /// `index` gives the counter of a row and a group of 4 columns.
    fn of(place: Place, probability: f32, index: impl Fn(usize, usize) -> [u32; 2]) -> Self {
        let Place { seed, site, step, micro_step } = place;
        let state = Tensor::new(BufferId::Persistent(PersistentId(0)), 0, 1, DropoutState::WORDS, U32);
        let threshold = Dropout { probability, seed, site, state, part: None }.threshold();
        let words = DropoutWords { seed, site, step, micro_step };
        let (p, mut values) = (f64::from(probability), Vec::with_capacity(ROWS * COLS));
        for row in 0..ROWS {
            for group in 0..COLS.div_ceil(4) {
                let [vector, number] = index(row, group);
                let of_row = &words.at(vector, number)[..(COLS - 4 * group).min(4)];
                let is_dropped = of_row.iter().map(|word| f64::from(u8::from(*word < threshold)));
                values.extend(is_dropped.map(|dropped| (dropped - p) / (p * (1.0 - p)).sqrt()));
            }
        }
        let fourth_moment = ((1.0 - p).powi(3) + p.powi(3)) / (p * (1.0 - p));
        Self { values, fourth_moment }
    }

    /// The mask of the kernel `dropout`, which numbers groups through all rows.
    fn of_elements(place: Place, probability: f32) -> Self {
        Self::of(place, probability, |row, group| [(row * COLS.div_ceil(4) + group) as u32, 0])
    }

    /// The mask of attention weights: rows are queries, columns are keys.
    fn of_attention(place: Place, probability: f32) -> Self {
        Self::of(place, probability, |row, group| [row as u32, group as u32])
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        self.values[row * COLS + col]
    }

    /// The scaled correlation with another mask.
    fn correlation(&self, other: &Self) -> f64 {
        scaled_sum(self.values.iter().zip(&other.values).map(|(a, b)| a * b))
    }
}

/// The sum of K numbers of mean 0 and standard deviation 1, divided by sqrt(K).
fn scaled_sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        (sum, count) = (sum + value, count + 1.0);
    }
    sum / f64::sqrt(count)
}

/// Tests the sum of squares of `values`, which have mean 0 and standard deviation 1 and are scaled sums of `terms`
/// terms with fourth moment `fourth`.
#[track_caller]
fn assert_chi_square(what: &str, fourth: f64, terms: usize, values: impl IntoIterator<Item = f64>) {
    let values: Vec<f64> = values.into_iter().collect();
    let count = values.len() as f64;
    assert!(count >= 100.0, "{what}: {count} numbers are too few for a normal sum of squares");
    let sum: f64 = values.iter().map(|z| z * z).sum();
    let off = (sum - count) / (count * (2.0 + (fourth - 3.0) / terms as f64)).sqrt();
    let largest = values.iter().fold(0.0, |most: f64, z| most.max(z.abs()));
    println!("{what}: {count} numbers, {off:.2} standard deviations off, largest {largest:.2}");
    assert!(off.abs() < SIGMAS, "{what}: the squares of {count} numbers sum to {sum}");
}

/// Every channel and row drops its share, and is uncorrelated with those 1, 2, 3, 4, 8 and 127 further on: within a
/// draw of 4 words, one and two draws away, half a row away.
#[test]
fn channels_and_rows_are_independent() {
    for (kind, mask) in
        [("elements", Mask::of_elements as fn(Place, f32) -> Mask), ("attention", Mask::of_attention)]
    {
        for p in [0.05, 0.1, 0.5, 0.9] {
            let mask = mask(PLACE, p);
            let name = |what: &str| format!("{what} of {kind} at {p}");
            let column = |col: usize| scaled_sum((0..ROWS).map(|row| mask.at(row, col)));
            let row = |row: usize| scaled_sum((0..COLS).map(|col| mask.at(row, col)));
            let of_all = scaled_sum(mask.values.iter().copied());
            assert!(
                of_all.abs() < SIGMAS,
                "{}: {of_all:.2} standard deviations off",
                name("the dropped share")
            );
            let (one, two) = (mask.fourth_moment, mask.fourth_moment.powi(2));
            assert_chi_square(&name("channels"), one, ROWS, (0..COLS).map(column));
            assert_chi_square(&name("rows"), one, COLS, (0..ROWS).map(row));
            for apart in [1, 2, 3, 4, 8, 127] {
                let columns = (0..COLS - apart).map(|col| {
                    scaled_sum((0..ROWS).map(|row| mask.at(row, col) * mask.at(row, col + apart)))
                });
                assert_chi_square(&name(&format!("channels {apart} apart")), two, ROWS, columns);
                let rows = (0..ROWS - apart).map(|row| {
                    scaled_sum((0..COLS).map(|col| mask.at(row, col) * mask.at(row + apart, col)))
                });
                assert_chi_square(&name(&format!("rows {apart} apart")), two, COLS, rows);
            }
        }
    }
}

/// Each place of the model, step and micro-batch on its own.
#[test]
fn every_place_and_step_drops_its_share() {
    const COUNT: u32 = 128;
    let check = |what: &str, place: &dyn Fn(u32) -> Place| {
        let fourth = Mask::of_elements(PLACE, 0.1).fourth_moment;
        let share = |i| scaled_sum(Mask::of_elements(place(i), 0.1).values.into_iter());
        assert_chi_square(&format!("shares of {what}"), fourth, ROWS * COLS, (0..COUNT).map(share));
    };
    check("places", &|site| Place { site, ..PLACE });
    check("steps", &|step| Place { step, ..PLACE });
    check("micro-batches", &|micro_step| Place { micro_step, ..PLACE });
}

/// All pairs of neighbouring places (in a layer and in the next), steps and micro-batches, and of seeds: no change in
/// one of them may cancel a change in another.
#[test]
fn masks_of_different_places_and_steps_are_uncorrelated() {
    for p in [0.1, 0.5] {
        let mut masks = Vec::new();
        for site in [3, 4, 5, 6] {
            for step in [9, 10, 11] {
                for micro_step in [0, 1, 2] {
                    masks.push(Mask::of_elements(Place { site, step, micro_step, ..PLACE }, p));
                }
            }
        }
        masks.push(Mask::of_elements(Place { seed: 8, ..PLACE }, p));
        masks.push(Mask::of_elements(Place { seed: 7 + (1 << 32), ..PLACE }, p));
        let pairs: Vec<f64> = (0..masks.len())
            .flat_map(|i| (0..i).map(move |j| (i, j)))
            .map(|(i, j)| masks[i].correlation(&masks[j]))
            .collect();
        let fourth = masks[0].fourth_moment.powi(2);
        assert_chi_square(&format!("pairs of masks at {p}"), fourth, ROWS * COLS, pairs);
    }
}
