//! Which linear layers have a bias.

use super::rows::Model;
use super::{GPT2, LLAMA};
use crate::settings::engine::*;

/// Decides each switch.
pub(super) fn fill(model: &mut Model, reader: &Reader<'_>) {
    let base = model.kind.is(GPT2);
    let is_base = [LLAMA, GPT2].contains(&model.kind.word());
    // What the base has by default is left out, as files without these keys mean it.
    let decide = |switch: &mut Option<bool>| {
        let has_bias = switch.unwrap_or(base);
        *switch = (has_bias != base || !is_base).then_some(has_bias);
    };
    model.qkv_has_bias.get_or_insert(base);
    decide(&mut model.attn_proj_has_bias);
    decide(&mut model.add_mlp_fc1_bias_linear);
    decide(&mut model.add_mlp_fc2_bias_linear);
    let keys = ["qkv_has_bias", "attn_proj_has_bias", "add_mlp_fc1_bias_linear", "add_mlp_fc2_bias_linear"];
    let is_off = |key: &&str| reader.node(key).and_then(bool::from_node) == Some(false);
    for key in keys.iter().filter(|key| base && is_off(key)) {
        reader.fault(key, "not built yet (found `False`); write `True`");
    }
}
