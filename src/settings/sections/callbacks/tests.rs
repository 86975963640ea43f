//! The answers to callbacks that say the same as other keys, or two things at once.

use crate::settings::{Override, RunConfig, RunPlan};
use std::path::Path;

const TEXT: &str = "
model:
  model_config: { vocab_size: 256, hidden_size: 64, num_layers: 2, num_heads: 4, seq_length: 32 }
train_dataset:
  data_loader: { type: CargoRegistryDataLoader }
  eval_fraction: 0.1
lr_schedule: { learning_rate: 1.e-3 }
";

/// The plan and the notices, or the error.
fn read(more: &str, flags: &[&str]) -> Result<(RunPlan, Vec<String>), String> {
    let overrides = Override::parse_all(flags.iter().copied()).unwrap();
    let config = RunConfig::parse(&format!("{TEXT}{more}"), Path::new("x.yaml"), &overrides);
    config.map(|config| (config.plan, config.notices)).map_err(|error| error.to_string())
}

fn plan(more: &str) -> RunPlan {
    let (plan, _) = read(more, &[]).unwrap();
    let (again, notices) = RunConfig::parse(&plan.to_yaml(), Path::new("x.yaml"), &[])
        .map(|config| (config.plan, config.notices))
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(again == plan && notices.is_empty(), "{notices:?}\n{}", plan.to_yaml());
    plan
}

#[test]
fn the_loss_lines_are_asked_for_by_name() {
    assert_eq!(plan("").settings.callbacks.loss, None);
    let named = plan("callbacks: [{type: LossMonitor, per_print_times: 3}]");
    assert_eq!(named.settings.callbacks.loss.map(|lines| lines.per_print_times), Some(3));
}

#[test]
fn an_evaluation_callback_is_the_same_as_the_keys() {
    let by_callback = plan("callbacks: [{type: EvalCallBack, step_interval: 7, epoch_interval: 2}]");
    let by_keys = plan("do_eval: True\neval_step_interval: 7\neval_epoch_interval: 2");
    assert_eq!(by_callback, by_keys);
    let run = plan("eval_step_interval: 7\ncallbacks: [{type: EvalCallBack}]").settings.run;
    assert_eq!((run.eval_interval(), run.eval_epochs()), (Some(7), None));
    assert_eq!(plan("eval_epoch_interval: 2").settings.run.eval_epochs(), None, "nothing is evaluated");
}

#[test]
fn an_evaluation_callback_and_other_keys_are_one_line() {
    let fault = |more: &str| read(more, &[]).map(drop).unwrap_err();
    assert_eq!(
        fault("eval_step_interval: 9\ncallbacks: [{type: EvalCallBack, step_interval: 7}]"),
        "x.yaml:9: callbacks.0.step_interval: is 7, and `eval_step_interval` is 9; write one of them"
    );
    assert_eq!(
        fault("do_eval: False\ncallbacks: [{type: EvalCallBack}]"),
        "x.yaml:9: callbacks.0.type: an EvalCallBack evaluates, and `do_eval` is False; write `do_eval: True` or remove the callback"
    );
    assert_eq!(
        fault("callbacks: [{type: EvalCallBack}, {type: EvalCallBack}]"),
        "x.yaml:8: callbacks.1.type: a second EvalCallBack; keep one of them"
    );
}

#[test]
fn the_earlier_stop_counts() {
    let stop = |more: &str, flags: &[&str]| {
        let (plan, notices) = read(more, flags).unwrap();
        (
            plan.settings.runner.stop_step,
            notices.iter().any(|notice| notice.contains("the earlier one counts")),
        )
    };
    let callback = "callbacks: [{type: TrainCallBack, stop_step: 10}]";
    assert_eq!(stop(callback, &[]), (10, false));
    assert_eq!(stop(callback, &["--runner_config.stop_step=4"]), (4, true));
    assert_eq!(stop(callback, &["--runner_config.stop_step=10"]), (10, false));
    assert_eq!(stop(callback, &["--runner_config.stop_step=40"]), (10, true));
    assert_eq!(stop("callbacks: [{type: TrainCallBack}]", &["--runner_config.stop_step=4"]), (4, false));
}

