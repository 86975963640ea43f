//! Mixtures that cannot be, and callbacks that say something else than the model.

use super::mixture::{sides, text};
use super::{assert_answers, message, replace, resolve};

#[test]
fn what_cannot_be_is_one_line() {
    assert_answers(OF_EIGHT_EXPERTS, |_, keys| {
        let found = message(&text(&format!("expert_num: 8, {keys}"), ""), &[]);
        found.strip_prefix("x.yaml:28: moe_config.").unwrap_or(&found).to_string()
    });
    assert_answers(WITH_KEYS_OF_THE_MODEL, |_, keys| {
        let (moe, model) = sides(keys);
        message(&text(moe, model), &[])
    });
    let gpt2 = |keys: (&str, &str)| {
        message(&text(keys.0, keys.1).replace("type: LlamaConfig", "type: GPT2Config"), &[])
    };
    for (key, written) in [
        ("shared_expert_num", "shared_expert_num: 1"),
        ("moe_shared_expert_intermediate_size", "moe_shared_expert_intermediate_size: 32"),
    ] {
        let found = gpt2((&format!("expert_num: 8, {written}"), ""));
        let line = format!(
            "moe_config.{key}: only Llama's layers can hold a shared expert; remove it, or write `type: LlamaConfig`"
        );
        assert!(found.ends_with(&line), "{found}");
    }
    let pangu = text("expert_num: 8, first_k_dense_replace: 1", "");
    let found = message(&pangu.replace("type: LlamaConfig", "type: PanguAlphaConfig"), &[]);
    let line = "moe_config.first_k_dense_replace: 1 dense layers beside the last one of 2 leave none for the experts; lower it";
    assert!(found.ends_with(line), "{found}");
    let found = gpt2(("", "mtp_depth: 1"));
    assert!(
        found.ends_with("mtp_depth: is a key of `type: LlamaConfig`, not of `GPT2Config`; remove it"),
        "{found}"
    );
}

/// Keys of `moe_config` beside `expert_num: 8`. What holds of every row is tested in `src/settings/tests.rs`.
const OF_EIGHT_EXPERTS: &str = "
+ num_experts_chosen: 9
= num_experts_chosen: a token cannot choose 9 of 8 experts (`expert_num`); lower it
+ num_experts_chosen: -1
= num_experts_chosen: expected a whole number from 1 to 16, found `-1`
+ first_k_dense_replace: 2
= first_k_dense_replace: 2 dense layers of 2 leave none for the experts; lower it
+ moe_router_pre_softmax: False
= moe_router_pre_softmax: a softmax over one chosen expert is always 1; write `True`
+ routed_scaling_factor: 1.0e+39
= routed_scaling_factor: expected a number above 0 and finite in float32, found `1e39`
+ use_gating_sigmoid: relu
= use_gating_sigmoid: expected softmax or sigmoid, found `relu`
+ mtp_depth: 1
= mtp_depth: unknown key; it belongs in `model.model_config`
+ num_experts: 9
= num_experts: another name of `expert_num`, which is given too; keep one of them

