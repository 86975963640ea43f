//! Tests attention by matrices, forward and backward. Query i matches two keys equally well, and all others so badly
//! that their weights are zero. So results are halves of whole numbers and products of these, known without computing a
//! softmax.

use super::super::gpu::Gpu;
use super::super::job::Job;
use super::super::prepare::Guard;
use crate::element::Element::{self, Bf16, F16, F32};
use crate::error::Result;
use crate::kernels::Capabilities;
use crate::ops::attention::{Attention, AttentionTensors, attention, attention_backward};
use crate::ops::heads::HeadLayout;
use crate::record::Tensor;

/// More tokens than a block of any matrices, filling several tiles of keys and the last one in part.
const TOKENS: usize = 149;
const HEADS: usize = 2;

/// The scale of the scores: a key that matches one bit less loses 4 nats for each of the at least 16 units of its
/// product.
const SCALE: f32 = 4.0;

pub(super) async fn first_wrong_number(gpu: &Gpu, capabilities: Capabilities) -> Result<Option<String>> {
    let side = capabilities.matrices.map_or(8, |matrices| matrices.side);
    // Heads of these widths have kernels of their own.
    for (steps, element) in [(4, F16), (4, Bf16), (8, Bf16)] {
        let case = Case { dim: steps * side as usize };
        let [want_out, want_dqkv] = case.expected();
        let (job, [out, dqkv]) = case.job(element, capabilities);
        let job = gpu.prepare_job(job, Guard::Off).await?;
        job.replay().await?;
        let (out, dqkv) = (job.values(&out).await?, job.values(&dqkv).await?);
        let wrong = first_difference("results", &out, &want_out)
            .or_else(|| first_difference("gradients", &dqkv, &want_dqkv));
        if wrong.is_some() {
            return Ok(wrong);
        }
    }
    Ok(None)
}

/// Attention whose heads all share their keys.
struct Case {
    dim: usize,
}

/// A sum, and the sum of the absolute values of its terms.
type Sum = (f64, f64);

impl Case {
    fn job(&self, element: Element, capabilities: Capabilities) -> (Job, [Tensor; 2]) {
        let dim = self.dim as u32;
        let layout = HeadLayout { heads: HEADS as u32, kv_heads: 1, head_dim: dim, value_dim: dim };
        let tokens = TOKENS as u32;
        let shape = Attention {
            layout,
            tokens,
            is_causal: true,
            scale: SCALE,
            soft_cap: None,
            window: None,
            has_alibi: false,
            head_range: None,
            dropout: None,
        };
        let mut job = Job::new("attention by matrices", capabilities);
        let (mut qkv, mut dout) = (Vec::new(), Vec::new());
        for token in 0..TOKENS {
            (0..HEADS).for_each(|head| qkv.extend((0..self.dim).map(|c| self.query(token, head, c) as f32)));
            qkv.extend((0..self.dim).map(|c| self.key(token, c) as f32));
            qkv.extend((0..self.dim).map(|c| value(token, c) as f32));
            (0..HEADS).for_each(|head| dout.extend((0..self.dim).map(|c| gradient(token, head, c) as f32)));
        }
        let qkv = job.input_of(&qkv, tokens, layout.cols(), element);
        let dout = job.input_of(&dout, tokens, layout.out_cols(), element);
        let (out, dqkv) =
            (job.tensor(tokens, layout.out_cols(), element), job.tensor(tokens, layout.cols(), element));
        let tensors = AttentionTensors::new(qkv, out, job.tensor(tokens, layout.heads, F32));
        attention(&mut job.rec, &tensors, &shape);
        attention_backward(&mut job.rec, &tensors, dout, dqkv, &shape);
        (job, [out, dqkv])
    }

    /// Column c of a key: 1 or -1, by a bit of the key's number.
    fn key(&self, key: usize, c: usize) -> f64 {
        f64::from(1 - 2 * ((key >> (8 * c / self.dim)) & 1) as i32)
    }

    /// The sum of the two keys that a query matches, which differ in their last bit.
    fn query(&self, token: usize, head: usize, c: usize) -> f64 {
        let [one, other] = matches(token, head);
        self.key(one, c) + self.key(other, c)
    }

