//! PanGu-α (Zeng et al., 2021) and CodeGeeX.
//!
//! The last norm comes before the query layer, as in the published models. MindFormers has it there on one pipeline
//! stage and after that layer on several, which is another model.

use super::{Model, TypeEntry};
use crate::model::config::{Activation, Family, Gelu, ModelConfig};
use crate::settings::engine::*;

pub(super) const PANGU: TypeEntry = TypeEntry {
    word: "PanguAlphaConfig",
    class: None,
    architectures: "PanguAlphaHeadModel CodeGeexHeadModel",
    about: "PanGu-α and CodeGeeX: a GPT-2 whose last layer, the query layer, projects its queries from a learned table by \
        position. The last norm is before that layer, as in the published models and in MindFormers on one stage; on several \
        stages MindFormers has it after that layer, which is another model.",
    base: super::GPT2,
    others: &[ignored("dropout_rate", "without effect in MindFormers, which reads one rate for each place")],
    prepare,
    family: Family::Pangu,
    finish,
};

fn prepare(model: &mut Model, _: &Reader<'_>) {
    model.hidden_act.get_or_insert(Activation::Gelu(Gelu::Fast));
}

fn finish(_: &Model, config: &mut ModelConfig) {
    config.query_layer = true;
}
