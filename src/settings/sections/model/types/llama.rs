//! Llama, and what MindFormers computes by Llama's classes: Llama 1 to 3, CodeLlama, Yi, Qwen1.5 and Qwen2, Mixtral.

use super::{TypeEntry, nothing, plain};
use crate::model::config::Family;
use crate::settings::engine::*;

pub(super) const LLAMA: TypeEntry = TypeEntry {
    word: super::LLAMA,
    class: None,
    architectures: "LlamaForCausalLM LlamaForCausalLMWithLora",
    about: "Llama 1 to 3, Yi, Qwen1.5 and Qwen2, Mixtral: RMSNorm, rotary positions, SwiGLU.",
    base: super::LLAMA,
    others: &[],
    prepare: plain,
    family: Family::Llama,
    finish: nothing,
};

/// What a Llama is, whatever a file says.
pub(super) const FIXED: &[Other] = &[
    refused("gated_linear_unit", Passes::On, "write `True`"),
    refused("post_layernorm_residual", Passes::Off, "write `False`"),
    refused("normalization", Passes::Words("RMSNorm"), "write `normalization: RMSNorm`"),
];
