//! Cross-entropy of the next token, alone and fused with the output projection.

use super::matmul::{linear, linear_backward};
use super::soft_cap::{soft_cap_slope, soft_capped};
use super::softmax::softmax;
use super::storage::Storage;
use super::vector::{assert_len, rows_of};

/// (loss_sum, count, dlogits (N, vocab)) of logits (N, vocab) and targets (N).
///
/// loss_sum = Σ (log Σ e^logits − logits\[target\]) over the rows whose target is not `ignore`; count is the number of
/// those rows. dlogits = softmax(logits) − onehot(target) is the gradient of loss_sum, zero in ignored rows.
///
/// # Examples
///
/// ```
/// use reference::linear_cross_entropy::cross_entropy;
///
/// // Four equal logits: each class has probability 1/4. The second row is ignored.
/// let (loss_sum, count, dlogits) = cross_entropy(&[0.0; 8], &[1, 9], 4, 9);
/// assert_eq!((loss_sum, count), (4.0_f64.ln(), 1));
/// assert_eq!(dlogits, [0.25, -0.75, 0.25, 0.25, 0.0, 0.0, 0.0, 0.0]);
/// ```
#[track_caller]
pub fn cross_entropy(logits: &[f64], targets: &[u32], vocab: usize, ignore: u32) -> (f64, usize, Vec<f64>) {
    assert_len("logits", logits, targets.len() * vocab);
    let mut dlogits = vec![0.0; logits.len()];
    let (mut loss_sum, mut count) = (0.0, 0);
    for (row, &target) in targets.iter().enumerate() {
        if target == ignore {
            continue;
        }
        let class = target as usize;
        assert!(class < vocab, "target {target} should be below the vocabulary of {vocab}.");
        let logits = &logits[row * vocab..][..vocab];
        let dlogits = &mut dlogits[row * vocab..][..vocab];
        dlogits.copy_from_slice(logits);
        loss_sum += softmax(dlogits) - logits[class];
        dlogits[class] -= 1.0;
        count += 1;
    }
    (loss_sum, count, dlogits)
}

/// The number of targets (N), other than `ignore`, that are the index of the largest of their row of logits (N, vocab),
/// the first one of equal ones.
///
/// # Examples
///
/// ```
/// use reference::linear_cross_entropy::correct;
///
/// let logits = [0.5, 0.7, 0.7, 0.1, 0.2, 0.3, 0.9, 0.0, 0.0];
/// assert_eq!(correct(&logits, &[1, 2, 0], 3, 9), 3);
/// assert_eq!(correct(&logits, &[2, 1, 9], 3, 9), 0);
/// ```
#[track_caller]
pub fn correct(logits: &[f64], targets: &[u32], vocab: usize, ignore: u32) -> usize {
    assert_len("logits", logits, targets.len() * vocab);
    let is_correct = |(row, &target): (&[f64], &u32)| {
        let largest = row.iter().copied().fold(f64::MIN, f64::max);
        target != ignore && row.iter().position(|logit| *logit == largest) == Some(target as usize)
    };
    logits.chunks_exact(vocab).zip(targets).filter(|pair| is_correct(*pair)).count()
}

/// The result of [`linear_cross_entropy`].
#[derive(Clone, Debug, PartialEq)]
pub struct LinearCrossEntropy {
    /// Sum of the losses of the rows that are not ignored.
    pub loss_sum: f64,
    /// Rows whose target is not `ignore`.
    pub count: usize,
    /// Gradient of seed·loss_sum with respect to h, (N, D).
    pub dh: Vec<f64>,
    /// Gradient of seed·loss_sum with respect to w, (V, D).
    pub dw: Vec<f64>,
    /// Gradient of seed·loss_sum with respect to the bias of the logits, (V).
    pub dbias: Vec<f64>,
}

/// [`cross_entropy`] of the logits h·wᵀ, and the gradients of `seed` times its sum: h (N, D), w (V, D),
/// targets (N).
///
/// N is the number of targets; D and V are inferred from the lengths of h and w.
#[track_caller]
pub fn linear_cross_entropy(
    h: &[f64],
    w: &[f64],
    targets: &[u32],
    ignore: u32,
    seed: f64,
) -> LinearCrossEntropy {
    stored_linear_cross_entropy(h, w, targets, ignore, seed, None, Storage::Exact)
}

