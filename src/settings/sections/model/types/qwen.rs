//! Qwen, the first version. Qwen1.5 and Qwen2 are of the type LlamaConfig in MindFormers.

use super::{Model, TypeEntry, nothing};
use crate::model::config::Family;
use crate::settings::engine::*;

pub(super) const QWEN: TypeEntry = TypeEntry {
    word: "QwenConfig",
    class: None,
    architectures: "QwenForCausalLM QwenForCausalLMWithLora",
    about: "Qwen 1: a Llama with a bias in the projections to q, k and v. `intermediate_size` is the width of gate and up each, as in \
        MindFormers' files; Qwen's own configuration writes twice that.",
    base: super::LLAMA,
    others: &[],
    prepare,
    family: Family::Llama,
    finish: nothing,
};

fn prepare(model: &mut Model, _: &Reader<'_>) {
    model.qkv_has_bias.get_or_insert(true);
}
