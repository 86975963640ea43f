//! Mixtures of experts: every spelling, what reads back, and one line for what cannot be.

use super::{BASE, assert_answers, assert_reads_back, resolve};
use gristmill::model::config::{
    BalanceLosses, Capacity, DropOrder, ExpertGroups, GateNorm, GroupScore, HotExperts, MixtureConfig,
    MultiToken, RouterConfig, Score, SharedExpert, TokenDispatch,
};
use gristmill::settings::RunPlan;

/// The base with keys under `moe_config`, and others under the model; lines of the base stay where they are.
pub(super) fn text(moe: &str, model: &str) -> String {
    let model = format!("seq_length: 32\n    {model}");
    format!("{}moe_config: {{{moe}}}\n", BASE.replace("seq_length: 32", model.trim_end()))
}

/// A case of a table: the keys under `moe_config`, and those under the model after a bar.
pub(super) fn sides(keys: &str) -> (&str, &str) {
    let (moe, model) = keys.split_once('|').unwrap_or((keys, ""));
    (moe.trim(), model.trim())
}

#[track_caller]
fn accepted(moe: &str, model: &str) -> (RunPlan, Vec<String>) {
    resolve(&text(moe, model), &[]).unwrap_or_else(|error| panic!("{moe} | {model}: {error}"))
}

#[track_caller]
fn mixture(moe: &str, model: &str) -> MixtureConfig {
    accepted(moe, model).0.model.mixture.unwrap_or_else(|| panic!("{moe} | {model}: dense"))
}

const ABSENT: &str = "runner_wrapper is absent: gradients are clipped at norm 1.0, as in MindFormers";

/// Like Mixtral (Jiang et al., 2024) in MindFormers' form.
const MIXTRAL: &str = "expert_num: 8, capacity_factor: 1.1, aux_loss_factor: 0.05, num_experts_chosen: 2, \
    routing_policy: TopkRouterV2, enable_sdrop: True, router_dense_type: float32, use_fused_ops_topkrouter: True";
/// Like DeepSeek-V3 (2024), smaller.
const DEEPSEEK: &str = "expert_num: 16, num_experts_chosen: 4, n_group: 4, topk_group: 2, topk_method: noaux_tc, \
    use_gating_sigmoid: True, routed_scaling_factor: 2.5, balance_via_topk_bias: True, topk_bias_update_rate: 0.001, \
    shared_expert_num: 1.0, first_k_dense_replace: 1, moe_intermediate_size: 24, use_gmm: True, \
    enable_gmm_safe_tokens: True, use_fused_ops_permute: True, aux_loss_types: [expert], aux_loss_factors: [0.0001]";
/// Like Qwen3-MoE (2025) with the names of Megatron and Hugging Face, under the model.
const QWEN: &str = "num_experts: 16\n    num_experts_per_tok: 8\n    moe_intermediate_size: 48\n    norm_topk_prob: False\n    \
    moe_router_pre_softmax: True\n    moe_grouped_gemm: True\n    scoring_func: softmax\n    moe_token_drop_policy: probs\n    \
    moe_aux_loss_coeff: 0.001\n    moe_router_load_balancing_type: seq_aux_loss\n    routed_scaling_factor: 1.5";

