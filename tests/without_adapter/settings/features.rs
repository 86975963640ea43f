//! The examples and the defaults of MindSpore Transformers' pages on training features (`configs/FEATURES.md`), as they
//! are written there without their `...` lines.

use super::{BASE, resolve};
use gristmill::error::Result;
use gristmill::model::config::TokenDispatch;
use gristmill::settings::{LossScaleKind, Override, RunConfig, RunPlan};
use std::path::Path;

/// A plan of the small configuration with an example's keys over its own, and its notices.
fn built_on(example: &str, flags: &[&str]) -> Result<(RunPlan, Vec<String>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/without_adapter/settings");
    let text = format!("base_config: base.yaml\n{example}");
    let config = RunConfig::parse(&text, &folder.join("x.yaml"), &Override::parse_all(flags.to_vec())?)?;
    Ok((config.plan, config.notices))
}

#[track_caller]
fn plan(example: &str, flags: &[&str]) -> (RunPlan, Vec<String>) {
    built_on(example, flags).unwrap_or_else(|error| panic!("{error}\n{example}"))
}

const CAPACITY: &str = "
moe_config:
  expert_num: 8
  capacity_factor: 2.0
";

#[test]
fn defaults_are_those_of_the_pages() {
    let (plan, _) = plan("", &[]);
    let settings = &plan.settings;
    assert_eq!(settings.runner.gradient_accumulation_steps, 1);
    assert_eq!((settings.recompute.layers.len(), plan.model.recomputed.operators.len()), (0, 0));
    // A `runner_wrapper` without these keys.
    let wrapper = "runner_wrapper:\n  type: MFTrainOneStepCell\n";
    let (clipped, _) = self::plan(&format!("{wrapper}  use_clip_grad: True\n"), &[]);
    assert_eq!(clipped.settings.wrapper.clip(), Some(1.0));
    assert_eq!(self::plan(wrapper, &[]).0.settings.wrapper.clip(), None);
    // The experts.
    let (experts, _) = self::plan(CAPACITY, &[]);
    let moe = experts.settings.moe.as_ref().expect("a mixture");
    assert!(!moe.use_gmm && !moe.enable_gmm_safe_tokens && !moe.callback_moe_droprate);
    assert!(!moe.save_token_distribution && !moe.enable_cold_hot_expert);
    let hot = "  enable_cold_hot_expert: True\n  hot_expert_num: 1\n";
    let (hot, _) = self::plan(&format!("{CAPACITY}{hot}"), &[]);
    assert_eq!(hot.settings.moe.expect("a mixture").cold_token_percent, Some(1.0));
    // The windows of a loss scale.
    let cell = "runner_wrapper: {scale_sense: {type: AdaptiveLossScaleUpdateCell, loss_scale_value: 1, scale_factor: 2}}";
    let scale = self::plan(cell, &[]).0.settings.wrapper.scale_sense;
    let windows = scale.adaptation().expect("windows").windows;
    assert_eq!((windows.first(), windows.last()), (Some(&20), Some(&1000)));
}

#[test]
fn examples_of_the_pages_are_plans() {
    let (plan, _) = plan("# runner config\nrunner_config:\n  gradient_accumulation_steps: 4\n", &[]);
    assert_eq!(plan.settings.runner.gradient_accumulation_steps, 4);

    let clipping = "
# wrapper cell config
runner_wrapper:
  type: MFTrainOneStepCell
  use_clip_grad: True
  max_grad_norm: 1.0
";
    assert_eq!(self::plan(clipping, &[]).0.settings.wrapper.clip(), Some(1.0));

    let grouped = "
moe_config:
  expert_num: 8
  use_gmm: True
  use_fused_ops_permute: True
  enable_gmm_safe_tokens: True
";
    let dispatch = self::plan(grouped, &[]).0.model.mixture.expect("a mixture").dispatch;
    assert_eq!(dispatch, TokenDispatch::Dropless { safe_tokens: true });

    let drop_rate = "
moe_config:
  expert_num: 4
  capacity_factor: 1.5
  callback_moe_droprate: True

callback:
  - type: MoEDropRateCallback
    expert_num: 4
    capacity_factor: 1.5
    num_layers: 8
    mtp_depth: 1
";
    let flags = ["--model.model_config.num_layers=8", "--model.model_config.mtp_depth=1"];
    let (without_callbacks, _) = BASE.split_once("callbacks:").expect("callbacks"); // whose other name the page has
    let (plan, _) = resolve(&format!("{without_callbacks}{drop_rate}"), &flags).expect("a plan");
    assert!(plan.settings.moe.expect("a mixture").callback_moe_droprate);

    let attention = "
# model config
model:
  model_config:
    type: LlamaConfig
    use_flash_attention: True   # True to enable FA, False to disable FA
  arch:
    type: LlamaForCausalLM
";
    self::plan(attention, &[]);
    self::plan("model:\n  model_config:\n    use_fused_rope: True\n    use_fused_swiglu: True\n", &[]);

    let distribution = "
moe_config:
  expert_num: 8
  save_token_distribution: true

callbacks:
- type: SummaryMonitor
  summary_dir: \"../summary_dir/token_distribution_dir\"
  keep_default_action: False
  collect_freq: 1
  collect_tensor_freq: 1
  export_options: {'tensor_format':'npy'}
";
    let settings = self::plan(distribution, &[]).0.settings;
    assert!(settings.moe.expect("a mixture").save_token_distribution);
    let summary = settings.callbacks.summary.expect("a monitor");
    assert_eq!(summary.summary_dir, Path::new("../summary_dir/token_distribution_dir"));

    let adaptive = "
# runner
runner_config:
  epochs: 3
  batch_size: 4
  sink_mode: True
  sink_size: 2
runner_wrapper:
  type: MFTrainOneStepCell
  scale_sense:
    type: AdaptiveLossScaleUpdateCell
    loss_scale_value: 4294967296
    scale_factor: 2
    scale_window: 20
    max_scale_window: 1000
    min_scale_window: 20
  use_clip_grad: True
";
    let settings = self::plan(adaptive, &[]).0.settings;
    let scale = &settings.wrapper.scale_sense;
    assert_eq!((settings.runner.epochs, settings.runner.batch_size), (3, 4));
    assert_eq!((scale.kind, scale.loss_scale_value), (LossScaleKind::Adaptive, 4294967296.0));
    assert_eq!(
        scale.adaptation().expect("windows").windows,
        [20, 30, 40, 50, 100, 200, 500, 1000],
        "the documented list"
    );
}

