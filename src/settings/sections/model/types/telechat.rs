//! TeleChat.

use super::{Model, TypeEntry, nothing};
use crate::model::config::Family;
use crate::settings::engine::*;

pub(super) const TELECHAT: TypeEntry = TypeEntry {
    word: "TelechatConfig",
    class: None,
    architectures: "TelechatForCausalLM TelechatForCausalLMWithLora",
    about: "TeleChat: a Llama with a bias in the projections back to the residual stream, that of attention \
        (`attn_proj_has_bias`) and that of the feed-forward layer (`add_mlp_fc2_bias_linear`).",
    base: super::LLAMA,
    others: &[refused("mean", Passes::Off, "write 0: initial weights have mean 0")],
    prepare,
    family: Family::Llama,
    finish: nothing,
};

fn prepare(model: &mut Model, reader: &Reader<'_>) {
    // Files of the 7B model give the width itself by this name.
    if let (None, Some(width)) = (model.intermediate_size, model.ffn_dim_multiplier)
        && width.fract() == 0.0
        && width >= model.hidden_size as f64
    {
        reader.note("ffn_dim_multiplier", format!("{width} is the width of the feed-forward layer itself"));
        (model.intermediate_size, model.ffn_dim_multiplier) = (Some(width as usize), None);
    }
}
