//! InternLM and InternLM2.

use super::{Model, TypeEntry, nothing, plain};
use crate::model::config::Family;
use crate::settings::engine::*;

pub(super) const INTERNLM: TypeEntry = TypeEntry {
    word: "InternLMConfig",
    class: None,
    architectures: "InternLMForCausalLM InternLMForCausalLMWithLora",
    about: "InternLM: a Llama with a bias in all projections of attention (`has_bias`).",
    base: super::LLAMA,
    others: &[],
    prepare,
    family: Family::Llama,
    finish: nothing,
};

pub(super) const INTERNLM2: TypeEntry = TypeEntry {
    word: "InternLM2Config",
    class: None,
    architectures: "InternLM2ForCausalLM InternLM2ForCausalLMWithLora",
    about: "InternLM2: a Llama whose published weights hold q, k and v as one matrix.",
    base: super::LLAMA,
    others: &[],
    prepare: plain,
    family: Family::Llama,
    finish: nothing,
};

fn prepare(model: &mut Model, _: &Reader<'_>) {
    model.has_bias.get_or_insert(true);
}
