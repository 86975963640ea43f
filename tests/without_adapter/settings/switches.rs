//! Switches that change nothing, and what a page of MindFormers' documents says where it is pasted as printed.

use super::mixture::text;
use super::{BASE, assert_answers, message, resolve};

const IGNORED: &str = "without meaning here and ignored: ";

/// The one notice of keys without effect.
fn ignored(flags: &[&str]) -> String {
    let (_, notices) = resolve(BASE, flags).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
    notices.into_iter().find(|notice| notice.starts_with(IGNORED)).unwrap_or_default()
}

#[test]
fn a_switch_that_changes_nothing_is_typed_and_named_whatever_it_says() {
    for key in [
        "model.model_config.use_fused_rope",
        "model.model_config.use_fused_swiglu",
        "model.model_config.use_flash_attention",
        "moe_config.use_fused_ops_permute",
    ] {
        for kind in ["LlamaConfig", "GPT2Config", "BloomConfig"] {
            let kind = format!("--model.model_config.type={kind}");
            for value in ["True", "False"] {
                let notice = ignored(&[&kind, &format!("--{key}={value}")]);
                assert_eq!(notice, format!("{IGNORED}{key}"), "{kind} {value}");
            }
            for value in ["x", "7"] {
                let line = message(BASE, &[&kind, &format!("--{key}={value}")]);
                assert_eq!(line, format!("--{key}: expected True or False, found `{value}`"));
            }
        }
    }
    assert_eq!(
        message(BASE, &["--moe_config.moe_module_name=3"]),
        "--moe_config.moe_module_name: expected text, found `3`"
    );
    // Those of a mixture in a dense model, too.
    assert_eq!(ignored(&["--moe_config={enable_sdrop: False}"]), format!("{IGNORED}moe_config.enable_sdrop"));
    assert_eq!(
        message(BASE, &["--moe_config.callback_moe_droprate=x"]),
        "--moe_config.callback_moe_droprate: expected True or False, found `x`"
    );
}

#[test]
fn a_bound_that_is_not_used_is_named() {
    for (keys, named) in [
        ("{max_grad_norm: 1.0}", "runner_wrapper.max_grad_norm"),
        ("{use_clip_grad: False, max_grad_norm: 0.5}", "runner_wrapper.max_grad_norm"),
        (
            "{use_clip_grad: True, global_norm_spike_threshold: 1.0}",
            "runner_wrapper.global_norm_spike_threshold",
        ),
    ] {
        assert_eq!(ignored(&[&format!("--runner_wrapper={keys}")]), format!("{IGNORED}{named}"), "{keys}");
    }
    assert_eq!(ignored(&["--runner_wrapper={use_clip_grad: True, max_grad_norm: 1.0}"]), "");
    assert_eq!(
        message(BASE, &["--runner_wrapper={max_grad_norm: x}"]),
        "--runner_wrapper: max_grad_norm: expected a number above 0, found `x`"
    );
}

/// MindFormers accumulates in semi-automatic parallel mode alone.
#[test]
fn accumulation_that_the_original_resets_is_said() {
    let said = |flags: &[&str]| {
        let flags: Vec<&str> = flags.iter().copied().chain(["--gradient_accumulation_steps=4"]).collect();
        let (plan, notices) = resolve(BASE, &flags).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plan.settings.runner.gradient_accumulation_steps, 4);
        notices.iter().filter(|notice| notice.contains("semi-automatic")).count()
    };
    assert_eq!(said(&["--use_parallel=False"]), 1);
    assert_eq!(said(&["--use_parallel=True", "--parallel.parallel_mode=0"]), 1);
    assert_eq!(said(&["--use_parallel=True", "--parallel.parallel_mode=1"]), 0);
    assert_eq!(said(&["--use_parallel=True", "--parallel.parallel_mode=AUTO_PARALLEL"]), 0);
    assert_eq!(said(&["--use_parallel=True"]), 0);
    assert_eq!(said(&[]), 0, "a file that is not of MindFormers");
}

#[test]
fn accumulation_beside_stages_is_no_number_of_micro_batches() {
    let line = message(
        BASE,
        &[
            "--use_parallel=True",
            "--parallel_config={pipeline_stage: 2}",
            "--gradient_accumulation_steps=4",
            "--as_single=False",
        ],
    );
    assert!(line.contains("asks for 2 ranks"), "{line}");
    let overrides = gristmill::settings::Override::parse_all([
        "--use_parallel=True",
        "--parallel_config={pipeline_stage: 2}",
        "--gradient_accumulation_steps=4",
    ]);
    let found = gristmill::settings::RunConfig::parse_on_rank(
        BASE,
        std::path::Path::new("x.yaml"),
        &overrides.unwrap(),
        0,
        2,
    );
    let line = found.map(|_| ()).unwrap_err().to_string();
    let end = "`1` is below the 2 pipeline stages, which would wait; write the micro-batches of a step here, as the 4 of \
               `runner_config.gradient_accumulation_steps` do not count beside stages";
    assert!(line.ends_with(end), "{line}");
}

