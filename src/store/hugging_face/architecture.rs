//! The published architecture nearest to a mixture of experts, and what it lacks.
//!
//! | the mixture | architecture | computes the same if |
//! |---|---|---|
//! | has a gated shared expert | `Qwen2MoeForCausalLM` | plain softmax, no QK-norm |
//! | has sigmoid scores | `Glm4MoeForCausalLM`: DeepSeek-V3's router and tensors with ordinary attention | it has a shared expert whose width is a multiple of an expert's; groups, if any, are scored by their best two experts |
//! | has a shared expert without a gate, or groups, or no QK-norm | `DeepseekForCausalLM` (DeepSeek-MoE) | plain softmax, no QK-norm, heads as wide together as the model; the shared expert, if any, as above |
//! | otherwise | `Qwen3MoeForCausalLM` | plain softmax |
//!
//! "Plain softmax" means no selection bias, no groups, and gates that are not scaled. Mixtral computes the same as
//! DeepSeek-MoE without a shared expert, but names its tensors differently. Capacity, which drops tokens in training,
//! has no key.

use crate::model::config::{MixtureConfig, ModelConfig};
use crate::ops::route::{GroupScore, RouterConfig, Score};

/// A published architecture of a mixture of experts.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Architecture {
    Qwen2,
    Qwen3,
    Glm4,
    DeepSeek,
}

impl Architecture {
    /// The one nearest to `model`.
    pub fn nearest(model: &ModelConfig, mixture: &MixtureConfig) -> Self {
        match (mixture.shared, mixture.route.score) {
            (Some(shared), _) if shared.is_gated => Self::Qwen2,
            (_, Score::Sigmoid) => Self::Glm4,
            (None, Score::Softmax) if mixture.route.groups.is_none() && model.qk_norm => Self::Qwen3,
            (_, Score::Softmax) => Self::DeepSeek,
        }
    }

    /// Its entries in `architectures` and `model_type`.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Qwen2 => ("Qwen2MoeForCausalLM", "qwen2_moe"),
            Self::Qwen3 => ("Qwen3MoeForCausalLM", "qwen3_moe"),
            Self::Glm4 => ("Glm4MoeForCausalLM", "glm4_moe"),
            Self::DeepSeek => ("DeepseekForCausalLM", "deepseek"),
        }
    }

    /// What `model` has and this architecture does not.
    pub fn lacks(self, model: &ModelConfig, mixture: &MixtureConfig) -> Vec<&'static str> {
        use Architecture::{DeepSeek, Glm4, Qwen2};
        let RouterConfig { score, groups, scaling, .. } = mixture.route;
        let is_plain = self != Glm4; // a plain softmax
        let odd_width = mixture
            .shared
            .is_some_and(|shared| !shared.intermediate_size.is_multiple_of(mixture.intermediate_size));
        let counts_best = groups.is_some_and(|groups| groups.score == GroupScore::Best);
        let checks = [
            (is_plain && score == Score::Sigmoid, "sigmoid scores"),
            (is_plain && mixture.has_bias, "bias on the choice of experts"),
            (is_plain && groups.is_some(), "groups of experts"),
            (is_plain && scaling != 1.0, "routed_scaling_factor"),
            (!is_plain && counts_best, "groups that count by their best expert"),
            (!is_plain && mixture.shared.is_none(), "form without a shared expert"),
            (self != Qwen2 && odd_width, "shared expert of this width"),
            (matches!(self, Qwen2 | DeepSeek) && model.qk_norm, "QK-norm"),
            (
                self == DeepSeek && model.head_dim * model.num_heads != model.hidden_size,
                "head_dim of its own",
            ),
        ];
        checks.into_iter().filter(|(lacks, _)| *lacks).map(|(_, what)| what).collect()
    }
}
