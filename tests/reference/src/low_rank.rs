//! Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): a linear map that is trained by adding the product of two thin
//! matrices to it.

use std::collections::{BTreeMap, BTreeSet};

use super::gpt::Shape;
use super::matmul::{matmul_nn, matmul_nt, matmul_tn};

/// The adapters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// r: rows of A and columns of B.
    pub rank: usize,
    /// Factor of the product, α / r.
    pub scale: f64,
    /// Other ranks and factors, by names of `modules` and `parameters`.
    pub others: BTreeMap<String, (usize, f64)>,
    /// Whether outputs are scaled by learned magnitudes over the norms of rows.
    pub has_magnitudes: bool,
    /// Names of the linear layers that have one, without `.weight`.
    pub modules: BTreeSet<String>,
    /// Names of the parameters of all experts of a layer that have one: `model.layers.0.mlp.experts.down_proj`.
    pub parameters: BTreeSet<String>,
}

/// The parameters of experts, in the order in which PEFT wraps them.
pub const EXPERT_PARAMETERS: [&str; 2] = ["gate_up_proj", "down_proj"];

/// The factors of one expert, of those of all: a (E·r, k) and b (n, r·E), in which column j of expert e is column j·E +
/// e.
pub fn of_expert(a: &[f64], b: &[f64], expert: usize, [experts, n, k, r]: [usize; 4]) -> [Vec<f64>; 2] {
    let of_b = (0..n * r).map(|place| b[place * experts + expert]).collect();
    [a[expert * r * k..][..r * k].to_vec(), of_b]
}

