//! The keys of `config.json` that a mixture of experts adds.
//!
//! There is no one architecture for all mixtures, but their tensors have the same names, Mixtral's excepted. So the file
//! names the nearest architecture, and has every key under the name that Qwen gives it and under DeepSeek's.

use super::architecture::Architecture;
use crate::model::config::{MixtureConfig, ModelConfig};
use crate::ops::route::{GroupScore, Score};
use serde_json::{Map, Value, json};

/// The keys of `mixture`, which replace those of a dense model.
pub(super) fn mixture_config(
    model: &ModelConfig,
    mixture: &MixtureConfig,
    architecture: Architecture,
) -> Map<String, Value> {
    let (experts, chosen) = (mixture.experts(), mixture.chosen());
    let shared = mixture.shared.map_or(0, |shared| shared.intermediate_size);
    let scoring = match mixture.route.score {
        Score::Softmax => "softmax",
        Score::Sigmoid => "sigmoid",
    };
    let method = match mixture.route.groups.map(|groups| groups.score) {
        None if mixture.has_bias => "noaux_tc",
        None => "greedy",
        Some(GroupScore::Best) => "group_limited_greedy",
        Some(GroupScore::BestTwo) => "noaux_tc",
    };
    let (groups, kept_groups) = mixture.route.groups.map_or((1, 1), |groups| (groups.count, groups.chosen));
    let losses = mixture.losses;
    let is_by_sequence = losses.sequence != 0.0;
    let is_dense = |layer: &usize| model.mixture_of(*layer).is_none();
    let dense: Vec<usize> = (0..model.num_layers).filter(is_dense).collect();
    let Value::Object(mut keys) = json!({
        "moe_intermediate_size": mixture.intermediate_size,
        "num_experts_per_tok": chosen,
        "norm_topk_prob": mixture.route.norm_top_k,
        // Qwen's names.
        "qkv_bias": model.qkv_bias,
        "num_experts": experts,
        "shared_expert_intermediate_size": shared,
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
        // In Hugging Face's loss the experts' shares of the choices sum to k, in ours to 1.
        "router_aux_loss_coef": losses.expert / chosen as f64,
        "output_router_logits": losses.expert != 0.0,
        // DeepSeek's names.
        "n_routed_experts": experts,
        "n_shared_experts": (shared > 0).then(|| shared.div_ceil(mixture.intermediate_size)),
        "moe_layer_freq": 1,
        "first_k_dense_replace": mixture.first_dense_layers,
        "scoring_func": scoring,
        "topk_method": method,
        "n_group": groups,
        "topk_group": kept_groups,
        "routed_scaling_factor": mixture.route.scaling,
        "aux_loss_alpha": if is_by_sequence { losses.sequence } else { losses.expert },
        "seq_aux": is_by_sequence,
        // GLM's name.
        "use_qk_norm": model.qk_norm,
    }) else {
        return Map::new();
    };
    if architecture == Architecture::Mixtral {
        keys.insert("intermediate_size".into(), mixture.intermediate_size.into());
        keys.insert("num_local_experts".into(), experts.into());
        // transformers takes it for another name of `num_local_experts`.
        keys.remove("num_experts");
    }
    keys
}

#[cfg(test)]
pub(in crate::hugging_face) mod tests;
