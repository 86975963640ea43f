//! An axis with marks at whole numbers only.

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::ops::Range;

/// Most intervals between the marks of an axis.
const MOST_STEPS: u64 = 10;

/// An axis from one whole number to another.
pub(super) struct Axis {
    line: RangedCoordf64,
    marks: Vec<f64>,
}

impl Axis {
    /// The axis from `first` to `last`, which must be above `first`.
    pub fn new(first: u64, last: u64) -> Self {
        Self { line: (first as f64..last as f64).into(), marks: whole_marks(first, last) }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.line.map(value, limit)
    }

    /// Bold lines at the marks, and no light lines between them.
    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.line.range()
    }
}

/// The label of a mark.
pub(super) fn whole(number: &f64) -> String {
    format!("{number:.0}")
}

/// Marks between `first` and `last`: multiples of 1, 2 or 5 times a power of ten.
fn whole_marks(first: u64, last: u64) -> Vec<f64> {
    let powers = (0..19).map(|exponent| 10u64.pow(exponent));
    let mut steps = powers.flat_map(|power| [1, 2, 5].map(|digit| power.saturating_mul(digit)));
    let step = steps.find(|step| (last - first) / step <= MOST_STEPS).unwrap_or(u64::MAX);
    (first.div_ceil(step)..=last / step).map(|multiple| (multiple * step) as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_whole_numbers() {
        assert_eq!(whole_marks(1, 3), [1.0, 2.0, 3.0]);
        assert_eq!(whole_marks(0, 11), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(whole_marks(7, 93), [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]);
        assert_eq!(whole_marks(0, u64::MAX).len(), 10);
    }
}
