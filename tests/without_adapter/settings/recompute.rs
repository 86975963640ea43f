//! `recompute_config`: what becomes of its forms, what the log says, and what is refused.

use super::{BASE, assert_reads_back, message, resolve};

/// The answer to two numbers where there is one stage.
const MANY: &str =
    "has 2 entries, but parallel_config.pipeline_stage is 1; write one entry, or `pipeline_stage: 2`";

/// The layers that are recomputed and the notices, for eight layers and `flags`.
fn recomputed(flags: &[&str]) -> (Vec<usize>, Vec<String>) {
    // With a wrapper, whose absence would be a notice.
    let base = ["--model.model_config.num_layers=8", "--runner_wrapper={use_clip_grad: True}"];
    let flags: Vec<&str> = base.iter().chain(flags).copied().collect();
    let (plan, notices) = resolve(BASE, &flags).unwrap_or_else(|error| panic!("{error}"));
    (plan.model.recomputed.layers, notices)
}

fn set_full(layers: &[usize]) -> Vec<String> {
    layers.iter().map(|layer| format!("Set full recompute at layer {layer}")).collect()
}

#[test]
fn counts_become_layers_and_lines_of_the_log() {
    let flags = [
        "--recompute_config.recompute=[3, 1]",
        "--parallel_config.pipeline_stage=2",
        "--model.model_config.pp_interleave_num=2",
        "--parallel={pipeline_config: {pipeline_interleave: True}}",
    ];
    let (layers, notices) = recomputed(&flags);
    assert_eq!(layers, [0, 1, 2, 4]);
    let mut lines = vec![
        "parallel_config asks for pipeline_stage 2; this run is one rank and takes 1".to_string(),
        "num_layers per stage: [[2, 2], [2, 2]]".to_string(),
        "Accumulated num_layers per stage: [[2, 4], [6, 8]]".to_string(),
        "Formative layer_recompute: [[2, 1], [1, 0]]".to_string(),
    ];
    lines.extend(set_full(&layers));
    assert_eq!(notices, lines);

    // Without the switch there is one interleave, as in MindFormers, but not in silence.
    let (layers, notices) = recomputed(&flags[..3]);
    assert_eq!(layers, [0, 1, 2, 4]);
    assert!(notices.contains(&"Formative layer_recompute: [[3, 1]]".to_string()), "{notices:?}");
    let taken =
        "pp_interleave_num: `2` is taken as 1 without `parallel.pipeline_config.pipeline_interleave: True`";
    assert!(notices.contains(&taken.to_string()), "{notices:?}");
}

/// What is read is not said to be ignored; what is ignored is named key by key.
#[test]
fn the_section_of_the_original_s_parallelism_is_answered_by_key() {
    let said = |value: &str| {
        let (_, notices) = recomputed(&[&format!("--parallel={value}")]);
        notices.into_iter().filter(|notice| notice.contains("parallel")).collect::<Vec<_>>()
    };
    assert_eq!(said("{pipeline_config: {pipeline_interleave: False}}"), [""; 0]);
    assert_eq!(
        said("{pipeline_config: {pipeline_interleave: True}}"),
        ["without meaning here and ignored: parallel.pipeline_config.pipeline_interleave"]
    );
    assert_eq!(
        said("{parallel_mode: 1, full_batch: True, pipeline_config: {pipeline_scheduler: 1f1b}}"),
        ["without meaning here and ignored: parallel.full_batch"]
    );
    let misspelt = message(BASE, &["--parallel={paralel_mode: 1}"]);
    assert!(misspelt.contains("unknown key; did you mean `parallel_mode`"), "{misspelt}");
}

/// The run folder's file has no stages any more, so it must name the layers.
#[test]
fn a_resolved_plan_names_its_layers() {
    let flags = ["--recompute_config.recompute=[1, 2]", "--parallel_config.pipeline_stage=2"];
    let (plan, _) = resolve(BASE, &flags).unwrap();
    assert_eq!(plan.model.recomputed.layers, [0, 1]);
    let (again, notices) = resolve(&plan.to_yaml(), &[]).unwrap();
    assert_eq!((&again, notices), (&plan, set_full(&[0, 1])));
    assert_eq!(again.decisions(), resolve(BASE, &[]).unwrap().0.decisions(), "resuming may choose anew");
    assert_reads_back(&resolve(BASE, &["--recompute_config.recompute=False"]).unwrap().0);
}

