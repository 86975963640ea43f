//! Qwen, the first version. Qwen1.5 and Qwen2 are of the type LlamaConfig in MindFormers.

use super::{TypeEntry, nothing, plain};
use crate::model::config::Family;

pub(super) const QWEN: TypeEntry = TypeEntry {
    word: "QwenConfig",
    class: None,
    architectures: "QwenForCausalLM QwenForCausalLMWithLora",
    about: "Qwen 1: a Llama with a bias in the projections to q, k and v. `intermediate_size` is the width of gate and up each, as in \
        MindFormers' files; Qwen's own configuration writes twice that.",
    base: super::LLAMA,
    others: &[],
    prepare: plain,
    family: Family::Llama,
    finish: nothing,
};