/// A share of a slot is one slot.
#[test]
fn a_cold_expert_without_a_slot_is_said() {
    let said = |share: &str| {
        let keys = format!(
            "expert_num: 8, num_experts_chosen: 2, capacity_factor: 1.0, enable_cold_hot_expert: True, hot_expert_num: 1, \
             cold_token_percent: {share}"
        );
        let (_, notices) = resolve(&text(&keys, ""), &[]).unwrap_or_else(|error| panic!("{error}"));
        notices.into_iter().find(|notice| notice.contains("cold_token_percent")).unwrap_or_default()
    };
    // 2 x 128 choices of 8 experts.
    assert_eq!(
        said("0.001"),
        "moe_config.cold_token_percent: 0.001 of 32 slots is less than one; a cold expert has 1 (in MindFormers none), \
         and what else chooses it is dropped"
    );
    assert_eq!((said("0.04"), said("1.0")), (String::new(), String::new()));
}

#[test]
fn no_hot_expert_is_a_fault_of_their_number() {
    assert_answers(HOT, |_, keys| {
        let line = message(&text(keys, ""), &[]);
        line.split_once(": ").map_or(line.clone(), |(_, rest)| rest.to_string())
    });
    let flags = ["--moe_config.hot_expert_num=0"];
    assert_eq!(
        message(&text("expert_num: 8, enable_cold_hot_expert: True, hot_expert_num: 1", ""), &flags),
        "--moe_config.hot_expert_num: expected a whole number from 1 to 8 (`expert_num`), found `0`"
    );
}

const HOT: &str = "
+expert_num: 8, enable_cold_hot_expert: True
= moe_config.enable_cold_hot_expert: needs `hot_expert_num`, at least 1
+expert_num: 8, enable_cold_hot_expert: True, hot_expert_num: 0
= moe_config.hot_expert_num: expected a whole number from 1 to 8 (`expert_num`), found `0`
";

/// Examples as the documents print them: without their indentation, or with a section at the top that belongs in
/// another.
#[test]
fn pasted_examples_are_sent_where_they_belong() {
    let lines = |text: &str| {
        let found = message(&format!("{BASE}{text}"), &[]);
        let rest = |line: &str| line.split_once(": ").map_or(line, |(_, rest)| rest).to_string();
        found.lines().map(rest).collect::<Vec<_>>()
    };
    assert_eq!(
        lines("model_config:\n  use_fused_rope: True\n"),
        ["model_config: unknown key; it belongs in `model`"]
    );
    assert_eq!(
        lines("runner_wrapper:\ntype: MFTrainOneStepCell\nuse_clip_grad: True\nmax_grad_norm: 1.0\n"),
        [
            "type: unknown key; it belongs in `runner_wrapper`",
            "use_clip_grad: unknown key; it belongs in `runner_wrapper`",
            "max_grad_norm: unknown key; it belongs in `runner_wrapper`",
        ]
    );
    assert_eq!(
        lines("type: AdaptiveLossScaleUpdateCell\n"),
        ["type: unknown key; it belongs in `runner_wrapper.scale_sense`"]
    );
    assert_eq!(
        lines("type: nothing\n"),
        ["type: unknown key; it is a key of many sections: indent it below its own"]
    );
    let dots = message("runner_config:\n...\ngradient_accumulation_steps: 4\n", &[]);
    assert!(
        dots.starts_with("x.yaml:2: not valid YAML: `...` ends a document, and more follows; remove"),
        "{dots}"
    );
}

#[test]
fn a_number_between_whole_ones_is_answered_by_the_range() {
    let scale = |keys: &str| {
        format!("--runner_wrapper={{scale_sense: {{type: AdaptiveLossScaleUpdateCell, {keys}}}}}")
    };
    let line = message(BASE, &[&scale("max_scale_window: 1000.5")]);
    assert!(line.ends_with("expected a whole number from 1 to 2147483648, found `1000.5`"), "{line}");
}

#[test]
fn explain_knows_what_is_filled_in_and_the_environment() {
    let explain = |name: &str| gristmill::settings::explain(Some(name)).unwrap();
    let window = explain("max_scale_window");
    assert!(window.contains("default: 1000;") && !window.contains("none"), "{window}");
    for name in ["ENABLE_LAZY_INLINE", "ENABLE_LAZY_INLINE_NO_PIPELINE"] {
        let found = explain(name);
        assert!(found.contains("in the environment") && found.contains("changes nothing"), "{found}");
    }
}
