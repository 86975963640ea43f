//! What the mixtures of DeepSeek's types are where a file is silent.

use super::rows::Moe;
use crate::settings::engine::*;
use crate::settings::sections::model::{DEEPSEEK_V2, DEEPSEEK_V3, ModelType};

/// The router of DeepSeek-V3: sigmoid scores, and a bias that balances the experts. That of V2 leaves gates as they are. Both
/// have shared experts.
pub(super) fn fill(moe: &mut Moe, reader: &Reader<'_>, kind: ModelType) {
    let (is_v2, is_v3) = (kind.word() == DEEPSEEK_V2, kind.word() == DEEPSEEK_V3);
    if !is_v2 && !is_v3 {
        return;
    }
    let has_shared =
        ["shared_expert_num", "moe_shared_expert_intermediate_size"].iter().any(|key| reader.has(key));
    if !has_shared {
        moe.shared_expert_num = if is_v2 { 2 } else { 1 };
    }
    if is_v2 {
        moe.norm_topk_prob.get_or_insert(false);
        return;
    }
    moe.use_gating_sigmoid |= !reader.has("use_gating_sigmoid");
    if !reader.has("routed_scaling_factor") {
        moe.routed_scaling_factor = 2.5;
    }
    moe.balance_via_topk_bias |= !reader.has("balance_via_topk_bias");
    if moe.balance_via_topk_bias {
        moe.topk_bias_update_rate.get_or_insert(1e-3);
    }
}
