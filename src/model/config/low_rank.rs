//! Low-rank adapters (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021).

use crate::element::Element;
use std::collections::BTreeSet;

/// Adapters of a model's linear maps: y = x Wᵀ + (alpha / rank) · (dropout(x) Aᵀ) Bᵀ with A (rank, in) and B (out,
/// rank). Each expert has an A and a B of its own, and gate and up of an expert share A. The parameters of the model
/// itself are frozen.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// Rows of A and columns of B (r).
    pub rank: usize,
    /// The factor of the product of A and B, times r.
    pub alpha: f64,
    /// Dropout probability of the input of A; 0 with adapters of experts. Maps that are stored as one matrix share a
    /// mask.
    pub dropout: f64,
    /// Initial values of A; those of B are zeros.
    pub init: FactorInit,
    /// How the matrices of the model's layers are quantised (`gpu/element/quantised.rs`); `None`: they are stored in
    /// the type of their computation.
    pub base: Option<Element>,
    /// The maps that have adapters, by their names in files without `.weight`: `model.layers.0.self_attn.q_proj`.
    pub modules: BTreeSet<String>,
    /// The matrices of all experts of a layer that have adapters, by the names of their parameters in `transformers`:
    /// `model.layers.0.mlp.experts.gate_up_proj`.
    pub parameters: BTreeSet<String>,
}

/// Initial values of A.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FactorInit {
    /// Uniform in ±1 / √in (He et al., 2015, for a leaky rectifier of slope √5).
    #[default]
    HeUniform,
    /// Normal with a standard deviation of 0.01.
    Normal,
}

impl LowRank {
    /// The factor of the product of A and B.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// What has adapters, for people: `14 linear layers and each expert of 3 stacks`.
    pub(crate) fn adapted(&self) -> String {
        let (modules, stacks) = (self.modules.len(), self.parameters.len());
        let of_modules = (modules > 0 || stacks == 0).then(|| format!("{modules} linear layers"));
        let of_stacks = (stacks > 0).then(|| format!("each expert of {stacks} stacks"));
        of_modules.into_iter().chain(of_stacks).collect::<Vec<_>>().join(" and ")
    }

    /// Columns of the product with A for each adapter: r rounded up to a multiple of 4, where a range of columns can
    /// start.
    pub(crate) fn padded_rank(&self) -> usize {
        self.rank.next_multiple_of(4)
    }
}