#[test]
fn the_monitor_of_hot_experts_may_stand_anywhere() {
    let experts = "
moe_config:
  expert_num: 8
  capacity_factor: 2.0
  enable_cold_hot_expert: True
  hot_expert_num: 1
  cold_token_percent: 0.7
  moe_module_name: \"network._backbone.backbone.blocks\"
callbacks:
";
    let monitor = "  - {type: ColdHotExpertMonitor, save_checkpoint_steps: 10}\n";
    let checkpoints = "  - {type: CheckpointMonitor, save_checkpoint_steps: 10}\n";
    for callbacks in [[monitor, checkpoints], [checkpoints, monitor]] {
        let (plan, _) = plan(&format!("{experts}{}", callbacks.concat()), &[]);
        let TokenDispatch::Capacity(capacity) = plan.model.mixture.expect("a mixture").dispatch else {
            panic!("no capacities")
        };
        let hot = capacity.hot.expect("hot experts");
        assert_eq!((hot.count, hot.cold_token_share, hot.checkpoint_step), (1, 0.7, Some(10)));
    }
}

/// Layers, `pp_interleave_num`, `pipeline_stage` and `offset` are those that the page names.
#[test]
fn the_recomputation_of_48_layers_is_logged_as_on_the_page() {
    let example = r"
# recompute config
recompute_config:
  recompute: [[2,1,0,0,0],[1,0,0,0,0]]
  select_recompute:
    'feed_forward\.w1\.activation\.silu': True
    'feed_forward\.mul': True
    'feed_forward\.w1\.matmul': [[1,0,0,0,0],[2,1,0,0,0]]
    'feed_forward\.w3\.matmul': [2,1,0,0,0]
  select_comm_recompute: ['ffn_norm\.norm','attention_norm\.norm']
model:
  model_config:
    num_layers: 48
    pp_interleave_num: 2
    offset: [[0,1,1,1,1],[1,1,1,1,0]]
parallel:
  pipeline_config: {pipeline_interleave: True}
parallel_config:
  pipeline_stage: 5
";
    let (plan, notices) = plan(example, &["--as-single"]);
    assert_eq!(plan.model.recomputed.layers, [0, 1, 4, 24]);
    // The page prints one backslash where Python writes two.
    for line in [
        "Formative layer_recompute: [[2, 1, 0, 0, 0], [1, 0, 0, 0, 0]]",
        r"Formative select_recompute: {'feed_forward\\.w1\\.activation\\.silu': [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]], 'feed_forward\\.mul': [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]], 'feed_forward\\.w1\\.matmul': [[1, 0, 0, 0, 0], [2, 1, 0, 0, 0]], 'feed_forward\\.w3\\.matmul': [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]}",
        r"Formative select_comm_recompute: {'ffn_norm\\.norm': [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]], 'attention_norm\\.norm': [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]]}",
    ] {
        assert!(notices.iter().any(|notice| notice == line), "{line}\n{notices:#?}");
    }
    let scalars = "recompute_config: {recompute: [3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 2, 0], \
        select_recompute: False, parallel_optimizer_comm_recompute: True, mp_comm_recompute: True, \
        recompute_slice_activation: True}\nmodel: {model_config: {num_layers: 61, mtp_depth: 1, offset: [1, 1, 1, 1, 1, \
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1]}}\nparallel_config: {pipeline_stage: 16}";
    let (deep, _) = self::plan(scalars, &["--as-single"]);
    let kept = [3, 55, 58, 59, 60, 61];
    let expected: Vec<usize> = (0..62).filter(|layer| !kept.contains(layer)).collect();
    assert_eq!(deep.model.recomputed.layers, expected, "the first layers of each stage of DeepSeek-V3");
}
