//! Sums of squares of rows, and columns that are scaled by magnitudes over norms, against the f64 reference.

use crate::lab::{Case, Input, allowed, check, sum};
use gristmill::element::Element::{self, Bf16, F16, F32, Int8, Nf4};
use gristmill::ops::column_scale::{ColumnFactors, Terms, column_scale, column_scale_backward_weight};
use gristmill::ops::row_squares::{LowRankFactors, row_factors, row_norms, row_squares};
use reference::low_rank::{row_norms as row_norms_of, scaled_columns, scaled_columns_backward};

/// Rows and columns of a matrix, and a rank.
const SHAPES: [(u32, u32, u32); 5] = [(1, 1, 1), (7, 33, 3), (70, 128, 4), (33, 260, 5), (130, 67, 9)];

/// Of matrices of all types, alone and with factors in wider tensors.
#[test]
pub fn squares_of_rows() {
    for [element, weights] in [[F32, Nf4], [Bf16, Bf16], [F16, Int8], [F32, F32], [F16, F16], [Bf16, Nf4]] {
        for (rows, cols, rank) in SHAPES {
            check(&format!("row_squares {rows}x{cols} {element:?} of {weights:?}"), |case| {
                let w = case.input(rows, cols, weights);
                let a = padded(case, [rank, cols], element);
                let b = case.input(rows, rank, element);
                let squares = case.output(1, rows, F32);
                let added = LowRankFactors { a: a.tensor, b: b.tensor, factor: 0.75 };
                row_squares(&mut case.rec, w.tensor, Some(added), squares);
                let added = Some((&a.values[..], &b.values[..]));
                let of = norms(&w.values, added, 0.75, [rows, cols, rank]);
                let want: Vec<f64> = of.iter().map(|norm| norm * norm).collect();
                case.expect("squares", squares, want.clone(), allowed_of(&want, cols + rank));

                let alone = case.output(1, rows, F32);
                row_squares(&mut case.rec, w.tensor, None, alone);
                let want: Vec<f64> =
                    norms(&w.values, None, 1.0, [rows, cols, rank]).iter().map(|norm| norm * norm).collect();
                case.expect("squares of W", alone, want.clone(), allowed_of(&want, cols));
            });
        }
    }
}

/// Rows of numbers, and rows of zeros up to a multiple of 4.
fn padded(case: &mut Case, [rows, cols]: [u32; 2], element: Element) -> Input {
    let numbers: Vec<f64> = (0..rows * cols).map(|_| case.normal()).collect();
    let padding = (rows.next_multiple_of(4) - rows) * cols;
    let all: Vec<f64> = numbers.into_iter().chain(vec![0.0; padding as usize]).collect();
    case.input_of(&all, rows.next_multiple_of(4), cols, element)
}

/// The norms of the rows of W, or of W + factor · B A.
fn norms(w: &[f64], added: Option<(&[f64], &[f64])>, factor: f64, [rows, cols, rank]: [u32; 3]) -> Vec<f64> {
    let [n, k, r] = [rows, cols, rank].map(|size| size as usize);
    let zeros = (vec![0.0; r * k], vec![0.0; n * r]);
    let (a, b) = added.unwrap_or((&zeros.0, &zeros.1));
    row_norms_of(w, &a[..r * k], b, factor, [n, k, r], false)
}

/// Of sums that are as large as `want`.
fn allowed_of(want: &[f64], terms: u32) -> f64 {
    want.iter().fold(1.0, |largest: f64, value| largest.max(*value)) * allowed(F32, terms)
}

/// A row of zeros has a factor of 1.
#[test]
pub fn norms_and_factors_of_rows() {
    check("row_norms and row_factors", |case| {
        let count = 131;
        let values: Vec<f64> = (0..count).map(|i| f64::from(i % 5) * 0.5).collect();
        let squares = case.input_of(&values, 1, count, F32).tensor;
        let (norms, m) = (case.output(1, count, F32), case.input(1, count, F32));
        row_norms(&mut case.rec, squares, norms);
        let want: Vec<f64> = values.iter().map(|square| square.sqrt()).collect();
        case.expect("norms", norms, want, allowed(F32, 4));
        row_factors(&mut case.rec, squares, m.tensor);
        let factor = |(m, square): (&f64, &f64)| if *square > 0.0 { m / square.sqrt() } else { 1.0 };
        let want: Vec<f64> = m.values.iter().zip(&values).map(factor).collect();
        case.expect("factors", m.tensor, want, 4.0 * allowed(F32, 4));
    });
}

