//! Which linear layers have a bias.

use super::rows::Model;
use super::{GPT2, LLAMA};
use crate::settings::engine::*;

/// Decides each switch from the wider ones. What the base has by default is left out, as files without these keys mean it.
pub(super) fn fill(model: &mut Model, reader: &Reader<'_>) {
    let base = model.kind.is(GPT2);
    let (all, of_attention) = (model.add_bias_linear.take(), model.has_bias.take());
    let is_base = [LLAMA, GPT2].contains(&model.kind.word());
    let decide = |switch: &mut Option<bool>, wider: [Option<bool>; 2]| {
        let has_bias = switch.or(wider[0]).or(wider[1]).unwrap_or(base);
        *switch = (has_bias != base || !is_base).then_some(has_bias);
        has_bias
    };
    let qkv = decide(&mut model.qkv_has_bias, [of_attention, all]);
    model.qkv_has_bias = Some(qkv);
    decide(&mut model.attn_proj_has_bias, [of_attention, all]);
    decide(&mut model.add_mlp_fc1_bias_linear, [None, all]);
    decide(&mut model.add_mlp_fc2_bias_linear, [None, all]);
    let keys = [
        "add_bias_linear",
        "has_bias",
        "qkv_has_bias",
        "attn_proj_has_bias",
        "add_mlp_fc1_bias_linear",
        "add_mlp_fc2_bias_linear",
    ];
    let is_off = |key: &&str| reader.node(key).and_then(bool::from_node) == Some(false);
    for key in keys.iter().filter(|key| base && is_off(key)) {
        reader.fault(key, "not built yet (found `False`); write `True`");
    }
}