    /// The expected out and dqkv.
    fn expected(&self) -> [Vec<Sum>; 2] {
        let (dim, columns) = (self.dim, (HEADS + 2) * self.dim);
        let mut out = Vec::new();
        let mut dqkv = vec![(0.0, 0.0); TOKENS * columns];
        let mut add = |token: usize, c: usize, term: f64| {
            let (sum, size) = &mut dqkv[token * columns + c];
            *sum += term;
            *size += term.abs();
        };
        for (token, head) in (0..TOKENS).flat_map(|token| (0..HEADS).map(move |head| (token, head))) {
            let [one, other] = matches(token, head);
            // The first query sees only one of its keys.
            let (weight, other_seen) = if other > token { (1.0, one) } else { (0.5, other) };
            let difference = |c| value(one, c) - value(other_seen, c);
            out.extend((0..dim).map(|c| {
                let [a, b] = [value(one, c), value(other_seen, c)];
                ((a + b) / 2.0, (a.abs() + b.abs()) / 2.0)
            }));
            // The gradient of the score of key `one`; that of key `other` is its negative.
            let slope: f64 = (0..dim).map(|c| gradient(token, head, c) * difference(c)).sum::<f64>() / 4.0;
            for c in 0..dim {
                for (key, ds) in [(one, slope), (other, -slope)] {
                    if key > token {
                        continue;
                    }
                    add(token, head * dim + c, f64::from(SCALE) * ds * self.key(key, c));
                    add(key, HEADS * dim + c, f64::from(SCALE) * ds * self.query(token, head, c));
                    add(key, (HEADS + 1) * dim + c, weight * gradient(token, head, c));
                }
            }
        }
        [out, dqkv]
    }
}

/// The two keys that a query matches. The query sees both, except the first query, whose second key comes after it.
fn matches(token: usize, head: usize) -> [usize; 2] {
    let first = (7 * token + 3 * head) % token.div_ceil(2).max(1) * 2;
    [first, first + 1]
}

/// A whole number from -2 to 2.
fn value(token: usize, c: usize) -> f64 {
    ((7 * token + 3 * c + token * c) % 5) as f64 - 2.0
}

fn gradient(token: usize, head: usize, c: usize) -> f64 {
    ((2 * token + 5 * c + head + token * c) % 5) as f64 - 2.0
}

/// The first number that differs by more than rounding weights to f16, toward zero at worst, and results to f16 or
/// bf16.
fn first_difference(what: &str, got: &[f32], want: &[Sum]) -> Option<String> {
    let wrong = |(i, (&got, &(sum, size))): (usize, (&f32, &Sum))| {
        let is_near = (f64::from(got) - sum).abs() <= size / 256.0;
        (!is_near).then(|| format!("of the {what} of attention number {i} is {got} instead of {sum}"))
    };
    got.iter().zip(want).enumerate().find_map(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two matching keys are seen, and the other keys are so far away that their weights vanish in f16.
    #[test]
    fn queries_match_two_keys_alone() {
        for dim in [32, 64, 128] {
            let case = Case { dim };
            for (token, head) in (1..TOKENS).flat_map(|token| (0..HEADS).map(move |head| (token, head))) {
                let matches = matches(token, head);
                assert!(matches[1] <= token || matches == [token, token + 1], "{token}: {matches:?}");
                let product =
                    |key| (0..dim).map(|c| case.query(token, head, c) * case.key(key, c)).sum::<f64>();
                let best = product(matches[0]);
                assert_eq!(product(matches[1]), best);
                let others = (0..=token).filter(|key| !matches.contains(key));
                let nearest = others.map(product).fold(f64::NEG_INFINITY, f64::max);
                assert!(f64::from(SCALE) * (best - nearest) >= 64.0, "{token}: {best} and {nearest}");
            }
        }
    }

    #[test]
    fn a_wrong_number_is_found() {
        let [out, dqkv] = Case { dim: 32 }.expected();
        assert!(dqkv.iter().filter(|(sum, _)| *sum != 0.0).count() > dqkv.len() / 3);
        let mut got: Vec<f32> = out.iter().map(|(sum, _)| *sum as f32).collect();
        assert_eq!(first_difference("results", &got, &out), None);
        for wrong in [f32::NAN, got[99] + 0.5] {
            got[99] = wrong;
            let line = first_difference("results", &got, &out).expect("a number is wrong");
            assert!(line.starts_with("of the results of attention number 99 is "), "{line}");
        }
    }
}
