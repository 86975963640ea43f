//! Power iteration against f64, and the stable rank that it gives against a singular value decomposition.

use crate::draws::StartVector;
use crate::lab::{allowed, check};
use ::reference::stable_rank as reference;
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::power_iteration::{PowerIteration, Spectra, power_iteration};
use gristmill::ops::squares::SquareSum;
use gristmill::ops::step_state::StepState;

/// The vector that the matrix of number `matrix` starts from.
fn start(seed: u64, stream: u32, step: u32, matrix: usize, cols: usize) -> Vec<f64> {
    let groups = cols.div_ceil(4);
    let vector = StartVector { seed, stream, step };
    let numbers = (0..groups).flat_map(|group| vector.at((matrix * groups + group) as u32));
    numbers.take(cols).map(f64::from).collect()
}

/// Checks `count` matrices of `rows` rows that lie in parts of `parts` rows. The allowed error of an eigenvalue is that of the
/// products of each iteration, and of the sums of squares that of their sum.
fn check_matrices(name: &str, element: Element, parts: &[usize], count: usize, cols: usize, iterations: u32) {
    check(name, |case| {
        let settings =
            PowerIteration { iterations, seed: 0x1234_5678_9abc, stream: 9, first_matrix: FIRST_MATRIX };
        let step = 41;
        let state = case.state(StepState { global_step: step, ..StepState::default() });
        let inputs: Vec<_> =
            parts.iter().map(|&rows| case.input(rows as u32, cols as u32, element)).collect();
        let values: Vec<f64> = inputs.iter().flat_map(|input| input.values.clone()).collect();
        let tensors: Vec<_> = inputs.iter().map(|input| input.tensor).collect();
        // The first place is that of another matrix.
        let places = count as u32 + 1;
        let spectra = Spectra { eigenvalues: case.output(1, places, F32), sums: case.output(places, 4, F32) };
        let other = case.input(2, 3, F32).tensor;
        power_iteration(&mut case.rec, &[other], 1, state, &settings, &spectra, 0);
        power_iteration(&mut case.rec, &tensors, count as u32, state, &settings, &spectra, 1);
        let rows = values.len() / cols / count;
        let matrices: Vec<Vec<f64>> = values.chunks_exact(rows * cols).map(<[f64]>::to_vec).collect();
        let want: Vec<(f64, f64)> = matrices
            .iter()
            .enumerate()
            .map(|(number, matrix)| {
                let start = start(settings.seed, settings.stream, step, FIRST_MATRIX as usize + number, cols);
                let eigenvalue = reference::power_iteration(matrix, rows, &start, iterations as usize);
                (eigenvalue, matrix.iter().map(|x| x * x).sum::<f64>())
            })
            .collect();
        let near = move |what: &str, got: f64, want: f64, bound: f64| {
            let error = (got - want).abs() / want;
            assert!(error <= bound, "{what}: {got:e} and not {want:e}, {error:.1e} is over {bound:.1e}");
        };
        let bound = f64::from(2 * iterations) * allowed(F32, (rows + cols) as u32);
        let (eigenvalues, squares): (Vec<f64>, Vec<f64>) = want.into_iter().unzip();
        let label = name.to_string();
        case.expect_words("eigenvalues", spectra.eigenvalues, move |words| {
            for (word, want) in words[1..].iter().zip(&eigenvalues) {
                near(&label, f32::from_bits(*word).into(), *want, bound);
            }
        });
        let label = name.to_string();
        case.expect_words("sums", spectra.sums, move |words| {
            for (words, want) in words[4..].chunks_exact(4).zip(&squares) {
                let sum = SquareSum([0, 1, 2, 3].map(|word| f32::from_bits(words[word])));
                near(&label, sum.norm().powi(2), *want, 2.0 * allowed(F32, (rows * cols) as u32));
            }
        });
    });
}

/// Matrices of the parameter that other ranks have.
const FIRST_MATRIX: u32 = 3;

#[test]
fn eigenvalues_and_sums_of_squares_of_every_storage_type() {
    for element in [F32, F16, Bf16] {
        check_matrices(&format!("37 x 51 {}", element.name()), element, &[37], 1, 51, 5);
    }
    check_matrices("a row", F32, &[1], 1, 130, 2);
    check_matrices("a column", F32, &[200], 1, 1, 2);
}

#[test]
fn stacks_and_parts() {
    check_matrices("six experts", F32, &[6 * 35], 6, 22, 3);
    check_matrices("six experts in two parts", F32, &[4 * 70, 2 * 70], 6, 18, 3);
    check_matrices("a table in parts", F32, &[300, 300, 131], 1, 29, 3);
    // More rows than 64 blocks of 64 hold.
    check_matrices("many rows", F32, &[5000], 1, 9, 3);
}

/// With many iterations the stable rank is that of the singular values.
#[test]
fn stable_ranks_are_those_of_a_singular_value_decomposition() {
    check("decomposed", |case| {
        let (rows, cols) = (24, 17);
        let matrix = case.input(rows, cols, F32);
        let singular = reference::singular_values(&matrix.values, rows as usize);
        let want = reference::stable_rank(&singular);
        let state = case.state(StepState::default());
        let iterations = [1, 2, 5, 20, 100];
        let spectra = Spectra { eigenvalues: case.output(1, 5, F32), sums: case.output(5, 4, F32) };
        for (index, iterations) in (0..).zip(iterations) {
            let settings = PowerIteration { iterations, seed: 3, stream: 0, first_matrix: 0 };
            power_iteration(&mut case.rec, &[matrix.tensor], 1, state, &settings, &spectra, index);
        }
        let squares: f64 = matrix.values.iter().map(|x| x * x).sum();
        case.expect_words("eigenvalues", spectra.eigenvalues, move |words| {
            let ranks: Vec<f64> =
                words.iter().take(5).map(|word| squares / f64::from(f32::from_bits(*word))).collect();
            println!("stable ranks {ranks:?} after {iterations:?} iterations, {want} by decomposition");
            // From above, but for rounding, and the closer the more iterations.
            assert!(ranks.windows(2).all(|pair| pair[1] <= pair[0] * (1.0 + 1e-6)), "{ranks:?}");
            assert!((ranks[4] - want).abs() <= 1e-5 * want, "{} and not {want}", ranks[4]);
        });
    });
}

#[test]
fn a_matrix_of_zeros_has_the_eigenvalue_zero() {
    check("zeros", |case| {
        let zeros = case.input_of(&[0.0; 12], 3, 4, F32);
        let state = case.state(StepState::default());
        let spectra = Spectra { eigenvalues: case.output(1, 1, F32), sums: case.output(1, 4, F32) };
        let settings = PowerIteration { iterations: 3, seed: 3, stream: 0, first_matrix: 0 };
        power_iteration(&mut case.rec, &[zeros.tensor], 1, state, &settings, &spectra, 0);
        case.expect_words("eigenvalues", spectra.eigenvalues, |words| {
            assert_eq!(f32::from_bits(words[0]), 0.0)
        });
    });
}
