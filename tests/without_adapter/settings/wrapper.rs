//! Loss scales and the rules of a step: every form, where their keys may be, and what they may not be combined with.

use super::{BASE, assert_reads_back, message, plan, resolve};
use crate::settings::mixture::text;
use gristmill::settings::{Adaptation, RunPlan};

fn scaled(scale: &str) -> (RunPlan, Vec<String>) {
    let flag = format!("--runner_wrapper.scale_sense={scale}");
    resolve(BASE, &[&flag]).unwrap_or_else(|error| panic!("{scale}: {error}"))
}

fn adaptation(scale: &str) -> Option<Adaptation> {
    let (plan, notices) = scaled(scale);
    assert_eq!(notices, [""; 0], "{scale}");
    assert_reads_back(&plan);
    plan.settings.wrapper.scale_sense.adaptation()
}

#[test]
fn every_form_of_a_loss_scale() {
    for fixed in ["1024", "1024.0", "{type: FixedLossScaleUpdateCell, loss_scale_value: 1024}"] {
        let (plan, _) = scaled(fixed);
        assert_eq!(plan.decisions()["runner_wrapper.scale_sense"], 1024.0, "{fixed}");
        assert_eq!(adaptation(fixed), None, "{fixed}");
    }
    let dynamic = "{type: DynamicLossScaleUpdateCell, loss_scale_value: 4294967296, scale_factor: 2, scale_window: 1000}";
    assert_eq!(adaptation(dynamic), Some(Adaptation { factor: 2.0, windows: vec![1000], first: 0 }));
    assert_eq!(scaled(dynamic).0.settings.wrapper.scale_sense.loss_scale_value, 4294967296.0);
    // Real files write this: a scale that never moves.
    let still =
        "{type: DynamicLossScaleUpdateCell, loss_scale_value: 65536, scale_factor: 1, scale_window: 1000}";
    assert_eq!(adaptation(still).map(|adaptation| adaptation.factor), Some(1.0));
    let windows = vec![20, 30, 40, 50, 100, 200, 500, 1000];
    for (keys, first) in [("", 0), (", scale_window: 20", 0), (", scale_window: 100", 4)] {
        let scale =
            format!("{{type: AdaptiveLossScaleUpdateCell, loss_scale_value: 1, scale_factor: 2{keys}}}");
        assert_eq!(adaptation(&scale), Some(Adaptation { factor: 2.0, windows: windows.clone(), first }));
    }
}

#[test]
fn a_window_that_is_not_in_the_list_is_noticed() {
    let (plan, notices) =
        scaled("{type: AdaptiveLossScaleUpdateCell, scale_window: 37, max_scale_window: 300}");
    assert_eq!(
        notices,
        [
            "runner_wrapper.scale_sense.scale_window: 37 is not in the list of windows (20 30 40 50 100 300); the run starts \
          with 20"
        ]
    );
    assert_eq!(plan.settings.wrapper.scale_sense.adaptation().expect("windows").first, 0);
    assert_reads_back(&plan);
}

#[test]
fn keys_that_the_original_reads_elsewhere() {
    let text = format!(
        "{BASE}use_skip_data_by_global_norm: True\ncalculate_per_token_loss: True\ncheck_for_nan_in_loss_and_grad: True\n\
         monitor_config: {{global_norm_spike_threshold: 3.0, global_norm_spike_count_threshold: 5}}\n\
         runner_wrapper: {{use_clip_grad: True}}\n"
    );
    let here = plan(&text);
    assert_eq!(here.settings.wrapper.spike_norm(), Some(3.0));
    assert!(
        here.settings.wrapper.calculate_per_token_loss && here.settings.run.check_for_nan_in_loss_and_grad
    );
    assert_eq!(here.settings.monitor.global_norm_spike_count_threshold, 5);
    assert_reads_back(&here);
    let twice = text.replace("{use_clip_grad: True}", "{global_norm_spike_threshold: 2.0}");
    let line = message(&twice, &[]);
    assert!(line.contains("global_norm_spike_threshold: differs from "), "{line}");
    // A bound that is off decides nothing.
    let off =
        plan(&text.replace("use_skip_data_by_global_norm: True", "use_skip_data_by_global_norm: False"));
    assert_eq!(off.settings.wrapper.spike_norm(), None);
    assert!(!off.decisions().contains_key("runner_wrapper.global_norm_spike_threshold"));
}

#[test]
fn a_loss_per_token_has_no_balance_losses() {
    let per_token = |moe: &str| {
        let text = text(&format!("expert_num: 8, num_experts_chosen: 2, {moe}"), "");
        message(&text, &["--runner_wrapper.calculate_per_token_loss=True"])
    };
    let line = per_token("aux_loss_factor: 0.05, aux_loss_types: ['expert'], aux_loss_factors: [0.05]");
    assert!(line.contains("calculate_per_token_loss: not built for a model with balance losses"), "{line}");
    assert_eq!(per_token(""), "accepted");
}
