//! Low-rank adapters (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021).

use crate::element::Element;
use std::collections::{BTreeMap, BTreeSet};

/// Adapters of a model's linear maps: y = x Wᵀ + (alpha / rank) · (dropout(x) Aᵀ) Bᵀ with A (rank, in) and B (out,
/// rank). Each expert has an A and a B of its own, and gate and up of an expert share A. The parameters of the model
/// itself are frozen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LowRank {
    /// Rows of A and columns of B (r), where `ranks` has no other.
    pub rank: usize,
    /// The factor of the product of A and B, times r or √r, where `alphas` has no other.
    pub alpha: f64,
    /// Whether the factor is alpha / √r and not alpha / r (rsLoRA; Kalajdzievski, "A rank stabilization scaling factor
    /// for fine-tuning with LoRA", 2023).
    pub is_rank_stabilised: bool,
    /// The ranks of some of `modules` and `parameters`, by their names.
    pub ranks: BTreeMap<String, usize>,
    /// The alphas of some of them.
    pub alphas: BTreeMap<String, f64>,
    /// Dropout probability of the input of A; 0 with adapters of experts. Maps that are stored as one matrix share a
    /// mask.
    pub dropout: f64,
    /// Initial values of A; those of B are zeros.
    pub init: FactorInit,
    /// How the matrices of the model's layers are quantised (`gpu/element/quantised.rs`); `None`: they are stored in
    /// the type of their computation.
    pub base: Option<Element>,
    /// How the products of `modules` are scaled.
    pub magnitudes: Magnitudes,
    /// Whether embedding and head are copies of the one matrix that is both in the base, since one of them trains.
    pub is_untied: bool,
    /// Whether an embedding that trains stays the head where the base ties the two.
    pub ensures_tying: bool,
    /// The maps that have adapters, by their names in files without `.weight`: `model.layers.0.self_attn.q_proj`.
    pub modules: BTreeSet<String>,
    /// The matrices of all experts of a layer that have adapters, by the names of their parameters in `transformers`:
    /// `model.layers.0.mlp.experts.gate_up_proj`.
    pub parameters: BTreeSet<String>,
}

/// How the product of a layer is scaled, column by column (DoRA; Liu et al., "DoRA: Weight-Decomposed Low-Rank
/// Adaptation", 2024).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Magnitudes {
    /// It is not.
    #[default]
    None,
    /// By learned magnitudes over the norms of the rows of W + scale · B A, which training takes for constants.
    Learned,
    /// By those quotients, which stand in place of the magnitudes: the weights do not change.
    Folded,
}

/// Initial values of A.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FactorInit {
    /// Uniform in ±1 / √in (He et al., 2015, for a leaky rectifier of slope √5).
    #[default]
    HeUniform,
    /// Normal with a standard deviation of 0.01.
    Normal,
    /// Normal with a standard deviation of 1 / r, PEFT's `gaussian`.
    Gaussian,
}

impl LowRank {
    /// The rank of the adapter of `name`, a linear map or a parameter of experts.
    pub fn rank_of(&self, name: &str) -> usize {
        self.ranks.get(name).copied().unwrap_or(self.rank)
    }

    /// The factor of the product of A and B of the adapter of `name`.
    pub fn scale_of(&self, name: &str) -> f64 {
        let (rank, alpha) = (self.rank_of(name) as f64, self.alphas.get(name).copied().unwrap_or(self.alpha));
        alpha / if self.is_rank_stabilised { rank.sqrt() } else { rank }
    }

    /// The adapters of a model whose weights do not change.
    pub(crate) fn fold(&mut self) {
        if self.magnitudes == Magnitudes::Learned {
            self.magnitudes = Magnitudes::Folded;
        }
    }

    /// The ranks of all adapters, for people: `rank 8`, or `ranks 4 to 16`.
    pub(crate) fn ranks_in_words(&self) -> String {
        let ranks = || self.names().map(|name| self.rank_of(name));
        match (ranks().min(), ranks().max()) {
            (Some(least), Some(most)) if least < most => format!("ranks {least} to {most}"),
            (least, _) => format!("rank {}", least.unwrap_or(self.rank)),
        }
    }

    /// The names of all that has adapters.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.modules.iter().chain(&self.parameters)
    }

    /// What has adapters, for people: `14 linear layers and each expert of 3 stacks`.
    pub(crate) fn adapted(&self) -> String {
        let (modules, stacks) = (self.modules.len(), self.parameters.len());
        let of_modules = (modules > 0 || stacks == 0).then(|| format!("{modules} linear layers"));
        let of_stacks = (stacks > 0).then(|| format!("each expert of {stacks} stacks"));
        of_modules.into_iter().chain(of_stacks).collect::<Vec<_>>().join(" and ")
    }

    /// The largest rank of an adapter.
    pub(crate) fn largest_rank(&self) -> usize {
        self.names().map(|name| self.rank_of(name)).max().unwrap_or(self.rank)
    }
}
