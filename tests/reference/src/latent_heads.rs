//! The heads of multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1).

use super::rope::{Rope, rope, rope_backward};
use super::vector::assert_len;

/// The sizes of the heads, and the rotation of the parts that encode positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentHeads {
    /// H, heads of queries, keys and values.
    pub heads: usize,
    /// P, elements of a query and of a key without a position.
    pub nope_dim: usize,
    /// V, elements of a value.
    pub value_dim: usize,
    /// The rotation of the other elements (R); its `head_dim` is their number.
    pub rope: Rope,
}

/// [q, k, v]: (N, H·(P + R)) twice and (N, H·V), of q (N, H·(P + R)), kv (N, H·(P + V)) and k_rope (N, R) at positions
/// (N).
///
/// A head of q is [q_nope | q_rope], a head of kv [k_nope | v]. Of query head h and key head h the last R elements are
/// rotated: q_h = [q_nope | rot(q_rope)], k_h = [k_nope | rot(k_rope)], where k_rope is the same for all heads.
#[track_caller]
pub fn latent_heads(
    q: &[f64],
    kv: &[f64],
    k_rope: &[f64],
    positions: &[u32],
    sizes: &LatentHeads,
) -> [Vec<f64>; 3] {
    let LatentHeads { heads, nope_dim: nope, value_dim: value, rope: of } = *sizes;
    let (tokens, rotating) = (positions.len(), of.head_dim);
    assert_len("q", q, tokens * heads * (nope + rotating));
    assert_len("kv", kv, tokens * heads * (nope + value));
    assert_len("k_rope", k_rope, tokens * rotating);
    let mut shared = k_rope.to_vec();
    rope(&mut shared, positions, 1, &of);
    let mut turned = part(q, nope + rotating, nope, rotating);
    rope(&mut turned, positions, heads, &of);
    let each_head: Vec<f64> = shared.chunks_exact(rotating).flat_map(|row| row.repeat(heads)).collect();
    [
        join(&part(q, nope + rotating, 0, nope), &turned, nope, rotating),
        join(&part(kv, nope + value, 0, nope), &each_head, nope, rotating),
        part(kv, nope + value, nope, value),
    ]
}

/// The gradients (dq, dkv, dk_rope) of the inputs of [`latent_heads`], given those of its results; that of k_rope is
/// the sum over the heads.
#[track_caller]
pub fn latent_heads_backward(
    dq: &[f64],
    dk: &[f64],
    dv: &[f64],
    positions: &[u32],
    sizes: &LatentHeads,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let LatentHeads { heads, nope_dim: nope, value_dim: value, rope: of } = *sizes;
    let rotating = of.head_dim;
    let mut turned = part(dq, nope + rotating, nope, rotating);
    rope_backward(&mut turned, positions, heads, &of);
    let of_heads = part(dk, nope + rotating, nope, rotating);
    let mut shared: Vec<f64> = of_heads
        .chunks_exact(heads * rotating)
        .flat_map(|row| (0..rotating).map(move |i| row.iter().skip(i).step_by(rotating).sum()))
        .collect();
    rope_backward(&mut shared, positions, 1, &of);
    (
        join(&part(dq, nope + rotating, 0, nope), &turned, nope, rotating),
        join(&part(dk, nope + rotating, 0, nope), dv, nope, value),
        shared,
    )
}

/// Elements `first..first + count` of every head of `dim` elements.
fn part(x: &[f64], dim: usize, first: usize, count: usize) -> Vec<f64> {
    x.chunks_exact(dim).flat_map(|head| head[first..first + count].to_vec()).collect()
}

/// Heads whose first elements are those of `a` and whose last are those of `b`.
fn join(a: &[f64], b: &[f64], of_a: usize, of_b: usize) -> Vec<f64> {
    a.chunks_exact(of_a).zip(b.chunks_exact(of_b)).flat_map(|(a, b)| [a, b].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;
    use crate::rope_scaling::Scaling;
    use crate::vector::dot;

    const SIZES: LatentHeads = LatentHeads {
        heads: 3,
        nope_dim: 2,
        value_dim: 5,
        rope: Rope { head_dim: 4, rotary_dim: 4, theta: 100.0, interleaved: true, scaling: Scaling::None },
    };

    #[test]
    fn parts_are_where_they_belong() {
        let one = LatentHeads { heads: 2, nope_dim: 1, value_dim: 1, ..SIZES };
        let q: Vec<f64> = (0..10).map(f64::from).collect();
        let [q_out, k, v] = latent_heads(&q, &[20.0, 30.0, 21.0, 31.0], &[1.0, 0.0, 0.0, 1.0], &[0], &one);
        assert_close("q", &q_out, &q, 0.0);
        assert_close("k", &k, &[20.0, 1.0, 0.0, 0.0, 1.0, 21.0, 1.0, 0.0, 0.0, 1.0], 0.0);
        assert_close("v", &v, &[30.0, 31.0], 0.0);
        let [_, k, _] = latent_heads(&q, &[20.0, 30.0, 21.0, 31.0], &[1.0, 0.0, 0.0, 1.0], &[3], &one);
        // theta^(-2/4) = 1/10.
        let [fast, slow] = [3.0_f64, 0.3];
        assert_close("turned", &k[1..5], &[fast.cos(), fast.sin(), -slow.sin(), slow.cos()], 1e-15);
        assert_eq!(k[1..5], k[6..10]);
    }

    #[test]
    fn backward_is_the_gradient() {
        let (positions, mut random) = ([0, 7, 2], Random::new(41));
        let [q, kv, k_rope] = [3 * 3 * 6, 3 * 3 * 7, 3 * 4].map(|count| random.normal(count));
        let [dq, dk, dv] = [3 * 3 * 6, 3 * 3 * 6, 3 * 3 * 5].map(|count| random.normal(count));
        let objective = |q: &[f64], kv: &[f64], k_rope: &[f64]| {
            let [q, k, v] = latent_heads(q, kv, k_rope, &positions, &SIZES);
            dot(&q, &dq) + dot(&k, &dk) + dot(&v, &dv)
        };
        let (got_q, got_kv, got_rope) = latent_heads_backward(&dq, &dk, &dv, &positions, &SIZES);
        assert_gradient("dq", &got_q, &q, |q| objective(q, &kv, &k_rope));
        assert_gradient("dkv", &got_kv, &kv, |kv| objective(&q, kv, &k_rope));
        assert_gradient("dk_rope", &got_rope, &k_rope, |k_rope| objective(&q, &kv, k_rope));
    }
}
