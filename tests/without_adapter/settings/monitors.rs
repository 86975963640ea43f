//! `monitor_config`: what is watched, where it goes, and what is refused.

use super::{BASE, assert_reads_back, message, resolve};
use gristmill::settings::{Formats, Override, RunConfig, RunPlan};
use std::path::Path;

fn watched(keys: &str) -> (RunPlan, Vec<String>) {
    let flag = format!("--monitor_config={{monitor_on: True, {keys}}}");
    let (plan, notices) = resolve(BASE, &[&flag]).unwrap_or_else(|error| panic!("{keys}: {error}"));
    assert_reads_back(&plan);
    (plan, without_clipping(notices))
}

/// The notices but that the base has no `runner_wrapper`.
fn without_clipping(notices: Vec<String>) -> Vec<String> {
    notices.into_iter().filter(|notice| !notice.starts_with("runner_wrapper")).collect()
}

/// What is answered to keys of the section, `key=value`.
fn refused(keys: &[&str]) -> String {
    let flags = keys.iter().map(|key| format!("--monitor_config.{key}"));
    let flags: Vec<String> = flags.chain(["--monitor_config.monitor_on=True".to_string()]).collect();
    message(BASE, &flags.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn every_form_of_a_format() {
    let formats = |form: &str| watched(&format!("local_norm_format: {form}"));
    for (form, want) in [("log", Formats::LOG), ("[log]", Formats::LOG), ("null", Formats::default())] {
        let (plan, notices) = formats(form);
        assert_eq!(plan.settings.monitor.local_norm_format, want, "{form}");
        assert_eq!(notices, [""; 0], "{form}");
    }
    // As in MindFormers, what cannot go to TensorBoard goes to the log.
    for form in ["tensorboard", "[tensorboard]", "['log', 'tensorboard']"] {
        let (plan, notices) = formats(form);
        assert_eq!(plan.settings.monitor.local_norm_format, Formats::LOG, "{form}");
        let notice =
            "monitor_config.local_norm_format: to the log alone, as there is no `tensorboard` section";
        assert_eq!(notices, [notice], "{form}");
    }
    let flags = [
        "--tensorboard={}",
        "--monitor_config={monitor_on: True, local_norm_format: ['log', 'tensorboard']}",
    ];
    let (plan, notices) = resolve(BASE, &flags).unwrap();
    assert_eq!(
        (plan.settings.monitor.local_norm_format, without_clipping(notices).len()),
        (Formats { log: true, tensorboard: true }, 0)
    );
    for wrong in ["csv", "[log, csv]", "True"] {
        let line = refused(&[&format!("local_norm_format={wrong}")]);
        let expected =
            "--monitor_config.local_norm_format: expected log, tensorboard or a list of both, found ";
        assert!(line.starts_with(expected), "{line}");
    }
}

#[test]
fn a_monitor_that_is_off_has_no_effect() {
    let keys = "local_norm_format: log, target: ['wo'], print_struct: True";
    let (plan, notices) = resolve(BASE, &[&format!("--monitor_config={{{keys}}}")]).unwrap();
    assert_eq!(
        without_clipping(notices),
        [
            "monitor_config: without effect while `monitor_on` is False: target, local_norm_format, print_struct"
        ]
    );
    assert_eq!(plan, resolve(BASE, &[]).unwrap().0);
}

#[test]
fn patterns_that_select_nothing_are_one_line() {
    for keys in [&["local_norm_format=log", "target=['no_such']"], &["local_norm_format=log", "invert=True"]]
    {
        let line = refused(keys);
        assert!(line.contains("selects no parameter that trains; names are such as "), "{line}");
        assert!(!line.contains('\n'), "{line}");
    }
    let line = refused(&["target=['*']"]);
    assert!(line.starts_with("--monitor_config.target: `*` is no regular expression"), "{line}");
    let (plan, _) = watched("local_norm_format: log, target: ['layers.[01]', 'no_such'], invert: True");
    assert!(plan.settings.monitor.invert);
}

#[test]
fn what_is_not_built_is_one_line() {
    let line = refused(&["check_for_global_norm=True"]);
    assert!(
        line.contains("check_for_global_norm: not built yet (found `True`); write `False`, and "),
        "{line}"
    );
    for (key, remedy) in [
        ("device_local_norm_format=log", "remove it; the log has `global_norm`"),
        ("device_local_loss_format=log", "write `local_loss_format`"),
        ("throughput_baseline=2.5", "remove it; the log has tokens per second"),
        (
            "stable_rank_config={format: log}",
            "remove it; `weight_state_format` reports the norm of the weights",
        ),
    ] {
        let line = refused(&[key]);
        assert!(line.contains(": not built yet (found ") && line.ends_with(remedy), "{line}");
    }
    let (plan, notices) = watched(
        "device_local_norm_format: null, throughput_baseline: null, stable_rank_config: {format: null}",
    );
    assert_eq!((plan, notices), watched("local_norm_format: null"));
}

#[test]
fn several_ranks_watch_all() {
    let answer = |monitor: &[String], degrees: &[&str]| {
        let flags =
            ["--use_parallel=True", "--runner_wrapper.local_norm=True", "--monitor_config.monitor_on=True"];
        let monitor = monitor.iter().map(|key| format!("--monitor_config.{key}=log"));
        let flags = flags.iter().chain(degrees).map(|flag| flag.to_string()).chain(monitor);
        let overrides = Override::parse_all(flags.collect::<Vec<String>>()).unwrap();
        let config = RunConfig::parse_on_rank(BASE, Path::new("x.yaml"), &overrides, 0, 2);
        config.map_or_else(|error| error.to_string(), |_| "accepted".to_string())
    };
    let all = [
        "local_norm_format",
        "optimizer_state_format",
        "weight_state_format",
        "local_loss_format",
        "max_attention_logit_format",
    ];
    let sharded = ["--parallel_config.data_parallel=2", "--parallel.enable_parallel_optimizer=True"];
    let stages = ["--parallel_config.pipeline_stage=2", "--parallel_config.micro_batch_num=2"];
    for degrees in [&sharded[..], &["--parallel_config.model_parallel=2"], &stages] {
        assert_eq!(answer(&all.map(String::from), degrees), "accepted", "{degrees:?}");
    }
}