+ topk_method: best
= topk_method: expected greedy, group_limited_greedy or noaux_tc, found `best`
+ topk_method: noaux_tc, n_group: 3, topk_group: 1
= n_group: 3 groups do not divide 8 experts (`expert_num`); change one of them
+ topk_method: noaux_tc, n_group: 4, topk_group: 5
= topk_group: expected a whole number from 1 to 4 (`n_group`), found `5`
+ topk_method: noaux_tc, n_group: 8, topk_group: 2
= n_group: `topk_method: noaux_tc` scores a group by its two best experts, and a group has one; lower n_group
+ num_experts_chosen: 3, topk_method: noaux_tc, n_group: 4, topk_group: 1
= topk_group: 1 groups have 2 experts, fewer than the 3 that a token chooses (`num_experts_chosen`); raise topk_group
+ n_group: 2, topk_group: 1
= n_group: needs `topk_method`: write `group_limited_greedy` (a group's best score) or `noaux_tc` (its two best)
+ topk_method: noaux_tc, n_group: 4
= n_group: needs `topk_group`, from how many groups a token may choose
+ topk_method: noaux_tc, topk_group: 1
= topk_method: `noaux_tc` needs `n_group`, how many groups there are
+ topk_method: noaux_tc, n_group: 0, topk_group: 1
= n_group: expected a whole number from 1 to 8 (`expert_num`), found `0`

+ sparsemixer_jitter_eps: 0.1, num_experts_chosen: 3
= num_experts_chosen: 2 experts are chosen beside `sparsemixer_jitter_eps`; write `2`, or remove that
+ sparsemixer_jitter_eps: 0.1, num_experts_chosen: 2, norm_topk_prob: True
= norm_topk_prob: another router than that of `sparsemixer_jitter_eps`; remove one of the two
+ sparsemixer_jitter_eps: 0.1, num_experts_chosen: 2, balance_via_topk_bias: True
= balance_via_topk_bias: another router than that of `sparsemixer_jitter_eps`; remove one of the two
+ moe_norm_min: 0, num_experts_chosen: 2
= moe_norm_min: expected a number above 0 and up to 1, found `0`

+ aux_loss_types: [expert]
= aux_loss_types: needs `aux_loss_factors`, a number for each type
+ aux_loss_types: [expert, comm], aux_loss_factors: [1]
= aux_loss_factors: 2 `aux_loss_types` have 1 `aux_loss_factors`; give each type its own
+ aux_loss_types: [balance], aux_loss_factors: [1]
= aux_loss_types: expected expert, device or comm, found `balance`
+ routing_policy: TopkRouterV1, aux_loss_factor: 1
= aux_loss_factor: expected a number between 0 and 1 (`TopkRouterV1`), found `1`
+ routing_policy: TopkRouterV1, aux_loss_factor: 0
= aux_loss_factor: expected a number between 0 and 1 (`TopkRouterV1`), found `0`

+ hot_expert_num: 9
= hot_expert_num: 9 of 8 experts (`expert_num`) cannot be hot; lower it
+ cold_token_percent: 1.5
= cold_token_percent: expected a share in (0, 1], found `1.5`
+ enable_cold_hot_expert: True
= enable_cold_hot_expert: needs `hot_expert_num`, at least 1
+ enable_cold_hot_expert: True, hot_expert_num: 1, use_gmm: True
= enable_cold_hot_expert: needs slots to share out; write `use_gmm: False` and a `capacity_factor` above 0
";

/// Keys of `moe_config` and, after a bar, of the model.
const WITH_KEYS_OF_THE_MODEL: &str = "
+ expert_num: 513
= x.yaml:28: moe_config.expert_num: expected a whole number from 1 to 512, found `513`
+ expert_num: 8 | expert_num: 4
= x.yaml:10: model.model_config.expert_num: differs from `moe_config.expert_num`, `8`; keep one of them
+ expert_num: 8 | use_moe: False
= x.yaml:10: model.model_config.use_moe: contradicts `expert_num`, 8; remove it
+ expert_num: 8, num_experts_chosen: 2, sparsemixer_jitter_eps: 0.1 | type: GPT2Config
= x.yaml:29: moe_config.sparsemixer_jitter_eps: not built yet for this type or beside dense networks; remove it
+ expert_num: 8, enable_moe_block: True |
= x.yaml:28: moe_config.enable_moe_block: needs RMSNorm before and after; write `norm_placement: both` in model.model_config
+ expert_num: 8, enable_moe_block: True, shared_expert_num: 1 | norm_placement: both
= x.yaml:29: moe_config.enable_moe_block: not built yet with shared experts; remove it, or these
+ expert_num: 8, enable_moe_block: True, moe_intermediate_size: 6 | norm_placement: both
= x.yaml:29: moe_config.moe_intermediate_size: of such experts is a multiple of 4, and 6 is none
+ | use_moe: True
= x.yaml:10: model.model_config.use_moe: asks for experts; give `expert_num` a number above 1
+ | mtp_depth: 32
= x.yaml:10: model.model_config.mtp_depth: expected a whole number below seq_length 32, found `32`
";

/// A flag that contradicts the file is the one key that is named.
#[test]
fn a_flag_is_named_alone() {
    let types = "--moe_config.aux_loss_types=[expert, comm]";
    let factors = "--moe_config.aux_loss_factors=[1]";
    let needs = "--moe_config.aux_loss_types: needs `aux_loss_factors`, a number for each type";
    assert_eq!(message(&text("expert_num: 8", ""), &[types]), needs);
    let counts = "2 `aux_loss_types` have 1 `aux_loss_factors`; give each type its own";
    for (file, flag, key) in [
        ("aux_loss_factors: [1]", types, "--moe_config.aux_loss_types"),
        ("aux_loss_types: [expert, comm]", factors, "--moe_config.aux_loss_factors"),
    ] {
        let found = message(&text(&format!("expert_num: 8, {file}"), ""), &[flag]);
        assert_eq!(found, format!("{key}: {counts}"));
    }
}

#[test]
fn callbacks_are_held_against_the_model() {
    let model = text(
        "expert_num: 4, capacity_factor: 1.5, balance_via_topk_bias: True, topk_bias_update_rate: 0.01, \
         callback_moe_droprate: True",
        "mtp_depth: 1",
    );
    let callback = |section: &str, keys: &str| {
        model.replace("callbacks:\n", &format!("{section}:\n  - {{type: {keys}}}\n"))
    };
    let right = "MoEDropRateCallback, expert_num: 4, capacity_factor: 1.5, num_layers: 2, mtp_depth: 1";
    for section in ["callback", "callbacks"] {
        let (plan, _) = resolve(&callback(section, right), &[]).unwrap();
        assert!(plan.settings.moe.as_ref().unwrap().callback_moe_droprate);
        assert_eq!(
            plan.settings.callbacks.checkpoint.unwrap().save_checkpoint_steps,
            10,
            "the others are read too"
        );
    }
    // Both are needed: the callback asks for nothing that the switch denies.
    for switch in ["callback_moe_droprate: False", "z_loss_factor: 0"] {
        let text = callback("callbacks", right).replace("callback_moe_droprate: True", switch);
        let (plan, notices) = resolve(&text, &[]).unwrap();
        assert!(!plan.settings.moe.as_ref().unwrap().callback_moe_droprate, "{switch}");
        let idle =
            "callbacks: MoEDropRateCallback logs nothing without `moe_config.callback_moe_droprate: True`";
        assert!(notices.iter().any(|notice| notice == idle), "{switch}: {notices:?}");
    }
    let wrong =
        callback("callbacks", right).replace("callback_moe_droprate: True", "callback_moe_droprate: x");
    let line = message(&wrong, &[]);
    assert!(line.ends_with("moe_config.callback_moe_droprate: expected True or False, found `x`"), "{line}");
    for section in ["callback", "callbacks"] {
        assert_answers(CLAIMS, |claim, written| {
            let found = message(&callback(section, &replace(right, claim, written)), &[]);
            found.strip_prefix(&format!("x.yaml:26: {section}.")).unwrap_or(&found).to_string()
        });
    }
    let bias = "TopkBiasBalanceCallback, balance_via_topk_bias: True, topk_bias_update_rate: 0.01, expert_num: 4, micro_batch_num: 8";
    assert!(resolve(&callback("callbacks", bias), &[]).is_ok());
    let found = message(&callback("callbacks", &bias.replace("0.01", "0.02")), &[]);
    assert_eq!(
        found,
        "x.yaml:26: callbacks.0.topk_bias_update_rate: `topk_bias_update_rate` is `0.02`, but the model's is `0.01`; make them equal"
    );
    let found = message(&callback("callbacks", &format!("{bias}, gradient_accumulation_steps: 3")), &[]);
    assert!(
        found.ends_with("gradient_accumulation_steps: `gradient_accumulation_steps` is `3`, but the model's is `1`; make them equal"),
        "{found}"
    );
    // Without slots no factor is the model's, unless one is written.
    let grouped =
        callback("callbacks", &right.replace("1.5", "7")).replace("capacity_factor: 1.5", "use_gmm: True");
    let (plan, notices) = resolve(&grouped, &[]).unwrap();
    assert!(plan.settings.moe.as_ref().unwrap().callback_moe_droprate);
    let idle = "moe_config.callback_moe_droprate: shows rates of 0, as no token is dropped";
    assert_eq!(notices.iter().filter(|notice| *notice == idle).count(), 1, "{notices:?}");
    let twice = model.replace("callbacks:\n", "callback: []\ncallbacks:\n");
    assert!(message(&twice, &[]).contains("another name of `callback`"));
    let wrong = callback("callbacks", "SummaryMonitor, export_options: {tensor_format: csv}");
    assert!(
        message(&wrong, &[])
            .ends_with("tensor_format: not built yet (found `csv`); write `tensor_format: npy`")
    );
}

/// What `MoEDropRateCallback` says of the model, what it says instead, and the answer.
const CLAIMS: &str = "
-expert_num: 4
+expert_num: 8
= 0.expert_num: `expert_num` is `8`, but the model's is `4`; make them equal

-mtp_depth: 1
+mtp_depth: 0
= 0.mtp_depth: `mtp_depth` is `0`, but the model's is `1`; make them equal

-num_layers: 2
+num_layers: 3
= 0.num_layers: `num_layers` is `3`, but the model's is `2`; make them equal

-capacity_factor: 1.5
+capacity_factor: 1.1
= 0.capacity_factor: `capacity_factor` is `1.1`, but the model's is `1.5`; make them equal

-, num_layers: 2
+
= 0: `num_layers` is missing; give it a whole number from 0
";