/// [`linear_cross_entropy`] with logits under a soft cap, and with the gradients of the products h·wᵀ and of h kept in
/// `storage`.
#[track_caller]
pub fn stored_linear_cross_entropy(
    h: &[f64],
    w: &[f64],
    targets: &[u32],
    ignore: u32,
    seed: f64,
    soft_cap: Option<f64>,
    storage: Storage,
) -> LinearCrossEntropy {
    biased_linear_cross_entropy(h, (w, None), targets, ignore, seed, soft_cap, storage)
}

/// [`stored_linear_cross_entropy`] of the logits h·wᵀ + bias, if there is a bias (V).
#[track_caller]
pub fn biased_linear_cross_entropy(
    h: &[f64],
    (w, bias): (&[f64], Option<&[f64]>),
    targets: &[u32],
    ignore: u32,
    seed: f64,
    soft_cap: Option<f64>,
    storage: Storage,
) -> LinearCrossEntropy {
    let rows = targets.len();
    let hidden = rows_of("the transpose of h", h, rows);
    let vocab = rows_of("w", w, hidden);
    let products = linear(h, w, bias, rows, vocab, hidden);
    let logits: Vec<f64> = products.iter().map(|x| soft_capped(*x, soft_cap)).collect();
    let (loss_sum, count, mut dlogits) = cross_entropy(&logits, targets, vocab, ignore);
    dlogits.iter_mut().zip(products).for_each(|(d, x)| *d *= seed * soft_cap_slope(x, soft_cap));
    let (dh, dw, dbias) = linear_backward(h, w, &storage.store(dlogits), rows, vocab, hidden);
    LinearCrossEntropy { loss_sum, count, dh: storage.store(dh), dw, dbias }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;
    use crate::random::Random;

    const IGNORE: u32 = u32::MAX;

    #[test]
    fn dlogits_is_the_gradient() {
        let (vocab, targets) = (7, [3, IGNORE, 0, 6, 6]);
        let logits = Random::new(71).normal(5 * vocab);
        let (_, count, dlogits) = cross_entropy(&logits, &targets, vocab, IGNORE);
        assert_eq!(count, 4);
        assert_eq!(dlogits[vocab..2 * vocab], [0.0; 7]);
        assert_gradient("dlogits", &dlogits, &logits, |x| cross_entropy(x, &targets, vocab, IGNORE).0);
    }

    #[test]
    fn a_certain_answer_costs_nothing() {
        let (loss_sum, count, _) = cross_entropy(&[1e4, 0.0, 0.0, 1e4], &[0, 1], 2, IGNORE);
        assert_eq!((loss_sum, count), (0.0, 2));
    }

    #[test]
    fn ignored_rows_have_no_loss_and_no_gradient() {
        let (loss_sum, count, dlogits) = cross_entropy(&[1.0, 2.0], &[IGNORE], 2, IGNORE);
        assert_eq!((loss_sum, count, dlogits), (0.0, 0, vec![0.0; 2]));
    }

    #[test]
    fn linear_gradients_carry_the_seed() {
        let (hidden, vocab, targets, seed) = (3, 11, [10, 2, IGNORE, 2], -2.5);
        let mut random = Random::new(72);
        let (h, w) = (random.normal(4 * hidden), random.normal(vocab * hidden));
        let f = |h: &[f64], w: &[f64]| seed * linear_cross_entropy(h, w, &targets, IGNORE, 1.0).loss_sum;
        let result = linear_cross_entropy(&h, &w, &targets, IGNORE, seed);
        assert_eq!(result.count, 3);
        assert_gradient("dh", &result.dh, &h, |h| f(h, &w));
        assert_gradient("dw", &result.dw, &w, |w| f(&h, w));
    }

    #[test]
    fn gradients_pass_through_a_soft_cap() {
        let (hidden, vocab, targets, cap) = (3, 11, [10, 2, IGNORE, 2], Some(1.5));
        let mut random = Random::new(73);
        let (h, w) = (random.normal(4 * hidden), random.normal(vocab * hidden));
        let of = |h: &[f64], w: &[f64]| {
            stored_linear_cross_entropy(h, w, &targets, IGNORE, 2.0, cap, Storage::Exact)
        };
        let result = of(&h, &w);
        assert_gradient("dh", &result.dh, &h, |h| 2.0 * of(h, &w).loss_sum);
        assert_gradient("dw", &result.dw, &w, |w| 2.0 * of(&h, w).loss_sum);
    }

    #[test]
    #[should_panic(expected = "target 2 should be below the vocabulary of 2.")]
    fn refuses_a_target_outside_the_vocabulary() {
        cross_entropy(&[0.0; 2], &[2], 2, IGNORE);
    }
}
