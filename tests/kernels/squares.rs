//! Sums of squares in three ranges.

use crate::lab::{Case, allowed, check};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::squares::{SquareSum, squares};

/// Checks the norm of each of `tensors`, which has one or two parts, against f64. The allowed error is that of a sum as
/// long.
fn check_norms(name: &str, element: Element, value: impl Fn(&mut Case) -> f64) {
    check(name, |case| {
        // One row, several rows, rows of several parts, and fewer than a group of 4.
        let lengths: [&[usize]; 4] = [&[700], &[50_000], &[1025, 3000], &[3]];
        let sums = case.output(lengths.len() as u32, 4, F32);
        let mut want = Vec::new();
        for (index, lengths) in (0..).zip(lengths) {
            let parts: Vec<_> = lengths
                .iter()
                .map(|&count| {
                    let values: Vec<f64> = (0..count).map(|_| value(case)).collect();
                    case.input_of(&values, 1, count as u32, element)
                })
                .collect();
            want.push(parts.iter().flat_map(|part| &part.values).map(|x| x * x).sum::<f64>().sqrt());
            let parts: Vec<_> = parts.iter().map(|part| part.tensor).collect();
            squares(&mut case.rec, &parts, sums, index);
        }
        let name = name.to_string();
        case.expect_words("sums", sums, move |words| {
            for (words, want) in words.chunks_exact(4).zip(&want) {
                let sum = SquareSum([0, 1, 2, 3].map(|word| f32::from_bits(words[word])));
                let error = (sum.norm() - want).abs() / want;
                println!("{name}: {:e}, relative error {error:.1e}", sum.norm());
                assert!(error <= allowed(F32, 50_000), "{name}: {:e} and not {want:e}", sum.norm());
            }
        });
    });
}

#[test]
pub fn norms_of_every_storage_type() {
    for element in [F32, F16, Bf16] {
        check_norms(&format!("normal {}", element.name()), element, |case| case.normal());
    }
}

/// Second moments of small gradients, whose squares no f32 holds.
#[test]
fn no_square_overflows_or_vanishes() {
    for size in [1e-30, 1e-12, 1e12, 1e30] {
        check_norms(&format!("near {size:e}"), F32, |case| size * case.normal());
    }
    check_norms("of many sizes", F32, |case| {
        case.normal() * 10f64.powf(20.0 * case.normal().clamp(-1.5, 1.5))
    });
}

#[test]
fn what_is_not_finite_is_infinite() {
    check("not finite", |case| {
        let sums = case.output(2, 4, F32);
        for (index, bad) in (0..).zip([f64::INFINITY, f64::NAN]) {
            let x = case.input_of(&[1.0, bad, 2.0], 1, 3, F32).tensor;
            squares(&mut case.rec, &[x], sums, index);
        }
        case.expect_words("sums", sums, |words| {
            for words in words.chunks_exact(4) {
                let sum = SquareSum([0, 1, 2, 3].map(|word| f32::from_bits(words[word])));
                assert_eq!(sum.norm(), f64::INFINITY, "{sum:?}");
            }
        });
    });
}
