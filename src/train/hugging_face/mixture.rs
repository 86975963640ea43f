//! The keys of `config.json` that a mixture of experts adds.
//!
//! There is no one architecture for all mixtures, but their tensors go by the same names, so the file names the nearest, and
//! has every key under the name that Qwen gives it and under DeepSeek's:
//!
//! | the mixture | architecture | computes the same with |
//! |---|---|---|
//! | a gated shared expert | `Qwen2MoeForCausalLM` | softmax alone, no QK-norm |
//! | sigmoid scores | `Glm4MoeForCausalLM`: DeepSeek-V3's router and tensors with ordinary attention | a shared expert, a multiple of an expert wide, groups by their best two or none |
//! | a shared expert without a gate, groups, or no QK-norm | `DeepseekForCausalLM`, DeepSeek-MoE | softmax alone, no QK-norm, heads as wide together as the model, the shared expert as above or none |
//! | otherwise | `Qwen3MoeForCausalLM` | softmax alone |
//!
//! "Softmax alone" is no bias on the choice, no groups and gates that are not scaled. Where the architecture does not
//! compute the same, the key `gristmill_note` says what it lacks.
//!
//! Mixtral computes what DeepSeek-MoE does without a shared expert, but calls its tensors otherwise. Capacity, which drops
//! tokens in training, has no key.

use crate::model::config::{MixtureConfig, ModelConfig};
use crate::ops::route::{GroupScore, RouterConfig, Score};
use serde_json::{Map, Value, json};

/// The keys of `mixture`; they take the place of those of a dense model.
pub(super) fn mixture_config(model: &ModelConfig, mixture: &MixtureConfig) -> Map<String, Value> {
    let nearest = nearest(model, mixture);
    let (architecture, model_type) = nearest.names();
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
        "qkv_bias": model.qkv_bias,
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
    let mut keys = match keys {
        Value::Object(keys) => keys,
        _ => Map::new(),
    };
    let lacking = lacking(model, mixture, nearest);
    if !lacking.is_empty() {
        let note =
            format!("{architecture} is the nearest architecture, but it has no {}", lacking.join(", no "));
        keys.insert("gristmill_note".into(), note.into());
    }
    keys
}

#[derive(Clone, Copy, PartialEq)]
enum Architecture {
    Qwen2,
    Qwen3,
    Glm4,
    DeepSeek,
}

impl Architecture {
    /// Its name and its type.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Qwen2 => ("Qwen2MoeForCausalLM", "qwen2_moe"),
            Self::Qwen3 => ("Qwen3MoeForCausalLM", "qwen3_moe"),
            Self::Glm4 => ("Glm4MoeForCausalLM", "glm4_moe"),
            Self::DeepSeek => ("DeepseekForCausalLM", "deepseek"),
        }
    }
}

fn nearest(model: &ModelConfig, mixture: &MixtureConfig) -> Architecture {
    match (mixture.shared, mixture.route.score) {
        (Some(shared), _) if shared.is_gated => Architecture::Qwen2,
        (_, Score::Sigmoid) => Architecture::Glm4,
        (None, Score::Softmax) if mixture.route.groups.is_none() && model.qk_norm => Architecture::Qwen3,
        (_, Score::Softmax) => Architecture::DeepSeek,
    }
}

/// What the model has and `architecture` does not.
fn lacking(model: &ModelConfig, mixture: &MixtureConfig, architecture: Architecture) -> Vec<&'static str> {
    use Architecture::{DeepSeek, Glm4, Qwen2};
    let RouterConfig { score, groups, scaling, .. } = mixture.route;
    let is_plain = architecture != Glm4; // a softmax and nothing else
    let odd_width = mixture
        .shared
        .is_some_and(|shared| !shared.intermediate_size.is_multiple_of(mixture.intermediate_size));
    let checks = [
        (is_plain && score == Score::Sigmoid, "sigmoid scores"),
        (is_plain && mixture.has_bias, "bias on the choice of experts"),
        (is_plain && groups.is_some(), "groups of experts"),
        (is_plain && scaling != 1.0, "routed_scaling_factor"),
        (
            !is_plain && groups.is_some_and(|groups| groups.score == GroupScore::Best),
            "groups that count by their best expert",
        ),
        (!is_plain && mixture.shared.is_none(), "form without a shared expert"),
        (architecture != Qwen2 && odd_width, "shared expert of this width"),
        (matches!(architecture, Qwen2 | DeepSeek) && model.qk_norm, "QK-norm"),
        (
            architecture == DeepSeek && model.head_dim * model.num_heads != model.hidden_size,
            "head_dim of its own",
        ),
    ];
    checks.into_iter().filter(|(lacks, _)| *lacks).map(|(_, what)| what).collect()
}

