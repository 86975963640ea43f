//! Files of models with experts.

use super::rotating;
use crate::hugging_face::export::hugging_face_config;
use crate::model::config::{
    BalanceLosses, ExpertGroups, Family, GateNorm, GroupScore, LatentAttention, MixtureConfig, ModelConfig,
    MultiToken, RouterConfig, Score, SharedExpert, Sizes, TokenDispatch,
};
use serde_json::json;

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

/// A mixture as Qwen3 has it.
pub(in crate::hugging_face) fn qwen3() -> MixtureConfig {
    MixtureConfig {
        route: RouterConfig {
            experts: 6,
            chosen: 2,
            score: Score::Softmax,
            groups: None,
            norm: Some(GateNorm::SUM),
            scaling: 1.0,
        },
        has_bias: false,
        bias_update_rate: 0.0,
        intermediate_size: 5,
        first_dense_layers: 0,
        shared: None,
        losses: BalanceLosses { expert: 0.5, ..BalanceLosses::default() },
        is_beside_dense: false,
        dispatch: TokenDispatch::Dropless { safe_tokens: false },
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
    assert_eq!((&config["router_aux_loss_coef"], &config["intermediate_size"]), (&json!(0.25), &json!(12)));
    assert!(config.get("num_nextn_predict_layers").is_none());
}

#[test]
fn a_glm_predicts_further_ahead() {
    let groups = ExpertGroups { count: 3, chosen: 2, score: GroupScore::BestTwo };
    let route = RouterConfig { score: Score::Sigmoid, groups: Some(groups), scaling: 2.5, ..qwen3().route };
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
    assert_eq!((&config["topk_method"], &config["scoring_func"]), (&json!("noaux_tc"), &json!("sigmoid")));
    assert_eq!((&config["routed_scaling_factor"], &config["mlp_only_layers"]), (&json!(2.5), &json!([0, 1])));
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
        let lacking = note.as_deref().and_then(|note| {
            let (_, lacking) = note.split_once("but it has ").or(note.split_once("and has "))?;
            Some(lacking)
        });
        assert_eq!(lacking, lacks);
    };
    let plain = |mixture| ModelConfig { qk_norm: false, ..model(mixture) };
    let shared = |intermediate_size, is_gated| MixtureConfig {
        shared: Some(SharedExpert { intermediate_size, is_gated }),
        ..qwen3()
    };
    let routed = |route: RouterConfig| MixtureConfig { route, ..qwen3() };
    let groups = |score| Some(ExpertGroups { count: 3, chosen: 2, score });
    let biased = MixtureConfig { has_bias: true, ..routed(RouterConfig { scaling: 2.0, ..qwen3().route }) };
    expect(model(qwen3()), "qwen3_moe", None);
    let unnormalised = || routed(RouterConfig { norm: None, ..qwen3().route });
    expect(plain(qwen3()), "mixtral", None);
    expect(plain(unnormalised()), "deepseek", None);
    expect(plain(routed(RouterConfig { chosen: 1, norm: None, ..qwen3().route })), "deepseek", None);
    expect(plain(shared(7, true)), "qwen2_moe", None);
    expect(plain(shared(10, false)), "deepseek", None);
    expect(plain(shared(7, false)), "deepseek", Some("no shared expert of this width"));
    expect(model(shared(7, true)), "qwen2_moe", Some("no QK-norm"));
    expect(model(biased), "qwen3_moe", Some("no bias on the choice of experts, no routed_scaling_factor"));
    let best = RouterConfig { groups: groups(GroupScore::Best), ..qwen3().route };
    expect(plain(routed(best)), "deepseek", Some("no groups of experts"));
    let wide_heads = |mixture| rotating(plain(mixture).with_layers(|layer| layer.head_dim = 8), 8);
    expect(wide_heads(qwen3()), "mixtral", None);
    expect(wide_heads(unnormalised()), "deepseek", Some("no head_dim of its own"));
    expect(
        ModelConfig { qkv_bias: true, ..plain(qwen3()) },
        "deepseek",
        Some("no biases of q, k and v alone"),
    );
    expect(rotating(model(qwen3()), 2), "qwen3_moe", Some("no partial rotary embedding"));
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

#[test]
fn latent_attention_has_the_routers_of_deepseek() {
    let latent = LatentAttention { q_rank: None, kv_rank: 8, nope_dim: 4, rope_dim: 4, value_dim: 4 };
    let of = |route: RouterConfig, is_gated, has_bias| {
        let shared = Some(SharedExpert { intermediate_size: 10, is_gated });
        let mixture = MixtureConfig { route, shared, has_bias, ..qwen3() };
        let model = latent.within(ModelConfig { qk_norm: false, norm_eps: 1e-6, ..model(mixture) });
        let config = hugging_face_config(&model);
        let note = config.get("gristmill_note").map(|note| note.as_str().unwrap().to_string());
        (
            config["model_type"].as_str().unwrap().to_string(),
            note.map(|note| note.split_once("has ").unwrap().1.to_string()),
        )
    };
    let groups = |score| Some(ExpertGroups { count: 3, chosen: 2, score });
    let plain = RouterConfig { norm: None, scaling: 2.0, ..qwen3().route };
    let v2 = |groups, is_gated, has_bias| of(RouterConfig { groups, ..plain }, is_gated, has_bias);
    let named = |kind: &str, note: Option<&str>| (kind.to_string(), note.map(str::to_string));
    assert_eq!(v2(None, false, false), named("deepseek_v2", None));
    assert_eq!(v2(groups(GroupScore::Best), false, false), named("deepseek_v2", None));
    let lacks = "no bias on the choice of experts, no groups that count by their two best experts";
    assert_eq!(v2(groups(GroupScore::BestTwo), false, true), named("deepseek_v2", Some(lacks)));
    let normed = of(RouterConfig { norm: Some(GateNorm::SUM), ..plain }, false, false);
    assert_eq!(normed, named("deepseek_v2", Some("no gates that are made to sum to 1")));
    let sigmoid = RouterConfig { score: Score::Sigmoid, norm: Some(GateNorm::SUM), ..plain };
    let v3 = |groups, is_gated| of(RouterConfig { groups, ..sigmoid }, is_gated, true);
    assert_eq!(v3(groups(GroupScore::BestTwo), false), named("deepseek_v3", None));
    assert_eq!(v3(None, true), named("deepseek_v3", Some("no gate of the shared expert")));
    let best = "no groups that count by their best expert";
    assert_eq!(v3(groups(GroupScore::Best), false), named("deepseek_v3", Some(best)));
}

#[test]
fn a_mixtral_has_its_own_keys() {
    let config = hugging_face_config(&ModelConfig { qk_norm: false, ..model(qwen3()) });
    assert_eq!(config["architectures"], json!(["MixtralForCausalLM"]));
    assert_eq!((&config["num_local_experts"], &config["intermediate_size"]), (&json!(6), &json!(5)));
    assert!(config.get("num_experts").is_none());
}

/// No published class of GPT-2's kind has experts: the note says so, and the keys say what they are.
#[test]
fn experts_of_gpt2_have_a_note() {
    let sizes = Sizes {
        vocab_size: 64,
        hidden_size: 32,
        num_layers: 3,
        num_heads: 4,
        intermediate_size: 128,
        seq_length: 16,
    };
    let note = |class: &str| format!("{class} is the nearest architecture, but it has no experts");
    for (family, class, note) in [
        (Family::Gpt2, "GPT2LMHeadModel", note("GPT2LMHeadModel")),
        (Family::Bloom, "BloomForCausalLM", note("BloomForCausalLM")),
        (
            Family::Pangu,
            "GPTPanguForCausalLM",
            "transformers has no GPTPanguForCausalLM, whose code is published with its weights and has no experts".into(),
        ),
    ] {
        let learns_queries = family == Family::Pangu;
        let model = ModelConfig { family, mixture: Some(qwen3()), ..ModelConfig::gpt2(sizes) };
        let model = if learns_queries { model.with_query_table() } else { model };
        let config = hugging_face_config(&model);
        assert_eq!(config["architectures"], json!([class]));
        assert_eq!(config["gristmill_note"], json!(note));
        assert_eq!(config["num_experts"], json!(qwen3().experts()));
        assert_eq!(config["mlp_only_layers"], if learns_queries { json!([2]) } else { json!([]) });
    }
}
