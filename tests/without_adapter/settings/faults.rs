//! Everything wrong in a file is said at once.

use super::{BASE, assert_answers, message, replace};

/// Ten faults of ten kinds, in sections that depend on each other.
const TEN_FAULTS: &str = "\
sead: 7
model:
  model_config:
    vocab_size: many
    hidden_size: 64
    num_layers: 2
    num_heads: 5
    seq_length: 32
    compute_dtype: float8
    attention_dropout: 1.5
    n_kv_heads: 3
runner_config: {batch_size: 0, epochs: 2}
optimizer: {type: AdamV}
lr_schedule: {type: cosine, learning_rate: 1e-3, warmup_ratio: 2}
train_dataset:
  data_loader: {type: TFRecordDataset}
callbacks:
  - type: MFLossMonitor
    per_print_time: 1
";

#[test]
fn ten_faults_are_ten_lines() {
    let text = message(TEN_FAULTS, &[]);
    let expected = [
        "x.yaml:1: sead: unknown key; did you mean `seed`?",
        "x.yaml:4: model.model_config.vocab_size: expected a whole number from 1 to 2147483648, found `many`",
        "x.yaml:7: model.model_config.num_heads: 5 heads do not divide hidden_size 64; change one of them or give `head_dim`",
        "x.yaml:9: model.model_config.compute_dtype: expected float32, float16 or bfloat16, found `float8`",
        "x.yaml:10: model.model_config.attention_dropout: expected a share in [0, 1), found `1.5`",
        "x.yaml:12: runner_config.batch_size: expected a whole number from 1 to 2147483648, found `0`",
        "x.yaml:13: optimizer.type: unknown type `AdamV`; did you mean `AdamW`?",
        "x.yaml:14: lr_schedule.warmup_ratio: expected a share in [0, 1], found `2`",
        "x.yaml:16: train_dataset.data_loader.type: `TFRecordDataset` is not built; convert the data with MindSpore's TFRecordToMR, and write `MindDataset`",
        "x.yaml:19: callbacks.0.per_print_time: unknown key; did you mean `per_print_times`?",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected, "\n{text}");
    // A key that a flag mends is no fault any more; one that a flag breaks is the flag's.
    let flags = ["--seed=1", "--model.model_config.vocab_size=256", "--runner_config.epochs=few"];
    let text = message(TEN_FAULTS, &flags);
    assert!(!text.contains("vocab_size"), "{text}");
    let first = "--runner_config.epochs: expected a whole number from 1 to 2147483648, found `few`";
    assert_eq!(text.lines().next(), Some(first), "{text}");
}

#[test]
fn of_many_faults_twenty_are_listed() {
    let keys: String = (0..30).map(|number| format!("unheard_of_{number}: 1\n")).collect();
    let text = message(&format!("{BASE}{keys}"), &[]);
    assert_eq!(text.lines().count(), 21, "{text}");
    assert!(text.ends_with("and 10 more"), "{text}");
}

/// One mistake is one line: what follows from it is not reported.
#[test]
fn a_mistake_is_one_line() {
    assert_answers(MISTAKES, |line, written| message(&replace(BASE, line, written), &[]));
}

const MISTAKES: &str = "
-model:
+modle:
= x.yaml:2: modle: unknown key; did you mean `model`?

-lr_schedule:
+lr_schedul:
= x.yaml:15: lr_schedul: unknown key; did you mean `lr_schedule`?

-    hidden_size: 64
+    n_embed: 64
= x.yaml:6: model.model_config.n_embed: unknown key; did you mean `n_embd`?

-    type: LlamaConfig
+    type: MambaConfig
+    expert_num: 8
= x.yaml:4: model.model_config.type: `MambaConfig` is not built; `gristmill explain model.model_config.type` lists those that are

-seed: 7
+runner_wrapper: {scale_sense: {type: DynamicLossScaleCell, scale_factor: 2, scale_window: 9}}
= x.yaml:1: runner_wrapper.scale_sense.type: unknown type `DynamicLossScaleCell`; did you mean `DynamicLossScaleUpdateCell`?

-  type: AdamW
+  type: AdamW
+  learning_rate: fast
= x.yaml:15: optimizer.learning_rate: expected a number above 0, found `fast`
";
