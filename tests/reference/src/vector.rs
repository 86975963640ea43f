//! Vector arithmetic and length checks for the rest of the reference.

/// Σ aᵢ·bᵢ.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// y ← y + scale·x.
pub(super) fn add_scaled(y: &mut [f64], scale: f64, x: &[f64]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += scale * x;
    }
}

/// factor·x.
pub(super) fn scaled(x: &[f64], factor: f64) -> Vec<f64> {
    x.iter().map(|x| factor * x).collect()
}

/// a + b: a residual connection, or the sum of two gradients.
pub(super) fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Panics unless `values` holds exactly `expected` elements. `zip` would silently stop at the shorter slice,
/// so the public functions check lengths first.
#[track_caller]
pub(super) fn assert_len<T>(name: &str, values: &[T], expected: usize) {
    assert!(values.len() == expected, "{name} should hold {expected} values, but holds {}.", values.len());
}

/// The number of rows of `cols` elements in `values`; panics unless they divide evenly.
#[track_caller]
pub(super) fn rows_of<T>(name: &str, values: &[T], cols: usize) -> usize {
    assert!(cols > 0, "the rows of {name} should not be empty.");
    let whole = values.len().is_multiple_of(cols);
    assert!(whole, "{name} should be whole rows of {cols} values, but holds {}.", values.len());
    values.len() / cols
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas() {
        let mut y = vec![1.0, 2.0];
        add_scaled(&mut y, 3.0, &[10.0, 20.0]);
        assert_eq!(y, [31.0, 62.0]);
        assert_eq!(scaled(&[1.0, 2.0], 3.0), [3.0, 6.0]);
        assert_eq!(add(&[1.0, 2.0], &[5.0, 7.0]), [6.0, 9.0]);
        assert_eq!(dot(&[1.0, 2.0], &[5.0, 7.0]), 19.0);
    }

    #[test]
    fn counts_rows() {
        assert_eq!(rows_of("x", &[0.0; 6], 3), 2);
    }

    #[test]
    #[should_panic(expected = "x should be whole rows of 4 values, but holds 6.")]
    fn refuses_a_partial_row() {
        rows_of("x", &[0.0; 6], 4);
    }

    #[test]
    #[should_panic(expected = "x should hold 4 values, but holds 6.")]
    fn refuses_a_wrong_length() {
        assert_len("x", &[0.0; 6], 4);
    }
}