/// With all terms and without, of odd sizes; columns whose rows have no length.
#[test]
pub fn columns_scaled_by_magnitudes_and_their_backward() {
    for element in [F32, F16, Bf16] {
        for (rows, cols) in [(1, 1), (3, 31), (70, 128), (129, 67)] {
            for has_terms in [false, true] {
                let label = format!("column_scale {rows}x{cols} {element:?}, terms {has_terms}");
                check(&label, |case| columns(case, [rows, cols], element, has_terms));
            }
        }
    }
}

fn columns(case: &mut Case, [rows, cols]: [u32; 2], element: Element, has_terms: bool) {
    let (x, dy) = (case.input(rows, cols, element), case.input(rows, cols, element));
    let m = case.input(1, cols, F32);
    let lengths: Vec<f64> = (0..cols).map(|col| f64::from(col % 7) * 0.5).collect();
    let values: Vec<f64> = lengths.iter().map(|length| length * length).collect();
    let squares = case.input_of(&values, 1, cols, F32).tensor;
    let (bias, residual) = (case.input(1, cols, element), case.input(rows, cols, element));
    let factor = has_terms.then_some(0.6f32);
    let terms = Terms {
        bias: has_terms.then_some(bias.tensor),
        factor,
        residual: has_terms.then_some(residual.tensor),
    };
    let of = ColumnFactors { magnitudes: m.tensor, squares: Some(squares) };
    let (y, dx) = (case.output(rows, cols, element), case.output(rows, cols, element));
    column_scale(&mut case.rec, x.tensor, of, terms, y);
    column_scale(&mut case.rec, dy.tensor, of, Terms { factor, ..Terms::default() }, dx);
    let dm = case.input(1, cols, F32);
    column_scale_backward_weight(&mut case.rec, x.tensor, dy.tensor, of, factor, dm.tensor);
    // Where there is no length, the factor is 1, and no gradient.
    let of_length = |value: f64, length: f64, none: f64| if length > 0.0 { value } else { none };
    let magnitudes: Vec<f64> =
        m.values.iter().zip(&lengths).map(|(m, length)| of_length(*m, *length, 1.0)).collect();
    let norms: Vec<f64> = lengths.iter().map(|length| of_length(*length, *length, 1.0)).collect();
    let scale = f64::from(factor.unwrap_or(1.0));
    let of_dy: Vec<f64> = dy.values.iter().map(|dy| scale * dy).collect();
    let [want_dx, want_dm] = scaled_columns_backward(&x.values, &magnitudes, &norms, &of_dy);
    let want_dm: Vec<f64> =
        want_dm.iter().zip(&lengths).map(|(dm, length)| of_length(*dm, *length, 0.0)).collect();
    let mut want = scaled_columns(&x.values, &magnitudes, &norms);
    if has_terms {
        for (place, value) in want.iter_mut().enumerate() {
            *value = residual.values[place] + scale * (*value + bias.values[place % cols as usize]);
        }
    }
    case.expect("y", y, want, 8.0 * allowed(element, 4));
    case.expect("dx", dx, want_dx, 8.0 * allowed(element, 4));
    case.expect("dm", dm.tensor, sum(&dm.values, &want_dm), 4.0 * allowed(F32, rows));

    let folded = case.output(rows, cols, element);
    let of = ColumnFactors { magnitudes: m.tensor, squares: None };
    column_scale(&mut case.rec, x.tensor, of, Terms::default(), folded);
    let ones = vec![1.0; cols as usize];
    case.expect(
        "by factors alone",
        folded,
        scaled_columns(&x.values, &m.values, &ones),
        4.0 * allowed(element, 4),
    );
}