#[test]
fn the_three_shapes_that_are_published() {
    let mixtral = mixture(MIXTRAL, "intermediate_size: 96");
    assert_eq!(
        mixtral,
        MixtureConfig {
            route: RouterConfig {
                experts: 8,
                chosen: 2,
                score: Score::Softmax,
                groups: None,
                norm: Some(GateNorm::SUM),
                scaling: 1.0
            },
            has_bias: false,
            bias_update_rate: 0.0,
            intermediate_size: 96,
            first_dense_layers: 0,
            shared: None,
            losses: BalanceLosses::default(),
            is_beside_dense: false,
            dispatch: TokenDispatch::Capacity(Capacity {
                factor: 1.1,
                order: DropOrder::Token,
                renormalises: false,
                hot: None
            }),
            router_init_std: 0.01,
        }
    );
    let deepseek = mixture(DEEPSEEK, "mtp_depth: 1");
    let groups = ExpertGroups { count: 4, chosen: 2, score: GroupScore::BestTwo };
    assert_eq!((deepseek.route.score, deepseek.route.groups), (Score::Sigmoid, Some(groups)));
    assert_eq!(
        (deepseek.route.scaling, deepseek.intermediate_size, deepseek.first_dense_layers),
        (2.5, 24, 1)
    );
    assert_eq!((deepseek.has_bias, deepseek.bias_update_rate, deepseek.losses.expert), (true, 0.001, 0.0001));
    assert_eq!(deepseek.shared, Some(SharedExpert { intermediate_size: 24, is_gated: false }));
    assert_eq!(deepseek.dispatch, TokenDispatch::Dropless { safe_tokens: true });
    let qwen = mixture("", QWEN);
    assert_eq!((qwen.experts(), qwen.chosen(), qwen.intermediate_size), (16, 8, 48));
    assert_eq!((qwen.route.norm.is_some(), qwen.route.scaling), (false, 1.5));
    assert_eq!(qwen.losses, BalanceLosses { sequence: 0.001, ..BalanceLosses::default() });
    assert_eq!(qwen.dispatch, TokenDispatch::Dropless { safe_tokens: false });
}

#[test]
fn one_expert_is_a_dense_model() {
    let (_, notices) = accepted("", "mtp_loss_factor: 0.3\n    return_extra_loss: True");
    let ignored = "without meaning here and ignored: model.model_config.{mtp_loss_factor, return_extra_loss}";
    assert_eq!(notices, [ABSENT, ignored]);
    for (moe, model) in [("", ""), ("expert_num: 1", ""), ("", "use_moe: False")] {
        let (plan, notices) = accepted(moe, model);
        assert_eq!((plan.model.mixture, notices), (None, vec![ABSENT.to_string()]), "{moe} {model}");
    }
    let (plan, notices) =
        accepted("expert_num: 1, use_gmm: True, num_experts_chosen: 1", "z_loss_factor: 0.1");
    assert_eq!(plan.model.mixture, None);
    let ignored = "without meaning here and ignored: model.model_config.z_loss_factor, moe_config.{use_gmm, num_experts_chosen}";
    assert_eq!(notices, [ABSENT, ignored]);
}

/// GPT-2's layers have the first router: gates of what was kept sum to 1, and that of a single choice is 1. Its loss
/// joins the objective where it does elsewhere.
#[test]
fn experts_of_gpt2_have_the_first_router() {
    let of = |kind: &str, keys: &str| {
        let text = text(&format!("expert_num: 8, {keys}"), "")
            .replace("type: LlamaConfig", &format!("type: {kind}"));
        let (plan, notices) = resolve(&text, &[]).unwrap_or_else(|error| panic!("{keys}: {error}"));
        assert_reads_back(&plan);
        (plan.model, notices)
    };
    let renormalises = |mixture: &MixtureConfig| match mixture.dispatch {
        TokenDispatch::Capacity(capacity) => Some(capacity.renormalises),
        TokenDispatch::Dropless { .. } => None,
    };
    for kind in ["GPT2Config", "BloomConfig", "PanguAlphaConfig", "WizardCoderConfig"] {
        let (model, notices) = of(kind, "");
        let mixture = model.mixture.expect("experts");
        assert_eq!(
            (mixture.chosen(), mixture.route.norm.is_some(), renormalises(&mixture)),
            (1, true, Some(true))
        );
        assert_eq!(mixture.intermediate_size, model.layer.intermediate_size);
        assert_eq!(notices, [ABSENT], "{kind}");
    }
    for (keys, chosen, normalises, renormalised) in [
        ("num_experts_chosen: 2", 2, true, Some(true)),
        ("routing_policy: TopkRouterV2", 1, false, Some(false)),
        ("routing_policy: TopkRouterV2, num_experts_chosen: 2", 2, true, Some(false)),
        ("norm_topk_prob: False", 1, false, Some(false)),
        ("norm_topk_prob: True, routing_policy: TopkRouterV2", 1, false, Some(false)),
        ("use_gmm: True", 1, true, None),
        ("capacity_factor: 0", 1, true, None),
    ] {
        let mixture = of("GPT2Config", keys).0.mixture.expect("experts");
        let found = (mixture.chosen(), mixture.route.norm.is_some(), renormalises(&mixture));
        assert_eq!(found, (chosen, normalises, renormalised), "{keys}");
    }
    // The word decides about a single gate, so it is not said to be idle.
    assert_eq!(of("GPT2Config", "routing_policy: TopkRouterV1, use_gmm: True").1, [ABSENT]);
    let loss = |keys: &str| of("GPT2Config", keys).0.mixture.expect("experts").losses.expert;
    assert_eq!(loss("num_experts_chosen: 2, aux_loss_factor: 0.25"), 0.0, "as in MindFormers");
    assert_eq!(loss("num_experts_chosen: 2, aux_loss_factor: 0.25, return_extra_loss: True"), 0.5);
    let hot = "enable_cold_hot_expert: True, hot_expert_num: 2, cold_token_percent: 0.5, save_token_distribution: True";
    let (model, _) = of("PanguAlphaConfig", hot);
    let TokenDispatch::Capacity(Capacity { hot, .. }) = model.mixture.expect("experts").dispatch else {
        panic!("it has capacities")
    };
    assert!(hot.is_some_and(|hot| hot.count == 2));
}

