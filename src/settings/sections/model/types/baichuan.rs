//! Baichuan (Yang et al., 2023): classes of LlamaConfig in MindFormers. Baichuan 1 of 7B is a Llama, whose class says so.

use super::{Model, TypeEntry, plain};
use crate::model::config::{Family, ModelConfig, Positions};
use crate::settings::engine::*;

/// Added to the squared length of a row of the head.
const HEAD_EPSILON: f64 = 1e-5;

pub(super) const BAICHUAN2_7B: TypeEntry = TypeEntry {
    word: "Baichuan2_7BConfig",
    class: Some(super::LLAMA),
    architectures: "Baichuan7BV2ForCausalLM Baichuan7BV2ForCausalLMWithLora",
    about: "Baichuan 2 of 7B: a Llama that divides each row of its head by the row's length, the root of its sum of squares plus \
        1e-5. The published code has no epsilon there.",
    base: super::LLAMA,
    others: &[ignored("user_token_id assistant_token_id", "about MindFormers' chat template")],
    prepare: plain,
    family: Family::Baichuan,
    finish: of_unit_rows,
};

pub(super) const BAICHUAN_13B: TypeEntry = TypeEntry {
    word: "Baichuan_13BConfig",
    architectures: "Baichuan13BForCausalLM",
    about: "Baichuan of 13B: a Llama whose scores of attention fall with distance (ALiBi) instead of rotary positions.",
    finish: with_alibi,
    ..BAICHUAN2_7B
};

pub(super) const BAICHUAN2_13B: TypeEntry = TypeEntry {
    word: "Baichuan2_13BConfig",
    architectures: "Baichuan13BV2ForCausalLM Baichuan13BV2ForCausalLMWithLora",
    about: "Baichuan 2 of 13B: Baichuan of 13B with the head of Baichuan 2 of 7B.",
    finish: with_both,
    ..BAICHUAN2_7B
};

fn of_unit_rows(_: &Model, config: &mut ModelConfig) {
    config.head_epsilon = Some(HEAD_EPSILON);
}

fn with_alibi(_: &Model, config: &mut ModelConfig) {
    config.positions = Positions::Alibi;
}

fn with_both(model: &Model, config: &mut ModelConfig) {
    of_unit_rows(model, config);
    with_alibi(model, config);
}
