//! Dropout's masks are as random as they should be. They are the host's words here: tests/dropout.rs shows that the device
//! draws the same, and tests/attention.rs that it drops by them.
//!
//! Each statistic is a sum of many, scaled to mean 0 and deviation 1, and must be within [`SIGMAS`] of 0: a generator without
//! fault is outside once in a hundred thousand, one with a fault by far more. A sum of squares of K such numbers has mean K
//! and variance K (2 + excess), where the excess (m - 3) / n of a scaled sum of n terms follows from their fourth moment m.

use gristmill::element::Element::F32;
use gristmill::ops::dropout::Dropout;
use gristmill::random::DropoutWords;
use gristmill::record::{BufferId, PersistentId, Tensor};

const SIGMAS: f64 = 5.0;

/// Tokens and channels of the masks; the channels are no multiple of a word's 4, as rows with a pad are.
const ROWS: usize = 384;
const COLS: usize = 254;

/// Which mask: a place of the model in a micro-batch of a run.
#[derive(Clone, Copy, Debug)]
struct Place {
    seed: u64,
    op: u32,
    step: u32,
    micro_step: u32,
}

const PLACE: Place = Place { seed: 7, op: 4, step: 9, micro_step: 1 };

/// A mask, each element scaled: (1 where dropped, else 0, less p) / sqrt(p (1 - p)).
struct Mask {
    values: Vec<f64>,
    /// The mean of an element's fourth power.
    fourth_moment: f64,
}

impl Mask {
    /// By the words `at` of a vector and a group of 4 of it.
    fn of(place: Place, probability: f32, index: impl Fn(usize, usize) -> [u32; 2]) -> Self {
        let Place { seed, op, step, micro_step } = place;
        let state = Tensor::new(BufferId::Persistent(PersistentId(0)), 0, 1, 4, F32);
        let threshold = Dropout { probability, seed, op, state }.threshold();
        let words = DropoutWords { seed, op, step, micro_step };
        let (p, mut values) = (f64::from(probability), Vec::with_capacity(ROWS * COLS));
        for row in 0..ROWS {
            for col in 0..COLS {
                let [vector, group] = index(row, col / 4);
                let is_dropped = words.at(vector, group)[col % 4] < threshold;
                values.push((f64::from(u8::from(is_dropped)) - p) / (p * (1.0 - p)).sqrt());
            }
        }
        let fourth_moment = ((1.0 - p).powi(3) + p.powi(3)) / (p * (1.0 - p));
        Self { values, fourth_moment }
    }

    /// That of `dropout`, whose groups are numbered through all rows.
    fn of_elements(place: Place, probability: f32) -> Self {
        Self::of(place, probability, |row, group| [(row * COLS.div_ceil(4) + group) as u32, 0])
    }

    /// That of attention's weights, where a row is a query and a column a key.
    fn of_attention(place: Place, probability: f32) -> Self {
        Self::of(place, probability, |row, group| [row as u32, group as u32])
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        self.values[row * COLS + col]
    }

    /// Correlation with another mask, element by element, scaled.
    fn correlation(&self, other: &Self) -> f64 {
        scaled_sum(self.values.iter().zip(&other.values).map(|(a, b)| a * b))
    }
}

/// The sum of K numbers of mean 0 and deviation 1, over sqrt(K).
fn scaled_sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        (sum, count) = (sum + value, count + 1.0);
    }
    sum / f64::sqrt(count)
}

/// Holds the squares of `values`, each of mean 0 and deviation 1 and made of `terms` terms of the fourth moment `fourth`, to
/// what is stated above.
#[track_caller]
fn chi_square(what: &str, fourth: f64, terms: usize, values: impl IntoIterator<Item = f64>) {
    let values: Vec<f64> = values.into_iter().collect();
    let count = values.len() as f64;
    assert!(count >= 100.0, "{what}: {count} numbers are too few for a sum of squares to be normal");
    let sum: f64 = values.iter().map(|z| z * z).sum();
    let off = (sum - count) / (count * (2.0 + (fourth - 3.0) / terms as f64)).sqrt();
    let largest = values.iter().fold(0.0, |most: f64, z| most.max(z.abs()));
    println!("{what}: {count} numbers, {off:.2} standard deviations off, the largest is {largest:.2}");
    assert!(off.abs() < SIGMAS, "{what}: the squares of {count} numbers sum to {sum}");
}

/// Every channel and every row has its share, and neither its neighbours nor those a word, two words or half a row away
/// have anything to do with it.
#[test]
fn every_channel_and_row_is_random_by_itself() {
    for (kind, mask) in
        [("elements", Mask::of_elements as fn(Place, f32) -> Mask), ("attention", Mask::of_attention)]
    {
        for p in [0.05, 0.1, 0.5, 0.9] {
            let mask = mask(PLACE, p);
            let name = |what: &str| format!("{what} of {kind} at {p}");
            let column = |col: usize| scaled_sum((0..ROWS).map(|row| mask.at(row, col)));
            let row = |row: usize| scaled_sum((0..COLS).map(|col| mask.at(row, col)));
            let of_all = scaled_sum(mask.values.iter().copied());
            assert!(of_all.abs() < SIGMAS, "{}: {of_all:.2} standard deviations off", name("the share"));
            let (one, two) = (mask.fourth_moment, mask.fourth_moment.powi(2));
            chi_square(&name("channels"), one, ROWS, (0..COLS).map(column));
            chi_square(&name("rows"), one, COLS, (0..ROWS).map(row));
            for apart in [1, 2, 3, 4, 8, 127] {
                let columns = (0..COLS - apart).map(|col| {
                    scaled_sum((0..ROWS).map(|row| mask.at(row, col) * mask.at(row, col + apart)))
                });
                chi_square(&name(&format!("channels {apart} apart")), two, ROWS, columns);
                let rows = (0..ROWS - apart).map(|row| {
                    scaled_sum((0..COLS).map(|col| mask.at(row, col) * mask.at(row + apart, col)))
                });
                chi_square(&name(&format!("rows {apart} apart")), two, COLS, rows);
            }
        }
    }
}

/// Shares of many places, steps and micro-batches, each by itself.
#[test]
fn every_place_and_step_drops_its_share() {
    const COUNT: u32 = 128;
    let check = |what: &str, place: &dyn Fn(u32) -> Place| {
        let fourth = Mask::of_elements(PLACE, 0.1).fourth_moment;
        let share = |i| scaled_sum(Mask::of_elements(place(i), 0.1).values.into_iter());
        chi_square(&format!("shares of {what}"), fourth, ROWS * COLS, (0..COUNT).map(share));
    };
    check("places", &|op| Place { op, ..PLACE });
    check("steps", &|step| Place { step, ..PLACE });
    check("micro-batches", &|micro_step| Place { micro_step, ..PLACE });
}

/// Neighbouring places (in a layer, and three apart: in two layers), steps, micro-batches and seeds, every one with every
/// other, so that no step of the one undoes a step of another.
#[test]
fn no_two_places_or_steps_share_a_mask() {
    for p in [0.1, 0.5] {
        let mut masks = Vec::new();
        for op in [3, 4, 5, 6] {
            for step in [9, 10, 11] {
                for micro_step in [0, 1, 2] {
                    masks.push(Mask::of_elements(Place { op, step, micro_step, ..PLACE }, p));
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
        chi_square(&format!("pairs of masks at {p}"), fourth, ROWS * COLS, pairs);
    }
}