#[test]
fn keys_decide_what_they_say() {
    let e8 = |keys: &str| mixture(&format!("expert_num: 8, {keys}"), "");
    let order = |keys: &str| match e8(keys).dispatch {
        TokenDispatch::Capacity(capacity) => Some((capacity.order, capacity.renormalises)),
        TokenDispatch::Dropless { .. } => None,
    };
    assert_eq!(order("capacity_factor: 1.5"), Some((DropOrder::Choice, false)));
    let v1 = "num_experts_chosen: 2, routing_policy: TopkRouterV1";
    assert_eq!(order(v1), Some((DropOrder::Choice, true)));
    assert_eq!(order(&format!("{v1}, norm_topk_prob: False")), Some((DropOrder::Choice, false)));
    assert_eq!(order("routing_policy: TopkRouterV1"), Some((DropOrder::Choice, false)), "one gate");
    assert_eq!(order("moe_token_drop_policy: position"), Some((DropOrder::Token, false)));
    assert_eq!(order("capacity_factor: 0"), None);
    assert_eq!(order("capacity_factor: -1.0"), None);
    assert_eq!(e8("").route.chosen, 1);
    assert!(e8("norm_topk_prob: True").route.norm.is_none(), "one gate is not normalised");
    assert!(e8("num_experts_chosen: 2, moe_router_pre_softmax: False").route.norm.is_some());
    assert_eq!(e8("moe_router_score_function: sigmoid").route.score, Score::Sigmoid);
    assert_eq!(
        [("False", 0), ("True", 1), ("1", 1)]
            .map(|(word, _)| e8(&format!("first_k_dense_replace: {word}")).first_dense_layers),
        [0, 1, 1]
    );
    let groups = |keys: &str| e8(&format!("num_experts_chosen: 2, {keys}")).route.groups;
    let best = ExpertGroups { count: 4, chosen: 1, score: GroupScore::Best };
    assert_eq!(groups("topk_method: group_limited_greedy, n_group: 4, topk_group: 1"), Some(best));
    assert_eq!(groups("topk_method: greedy, n_group: 4, topk_group: 1"), None);
    assert_eq!(groups("topk_method: noaux_tc, n_group: 2, topk_group: 2"), None, "all groups are none");
    let losses = |keys: &str, model: &str| {
        mixture(&format!("expert_num: 8, num_experts_chosen: 2, {keys}"), model).losses
    };
    let expert = |expert| BalanceLosses { expert, ..BalanceLosses::default() };
    assert_eq!(
        losses("aux_loss_types: [device, expert, comm], aux_loss_factors: [3, 0.5, 2]", ""),
        expert(0.5)
    );
    assert_eq!(
        losses("moe_aux_loss_coeff: 0.5, moe_router_load_balancing_type: gbs_aux_loss", ""),
        expert(0.5)
    );
    assert_eq!(losses("aux_loss_factor: 0.5", "return_extra_loss: True"), expert(0.0));
    assert_eq!(losses("aux_loss_factor: 0.5, routing_policy: TopkRouterV1", ""), expert(0.0));
    assert_eq!(
        losses("aux_loss_factor: 0.5, routing_policy: TopkRouterV1", "return_extra_loss: True"),
        expert(1.0)
    );
    let all = BalanceLosses { expert: 0.5, sequence: 0.25, z: 0.125 };
    assert_eq!(
        losses(
            "aux_loss_types: expert, aux_loss_factors: 0.5, moe_aux_loss_coeff: 0.25, moe_z_loss_coeff: 0.125",
            ""
        ),
        all
    );
    let shared = |keys: &str| e8(&format!("moe_intermediate_size: 20, {keys}")).shared;
    let gated = |intermediate_size| Some(SharedExpert { intermediate_size, is_gated: true });
    assert_eq!(shared("shared_expert_num: 2, use_shared_expert_gating: True"), gated(40));
    assert_eq!(
        shared("n_shared_experts: 2, shared_expert_intermediate_size: 36, use_shared_expert_gating: True"),
        gated(36)
    );
    let hot = |keys: &str, arguments: &[&str]| {
        let keys =
            text(&format!("expert_num: 8, enable_cold_hot_expert: True, hot_expert_num: 2, {keys}"), "");
        match resolve(&keys, arguments).unwrap().0.model.mixture.unwrap().dispatch {
            TokenDispatch::Capacity(capacity) => capacity.hot.unwrap(),
            TokenDispatch::Dropless { .. } => panic!("dropless"),
        }
    };
    let expected =
        HotExperts { count: 2, cold_token_share: 1.0, update_step: 10_000, checkpoint_step: Some(10) };
    assert_eq!(hot("moe_module_name: network.blocks", &[]), expected);
    let monitor = "--callbacks=[{type: ColdHotExpertMonitor, save_checkpoint_steps: 7, hidden_size: 64, ffn_hidden_size: 9}]";
    let expected = HotExperts { cold_token_share: 0.7, update_step: 5, checkpoint_step: Some(7), ..expected };
    assert_eq!(hot("cold_token_percent: 0.7, update_step: 5", &[monitor]), expected);
    let ahead =
        accepted("", "num_nextn_predict_layers: 2\n    mtp_loss_scaling_factor: 0.1").0.model.multi_token;
    assert_eq!(ahead, Some(MultiToken { depth: 2, loss_factor: 0.1 }));
}

