//! Softmax and log-sum-exp of one row, used by attention, cross-entropy and the router.

/// Replaces a row of scores x by e^x / Σ e^x and returns log Σ e^x.
///
/// The largest score is subtracted first, so no exponential overflows and at least one is 1.
#[track_caller]
pub fn softmax(row: &mut [f64]) -> f64 {
    assert!(!row.is_empty(), "a row of scores should not be empty.");
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
    for x in row {
        *x = (*x - max).exp() / sum;
    }
    max + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_share_equally() {
        let mut row = [7.0; 4];
        assert!((softmax(&mut row) - (7.0 + 4.0_f64.ln())).abs() < 1e-15);
        assert_eq!(row, [0.25; 4]);
    }

    #[test]
    fn huge_scores_do_not_overflow() {
        let mut row = [1e5, 1e5 - 1.0, -1e5];
        let lse = softmax(&mut row);
        let e = (-1.0_f64).exp();
        assert!((lse - (1e5 + e.ln_1p())).abs() < 1e-10);
        assert!((row[0] - 1.0 / (1.0 + e)).abs() < 1e-15 && row[2] == 0.0);
    }
}
