//! The gradient of attention from what the forward pass saved, as the kernels compute it.

use super::matrix::unit_of_slopes;
use super::{Row, Terms, largest};
use ::reference::attention as reference;

/// dq, dk and dv, what is added up for them, and for each element the sum of the absolute values of all terms behind
/// it.
#[derive(Clone)]
pub(super) struct FromSaved {
    pub gradients: [Vec<f64>; 3],
    pub weighted: [Terms; 3],
    pub terms: [Vec<f64>; 3],
}

/// The gradient as the kernel computes it: weights from the saved log-sum-exp, delta from the saved, rounded output. An
/// error in a score is as large as the score's own terms allow, and is a relative error of its weight.
pub(super) fn from_saved(
    [q, k, v]: [&[f64]; 3],
    out: &[f64],
    dout: &[f64],
    lse: &[f64],
    (row, factors): (&Row, &[f64]),
) -> FromSaved {
    let reference::Attention {
        tokens,
        heads,
        kv_heads,
        head_dim,
        value_dim,
        causal,
        scale,
        window,
        alibi,
        ..
    } = row.reference(&[], &[]);
    let starts = row.starts();
    let [[mut dq, mut dk, mut dv], mut weighted, [mut of_dq, mut of_dk, mut of_dv]] =
        [(); 3].map(|()| [q, k, v].map(|x| vec![0.0; x.len()]));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let sizes = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum::<f64>();
    let add = |y: &mut [f64], a: f64, x: &[f64]| y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
    let add_sizes =
        |y: &mut [f64], a: f64, x: &[f64]| y.iter_mut().zip(x).for_each(|(y, x)| *y += (a * x).abs());
    for i in 0..lse.len() / heads {
        for head in 0..heads {
            let query = (i * heads + head) * head_dim..(i * heads + head + 1) * head_dim;
            let output = (i * heads + head) * value_dim..(i * heads + head + 1) * value_dim;
            let delta = dot(&out[output.clone()], &dout[output.clone()]);
            let of_delta = sizes(&out[output.clone()], &dout[output.clone()]);
            let start = i - i % tokens;
            let document = start + starts.get(i).copied().unwrap_or(0);
            let first = window.map_or(document, |window| document.max((i + 1).saturating_sub(window)));
            let slope = if alibi { reference::alibi_slope(head, heads) } else { 0.0 };
            for j in first..if causal { i + 1 } else { start + tokens } {
                let kv = j * kv_heads + head / (heads / kv_heads);
                let key = kv * head_dim..(kv + 1) * head_dim;
                let value = kv * value_dim..(kv + 1) * value_dim;
                let score = scale * dot(&q[query.clone()], &k[key.clone()]) - slope * (i as f64 - j as f64);
                let p = (score - lse[i * heads + head]).exp();
                let m = factors.get((i * heads + head) * tokens + j % tokens).copied().unwrap_or(1.0);
                let ds = p * (m * dot(&dout[output.clone()], &v[value.clone()]) - delta);
                let of_score =
                    scale * sizes(&q[query.clone()], &k[key.clone()]) + slope * (i as f64 - j as f64);
                let of_p = p * (1.0 + of_score + lse[i * heads + head].abs());
                let of_ds = of_p * (m * sizes(&dout[output.clone()], &v[value.clone()]) + of_delta);
                add_sizes(&mut of_dq[query.clone()], scale * of_ds, &k[key.clone()]);
                add_sizes(&mut of_dk[key.clone()], scale * of_ds, &q[query.clone()]);
                add_sizes(&mut of_dv[value.clone()], of_p * m, &dout[output.clone()]);
                add_sizes(&mut weighted[0][query.clone()], scale * ds, &k[key.clone()]);
                add_sizes(&mut weighted[1][key.clone()], scale * ds, &q[query.clone()]);
                add_sizes(&mut weighted[2][value.clone()], p * m, &dout[output.clone()]);
                add(&mut dq[query.clone()], scale * ds, &k[key.clone()]);
                add(&mut dk[key], scale * ds, &q[query.clone()]);
                add(&mut dv[value], p * m, &dout[output.clone()]);
            }
        }
    }
    let [of_q, of_k, of_v] = weighted;
    let unit = scale * unit_of_slopes(row, [q, k, v], dout);
    let weighted = [
        Terms { sizes: of_q, largest: unit * largest(k) },
        Terms { sizes: of_k, largest: unit * largest(q) },
        Terms { sizes: of_v, largest: largest(dout) },
    ];
    FromSaved { gradients: [dq, dk, dv], weighted, terms: [of_dq, of_dk, of_dv] }
}
