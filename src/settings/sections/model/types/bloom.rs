//! Bloom (Scao et al., 2022).

use super::{Model, TypeEntry, plain};
use crate::model::config::{Family, ModelConfig, Positions};
use crate::settings::engine::*;

pub(super) const BLOOM: TypeEntry = TypeEntry {
    word: "BloomConfig",
    class: None,
    architectures: "BloomLMHeadModel",
    about: "Bloom: a GPT-2 whose scores of attention fall with distance (ALiBi), with a norm of the embedded tokens and without \
        learned positions.",
    base: super::GPT2,
    others: &[ignored("unk_token_id", "about MindFormers' tokenizer")],
    prepare: plain,
    family: Family::Bloom,
    finish,
};

fn finish(_: &Model, config: &mut ModelConfig) {
    config.positions = Positions::Alibi;
    config.embedding_norm = true;
}
