//! Wrong configurations and the one line that answers each.

use super::{BASE, assert_answers, message, plan, replace};

#[test]
fn malformed_input_is_answered_in_one_line() {
    plan(BASE);
    assert_answers(MALFORMED, |line, written| message(&replace(BASE, line, written), &[]));
}

/// Lines of `base.yaml`, what is written instead, and the answer. A wrong type, word or number and a misspelt, unused
/// or refused key stand for those of all rows, which `src/settings/tests.rs` goes through.
const MALFORMED: &str = r#"
-    hidden_size: 64
+    hiden_size: 64
= x.yaml:6: model.model_config.hiden_size: unknown key; did you mean `hidden_size`?

-    num_layers: 2
+    num_layers: two
= x.yaml:7: model.model_config.num_layers: expected a whole number from 1 to 1000, found `two`

-    num_heads: 4
+    num_heads: 5
= x.yaml:8: model.model_config.num_heads: 5 heads do not divide hidden_size 64; change one of them or give `head_dim`
+    num_heads: 4
+    n_kv_heads: 3
= x.yaml:9: model.model_config.n_kv_heads: 3 key/value heads do not divide num_heads 4; change one of them
+    num_attention_heads: 32
= x.yaml:8: model.model_config.num_attention_heads: heads are 2 wide (head_dim); the kernels take multiples of 4 up to 512
+    num_heads: 4
+    head_dim: 516
= x.yaml:9: model.model_config.head_dim: heads are 516 wide (head_dim); the kernels take multiples of 4 up to 512
+    num_heads: 4
+    num_attention_heads: 4
= x.yaml:9: model.model_config.num_attention_heads: another name of `num_heads`, which is given too; keep one of them
+    num_heads: 4
+    rotary_percent: 0.2
= x.yaml:9: model.model_config.rotary_percent: 0.2 of heads 16 wide rotates 3 dimensions; an even number is needed

-    seq_length: 32
+
= x.yaml:3: model.model_config: `seq_length` is missing; give it a whole number from 1 to 2147483648
+    seq_length: 0
= x.yaml:9: model.model_config.seq_length: expected a whole number from 1 to 2147483648, found `0`

-    type: LlamaConfig
+    type: MambaConfig
= x.yaml:4: model.model_config.type: `MambaConfig` is not built; `gristmill explain model.model_config.type` lists those that are
+    compute_dtype: float8
= x.yaml:4: model.model_config.compute_dtype: expected float32, float16 or bfloat16, found `float8`
+    pet_config: { pet_type: lora }
= x.yaml:4: model.model_config.pet_config: `target_modules` is missing; give it patterns of the layers that get adapters, such as `.*wq|.*wv`
+    pet_config: { pet_type: lora, target_modules: '.*wq' }
= x.yaml:4: model.model_config.pet_config: trains adapters, and no base model is named; write `load_checkpoint`, or `random_base: True` under `pet_config` to adapt random weights
+    pet_config: { pet_type: lora, target_modules: '.*wx' }
= x.yaml:4: model.model_config.pet_config.target_modules: `.*wx` matches no linear layer; there are q_proj (linear_qkv, wq, dense1, w_qkv, query_key_value, qkv_proj); k_proj (linear_qkv, wk, dense2, w_qkv, query_key_value, qkv_proj); v_proj (linear_qkv, wv, dense3, w_qkv, query_key_value, qkv_proj); o_proj (linear_proj, wo, dense, projection); gate_proj (linear_fc1, w1, w_gate_hidden, dense_h_to_4h, mapping, gate_up_proj); up_proj (linear_fc1, w3, w_gate_hidden, dense_h_to_4h, mapping, gate_up_proj); down_proj (linear_fc2, w2, dense_4h_to_h, projection)
+    pet_config: { pet_type: lora, random_base: True, target_parameters: 'experts' }
= x.yaml:4: model.model_config.pet_config.target_parameters: `experts` matches no matrices of all experts; this model has none that can have adapters
+    pet_config: { pet_type: lora, target_parameters: 'experts', lora_dropout: 0.1 }
= x.yaml:4: model.model_config.pet_config.lora_dropout: must be 0 with `target_parameters`: adapters of experts have no dropout, as in PEFT
+    pet_config: { pet_type: lora, random_base: True, target_modules: '.*wq', exclude_layers: ['0', '1'] }
= x.yaml:4: model.model_config.pet_config.exclude_layers: leaves nothing that the target modules match; exclude less
+    pet_config: { pet_type: lora, random_base: True, target_modules: '.*wq', freeze_include: ['*lora*'] }
= x.yaml:4: model.model_config.pet_config.freeze_include: nothing is left to train; freeze less
+    pet_config: { pet_type: lora, random_base: True, target_modules: '.*wq', freeze_exclude: ['*wpe*'] }
= x.yaml:4: model.model_config.pet_config.freeze_exclude: `*wpe*` matches no parameter; names are such as model.layers.0.self_attn.q_proj.weight or layers.0.attention.wqkv
+    pet_config: { pet_type: lora, random_base: True, target_modules: '.*wq', lora_rank: 0 }
= x.yaml:4: model.model_config.pet_config.lora_rank: expected a whole number from 1 to 2147483648, found `0`
+    pet_config: { pet_type: lora, random_base: True, target_modules: '.*wq', lora_b_init: normal }
= x.yaml:4: model.model_config.pet_config.lora_b_init: not built yet (found `normal`); write `lora_b_init: zeros`
+    pet_config: { pet_type: prefixtuning }
= x.yaml:4: model.model_config.pet_config.pet_type: `prefixtuning` is not built yet; write lora