/// Gradients of one expert's factors, a (r, k) and b (n, r), as gradients of those of all.
pub fn to_all(a: &[f64], b: &[f64], expert: usize, experts: usize) -> [Vec<f64>; 2] {
    let mut all = [vec![0.0; a.len() * experts], vec![0.0; b.len() * experts]];
    all[0][expert * a.len()..][..a.len()].copy_from_slice(a);
    all[1].iter_mut().skip(expert).step_by(experts).zip(b).for_each(|(all, b)| *all = *b);
    all
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

/// The norms of the rows of W + scale·B·A: w (n, k), or (k, n) if it `is_transposed`; a (r, k), b (n, r) -> (n).
pub fn row_norms(
    w: &[f64],
    a: &[f64],
    b: &[f64],
    scale: f64,
    [n, k, r]: [usize; 3],
    is_transposed: bool,
) -> Vec<f64> {
    let product = matmul_nn(b, a, n, k, r);
    let weight = |row: usize, col: usize| {
        let own = if is_transposed { w[col * n + row] } else { w[row * k + col] };
        own + scale * product[row * k + col]
    };
    (0..n).map(|row| (0..k).map(|col| weight(row, col).powi(2)).sum::<f64>().sqrt()).collect()
}

/// Columns times magnitudes over norms: y (m, n) -> (m, n).
pub fn scaled_columns(y: &[f64], magnitudes: &[f64], norms: &[f64]) -> Vec<f64> {
    let factors = magnitudes.iter().zip(norms).map(|(magnitude, norm)| magnitude / norm);
    y.iter().zip(factors.collect::<Vec<f64>>().iter().cycle()).map(|(y, factor)| y * factor).collect()
}

/// (dy of the columns before, gradient of the magnitudes (n)) of [`scaled_columns`], given dz (m, n). The norms are
/// constants.
pub fn scaled_columns_backward(y: &[f64], magnitudes: &[f64], norms: &[f64], dz: &[f64]) -> [Vec<f64>; 2] {
    let n = norms.len();
    let mut gradient = vec![0.0; n];
    for (place, (y, dz)) in y.iter().zip(dz).enumerate() {
        gradient[place % n] += y * dz / norms[place % n];
    }
    [scaled_columns(dz, magnitudes, norms), gradient]
}

/// scale·x·Aᵀ: (m, r).
fn inner(x: &[f64], a: &[f64], scale: f64, [m, k, r]: [usize; 3]) -> Vec<f64> {
    matmul_nt(x, a, m, r, k).iter().map(|z| scale * z).collect()
}

impl LowRank {
    /// The rank and the factor of the adapter of `name`.
    pub fn of(&self, name: &str) -> (usize, f64) {
        self.others.get(name).copied().unwrap_or((self.rank, self.scale))
    }

    /// The name of a factor, `A` or `B`, of the adapter of `module`, as PEFT calls it.
    pub fn factor(module: &str, factor: &str) -> String {
        format!("base_model.model.{module}.lora_{factor}.weight")
    }

    /// The name of the magnitudes of `module`.
    pub fn magnitudes(module: &str) -> String {
        format!("base_model.model.{module}.lora_magnitude_vector")
    }

    /// What PEFT calls the adapter of the parameter `of` of `module`, the experts of a layer; `None` if it has none. The
    /// last one that has an adapter is the outermost.
    pub fn of_experts(&self, module: &str, of: &str) -> Option<String> {
        let has_one = |of: &str| self.parameters.contains(&format!("{module}.{of}"));
        let is_inner = of == EXPERT_PARAMETERS[0] && has_one(EXPERT_PARAMETERS[1]);
        has_one(of).then(|| format!("{module}{}", if is_inner { ".base_layer" } else { "" }))
    }
}

impl Shape {
    /// (name, number of elements) of both factors of every adapter, given those of the model.
    pub(super) fn lora_parameters(&self, model: &[(String, usize)]) -> Vec<(String, usize)> {
        let Some(low_rank) = &self.low_rank else { return Vec::new() };
        let factors = |(name, count): &(String, usize)| {
            let module = name.strip_suffix(".weight").filter(|module| low_rank.modules.contains(*module))?;
            let inputs = self.inputs_of(module, *count);
            let (rank, _) = low_rank.of(module);
            let sizes = [("A", rank * inputs), ("B", count / inputs * rank)];
            let factors = sizes.map(|(factor, count)| (LowRank::factor(module, factor), count));
            let magnitudes = low_rank.has_magnitudes.then(|| (LowRank::magnitudes(module), count / inputs));
            Some(factors.into_iter().chain(magnitudes))
        };
        let mut list: Vec<(String, usize)> = model.iter().filter_map(factors).flatten().collect();
        for parameter in &low_rank.parameters {
            let (Some((module, of)), Some(mixture)) = (parameter.rsplit_once('.'), self.mixture) else {
                panic!("{parameter} should be one of the experts of a mixture.")
            };
            let (hidden, inner) = (self.hidden_size, mixture.intermediate_size);
            let is_down = of == EXPERT_PARAMETERS[1];
            let [inputs, outputs] = if is_down { [inner, hidden] } else { [hidden, 2 * inner] };
            let adapter = low_rank.of_experts(module, of).expect("it is among them");
            let sizes = [("A", inputs), ("B", outputs)];
            list.extend(sizes.map(|(factor, size)| {
                (LowRank::factor(&adapter, factor), mixture.experts * low_rank.of(parameter).0 * size)
            }));
        }
        list
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

    /// Two experts of rank 2, with 2 inputs and 1 output: an element of A is 100 expert + 10 row + column.
    #[test]
    fn factors_of_experts_are_rows_of_a_and_columns_of_b() {
        let a = [0.0, 1.0, 10.0, 11.0, 100.0, 101.0, 110.0, 111.0];
        let [of_a, of_b] = of_expert(&a, &[0.0, 100.0, 1.0, 101.0], 1, [2, 1, 2, 2]);
        assert_eq!((of_a.as_slice(), of_b.as_slice()), (&a[4..], &[100.0, 101.0][..]));
        let [all_a, all_b] = to_all(&of_a, &of_b, 1, 2);
        assert_eq!((&all_a[..4], &all_a[4..]), (&[0.0; 4][..], &a[4..]));
        assert_eq!(all_b, [0.0, 100.0, 0.0, 101.0]);
    }

    /// Norms are of rows, and constants for the gradients.
    #[test]
    fn columns_are_scaled_to_their_magnitudes() {
        let [m, n, k, r] = [5, 4, 7, 3];
        let mut random = Random::new(73);
        let (w, a, b) = (random.normal(n * k), random.normal(r * k), random.normal(n * r));
        let norms = row_norms(&w, &a, &b, 0.25, [n, k, r], false);
        let turned: Vec<f64> = (0..n * k).map(|place| w[place % n * k + place / n]).collect();
        assert_close("transposed", &row_norms(&turned, &a, &b, 0.25, [n, k, r], true), &norms, 1e-14);
        let whole: Vec<f64> =
            matmul_nn(&b, &a, n, k, r).iter().zip(&w).map(|(ba, w)| w + 0.25 * ba).collect();
        let lengths: Vec<f64> = whole.chunks(k).map(|row| dot(row, row).sqrt()).collect();
        assert_close("norms", &norms, &lengths, 1e-14);
        let (y, magnitudes, dz) = (random.normal(m * n), random.normal(n), random.normal(m * n));
        let f = |y: &[f64], magnitudes: &[f64]| dot(&scaled_columns(y, magnitudes, &norms), &dz);
        let [dy, dm] = scaled_columns_backward(&y, &magnitudes, &norms, &dz);
        assert_gradient("dy", &dy, &y, |y| f(y, &magnitudes));
        assert_gradient("dm", &dm, &magnitudes, |magnitudes| f(&y, magnitudes));
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