#[test]
fn true_takes_every_layer_however_they_are_dealt() {
    let all: Vec<usize> = (0..8).collect();
    let (layers, notices) = recomputed(&["--recompute_config.recompute=True"]);
    assert_eq!(layers, all);
    assert!(notices.contains(&"Formative layer_recompute: [[8]]".to_string()));
    assert_eq!(
        recomputed(&["--recompute_config.recompute=True", "--parallel_config.pipeline_stage=3"]).0,
        all
    );
    let ahead = ["--recompute_config.recompute=True", "--model.model_config.mtp_depth=2"];
    assert_eq!(recomputed(&ahead).0, (0..10).collect::<Vec<_>>(), "blocks of multi-token prediction too");
    for off in ["False", "[0]", "[]", "None"] {
        let (layers, notices) = recomputed(&[&format!("--recompute_config.recompute={off}")]);
        assert_eq!((layers, notices), (Vec::new(), Vec::new()), "{off}");
    }
    let (layers, notices) = recomputed(&["--recompute_config.layers=[5, 2, 5]"]);
    assert_eq!((layers, notices), (vec![2, 5], set_full(&[2, 5])));
}

/// The operators that are recomputed by themselves, and the notices, for eight layers and `flags`.
fn selected(flags: &[&str]) -> (Vec<(&'static str, Vec<usize>)>, Vec<String>) {
    let base = ["--model.model_config.num_layers=8", "--runner_wrapper={use_clip_grad: True}"];
    let flags: Vec<&str> = base.iter().chain(flags).copied().collect();
    let (plan, notices) = resolve(BASE, &flags).unwrap_or_else(|error| panic!("{error}"));
    // The run folder's file names the operators, so that it means the same without stages.
    let (again, lines) = resolve(&plan.to_yaml(), &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again, plan);
    assert!(lines.iter().all(|line| line.starts_with("Set ")), "{lines:?}");
    let others = flags.iter().filter(|flag| !flag.contains("recompute_config")).copied();
    let plain = resolve(BASE, &others.collect::<Vec<_>>()).unwrap().0;
    assert_eq!(plan.decisions(), plain.decisions(), "resuming may choose anew");
    let operators = plan.model.recomputed.operators.into_iter();
    (operators.map(|(operator, layers)| (operator.path(), layers)).collect(), notices)
}

const STAGES: [&str; 2] = ["num_layers per stage: [[8]]", "Accumulated num_layers per stage: [[8]]"];

fn lines(first: &[&str], layers: &[usize], last: &str) -> Vec<String> {
    let first = first.iter().map(|line| line.to_string());
    first.chain(layers.iter().map(|layer| last.replace("LAYER", &layer.to_string()))).collect()
}

#[test]
fn selected_operators_become_layers_and_lines_of_the_log() {
    let all: Vec<usize> = (0..8).collect();
    let (operators, notices) = selected(&["--recompute_config.select_recompute=True"]);
    assert_eq!(operators, [("feed_forward.mul", all.clone())]);
    let formative = r"Formative select_recompute: {'feed_forward\\.mul': [[8]], 'feed_forward\\.w1\\.activation\\.silu': [[8]]}";
    let set = "Set select recompute on at layer LAYER: feed_forward.mul, feed_forward.w1.activation.silu";
    assert_eq!(notices, lines(&[STAGES[0], STAGES[1], formative], &all, set));

    let (operators, notices) = selected(&["--recompute_config.select_comm_recompute=[3]"]);
    assert_eq!(operators, [("attention_norm", vec![0, 1, 2]), ("ffn_norm", vec![0, 1, 2])]);
    let formative = r"Formative select_comm_recompute: {'.*\\.norm': [[3]]}";
    let set = "Set select comm recompute on at layer LAYER: attention_norm.norm, ffn_norm.norm";
    assert_eq!(notices, lines(&[STAGES[0], STAGES[1], formative], &[0, 1, 2], set));

    // A module is all of its operators, and layers that are recomputed as a whole are not selected from.
    let flags = ["--recompute_config={recompute: [6], select_recompute: ['feed_forward\\.w1', attention]}"];
    let (operators, notices) = selected(&flags);
    let of_attention = ["attention.wqkv", "attention.flash_attention", "attention.wo"];
    let paths = of_attention.iter().chain(&["feed_forward.w_gate_up", "feed_forward.mul"]);
    assert_eq!(operators, paths.map(|path| (*path, vec![6, 7])).collect::<Vec<_>>());
    let set = set_full(&[0, 1, 2, 3, 4, 5]);
    let set =
        [set, lines(&[], &[6, 7], "Set select recompute on at layer LAYER: attention, feed_forward.w1")];
    assert!(notices.ends_with(&set.concat()), "{notices:?}");
    assert_eq!(
        selected(&["--recompute_config.operators={attention_norm: [7, 2, 2]}"]).0,
        [("attention_norm", vec![2, 7])]
    );
}

#[test]
fn operators_of_mixtures_and_of_gelu_answer_to_their_own_names() {
    let experts = "--moe_config={expert_num: 4, first_k_dense_replace: 1, shared_expert_num: 1}";
    let paths = |flags: &[&str]| selected(flags).0;
    assert_eq!(
        paths(&[experts, "--recompute_config.select_recompute=[2]"]),
        [
            ("feed_forward.mul", vec![0]),
            ("feed_forward.experts.mul", vec![1]),
            ("feed_forward.shared.mul", vec![1])
        ]
    );
    let shared = r"--recompute_config.select_recompute={'feed_forward\.shared_experts\.mul': [2]}";
    assert_eq!(paths(&[experts, shared]), [("feed_forward.shared.mul", vec![1])]);
    let gpt2 = "--model.model_config.type=GPT2Config";
    let experts = "--moe_config={expert_num: 4}";
    let mapping = r"--recompute_config.select_recompute={'output\.ffn\.mapping\..*': [2]}";
    assert_eq!(
        paths(&[gpt2, experts, mapping]),
        [("feed_forward.experts.w_gate_up", vec![0, 1]), ("feed_forward.experts.gelu", vec![0, 1])]
    );
    let pangu =
        ["--model.model_config.type=PanguAlphaConfig", experts, "--recompute_config.select_recompute=True"];
    assert_eq!(
        paths(&pangu),
        [("feed_forward.gelu", vec![7]), ("feed_forward.experts.gelu", (0..7).collect())],
        "the last layer is dense"
    );
    let gelu = r"--recompute_config.select_recompute={'feed_forward\.gelu': [1]}";
    assert_eq!(paths(&[gpt2, gelu]), [("feed_forward.gelu", vec![0])]);
}

#[test]
fn excluded_operators_are_kept_in_layers_that_are_recomputed_as_a_whole_too() {
    let select = "--recompute_config.select_recompute=True";
    let removed = "The pattern feed_forward\\.mul in select_recompute conflicts with select_recompute_exclude and will be removed.";
    let priority = "The configuration of select_recompute_exclude and select_comm_recompute_exclude have the highest priority.";
    // The silu that is still selected is fused with the product that is excluded.
    let flags = [select, "--recompute_config.select_recompute_exclude={'feed_forward\\.mul': True}"];
    let (operators, notices) = selected(&flags);
    assert_eq!((operators, notices.first()), (Vec::new(), Some(&removed.to_string())));
    assert!(notices.contains(&priority.to_string()), "{notices:?}");
    assert!(notices.contains(&"Set select recompute exclude at layer 7: feed_forward.mul".to_string()));

    let flags =
        ["--recompute_config={recompute: True, select_recompute_exclude: {'.*\\.flash_attention': [1]}}"];
    let (operators, notices) = selected(&flags);
    let paths = [
        "attention_norm",
        "attention.wqkv",
        "attention.wo",
        "ffn_norm",
        "feed_forward.w_gate_up",
        "feed_forward.mul",
    ];
    assert_eq!(operators, paths.map(|path| (path, vec![0])));
    let set = [
        "Set full recompute at layer 0",
        "Set select recompute exclude at layer 0: attention.flash_attention",
    ];
    assert!(set.iter().all(|line| notices.contains(&line.to_string())), "{notices:?}");
    let base = ["--model.model_config.num_layers=8"];
    let flags: Vec<&str> = base.into_iter().chain(flags).collect();
    assert_eq!(resolve(BASE, &flags).unwrap().0.model.recomputed.layers, (1..8).collect::<Vec<_>>());
}

/// MindFormers' own test: a module everywhere, without one of its operators in the first layer.
#[test]
fn an_operator_of_a_module_is_excluded() {
    let flags = [
        r"--recompute_config.select_recompute={'feed_forward\.w1': True}",
        r"--recompute_config.select_recompute_exclude={'feed_forward\.w1\.activation\.silu': [1]}",
        "--parallel_config.pipeline_stage=2",
    ];
    let (all, others) = ((0..8).collect(), (1..8).collect());
    assert_eq!(selected(&flags).0, [("feed_forward.w_gate_up", all), ("feed_forward.mul", others)]);
}

#[test]
fn patterns_that_select_nothing_are_one_line_each() {
    let idle = |keys: &str| {
        let notices = selected(&[&format!("--recompute_config={{{keys}}}")]).1;
        let notices = notices.into_iter().filter(|notice| notice.starts_with("recompute_config."));
        notices.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(idle("select_recompute: True, select_comm_recompute: True"), "");
    let there = "attention_norm, attention.wqkv, attention.flash_attention, attention.wo, ffn_norm, feed_forward.w_gate_up, \
                 feed_forward.mul";
    let unmatched = |key: &str, pattern: &str| {
        format!(
            "recompute_config.{key}: `{pattern}` matches no operator of layer 0; its operators are {there}, and a pattern \
             separates levels by `\\.`"
        )
    };
    assert_eq!(
        idle("select_recompute: ['feed_forward.mul']"),
        unmatched("select_recompute", "feed_forward.mul")
    );
    assert_eq!(idle(r"select_recompute: ['mul']"), unmatched("select_recompute", "mul"));
    assert_eq!(
        idle(r"select_recompute_exclude: ['.*\.router']"),
        unmatched("select_recompute_exclude", r".*\.router")
    );
    assert_eq!(
        idle(r"select_recompute: ['attention\.wo\.reshape', 'attention\.apply_rotary_emb']"),
        "recompute_config.select_recompute: `attention\\.wo\\.reshape` selects nothing to recompute: `attention.wo.reshape` is a \
         view\n\
         recompute_config.select_recompute: `attention\\.apply_rotary_emb` selects nothing to recompute: \
         `attention.apply_rotary_emb` writes into the output of `attention.wqkv` or `attention.qk_norm`, with which it is \
         recomputed"
    );
    assert_eq!(
        idle(r"select_comm_recompute: ['feed_forward']"),
        "recompute_config.select_comm_recompute: feed_forward is expected to be operation but got cell, this configuration will \
         not be effective."
    );
}

#[test]
fn switches_of_several_devices_are_one_line_each() {
    let notices = |flags: &[&str]| recomputed(flags).1;
    let switches = [
        "--recompute_config.mp_comm_recompute=False",
        "--recompute_config.parallel_optimizer_comm_recompute=True",
        "--recompute_config.recompute_slice_activation=True",
    ];
    let of = |key: &str| format!("recompute_config.{key}: no effect on one device");
    let keys = ["parallel_optimizer_comm_recompute", "mp_comm_recompute", "recompute_slice_activation"];
    assert_eq!(notices(&switches), keys.map(of));
    let (plan, _) = resolve(BASE, &switches).unwrap();
    assert!(!plan.settings.recompute.mp_comm_recompute && plan.settings.recompute.recompute_slice_activation);
    let ignored = "without meaning here and ignored: model.model_config.offset";
    assert_eq!(notices(&["--model.model_config.offset=[1, -1]"]), [ignored], "nothing counts stages");
}

#[test]
fn what_does_not_fit_names_its_key() {
    let form = "expected True, False, or how many layers of each pipeline stage as in [2, 1], or such a list for each interleave";
    let by_operator = "layers by operator as in {feed_forward.mul: [0, 1]}";
    let section = |keys: &str| format!("recompute_config: {{ {keys} }}\n{BASE}");
    let key = |key: &str, answer: &str| format!("x.yaml:1: recompute_config.{key}: {answer}");
    let cases = [
        ("recompute: [-1]", key("recompute", &format!("{form}, found the negative number `-1`"))),
        ("recompute: [1.5]", key("recompute", &format!("{form}, found `1.5` in the list"))),
        ("recompute: 2", key("recompute", &format!("{form}, found `2`"))),
        (
            "recompute: [1, [1, 0]]",
            key("recompute", &format!("{form}, found `1` beside a list in the same list")),
        ),
        ("recompute: [1, 1]", key("recompute", MANY)),
        ("select_recompute: [1, 1]", key("select_recompute", MANY)),
        ("layers: [0, 2]", key("layers", "there is no layer 2; the last is 1")),
        ("operators: { ffn_norm: [2] }", key("operators", "there is no layer 2; the last is 1")),
        (
            "operators: { feed_forward.gelu: [1] }",
            key(
                "operators",
                "layer 1 has no feed_forward.gelu, but attention_norm, attention.wqkv, attention.flash_attention, attention.wo, \
                 ffn_norm, feed_forward.w_gate_up, feed_forward.mul",
            ),
        ),
        (
            "operators: { ffn_norm: [0] }, select_recompute: True",
            key("operators", "given beside `select_recompute` or one of its kin; keep one of them"),
        ),
        (
            "operators: { ffn_norm: True }",
            key("operators", &format!("expected {by_operator}, found `True` for `ffn_norm`")),
        ),
        ("layers: [0], recompute: True", key("layers", "given beside `recompute`; keep one of them")),
        ("mp_comm_recompute: 1.5", key("mp_comm_recompute", "expected True or False, found `1.5`")),
        ("recompte: True", key("recompte", "unknown key; did you mean `recompute`?")),
    ];
    for (keys, answer) in cases {
        assert_eq!(message(&section(keys), &[]), answer, "{keys}");
    }
    let unknown = message(&section("operators: { mul: [0] }"), &[]);
    assert!(
        unknown.contains(&format!("expected {by_operator}, found `mul`; operators are attention_norm, ")),
        "{unknown}"
    );
    let unpaired = ["--model.model_config.num_layers=7", "--parallel_config.pipeline_stage=2"];
    let offset =
        "7 layers over 2 stages x 1 interleaves leave 1: write an `offset` whose numbers add up to 1";
    let line = message(&section("recompute: [1]"), &unpaired);
    assert!(line.starts_with("--parallel_config.pipeline_stage: ") && line.ends_with(offset), "{line}");
    let swap = message(&format!("swap_config: {{ swap: True }}\n{BASE}"), &[]);
    assert!(swap.starts_with("x.yaml:1: swap_config.swap: not built yet (found `True`); write"), "{swap}");
    for instead in ["recompute_config.recompute: True", "`gristmill plan`", "`context.max_device_memory`"] {
        assert!(swap.contains(instead), "{swap}");
    }
}

/// `True` is the activation of the feed-forward network, with a gate or without one.
#[test]
fn the_default_selection_finds_the_activation_of_every_model() {
    for (kind, path) in [
        ("LlamaConfig", "feed_forward.mul"),
        ("GPT2Config", "feed_forward.gelu"),
        ("BloomConfig", "feed_forward.gelu"),
        ("PanguAlphaConfig", "feed_forward.gelu"),
        ("WizardCoderConfig", "feed_forward.gelu"),
    ] {
        let kind = format!("--model.model_config.type={kind}");
        let flags = [kind.as_str(), "--recompute_config.select_recompute=True"];
        let (plan, notices) = resolve(BASE, &flags).unwrap_or_else(|error| panic!("{kind}: {error}"));
        let operators: Vec<_> = plan.model.recomputed.operators.iter().map(|(one, _)| one.path()).collect();
        assert_eq!(operators, [path], "{kind}: {notices:?}");
    }
}

#[test]
fn two_faults_of_the_section_are_two_lines() {
    let faults = message(BASE, &["--recompute_config={recompute: [1, 1], select_recompute: [x, 1]}"]);
    let lines: Vec<&str> = faults.lines().collect();
    assert_eq!(lines.len(), 2, "{faults}");
    assert!(lines.iter().any(|line| line.contains("recompute: has 2 entries")), "{faults}");
    assert!(lines.iter().any(|line| line.contains("select_recompute: expected ")), "{faults}");
}

/// The documents print patterns with two backslashes, as Python does.
#[test]
fn doubled_backslashes_are_told_from_single_ones() {
    let text = format!("{BASE}recompute_config:\n  select_recompute: ['feed_forward\\\\.mul']\n");
    let line = message(&text, &[]);
    let end = r"found `feed_forward\\.mul`, of which single quotes keep both backslashes; write `'feed_forward\.mul'`";
    assert!(line.starts_with("x.yaml:29: ") && line.ends_with(end) && line.lines().count() == 1, "{line}");
}

#[test]
fn offsets_of_interleaves_need_their_switch() {
    let layers = "num_layers: 5\n    pp_interleave_num: 2\n    offset: [[0, 1], [0, 0]]";
    let text = format!(
        "{}recompute_config: {{recompute: [1, 0]}}\nparallel_config: {{pipeline_stage: 2}}\n",
        BASE.replace("num_layers: 2", layers)
    );
    let line = message(&text, &[]);
    let expected = "parallel.pipeline_config.pipeline_interleave: must be True where `offset` has a list for each \
                    interleave: without it `pp_interleave_num` counts as 1; write True, or one offset for each stage";
    assert!(line.ends_with(expected) && line.lines().count() == 1, "{line}");
    assert_eq!(message(&text, &["--parallel.pipeline_config.pipeline_interleave=True"]), "accepted");
}
