//! InternLM and InternLM2.

use super::{TypeEntry, nothing, plain};
use crate::model::config::Family;

pub(super) const INTERNLM: TypeEntry = TypeEntry {
    word: "InternLMConfig",
    class: None,
    architectures: "InternLMForCausalLM InternLMForCausalLMWithLora",
    about: "InternLM: a Llama with a bias in all projections of attention (`has_bias`).",
    base: super::LLAMA,
    others: &[],
    prepare: plain,
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