#[cfg(test)]
mod tests {
    use super::super::hugging_face_config;
    use super::*;
    use crate::model::config::{BalanceLosses, MultiToken, SharedExpert, Sizes, TokenDispatch};
    use crate::ops::route::ExpertGroups;

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
            route: RouterConfig {
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
            dispatch: TokenDispatch::Dropless { safe_tokens: false },
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
        let groups = ExpertGroups { count: 3, chosen: 2, score: GroupScore::BestTwo };
        let route =
            RouterConfig { score: Score::Sigmoid, groups: Some(groups), scaling: 2.5, ..qwen3().route };
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

    #[test]
    fn a_note_says_what_the_nearest_architecture_lacks() {
        let named = |model: &ModelConfig| {
            let config = hugging_face_config(model);
            let note = config.get("gristmill_note").map(|note| note.as_str().unwrap().to_string());
            (config["model_type"].as_str().unwrap().to_string(), note)
        };
        let expect = |model: ModelConfig, model_type: &str, lacks: Option<&str>| {
            let (found, note) = named(&model);
            assert_eq!(found, model_type);
            let lacking = note.as_deref().map(|note| note.split_once(", but it has ").unwrap().1);
            assert_eq!(lacking, lacks);
        };
        let plain = |mixture| ModelConfig { qk_norm: false, ..model(mixture) };
        let shared = |intermediate_size, is_gated| MixtureConfig {
            shared: Some(SharedExpert { intermediate_size, is_gated }),
            ..qwen3()
        };
        let routed = |route: RouterConfig| MixtureConfig { route, ..qwen3() };
        let groups = |score| Some(ExpertGroups { count: 3, chosen: 2, score });
        let biased =
            MixtureConfig { has_bias: true, ..routed(RouterConfig { scaling: 2.0, ..qwen3().route }) };
        expect(model(qwen3()), "qwen3_moe", None);
        expect(plain(qwen3()), "deepseek", None);
        expect(plain(shared(7, true)), "qwen2_moe", None);
        expect(plain(shared(10, false)), "deepseek", None);
        expect(plain(shared(7, false)), "deepseek", Some("no shared expert of this width"));
        expect(model(shared(7, true)), "qwen2_moe", Some("no QK-norm"));
        expect(
            model(biased),
            "qwen3_moe",
            Some("no bias on the choice of experts, no routed_scaling_factor"),
        );
        let best = RouterConfig { groups: groups(GroupScore::Best), ..qwen3().route };
        expect(plain(routed(best)), "deepseek", Some("no groups of experts"));
        expect(ModelConfig { head_dim: 8, ..plain(qwen3()) }, "deepseek", Some("no head_dim of its own"));
        let sigmoid = |groups| RouterConfig { score: Score::Sigmoid, groups, scaling: 2.5, ..qwen3().route };
        let glm = |groups| MixtureConfig { has_bias: true, route: sigmoid(groups), ..shared(10, false) };
        expect(model(glm(groups(GroupScore::BestTwo))), "glm4_moe", None);
        expect(plain(glm(None)), "glm4_moe", None);
        expect(
            model(glm(groups(GroupScore::Best))),
            "glm4_moe",
            Some("no groups that count by their best expert"),
        );
        expect(model(routed(sigmoid(None))), "glm4_moe", Some("no form without a shared expert"));
        let gated = MixtureConfig { route: sigmoid(None), ..shared(7, true) };
        expect(plain(gated), "qwen2_moe", Some("no sigmoid scores, no routed_scaling_factor"));
    }
}
