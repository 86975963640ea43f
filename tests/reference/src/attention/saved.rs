//! The gradient of attention from what a forward pass saved, as kernels compute it (Dao et al. 2022, arXiv:2205.14135),
//! and how large the terms of its sums are, by which tests know how far from it a kernel may be.

use super::{Attention, alibi_slope};
use crate::soft_cap::{soft_cap_slope, soft_capped};
use crate::vector::{add_scaled, dot};

/// dq, dk and dv, in the shapes of q, k and v.
#[derive(Clone, Debug)]
pub struct FromSaved {
    /// The gradients.
    pub gradients: [Vec<f64>; 3],
    /// For each element the sum of the absolute values of what is added up for it, with weights as they are.
    pub weighted: [Vec<f64>; 3],
    /// The same, where an error of a score, which is as large as the score's own terms, is a relative error of its
    /// weight.
    pub terms: [Vec<f64>; 3],
}

/// [`attention_backward`](super::attention_backward) with weights from the saved log-sum-exp, lse (B·T, heads), and
/// delta = out·dout from the saved output, both as they were rounded.
pub fn attention_backward_from_saved(
    [q, k, v]: [&[f64]; 3],
    [out, lse]: [&[f64]; 2],
    dout: &[f64],
    shape: &Attention,
) -> FromSaved {
    let [mut gradients, mut weighted, mut terms] = [(); 3].map(|()| [q, k, v].map(|x| vec![0.0; x.len()]));
    let Attention { heads, scale, .. } = *shape;
    for row in 0..shape.rows(q, k, v) {
        for head in 0..heads {
            let (query, output) = (shape.query(row, head), shape.output(row, head));
            let (q, out, dout) = (&q[query.clone()], &out[output.clone()], &dout[output]);
            let lse = lse[row * heads + head];
            let (delta, of_delta) = (dot(out, dout), sizes(out, dout));
            let slope = if shape.alibi { alibi_slope(head, heads) } else { 0.0 };
            for j in shape.visible(row) {
                let (key, value) = (shape.key(j, head), shape.value(j, head));
                let (k, v) = (&k[key.clone()], &v[value.clone()]);
                let distance = slope * (row as f64 - j as f64);
                let product = scale * dot(q, k);
                let p = (soft_capped(product, shape.soft_cap) - distance - lse).exp();
                let of_p = p * (1.0 + scale * sizes(q, k) + distance + lse.abs());
                let factor = shape.factor(row, head, j);
                let ds = p * (factor * dot(dout, v) - delta) * soft_cap_slope(product, shape.soft_cap);
                let of_ds = of_p * (factor * sizes(dout, v) + of_delta);
                for (i, place, x, weight, of_weight) in [
                    (0, query.clone(), k, scale * ds, scale * of_ds),
                    (1, key, q, scale * ds, scale * of_ds),
                    (2, value, dout, factor * p, factor * of_p),
                ] {
                    add_scaled(&mut gradients[i][place.clone()], weight, x);
                    add_sizes(&mut weighted[i][place.clone()], weight, x);
                    add_sizes(&mut terms[i][place], of_weight, x);
                }
            }
        }
    }
    FromSaved { gradients, weighted, terms }
}

/// Σ |aᵢ·bᵢ|.
fn sizes(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum()
}

/// y ← y + |scale·x|.
fn add_sizes(y: &mut [f64], scale: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += (scale * x).abs());
}
