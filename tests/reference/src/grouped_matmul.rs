//! Grouped products of a mixture of experts: rows sorted by expert, each multiplied by its expert's matrix.
//!
//! `offsets` (E + 1) holds the first row of each expert and, last, the end of the last expert's rows.

use super::matmul::{matmul_nn, matmul_nt, matmul_tn};
use super::vector::{add, assert_len};

/// y (R, out): y_r = x_r·W_eᵀ for the expert e with offsets\[e\] <= r < offsets\[e + 1\]; x (R, in), stack (E, out,
/// in). Rows without an expert are 0.
#[track_caller]
pub fn grouped_matmul(x: &[f64], stack: &[f64], offsets: &[usize], out: usize, inner: usize) -> Vec<f64> {
    let mut y = vec![0.0; x.len() / inner * out];
    for (expert, w) in experts(stack, offsets, out * inner) {
        let (first, end) = (offsets[expert], offsets[expert + 1]);
        let rows = &x[first * inner..end * inner];
        y[first * out..end * out].copy_from_slice(&matmul_nt(rows, w, end - first, out, inner));
    }
    y
}

/// (dx (R, in), d_stack (E, out, in)) of [`grouped_matmul`], given dy (R, out).
///
/// dx_r = dy_r·W_e; dW_e = dy_eᵀ·x_e over the rows of e, 0 for an expert without rows.
#[track_caller]
pub fn grouped_matmul_backward(
    x: &[f64],
    stack: &[f64],
    offsets: &[usize],
    dy: &[f64],
    out: usize,
    inner: usize,
) -> (Vec<f64>, Vec<f64>) {
    assert_len("dy", dy, x.len() / inner * out);
    let (mut dx, mut d_stack) = (vec![0.0; x.len()], Vec::with_capacity(stack.len()));
    for (expert, w) in experts(stack, offsets, out * inner) {
        let (first, end) = (offsets[expert], offsets[expert + 1]);
        let (x, dy) = (&x[first * inner..end * inner], &dy[first * out..end * out]);
        dx[first * inner..end * inner].copy_from_slice(&matmul_nn(dy, w, end - first, inner, out));
        d_stack.extend(matmul_tn(dy, x, out, inner, end - first));
    }
    (dx, d_stack)
}

/// y (R, out) plus the bias of the expert of each row; biases (E, out). Rows without an expert are as they are.
pub fn add_biases(y: &[f64], biases: &[f64], offsets: &[usize], out: usize) -> Vec<f64> {
    let mut sums = y.to_vec();
    for (expert, bias) in experts(biases, offsets, out) {
        for row in sums[offsets[expert] * out..offsets[expert + 1] * out].chunks_mut(out) {
            row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
    }
    sums
}

/// The gradient (E, out) of the biases in [`add_biases`], given dy (R, out).
pub fn biases_backward(dy: &[f64], offsets: &[usize], out: usize) -> Vec<f64> {
    let of_expert = |range: &[usize]| {
        let rows = dy[range[0] * out..range[1] * out].chunks(out);
        rows.fold(vec![0.0; out], |sum, row| add(&sum, row))
    };
    offsets.windows(2).flat_map(of_expert).collect()
}

/// (index, matrix) of each expert.
#[track_caller]
fn experts<'w>(
    stack: &'w [f64],
    offsets: &[usize],
    size: usize,
) -> impl Iterator<Item = (usize, &'w [f64])> + 'w {
    assert_len("stack", stack, (offsets.len() - 1) * size);
    stack.chunks(size).enumerate()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;
    use crate::vector::dot;

    #[test]
    fn one_expert_is_a_linear_layer() {
        let mut random = Random::new(71);
        let (x, w) = (random.normal(5 * 3), random.normal(4 * 3));
        assert_close("y", &grouped_matmul(&x, &w, &[0, 5], 4, 3), &matmul_nt(&x, &w, 5, 4, 3), 1e-15);
    }

    #[test]
    fn each_row_uses_the_matrix_of_its_expert() {
        // Expert 0 doubles, expert 2 negates, expert 1 has no rows; the last row has no expert.
        let y = grouped_matmul(&[1.0, 2.0, 3.0, 7.0], &[2.0, 9.0, -1.0], &[0, 2, 2, 3], 1, 1);
        assert_eq!(y, [2.0, 4.0, -3.0, 0.0]);
    }

    #[test]
    fn backward_is_the_gradient() {
        let (out, inner, offsets) = (3, 4, [0, 2, 2, 7, 8]);
        let mut random = Random::new(72);
        let (x, stack, dy) =
            (random.normal(8 * inner), random.normal(4 * out * inner), random.normal(8 * out));
        let f = |x: &[f64], stack: &[f64]| dot(&grouped_matmul(x, stack, &offsets, out, inner), &dy);
        let (dx, d_stack) = grouped_matmul_backward(&x, &stack, &offsets, &dy, out, inner);
        assert_gradient("dx", &dx, &x, |x| f(x, &stack));
        assert_gradient("d_stack", &d_stack, &stack, |stack| f(&x, stack));
        let (biases, f) = (random.normal(4 * out), |biases: &[f64]| {
            dot(&add_biases(&grouped_matmul(&x, &stack, &offsets, out, inner), biases, &offsets, out), &dy)
        });
        assert_gradient("biases", &biases_backward(&dy, &offsets, out), &biases, f);
        assert!(d_stack[out * inner..2 * out * inner].iter().all(|&g| g == 0.0), "expert 1 has no rows");
    }
}
