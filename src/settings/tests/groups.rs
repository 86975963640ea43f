//! Groups of parameters: `grouped_lr_schedule`, `no_decay_params`, `freeze`.

use super::*;
use crate::settings::{Decay, Warmup};

/// As one file of the original writes it, and what it does not have.
const GROUPED: &str = "
no_decay_params: [w_down]
grouped_lr_schedule:
  default:
    type: ConstantWarmUpLR
    learning_rate: 2.e-4
    warmup_steps: 20
    total_steps: -1
  grouped:
    - type: linear
      params: ['embedding.*', 'output_layer.weight']
      learning_rate: 1.e-4
      warmup_ratio: 0.1
      weight_decay: 0.0
    - type: LearningRateWiseLayer
      params: ['layers.1']
      lr_scale: 0.5
      base_lr: {type: ConstantWarmUpLR, learning_rate: 4.e-4}
";

fn frozen(line: &str) -> String {
    BASE.replace("    seq_length: 32\n", &format!("    seq_length: 32\n    {line}\n"))
}

#[test]
fn groups_read_and_read_back() {
    let (plan, notices) =
        resolve(&format!("{}{GROUPED}", frozen("freeze: q_proj|k_proj|v_proj")), &[]).unwrap();
    let unused = "lr_schedule: grouped_lr_schedule is used instead, as in the original";
    assert!(notices.iter().any(|notice| notice == unused), "{notices:?}");
    assert_eq!((plan.schedule.decay.clone(), plan.schedule.learning_rate), (Decay::Constant, 2e-4));
    assert_eq!(plan.settings.groups.len(), 2);
    assert_eq!(plan.settings.groups[0].keys.params, ["embedding.*", "output_layer.weight"]);
    assert_eq!([0, 1, 2].map(|group| plan.weight_decay(group)), [0.0, 0.0, 0.0]);
    let [first, second] = plan.group_schedules.as_slice() else { panic!("two groups") };
    assert_eq!(
        (&first.decay, first.learning_rate, &first.warmup),
        (&Decay::Linear, 1e-4, &Warmup::Ratio(0.1))
    );
    assert_eq!((&second.decay, second.learning_rate, second.scale), (&Decay::Constant, 4e-4, 0.5));
    let (again, notices) = resolve(&plan.to_yaml(), &[]).unwrap();
    assert_eq!(plan, again);
    assert!(notices.iter().all(|notice| !notice.contains("lr_schedule")), "{notices:?}");
}

#[test]
fn a_decay_of_its_own() {
    let text = format!("{BASE}{GROUPED}").replace("type: AdamW", "type: AdamW\n  weight_decay: 0.1");
    let plan = plan(&text);
    assert_eq!([0, 1, 2].map(|group| plan.weight_decay(group)), [0.1, 0.0, 0.1]);
}

#[test]
fn mistakes_are_one_line_each() {
    let grouped = format!("{BASE}{GROUPED}");
    let rows = [
        (
            grouped.replace("'layers.1'", "'layers.7'"),
            "x.yaml:43: grouped_lr_schedule.grouped.1.params: `layers.7` matches no parameter; names are such as ",
        ),
        (
            grouped.replace("'layers.1'", "'layers.1', embed"),
            "x.yaml:43: grouped_lr_schedule.grouped.1.params: embedding is in group 0 already; ",
        ),
        (
            grouped.replace("['layers.1']", "[]"),
            "x.yaml:43: grouped_lr_schedule.grouped.1.params: is empty; give patterns of parameter names",
        ),
        (
            grouped.replace("      params: ['layers.1']\n", ""),
            "x.yaml:42: grouped_lr_schedule.grouped.1: `params` is missing; give it a value or a list of values",
        ),
        (
            grouped.replace("      weight_decay: 0.0", "      weight_deacy: 0.0"),
            "x.yaml:41: grouped_lr_schedule.grouped.0.weight_deacy: unknown key; did you mean `weight_decay`?",
        ),
        (
            grouped.replace("  default:", "  defaults:"),
            "x.yaml:31: grouped_lr_schedule.defaults: unknown key; did you mean `default`?",
        ),
        (
            format!("{BASE}grouped_lr_schedule: {{grouped: []}}\n"),
            "x.yaml:28: grouped_lr_schedule: `default` is missing; give it the schedule of all other parameters",
        ),
        (
            grouped.replace("[w_down]", "['*w_down']"),
            "x.yaml:29: no_decay_params: `*w_down` is no regular expression: repetition operator missing expression; \
             write `.*` for any text",
        ),
        (
            frozen("freeze: [q_proj]"),
            "x.yaml:10: model.model_config.freeze: takes only a part of layers.0.attention.wqkv, ",
        ),
        (
            frozen("freeze: ['.*']"),
            "x.yaml:10: model.model_config.freeze: nothing is left to train; freeze less",
        ),
        (
            frozen("freeze_exclude: ['.*']"),
            "x.yaml:10: model.model_config.freeze_exclude: given without `freeze`, whose patterns it narrows",
        ),
    ];
    let mut wrong = Vec::new();
    for (text, expected) in rows {
        let found = message(&text, &[]);
        if !(found.starts_with(expected) && found.lines().count() == 1) {
            wrong.push(format!("{expected}\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