#[test]
fn notices_say_what_is_not_as_written() {
    assert_answers(NOTICES, |_, keys| {
        let (moe, model) = sides(keys);
        let mut notices = accepted(&format!("expert_num: 8, {moe}"), model).1;
        notices.retain(|notice| notice != ABSENT);
        notices.join("\n")
    });
    for keys in [
        "use_gmm: True, enable_sdrop: False, callback_moe_droprate: False, routing_policy: TopkRouterV2",
        "routing_policy: TopkRouterV1, enable_sdrop: True, router_dense_type: float32",
    ] {
        assert_eq!(accepted(&format!("expert_num: 8, num_experts_chosen: 2, {keys}"), "").1, [ABSENT]);
    }
    let factor = accepted("expert_num: 8, capacity_factor: -1, enable_sdrop: True", "").1;
    assert!(factor.contains(&"moe_config.enable_sdrop: ignored, as no token is dropped".to_string()));
}

/// Keys beside `expert_num: 8`, and the only notice.
const NOTICES: &str = "
+ use_gmm: True, capacity_factor: 1.5
= moe_config.capacity_factor: ignored, as `use_gmm: True` drops no token
+ capacity_factor: 0
= moe_config.capacity_factor: not above 0, so no token is dropped
+ router_dense_type: bfloat16
= moe_config.router_dense_type: the router computes in float32, which is more precise
+ | moe_router_dtype: float16
= model.model_config.moe_router_dtype: the router computes in float32, which is more precise
+ use_gmm: True, enable_sdrop: True
= moe_config.enable_sdrop: ignored, as no token is dropped
+ use_gmm: True | moe_token_drop_policy: position
= model.model_config.moe_token_drop_policy: ignored, as no token is dropped
+ use_gmm: True, callback_moe_droprate: True
= moe_config.callback_moe_droprate: shows rates of 0, as no token is dropped
+ use_gmm: True, routing_policy: TopkRouterV1, num_experts_chosen: 2
= moe_config.routing_policy: `TopkRouterV1` renormalises where tokens are dropped, and none is
+ routing_policy: TopkRouterV1, num_experts_chosen: 2, norm_topk_prob: False
= moe_config.routing_policy: `TopkRouterV1` does not renormalise with `norm_topk_prob: False`
+ routing_policy: TopkRouterV1
= moe_config.routing_policy: `TopkRouterV1` does not renormalise the gate of one chosen expert
+ topk_bias_update_rate: 0.1
= without meaning here and ignored: moe_config.topk_bias_update_rate
+ balance_via_topk_bias: True
= moe_config.balance_via_topk_bias: `topk_bias_update_rate` is not above 0, so the bias stays as it is
+ aux_loss_types: [comm], aux_loss_factors: [1]
= moe_config.aux_loss_types: `comm` balances devices, and is left out: what a step computes does not depend on their number
+ z_loss_factor: 0.1 | return_extra_loss: False
= model.model_config.return_extra_loss: the losses whose factors are written join the objective all the same
+ | moe_token_drop_policy: probs
= model.model_config.moe_token_drop_policy: later choices are dropped first, whatever their probability
+ save_token_distribution: True
= moe_config.save_token_distribution: written every 10 steps, but 20 times at most, into the run's folder; a SummaryMonitor says where and when
+ expert_group_size: 8, ep_extend_tp: True, moe_module_name: a.b
= without meaning here and ignored: moe_config.{expert_group_size, ep_extend_tp, moe_module_name}
";

