//! The keys of `config.json` that a mixture of experts adds.
//!
//! There is no one architecture for all mixtures, but their tensors go by the same names, so the file names the one that
//! computes the same where there is one, and has every key under the name that Qwen gives it and under DeepSeek's:
//!
//! | the mixture | architecture |
//! |---|---|
//! | a gated shared expert | `Qwen2MoeForCausalLM` |
//! | sigmoid scores | `Glm4MoeForCausalLM`: DeepSeek-V3's router and tensors with ordinary attention |
//! | a shared expert without a gate, or groups | `DeepseekForCausalLM`, DeepSeek-MoE |
//! | otherwise | `Qwen3MoeForCausalLM` |
//!
//! Mixtral computes what the last one does without QK-norm, but calls its tensors otherwise. Capacity, which drops tokens in
//! training, has no key.

use crate::model::config::{MixtureConfig, ModelConfig};
use crate::ops::route::{GroupScore, Score};
use serde_json::{Map, Value, json};

/// The keys of `mixture`; they take the place of those of a dense model.
pub(super) fn mixture_config(model: &ModelConfig, mixture: &MixtureConfig) -> Map<String, Value> {
    let (architecture, model_type) = architecture(mixture);
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
    let dense: Vec<usize> = (0..mixture.first_dense_layers.min(model.num_layers)).collect();
    let keys = json!({
        "architectures": [architecture],
        "model_type": model_type,
        "moe_intermediate_size": mixture.intermediate_size,
        "num_experts_per_tok": chosen,
        "norm_topk_prob": mixture.route.norm_top_k,
        // Qwen's names.
        "num_experts": experts,
        "shared_expert_intermediate_size": shared,
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
        // Hugging Face's shares of the choices sum to k, ours to 1.
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
    });
    match keys {
        Value::Object(keys) => keys,
        _ => Map::new(),
    }
}

fn architecture(mixture: &MixtureConfig) -> (&'static str, &'static str) {
    match (mixture.shared, mixture.route.score) {
        (Some(shared), _) if shared.is_gated => ("Qwen2MoeForCausalLM", "qwen2_moe"),
        (_, Score::Sigmoid) => ("Glm4MoeForCausalLM", "glm4_moe"),
        (Some(_), Score::Softmax) => ("DeepseekForCausalLM", "deepseek"),
        (None, Score::Softmax) if mixture.route.groups.is_some() => ("DeepseekForCausalLM", "deepseek"),
        (None, Score::Softmax) => ("Qwen3MoeForCausalLM", "qwen3_moe"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::hugging_face_config;
    use super::*;
    use crate::model::config::{BalanceLosses, Dispatch, MultiToken, SharedExpert, Sizes};
    use crate::ops::route::{Groups, Route};

    fn model(mixture: MixtureConfig) -> ModelConfig {
        let sizes = Sizes {
            vocab_size: 16,
            hidden_size: 8,
            num_layers: 3,
            num_heads: 2,
            intermediate_size: 12,
            seq_length: 4,
        };
        ModelConfig { mixture: Some(mixture), qk_norm: true, ..ModelConfig::llama(sizes) }
    }

    fn qwen3() -> MixtureConfig {
        MixtureConfig {
            route: Route {
                experts: 6,
                chosen: 2,
                score: Score::Softmax,
                groups: None,
                norm_top_k: true,
                scaling: 1.0,
            },
            has_bias: false,
            bias_update_rate: 0.0,
            intermediate_size: 5,
            first_dense_layers: 0,
            shared: None,
            losses: BalanceLosses { expert: 0.5, ..BalanceLosses::default() },
            dispatch: Dispatch::Dropless { safe_tokens: false },
            fuses_permutation: false,
            router_init_std: 0.02,
        }
    }

    #[test]
    fn a_qwen3_of_experts() {
        let config = hugging_face_config(&model(qwen3()));
        assert_eq!(config["architectures"], json!(["Qwen3MoeForCausalLM"]));
        let keys =
            ["model_type", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"];
        assert_eq!(
            keys.map(|key| config[key].clone()),
            [json!("qwen3_moe"), json!(6), json!(2), json!(5), json!(true)]
        );
        assert_eq!((&config["mlp_only_layers"], &config["decoder_sparse_step"]), (&json!([]), &json!(1)));
        assert_eq!(
            (&config["router_aux_loss_coef"], &config["intermediate_size"]),
            (&json!(0.25), &json!(12))
        );
        assert!(config.get("num_nextn_predict_layers").is_none());
    }

    #[test]
    fn a_glm_predicts_further_ahead() {
        let groups = Groups { count: 3, chosen: 2, score: GroupScore::BestTwo };
        let route = Route { score: Score::Sigmoid, groups: Some(groups), scaling: 2.5, ..qwen3().route };
        let shared = Some(SharedExpert { intermediate_size: 10, is_gated: false });
        let mixture = MixtureConfig { route, has_bias: true, first_dense_layers: 2, shared, ..qwen3() };
        let multi_token = Some(MultiToken { depth: 1, loss_factor: 0.3 });
        let config = hugging_face_config(&ModelConfig { multi_token, ..model(mixture) });
        assert_eq!(config["architectures"], json!(["Glm4MoeForCausalLM"]));
        let numbers = [
            "n_routed_experts",
            "n_shared_experts",
            "n_group",
            "topk_group",
            "first_k_dense_replace",
            "num_nextn_predict_layers",
        ];
        assert_eq!(numbers.map(|key| config[key].as_u64()), [6, 2, 3, 2, 2, 1].map(Some));
        assert_eq!(
            (&config["topk_method"], &config["scoring_func"]),
            (&json!("noaux_tc"), &json!("sigmoid"))
        );
        assert_eq!(
            (&config["routed_scaling_factor"], &config["mlp_only_layers"]),
            (&json!(2.5), &json!([0, 1]))
        );
    }

    #[test]
    fn the_shared_expert_tells_qwen2_from_deep_seek() {
        let of = |is_gated| {
            let shared = Some(SharedExpert { intermediate_size: 7, is_gated });
            let losses = BalanceLosses { sequence: 0.1, ..BalanceLosses::default() };
            hugging_face_config(&model(MixtureConfig { shared, losses, ..qwen3() }))
        };
        assert_eq!(of(true)["model_type"], json!("qwen2_moe"));
        assert_eq!(of(true)["shared_expert_intermediate_size"], json!(7));
        assert_eq!(of(false)["model_type"], json!("deepseek"));
        assert_eq!((&of(false)["aux_loss_alpha"], &of(false)["seq_aux"]), (&json!(0.1), &json!(true)));
    }
}
