//! `lr_schedule` under every name that files of MindFormers use.

use super::{BASE, assert_reads_back, resolve};
use gristmill::settings::{CoolDown, Decay, DecayStart, RunPlan, ScheduleConfig, Warmup};

fn with(section: &str) -> (RunPlan, Vec<String>) {
    resolve(&BASE.replace("  type: cosine\n  learning_rate: 1e-3\n", section), &[])
        .unwrap_or_else(|error| panic!("{section}: {error}"))
}

fn schedule(section: &str) -> ScheduleConfig {
    with(section).0.schedule
}

/// Type, alias, further keys, and the course they mean.
#[test]
fn every_type_and_alias_reads_and_reads_back() {
    let cosine = Decay::Cosine { num_cycles: 0.5, decay_steps: Some(9) };
    let restarts = Decay::CosineWithRestarts { num_cycles: 1.0, decay_steps: None };
    let polynomial = Decay::Polynomial { power: 2.0, decay_steps: None };
    let cool_down =
        |length| Decay::CoolDown { keep_steps: 4, length, num_cycles: 0.5, final_steps: 2, lr_end2: 1e-5 };
    let rows = [
        ("CosineWithWarmUpLR", "cosine", "decay_steps: 9", cosine),
        ("CosineWithRestartsAndWarmUpLR", "cosine_with_restarts", "total_steps: 50", restarts),
        ("LinearWithWarmUpLR", "linear", "warmup_ratio: 0.1", Decay::Linear),
        ("PolynomialWithWarmUpLR", "polynomial", "power: 2", polynomial),
        ("ConstantWarmUpLR", "constant_with_warmup", "warmup_steps: 3", Decay::Constant),
        (
            "ConstantWithCoolDownLR",
            "",
            "keep_steps: 4, decay_steps: 6, lr_end1: 1e-5, final_steps: 2",
            cool_down(CoolDown::Steps(6)),
        ),
        (
            "ConstantWithCoolDownLR",
            "",
            "keep_steps: 4, decay_ratio: 0.5, final_steps: 2, lr_end2: 1e-5",
            cool_down(CoolDown::Ratio(0.5)),
        ),
        ("WarmUpStableDecayLR", "", "decay_start_steps: 80", Decay::StableDecay(DecayStart::Step(80))),
        ("WarmUpStableDecayLR", "", "decay_start_ratio: 0.9", Decay::StableDecay(DecayStart::Ratio(0.9))),
        ("CosineAnnealingLR", "cosine_annealing", "t_max: 12, eta_min: 1e-6", Decay::Annealing { t_max: 12 }),
        (
            "CosineAnnealingWarmRestarts",
            "cosine_annealing_warm_restarts",
            "t_0: 5, t_mult: 2",
            Decay::AnnealingWithRestarts { t_0: 5, t_mult: 2 },
        ),
    ];
    for (name, alias, keys, decay) in rows {
        for kind in [name, alias].into_iter().filter(|kind| !kind.is_empty()) {
            let rate = if name.contains("Annealing") { "base_lr" } else { "learning_rate" };
            let (plan, notices) = with(&format!("  {{type: {kind}, {rate}: 1e-3, {keys}}}\n"));
            assert_eq!((&plan.schedule.decay, plan.schedule.learning_rate), (&decay, 1e-3), "{kind}");
            assert!(!notices.iter().any(|notice| notice.contains("lr_schedule")), "{kind}: {notices:?}");
            assert_reads_back(&plan);
        }
    }
}

#[test]
fn defaults_are_those_of_the_original() {
    let end = |kind: &str| schedule(&format!("  {{type: {kind}, learning_rate: 1e-3}}\n")).lr_end;
    assert_eq!((end("cosine"), end("polynomial"), end("cosine_with_restarts")), (0.0, 1e-7, 0.0));
    for (written, expected) in [("-1", None), ("None", None), ("0", None), ("70", Some(70))] {
        let text = format!("  {{type: linear, learning_rate: 1e-3, total_steps: {written}}}\n");
        assert_eq!(schedule(&text).total_steps, expected, "{written}");
    }
}

#[test]
fn a_wise_layer_scales_the_schedule_in_it() {
    let text = "  type: LearningRateWiseLayer\n  lr_scale: 0.5\n  \
                base_lr: {type: linear, learning_rate: 2e-3, warmup_steps: 10}\n";
    let (plan, _) = with(text);
    let ScheduleConfig { decay, learning_rate, scale, warmup, .. } = &plan.schedule;
    assert_eq!((decay, *learning_rate, *scale, warmup), (&Decay::Linear, 2e-3, 0.5, &Warmup::Steps(10)));
    assert_reads_back(&plan);
}

#[test]
fn one_warm_up_length_counts() {
    let read = |keys: &str| {
        let (plan, notices) = with(&format!("  {{type: cosine, learning_rate: 1e-3, {keys}}}\n"));
        (
            plan.schedule.warmup,
            notices.into_iter().filter(|notice| notice.contains("warm-up")).collect::<Vec<_>>(),
        )
    };
    let notice = |winner: &str| vec![format!("lr_schedule: of several warm-up lengths {winner} is used")];
    assert_eq!(read("warmup_ratio: 0.1, warmup_steps: 0"), (Warmup::Ratio(0.1), vec![]));
    assert_eq!(read("warmup_ratio: 0.1, warmup_steps: 5"), (Warmup::Ratio(0.1), notice("warmup_ratio")));
    assert_eq!(read("warmup_ratio: 0.1, warmup_epochs: 5"), (Warmup::Ratio(0.1), notice("warmup_ratio")));
    assert_eq!(read("warmup_epochs: 2, warmup_steps: 5"), (Warmup::Epochs(2), notice("warmup_epochs")));
    assert_eq!(read("warmup_epochs: 2, warmup_ratio: None"), (Warmup::Epochs(2), vec![]));
}

#[test]
fn keys_of_another_type_are_named() {
    let (_, notices) =
        with("  {type: linear, learning_rate: 1e-3, lr_end: 1e-5, power: 2, warmup_steps: 1}\n");
    let about = |key: &str| format!("lr_schedule.{key}: `LinearWithWarmUpLR` does not read it");
    let mine: Vec<_> = notices.into_iter().filter(|notice| notice.contains("lr_schedule")).collect();
    assert_eq!(mine, [about("lr_end"), about("power")]);
}