#[test]
fn a_resolved_mixture_reads_back_as_itself() {
    let hot = "expert_num: 8, num_experts_chosen: 2, routing_policy: TopkRouterV1, capacity_factor: 1.25, enable_sdrop: True, \
        enable_cold_hot_expert: True, hot_expert_num: 3, cold_token_percent: 0.7, update_step: 9, routed_scaling_factor: 0.1, \
        save_token_distribution: True, callback_moe_droprate: True, aux_loss_types: [expert], aux_loss_factors: [0.1], \
        moe_aux_loss_coeff: 0.2, z_loss_factor: 0.3";
    let gated = "expert_num: 8, capacity_factor: 0, shared_expert_num: 2, use_shared_expert_gating: True";
    let summary = "--callbacks=[{type: SummaryMonitor, summary_dir: ./shown, collect_freq: 3}]";
    for (moe, model) in [
        (MIXTRAL, ""),
        (DEEPSEEK, "mtp_depth: 2\n    mtp_loss_factor: 0.1"),
        ("", QWEN),
        (hot, ""),
        (gated, ""),
    ] {
        for arguments in [&[][..], &[summary]] {
            assert_reads_back(&resolve(&text(moe, model), arguments).unwrap().0);
        }
    }
    let (plan, _) = resolve(&text(hot, ""), &[summary]).unwrap();
    let distribution = plan.settings.callbacks.summary.unwrap();
    assert_eq!((distribution.summary_dir.to_str(), distribution.collect_freq), (Some("./shown"), 3));
    let (plan, _) = resolve(&text(hot, ""), &[]).unwrap();
    let distribution = plan.settings.callbacks.summary.unwrap();
    assert_eq!(
        (distribution.summary_dir.to_str(), distribution.collect_freq),
        (Some("./output/x/summary"), 10)
    );
}
