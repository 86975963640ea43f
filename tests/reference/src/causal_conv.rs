//! A causal convolution of each channel by itself, over the last tokens, as linear attention has it before its queries,
//! keys and values (Dao and Gu 2024, arXiv:2405.21060), and LFM2 between its gates.

use super::vector::{assert_len, rows_of};

/// Shapes of the convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CausalConv<'a> {
    /// T, tokens per sequence, which the convolution does not cross.
    pub tokens: usize,
    /// C, channels of a token.
    pub channels: usize,
    /// W, tokens that a result depends on, its own included.
    pub width: usize,
    /// (B·T): for each token the index, within its sequence, of the first token of its document, before which there is
    /// nothing; `None`: each sequence is one document.
    pub starts: Option<&'a [usize]>,
}

/// y (B·T, C) from x (B·T, C) and w (C, W): y of token t is Σⱼ wⱼ·x of token t − W + 1 + j, over the tokens of its
/// document.
#[track_caller]
pub fn causal_conv(x: &[f64], w: &[f64], shape: &CausalConv) -> Vec<f64> {
    let rows = shape.rows(x, w);
    let mut y = vec![0.0; x.len()];
    for row in 0..rows {
        for (j, source) in shape.sources(row) {
            for c in 0..shape.channels {
                y[row * shape.channels + c] += w[c * shape.width + j] * x[source * shape.channels + c];
            }
        }
    }
    y
}

/// (dx (B·T, C), dw (C, W)) of [`causal_conv`], given dy (B·T, C).
#[track_caller]
pub fn causal_conv_backward(x: &[f64], w: &[f64], dy: &[f64], shape: &CausalConv) -> (Vec<f64>, Vec<f64>) {
    let rows = shape.rows(x, w);
    assert_len("dy", dy, x.len());
    let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
    for row in 0..rows {
        for (j, source) in shape.sources(row) {
            for c in 0..shape.channels {
                let (weight, from) = (c * shape.width + j, source * shape.channels + c);
                let dy = dy[row * shape.channels + c];
                dx[from] += w[weight] * dy;
                dw[weight] += x[from] * dy;
            }
        }
    }
    (dx, dw)
}

impl CausalConv<'_> {
    /// B·T, after checking all lengths.
    #[track_caller]
    fn rows(&self, x: &[f64], w: &[f64]) -> usize {
        let rows = self.tokens * rows_of("x", x, self.tokens * self.channels);
        assert_len("w", w, self.channels * self.width);
        assert!(self.starts.is_none_or(|starts| starts.len() == rows), "starts should have {rows} entries.");
        rows
    }

    /// The weights j that reach a token of the document of `row`, each with the row of that token.
    fn sources(&self, row: usize) -> impl Iterator<Item = (usize, usize)> {
        let first = row - row % self.tokens + self.starts.map_or(0, |starts| starts[row]);
        let width = self.width;
        let source = move |j: usize| (row + j + 1).checked_sub(width).filter(|source| *source >= first);
        (0..width).filter_map(move |j| Some((j, source(j)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;
    use crate::swiglu::swiglu;
    use crate::vector::dot;

    #[test]
    fn the_last_weight_is_of_the_token_itself() {
        let shape = CausalConv { tokens: 4, channels: 1, width: 3, starts: None };
        assert_eq!(
            causal_conv(&[1.0, 2.0, 4.0, 8.0], &[100.0, 10.0, 1.0], &shape),
            [1.0, 12.0, 124.0, 248.0]
        );
        let shape = CausalConv { starts: Some(&[0, 0, 2, 2]), ..shape };
        assert_eq!(causal_conv(&[1.0, 2.0, 4.0, 8.0], &[100.0, 10.0, 1.0], &shape), [1.0, 12.0, 4.0, 48.0]);
    }

    /// What torch 2.6 computes for Qwen3.5 in f32, of these sines and cosines, SiLU included.
    #[test]
    fn the_numbers_of_qwen3_5() {
        let of = |f: fn(f64) -> f64, count: usize, step: f64| -> Vec<f64> {
            (0..count).map(|i| f(step * i as f64)).collect()
        };
        let shape = CausalConv { tokens: 5, channels: 2, width: 4, starts: None };
        let y = causal_conv(&of(f64::sin, 10, 0.7), &of(f64::cos, 8, 1.1), &shape);
        let want = [
            0.0,
            0.05184166,
            -0.26688629,
            0.50479758,
            -0.26124358,
            0.94486541,
            0.83536065,
            -0.03389949,
            2.06149173,
            -0.27567038,
        ];
        assert_close("silu", &swiglu(&y, &[1.0; 10]), &want, 1e-6);
    }

    #[test]
    fn backward_is_the_gradient() {
        let starts = [0, 0, 2, 2, 2, 0, 1, 1, 3, 3];
        for (channels, width, starts) in [(1, 1, None), (3, 4, None), (2, 4, Some(&starts[..])), (2, 7, None)]
        {
            let shape = CausalConv { tokens: 5, channels, width, starts };
            let mut random = Random::new(35);
            let [x, w, dy] =
                [10 * channels, channels * width, 10 * channels].map(|count| random.normal(count));
            let (dx, dw) = causal_conv_backward(&x, &w, &dy, &shape);
            assert_gradient("dx", &dx, &x, |x| dot(&causal_conv(x, &w, &shape), &dy));
            assert_gradient("dw", &dw, &w, |w| dot(&causal_conv(&x, w, &shape), &dy));
        }
    }
}
