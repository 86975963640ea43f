//! Groups of parameters: `grouped_lr_schedule`, `no_decay_params`, `freeze`.

use super::{BASE, assert_answers, assert_reads_back, message, plan, replace, resolve};
use gristmill::settings::{Decay, Settings};

/// As one file of MindFormers writes it, and what it does not have.
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

#[test]
fn groups_read_and_read_back() {
    let frozen = replace(BASE, "    seq_length: 32", "    seq_length: 32\n    freeze: q_proj|k_proj|v_proj");
    let (plan, notices) = resolve(&(frozen + GROUPED), &[]).unwrap();
    let unused = "lr_schedule: grouped_lr_schedule is used instead, as in MindFormers";
    assert!(notices.iter().any(|notice| notice == unused), "{notices:?}");
    let Settings { schedule, groups, .. } = &plan.settings;
    assert_eq!((&schedule.decay, schedule.rate()), (&Decay::Constant {}, 2e-4));
    assert_eq!(groups.len(), 2);
    assert_eq!(groups[0].keys.params, ["embedding.*", "output_layer.weight"]);
    assert_eq!([0, 1, 2].map(|group| plan.weight_decay(group)), [0.0, 0.0, 0.0]);
    let [first, second] = [0, 1].map(|number| &groups[number].schedule);
    assert_eq!((&first.decay, first.rate(), first.warmup_ratio), (&Decay::Linear {}, 1e-4, Some(0.1)));
    assert_eq!((&second.decay, second.rate(), second.scale()), (&Decay::Constant {}, 4e-4, 0.5));
    assert_reads_back(&plan);
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
    assert_answers(MISTAKES, |line, written| message(&replace(&grouped, line, written), &[]));
    assert_answers(MISTAKES_WITHOUT_GROUPS, |line, written| message(&replace(BASE, line, written), &[]));
}

const MISTAKES: &str = "
-      params: ['layers.1']
+      params: ['layers.7']
= x.yaml:43: grouped_lr_schedule.grouped.1.params: `layers.7` matches no parameter; names are such as model.layers.0.self_attn.q_proj.weight or layers.0.attention.wqkv
+      params: ['layers.1', embed]
= x.yaml:43: grouped_lr_schedule.grouped.1.params: embedding is in group 0 already; one group may take it
+      params: []
= x.yaml:43: grouped_lr_schedule.grouped.1.params: is empty; give patterns of parameter names
+
= x.yaml:42: grouped_lr_schedule.grouped.1: `params` is missing; give it a value or a list of values

-      weight_decay: 0.0
+      weight_deacy: 0.0
= x.yaml:41: grouped_lr_schedule.grouped.0.weight_deacy: unknown key; did you mean `weight_decay`?

-  default:
+  defaults:
= x.yaml:31: grouped_lr_schedule.defaults: unknown key; did you mean `default`?

-no_decay_params: [w_down]
+no_decay_params: ['*w_down']
= x.yaml:29: no_decay_params: `*w_down` is no regular expression: repetition operator missing expression; write `.*` for any text
";

const MISTAKES_WITHOUT_GROUPS: &str = "
-seed: 7
+grouped_lr_schedule: {grouped: []}
= x.yaml:1: grouped_lr_schedule: `default` is missing; give it the schedule of all other parameters

-    seq_length: 32
+    seq_length: 32
+    freeze: [q_proj]
= x.yaml:10: model.model_config.freeze: takes only a part of layers.0.attention.wqkv, which is stored as one matrix; take model.layers.0.self_attn.k_proj.weight too, or none of it
+    seq_length: 32
+    freeze: ['.*']
= x.yaml:10: model.model_config.freeze: nothing is left to train; freeze less
+    seq_length: 32
+    freeze_exclude: ['.*']
= x.yaml:10: model.model_config.freeze_exclude: given without `freeze`, whose patterns it narrows
";