#[test]
fn of_two_strategies_the_one_by_number_counts() {
    let monitor = |keys: &str| {
        let (plan, notices) =
            read(&format!("callbacks: [{{type: CheckpointMonitor, {keys}}}]"), &[]).unwrap();
        let of_strategies = notices.iter().filter(|notice| notice.contains(" counts where ")).count();
        (plan.settings.callbacks.checkpoint.unwrap(), of_strategies)
    };
    let numbers = |keys: &str| {
        let (monitor, notices) = monitor(keys);
        (
            [monitor.save_checkpoint_steps, monitor.save_checkpoint_seconds],
            [monitor.keep_checkpoint_max, monitor.keep_checkpoint_per_n_minutes],
            notices,
        )
    };
    // As MindSpore's CheckpointConfig decides, whose defaults are 1 step and 5 files.
    assert_eq!(numbers("save_checkpoint_seconds: 600"), ([1, 0], [5, 0], 1));
    assert_eq!(numbers("save_checkpoint_steps: 0, save_checkpoint_seconds: 600"), ([0, 600], [5, 0], 0));
    assert_eq!(numbers("save_checkpoint_steps: null, save_checkpoint_seconds: 600"), ([0, 600], [5, 0], 0));
    assert_eq!(numbers("keep_checkpoint_per_n_minutes: 30"), ([1, 0], [5, 0], 1));
    assert_eq!(numbers("keep_checkpoint_max: null, keep_checkpoint_per_n_minutes: 30"), ([1, 0], [0, 30], 0));
    assert_eq!(numbers("keep_checkpoint_max: 0"), ([1, 0], [0, 0], 0));
    let never =
        read("callbacks: [{type: CheckpointMonitor, save_checkpoint_steps: 0}]", &[]).map(drop).unwrap_err();
    assert!(never.starts_with("x.yaml:8: callbacks.0.save_checkpoint_steps: nothing says when"), "{never}");
}

#[test]
fn a_prefix_begins_a_name() {
    let prefix = |keys: &str| {
        let (plan, _) = read(&format!("callbacks: [{{type: CheckpointMonitor{keys}}}]"), &[])?;
        Ok::<_, String>(plan.settings.callbacks.checkpoint.unwrap().prefix().to_owned())
    };
    assert_eq!(
        [prefix(""), prefix(", prefix: CKP"), prefix(", prefix: ''")],
        [const { Ok(String::new()) }; 3]
    );
    assert_eq!(prefix(", prefix: llama2-7b"), Ok("llama2-7b".into()));
    let wrong = prefix(", prefix: a/b").unwrap_err();
    assert_eq!(wrong, "x.yaml:8: callbacks.0.prefix: expected the beginning of a folder's name, found `a/b`");
}

#[test]
fn the_parts_of_the_loss_are_shown_as_in_the_original() {
    let shown = |more: &str| plan(more).settings.run.print_separate_loss;
    assert_eq!(shown(""), Some(false));
    assert_eq!(shown("use_legacy: False"), Some(true));
    assert_eq!(shown("use_legacy: False\nprint_separate_loss: False"), Some(false));
    assert_eq!(shown("print_separate_loss: True"), Some(true));
}

#[test]
fn metrics_are_a_section_or_a_list_of_them() {
    let reported = |more: &str| {
        let metric = plan(more).settings.metric;
        (metric.perplexity, metric.accuracy)
    };
    assert_eq!(reported("do_eval: True\nmetric: {type: PerplexityMetric}"), (true, false));
    assert_eq!(reported("do_eval: True\nmetric: {type: Accuracy}"), (false, true));
    assert_eq!(reported("do_eval: True\nmetric: [{type: PerplexityMetric}, {type: Accuracy}]"), (true, true));
    assert_eq!(reported("metric: {type: PerplexityMetric}"), (false, false), "nothing is evaluated");
    let (_, notices) = read("do_eval: True\nmetric: [{type: ADGENMetric}, {type: Accuracy}]", &[]).unwrap();
    assert!(notices.iter().any(|notice| notice.starts_with("metric.0: ADGENMetric judges")), "{notices:?}");
    assert!(!notices.iter().any(|notice| notice.contains("Accuracy")), "{notices:?}");
    let wrong = read("do_eval: True\nmetric: {type: Perplexity}", &[]).map(drop).unwrap_err();
    assert!(
        wrong.starts_with("x.yaml:9: metric.type: unknown type `Perplexity`; known are PerplexityMetric"),
        "{wrong}"
    );
}
