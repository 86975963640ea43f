//! `recompute_config`: what becomes of its forms, what the log says, and what is refused.

use super::{BASE, assert_reads_back, message, resolve};

/// The layers that are recomputed and the notices, for eight layers and `flags`.
fn recomputed(flags: &[&str]) -> (Vec<usize>, Vec<String>) {
    // With a wrapper, whose absence would be a notice.
    let base = ["--model.model_config.num_layers=8", "--runner_wrapper={use_clip_grad: True}"];
    let flags: Vec<&str> = base.iter().chain(flags).copied().collect();
    let (plan, notices) = resolve(BASE, &flags).unwrap_or_else(|error| panic!("{error}"));
    (plan.model.recomputed_layers, notices)
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

    // Without the switch there is one interleave, as in the original, but not in silence.
    let (layers, notices) = recomputed(&flags[..3]);
    assert_eq!(layers, [0, 1, 2, 4]);
    assert!(notices.contains(&"Formative layer_recompute: [[3, 1]]".to_string()), "{notices:?}");
    let taken =
        "pp_interleave_num: `2` is taken as 1 without `parallel.pipeline_config.pipeline_interleave: True`";
    assert!(notices.contains(&taken.to_string()), "{notices:?}");
}

/// The run folder's file has no stages any more, so it must name the layers.
#[test]
fn a_resolved_plan_names_its_layers() {
    let flags = ["--recompute_config.recompute=[1, 2]", "--parallel_config.pipeline_stage=2"];
    let (plan, _) = resolve(BASE, &flags).unwrap();
    assert_eq!(plan.model.recomputed_layers, [0, 1]);
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

#[test]
fn single_operators_and_switches_of_several_devices_are_one_line_each() {
    let line = |keys: &str| {
        format!(
            "recompute_config: without effect, since single operators are not recomputed yet: {keys}; `recompute: True` \
             recomputes whole layers"
        )
    };
    let notices = |flags: &[&str]| recomputed(flags).1;
    let select = "--recompute_config.select_recompute=True";
    assert_eq!(notices(&[select]), [line("select_recompute")]);
    let both = [select, "--recompute_config.select_comm_recompute={'.*\\.norm': [3]}"];
    assert_eq!(notices(&both), [line("select_recompute, select_comm_recompute")]);
    let excluded =
        notices(&[select, "--recompute_config.select_recompute_exclude={'feed_forward\\.mul': True}"]);
    assert_eq!(
        excluded,
        [
            "The pattern feed_forward\\.mul in select_recompute conflicts with select_recompute_exclude and will be removed.",
            &line("select_recompute, select_recompute_exclude"),
        ]
    );
    // Where whole layers are recomputed, nothing is left to select.
    assert!(
        notices(&[select, "--recompute_config.recompute=True"])
            .iter()
            .all(|notice| !notice.contains("operators"))
    );
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
        ("recompute: [1, 1]", key("recompute", "has 2 entries, but parallel_config.pipeline_stage is 1")),
        (
            "select_recompute: [1, 1]",
            key("select_recompute", "has 2 entries, but parallel_config.pipeline_stage is 1"),
        ),
        ("layers: [0, 2]", key("layers", "there is no layer 2; the last is 1")),
        ("layers: [0], recompute: True", key("layers", "given beside `recompute`; keep one of them")),
        ("mp_comm_recompute: 1.5", key("mp_comm_recompute", "expected True or False, found `1.5`")),
        ("recompte: True", key("recompte", "unknown key; did you mean `recompute`?")),
    ];
    for (keys, answer) in cases {
        assert_eq!(message(&section(keys), &[]), answer, "{keys}");
    }
    let unpaired = ["--model.model_config.num_layers=7", "--parallel_config.pipeline_stage=2"];
    let offset = "7 layers over 2 stages x 1 interleaves leave 1, but the offsets add up to 0";
    let line = message(&section("recompute: [1]"), &unpaired);
    assert!(line.contains("model.model_config.offset") && line.ends_with(offset), "{line}");
    let swap = message(&format!("swap_config: {{ swap: True }}\n{BASE}"), &[]);
    assert!(swap.starts_with("x.yaml:1: swap_config.swap: not built yet (found `True`); write"), "{swap}");
    assert!(swap.contains("recompute_config.recompute: True"), "{swap}");
}
