//! Stable rank: ‖W‖_F² / ‖W‖₂², by power iteration and by a singular value decomposition.

/// The largest eigenvalue of WᵀW, W of `rows` rows, that `iterations` of power iteration find from the vector `start`: ‖WᵀW v‖ for
/// the last v of length 1.
///
/// Source: Golub and Van Loan, "Matrix Computations", 4th edition, section 8.2.1.
pub fn power_iteration(w: &[f64], rows: usize, start: &[f64], iterations: usize) -> f64 {
    let cols = w.len() / rows;
    let (mut v, mut eigenvalue) = (unit(start.to_vec()), 0.0);
    for _ in 0..iterations {
        let u: Vec<f64> = w.chunks_exact(cols).map(|row| dot(row, &v)).collect();
        let mut next = vec![0.0; cols];
        for (row, u) in w.chunks_exact(cols).zip(u) {
            next.iter_mut().zip(row).for_each(|(sum, w)| *sum += u * w);
        }
        eigenvalue = dot(&next, &next).sqrt();
        v = unit(next);
    }
    eigenvalue
}

/// The singular values of W, of `rows` rows, in no order, by one-sided Jacobi rotations of its columns.
///
/// Source: Hestenes, "Inversion of matrices by biorthogonalization and related results", 1958.
pub fn singular_values(w: &[f64], rows: usize) -> Vec<f64> {
    let cols = w.len() / rows;
    let mut columns: Vec<Vec<f64>> =
        (0..cols).map(|column| (0..rows).map(|row| w[row * cols + column]).collect()).collect();
    for _ in 0..60 {
        let mut is_done = true;
        for i in 0..cols {
            for j in i + 1..cols {
                let (a, b, c) = (
                    dot(&columns[i], &columns[i]),
                    dot(&columns[j], &columns[j]),
                    dot(&columns[i], &columns[j]),
                );
                if c.abs() <= 1e-15 * (a * b).sqrt() {
                    continue;
                }
                is_done = false;
                let zeta = (b - a) / (2.0 * c);
                let tangent = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
                let sine = cosine * tangent;
                let (before, from_j) = columns.split_at_mut(j);
                for (x, y) in before[i].iter_mut().zip(&mut from_j[0]) {
                    (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
                }
            }
        }
        if is_done {
            break;
        }
    }
    columns.iter().map(|column| dot(column, column).sqrt()).collect()
}

/// ‖W‖_F² / ‖W‖₂² from the singular values of W.
pub fn stable_rank(singular_values: &[f64]) -> f64 {
    let largest = singular_values.iter().fold(0.0, |largest: f64, value| largest.max(*value));
    singular_values.iter().map(|value| value * value).sum::<f64>() / (largest * largest)
}

fn unit(v: Vec<f64>) -> Vec<f64> {
    let length = dot(&v, &v).sqrt();
    v.into_iter().map(|x| if length > 0.0 { x / length } else { 0.0 }).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn matrix(rows: usize, cols: usize) -> Vec<f64> {
        Random::new(5).normal(rows * cols)
    }

    #[test]
    fn singular_values_of_known_matrices() {
        let sorted = |w: &[f64], rows| {
            let mut values = singular_values(w, rows);
            values.sort_by(f64::total_cmp);
            values
        };
        let near = |got: Vec<f64>, want: &[f64]| {
            assert_eq!(got.len(), want.len());
            got.iter().zip(want).for_each(|(got, want)| assert!((got - want).abs() < 1e-12, "{got} {want}"));
        };
        near(sorted(&[3.0, 0.0, 0.0, -2.0], 2), &[2.0, 3.0]);
        // The golden ratio and its inverse.
        near(sorted(&[1.0, 1.0, 0.0, 1.0], 2), &[(5f64.sqrt() - 1.0) / 2.0, (5f64.sqrt() + 1.0) / 2.0]);
        let w = matrix(7, 5);
        let squares: f64 = w.iter().map(|x| x * x).sum();
        let of_values: f64 = singular_values(&w, 7).iter().map(|x| x * x).sum();
        assert!((squares - of_values).abs() < 1e-12 * squares);
        assert!((stable_rank(&[2.0, 1.0, 1.0]) - 1.5).abs() < 1e-15);
    }

    /// From below, and the closer the more iterations there are.
    #[test]
    fn power_iteration_converges_to_the_largest_singular_value() {
        let (w, start) = (matrix(20, 12), matrix(1, 12));
        let largest = singular_values(&w, 20).into_iter().fold(0.0, f64::max).powi(2);
        let errors = [1, 2, 5, 20, 500].map(|n| 1.0 - power_iteration(&w, 20, &start, n) / largest);
        assert!(errors.windows(2).all(|pair| pair[1] <= pair[0]), "{errors:?}");
        assert!(errors[0] > 1e-3 && errors[4].abs() < 1e-12, "{errors:?}");
        assert_eq!(power_iteration(&[0.0; 6], 2, &start[..3], 3), 0.0);
    }
}
