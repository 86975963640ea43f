//! A block's gated short convolution, as in LFM2 (Liquid AI 2025).

use super::Block;
use crate::causal_conv::{CausalConv, causal_conv, causal_conv_backward};
use crate::gpt::{Weights, accumulate};

const IN: &str = "conv.in_proj";
const CONV: &str = "conv.conv.weight";
const OUT: &str = "conv.out_proj";

/// Name and number of elements of each tensor of a convolution over `taps` tokens, in a model `width` wide.
pub(crate) fn parameters(width: usize, taps: usize) -> [(&'static str, usize); 3] {
    [
        ("conv.in_proj.weight", 3 * width * width),
        (CONV, width * taps),
        ("conv.out_proj.weight", width * width),
    ]
}

/// What the backward pass reads.
struct Gated {
    /// Both gates and what is convolved, each (N, D).
    parts: [Vec<f64>; 3],
    /// The gate before the convolution times what is convolved, (N, D).
    input: Vec<f64>,
    /// The sums over it, (N, D).
    sums: Vec<f64>,
    /// The gate after the convolution times these, (N, D).
    y: Vec<f64>,
}

impl Block<'_> {
    /// What the convolution makes of x (N, D), its projections included.
    pub(super) fn convolution(&self, x: &[f64]) -> Vec<f64> {
        self.project(OUT, &self.gated_sums(x).y)
    }

    /// The gradient of x, given that of [`Block::convolution`]; adds those of the weights to `grads`.
    pub(super) fn convolution_backward(&self, x: &[f64], dy: &[f64], grads: &mut Weights) -> Vec<f64> {
        let store = |values| self.shape.storage.store(values);
        let Gated { parts: [before, after, values], input, sums, y } = self.gated_sums(x);
        let dy = store(self.project_backward(OUT, &y, dy, grads));
        let dsums = store(product(&dy, &after));
        let name = self.path(CONV);
        let (dinput, dw) = causal_conv_backward(&input, &self.weights[&name], &dsums, &self.shape_of_conv());
        accumulate(grads, &name, dw);
        let gradients = [product(&dinput, &values), product(&dy, &sums), product(&dinput, &before)];
        let rows = 0..self.positions.len();
        let width = self.shape.hidden_size;
        let joined =
            rows.flat_map(|row| gradients.iter().flat_map(move |part| &part[row * width..][..width]));
        let dparts = store(joined.copied().collect());
        self.project_backward(IN, x, &dparts, grads)
    }

    fn gated_sums(&self, x: &[f64]) -> Gated {
        let store = |values| self.shape.storage.store(values);
        let (projected, width) = (store(self.project(IN, x)), self.shape.hidden_size);
        let part = |number: usize| {
            projected
                .chunks_exact(3 * width)
                .flat_map(|row| row[number * width..][..width].to_vec())
                .collect()
        };
        let parts: [Vec<f64>; 3] = [0, 1, 2].map(part);
        let input = product(&parts[0], &parts[2]);
        let sums = causal_conv(&input, &self.weights[&self.path(CONV)], &self.shape_of_conv());
        let y = store(product(&parts[1], &sums));
        Gated { parts, input, sums, y }
    }

    fn shape_of_conv(&self) -> CausalConv<'_> {
        let width =
            self.shape.layer(self.layer).convolution.expect("a block with a convolution has its width");
        CausalConv { tokens: self.sequence_length, channels: self.shape.hidden_size, width, starts: None }
    }
}

fn product(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}
