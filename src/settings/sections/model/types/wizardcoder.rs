//! WizardCoder and StarCoder (Li et al., 2023), which are GPTBigCode.

use super::{Model, TypeEntry, plain};
use crate::model::config::{Family, ModelConfig};
use crate::settings::engine::*;

pub(super) const WIZARDCODER: TypeEntry = TypeEntry {
    word: "WizardCoderConfig",
    class: None,
    architectures: "WizardCoderLMHeadModel",
    about: "WizardCoder and StarCoder (GPTBigCode): a GPT-2 whose query heads share one key and value head.",
    base: super::GPT2,
    others: &[ignored("start_token_id", "about generation; `gristmill generate` takes flags")],
    prepare: plain,
    family: Family::BigCode,
    finish,
};

fn finish(_: &Model, config: &mut ModelConfig) {
    config.num_kv_heads = 1;
}
