//! Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): a linear map that is trained by adding the product of two thin
//! matrices to it.

use std::collections::BTreeSet;

use super::gpt::Shape;
use super::matmul::{matmul_nn, matmul_nt, matmul_tn};

/// The adapters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// r: rows of A and columns of B.
    pub rank: usize,
    /// Factor of the product, α / r.
    pub scale: f64,
    /// Names of the linear layers that have one, without `.weight`.
    pub modules: BTreeSet<String>,
}

/// y = scale·(x·Aᵀ)·Bᵀ: x (m, k), a (r, k), b (n, r) -> y (m, n).
pub fn low_rank(x: &[f64], a: &[f64], b: &[f64], scale: f64, [m, n, k, r]: [usize; 4]) -> Vec<f64> {
    matmul_nt(&inner(x, a, scale, [m, k, r]), b, m, n, r)
}

/// (dx (m, k), da (r, k), db (n, r)) of [`low_rank`], given dy (m, n).
pub fn low_rank_backward(
    x: &[f64],
    a: &[f64],
    b: &[f64],
    dy: &[f64],
    scale: f64,
    [m, n, k, r]: [usize; 4],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let db = matmul_tn(dy, &inner(x, a, scale, [m, k, r]), n, r, m);
    let dz: Vec<f64> = matmul_nn(dy, b, m, r, n).iter().map(|dz| scale * dz).collect();
    (matmul_nn(&dz, a, m, k, r), matmul_tn(&dz, x, r, k, m), db)
}

/// scale·x·Aᵀ: (m, r).
fn inner(x: &[f64], a: &[f64], scale: f64, [m, k, r]: [usize; 3]) -> Vec<f64> {
    matmul_nt(x, a, m, r, k).iter().map(|z| scale * z).collect()
}

impl LowRank {
    /// The name of a factor, `A` or `B`, of the adapter of `module`, as PEFT calls it.
    pub fn factor(module: &str, factor: &str) -> String {
        format!("base_model.model.{module}.lora_{factor}.weight")
    }
}

impl Shape {
    /// (name, number of elements) of both factors of every adapter, given those of the model.
    pub(super) fn lora_parameters(&self, model: &[(String, usize)]) -> Vec<(String, usize)> {
        let Some(low_rank) = &self.low_rank else { return Vec::new() };
        let factors = |(name, count): &(String, usize)| {
            let module = name.strip_suffix(".weight").filter(|module| low_rank.modules.contains(*module))?;
            let inputs = self.inputs_of(module, *count);
            let sizes = [("A", low_rank.rank * inputs), ("B", count / inputs * low_rank.rank)];
            Some(sizes.map(|(factor, count)| (LowRank::factor(module, factor), count)))
        };
        model.iter().filter_map(factors).flatten().collect()
    }

    /// Columns of the matrix of a linear layer, of `count` elements.
    fn inputs_of(&self, module: &str, count: usize) -> usize {
        let makes_outputs =
            ["w2", "fc2", "o_proj", "out_proj", "down_proj", "c_proj", "per_layer_projection"]
                .iter()
                .any(|end| module.ends_with(end));
        if makes_outputs { count / self.hidden_size } else { self.hidden_size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;
    use crate::vector::dot;

    #[test]
    fn the_product_is_that_of_one_matrix() {
        let sizes @ [m, n, k, r] = [5, 4, 7, 3];
        let mut random = Random::new(71);
        let (x, a, b) = (random.normal(m * k), random.normal(r * k), random.normal(n * r));
        let whole: Vec<f64> = matmul_nn(&b, &a, n, k, r).iter().map(|w| 0.25 * w).collect();
        let want = matmul_nt(&x, &whole, m, n, k);
        assert_close("y", &low_rank(&x, &a, &b, 0.25, sizes), &want, 1e-14);
    }

    #[test]
    fn backward_is_the_gradient() {
        let sizes @ [m, n, k, r] = [5, 4, 7, 3];
        let mut random = Random::new(72);
        let (x, a, b) = (random.normal(m * k), random.normal(r * k), random.normal(n * r));
        let dy = random.normal(m * n);
        let f = |x: &[f64], a: &[f64], b: &[f64]| dot(&low_rank(x, a, b, 0.75, sizes), &dy);
        let (dx, da, db) = low_rank_backward(&x, &a, &b, &dy, 0.75, sizes);
        assert_gradient("dx", &dx, &x, |x| f(x, &a, &b));
        assert_gradient("da", &da, &a, |a| f(&x, a, &b));
        assert_gradient("db", &db, &b, |b| f(&x, &a, b));
    }
}