-seed: 7
+gradient_accumulation_steps: 4
= x.yaml:1: gradient_accumulation_steps: unknown key; it belongs in `runner_config`
+swap_config: { swap: True }
= x.yaml:1: swap_config.swap: not built yet (found `True`); write `swap: False` and `recompute_config.recompute: True`, which saves the memory without the transfers; `gristmill plan` says what a run takes, and `context.max_device_memory` limits it
+run_name: a/b
= x.yaml:1: run_name: expected the name of a folder, found `a/b`
+do_eval: True
= x.yaml:1: do_eval: needs data: write `eval_fraction: 0.05` under train_dataset, or an eval_dataset
+context: {max_device_memory: 58}
= x.yaml:1: context.max_device_memory: expected a size such as 8GB or 512MB, found `58`
+runner_wrapper: {scale_sense: {type: DynamicLossScaleUpdateCell, loss_scale_value: 0.5}}
= x.yaml:1: runner_wrapper.scale_sense.loss_scale_value: 0.5 is below 1, the least of a scale that adapts
+runner_wrapper: {scale_sense: {type: DynamicLossScaleUpdateCell, scale_window: 0}}
= x.yaml:1: runner_wrapper.scale_sense.scale_window: expected a whole number from 1 to 2147483648, found `0`
+runner_wrapper: {scale_sense: {type: DynamicLossScaleUpdateCell, scale_factor: 0.5}}
= x.yaml:1: runner_wrapper.scale_sense.scale_factor: expected a number from 1 to 65536, found `0.5`
+runner_wrapper: {scale_sense: {type: DynamicLossScaleUpdateCell, max_scale_window: 1000}}
= x.yaml:1: runner_wrapper.scale_sense.max_scale_window: is a key of `type: AdaptiveLossScaleUpdateCell`, not of `DynamicLossScaleUpdateCell`; remove it
+runner_wrapper: {scale_sense: {type: FixedLossScaleUpdateCell, scale_window: 1000}}
= x.yaml:1: runner_wrapper.scale_sense.scale_window: is a key of `type: DynamicLossScaleUpdateCell` or `AdaptiveLossScaleUpdateCell`, not of `FixedLossScaleUpdateCell`; remove it
+runner_wrapper: {scale_sense: {type: AdaptiveLossScaleUpdateCell, max_scale_window: 20}}
= x.yaml:1: runner_wrapper.scale_sense.max_scale_window: a largest window of 20 is not above min_scale_window 20
+runner_wrapper: {scale_sense: {type: AdaptiveLossScaleUpdateCell, max_scale_window: 150}}
= x.yaml:1: runner_wrapper.scale_sense.max_scale_window: a largest window of 150 gives a list that starts with a window of 0 steps, by which the scale would double in every step; write 100 or less, or 200 or more
+runner_wrapper: {scale_sense: {type: AdaptiveLossScaleUpdateCell, min_scale_window: 0}}
= x.yaml:1: runner_wrapper.scale_sense.min_scale_window: expected a whole number from 1 to 2147483648, found `0`
+runner_wrapper: {scale_sense: {type: AdaptiveLossScaleUpdateCell, max_scale_window: 99.5}}
= x.yaml:1: runner_wrapper.scale_sense.max_scale_window: expected a whole number from 1 to 2147483648, found `99.5`
+runner_wrapper: {scale_sense: {loss_scale_value: 2}}
= x.yaml:1: runner_wrapper.scale_sense: `type` is missing; give it FixedLossScaleUpdateCell, DynamicLossScaleUpdateCell or AdaptiveLossScaleUpdateCell
+runner_wrapper: {scale_sense: 1e39}
= x.yaml:1: runner_wrapper.scale_sense: expected a number from 2^-64 to 2^64 or a section with a `type`, found `1e39`
+runner_wrapper: {scale_sense: [1.0, 2.0]}
= x.yaml:1: runner_wrapper.scale_sense: expected a number from 2^-64 to 2^64 or a section with a `type`, found a list
+runner_wrapper: {global_norm_spike_threshold: 0}
= x.yaml:1: runner_wrapper.global_norm_spike_threshold: expected a number above 0, found `0`
+runner_wrapper: {scale_sense: {type: FixedLossScaleUpdateCell, loss_scale_value: 1e-30}}
= x.yaml:1: runner_wrapper.scale_sense.loss_scale_value: expected a number from 2^-64 to 2^64, found `1e-30`
+seed: [
= x.yaml:3: not valid YAML: did not find expected ',' or ']'

-  batch_size: 4
+  gradient_accumulation_steps: 0
= x.yaml:12: runner_config.gradient_accumulation_steps: expected a whole number from 1 to 2147483648, found `0`
+  gradient_accumulation_steps: True
= x.yaml:12: runner_config.gradient_accumulation_steps: expected a whole number from 1 to 2147483648, found `True`
+  batch_size: 1000000000
= x.yaml:12: runner_config.batch_size: 1000000000 windows of 32 tokens are too many; lower it

-  type: AdamW
+  type: AdamV
= x.yaml:14: optimizer.type: unknown type `AdamV`; did you mean `AdamW`?
+  betas: [0.9, 1.0]
= x.yaml:14: optimizer.betas: expected two numbers in (0, 1), found [0.9, 1.0]

-  type: cosine
+  type: MegatronLR
= x.yaml:16: lr_schedule.type: `MegatronLR` is not built yet; write CosineWithWarmUpLR, CosineWithRestartsAndWarmUpLR, LinearWithWarmUpLR, PolynomialWithWarmUpLR, ConstantWarmUpLR, ConstantWithCoolDownLR, WarmUpStableDecayLR, CosineAnnealingLR, CosineAnnealingWarmRestarts or LearningRateWiseLayer
+  type: polynomial
+  lr_end: 0.01
= x.yaml:17: lr_schedule.lr_end: 0.01 is not below the learning rate 0.001
+  type: cosine_annealing
= x.yaml:15: lr_schedule: `t_max` is missing; give it a whole number above 0
+  type: WarmUpStableDecayLR
= x.yaml:15: lr_schedule: `decay_start_steps` is missing; give it a whole number from 0
+  type: ConstantWithCoolDownLR
+  decay_steps: 3
+  decay_ratio: 0.3
= x.yaml:18: lr_schedule.decay_ratio: given beside `decay_steps`; keep one of them
+  type: LearningRateWiseLayer
+  base_lr: 0.1
= x.yaml:17: lr_schedule.base_lr: expected a section that holds a schedule with its own `type`

-  learning_rate: 1e-3
+  lr_end: 0
= x.yaml:15: lr_schedule: `learning_rate` is missing; give it a number

-    type: CargoRegistryDataLoader
+    type: TextDataloader
= x.yaml:20: train_dataset.data_loader.type: unknown type `TextDataloader`; did you mean `TextDataLoader`?
+    type: TextDataLoader
+    dataset_dir: ''
= x.yaml:21: train_dataset.data_loader.dataset_dir: is empty; name a file, a folder or a pattern

-  dataset_config: *train_dataset
+  dataset_config: {}
= x.yaml:23: train_dataset_task.dataset_config: differs from `train_dataset`; write it once and refer to it by an anchor

-  - type: MFLossMonitor
+  - type: MFLosMonitor
= x.yaml:25: callbacks.0.type: unknown type `MFLosMonitor`; did you mean `MFLossMonitor`?
+  - type: CheckpointMonitor
= x.yaml:26: callbacks.1.type: a second CheckpointMonitor; keep one of them
"#;
