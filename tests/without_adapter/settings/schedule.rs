//! `lr_schedule` under every name that files of MindFormers use.

use super::{BASE, assert_reads_back, resolve};
use gristmill::settings::{Decay, RunPlan, Schedule};

fn with(section: &str) -> (RunPlan, Vec<String>) {
    resolve(&BASE.replace("  type: cosine\n  learning_rate: 1e-3\n", section), &[])
        .unwrap_or_else(|error| panic!("{section}: {error}"))
}

fn schedule(section: &str) -> Schedule {
    with(section).0.settings.schedule
}

/// Type, alias, further keys, and the course they mean.
#[test]
fn every_type_and_alias_reads_and_reads_back() {
    let cosine = Decay::Cosine { lr_end: 0.0, num_cycles: 0.5, decay_steps: Some(9) };
    let restarts = Decay::CosineWithRestarts { lr_end: 0.0, num_cycles: 1.0, decay_steps: None };
    let polynomial = Decay::Polynomial { lr_end: 1e-7, power: 2.0, decay_steps: None };
    let cool_down = |lr_end1, decay_steps, decay_ratio| Decay::CoolDown {
        lr_end1,
        lr_end2: Some(1e-5),
        num_cycles: 0.5,
        decay_steps,
        decay_ratio,
        keep_steps: 4,
        final_steps: 2,
    };
    let stable = |decay_start_steps, decay_start_ratio| Decay::StableDecay {
        lr_end: 1e-7,
        decay_start_steps,
        decay_start_ratio,
    };
    let rows = [
        ("CosineWithWarmUpLR", "cosine", "decay_steps: 9", cosine),
        ("CosineWithRestartsAndWarmUpLR", "cosine_with_restarts", "total_steps: 50", restarts),
        ("LinearWithWarmUpLR", "linear", "warmup_ratio: 0.1", Decay::Linear {}),
        ("PolynomialWithWarmUpLR", "polynomial", "power: 2", polynomial),
        ("ConstantWarmUpLR", "constant_with_warmup", "warmup_steps: 3", Decay::Constant {}),
        (
            "ConstantWithCoolDownLR",
            "",
            "keep_steps: 4, decay_steps: 6, lr_end1: 1e-5, final_steps: 2",
            cool_down(1e-5, Some(6), None),
        ),
        (
            "ConstantWithCoolDownLR",
            "",
            "keep_steps: 4, decay_ratio: 0.5, final_steps: 2, lr_end2: 1e-5",
            cool_down(0.0, None, Some(0.5)),
        ),
        ("WarmUpStableDecayLR", "", "decay_start_steps: 80", stable(Some(80), None)),
        ("WarmUpStableDecayLR", "", "decay_start_ratio: 0.9", stable(None, Some(0.9))),
        (
            "CosineAnnealingLR",
            "cosine_annealing",
            "t_max: 12, eta_min: 1e-6",
            Decay::Annealing { eta_min: 1e-6, t_max: 12 },
        ),
        (
            "CosineAnnealingWarmRestarts",
            "cosine_annealing_warm_restarts",
            "t_0: 5, t_mult: 2",
            Decay::AnnealingWithRestarts { eta_min: 0.0, t_0: 5, t_mult: 2 },
        ),
    ];
    for (name, alias, keys, decay) in rows {
        for kind in [name, alias].into_iter().filter(|kind| !kind.is_empty()) {
            let rate = if name.contains("Annealing") { "base_lr" } else { "learning_rate" };
            let (plan, notices) = with(&format!("  {{type: {kind}, {rate}: 1e-3, {keys}}}\n"));
            let schedule = &plan.settings.schedule;
            assert_eq!((&schedule.decay, schedule.rate()), (&decay, 1e-3), "{kind}");
            assert!(!notices.iter().any(|notice| notice.contains("lr_schedule")), "{kind}: {notices:?}");
            assert_reads_back(&plan);
        }
    }
}

#[test]
fn a_length_that_is_none_is_that_of_the_run() {
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
    let schedule = &plan.settings.schedule;
    assert_eq!((&schedule.decay, schedule.rate(), schedule.scale()), (&Decay::Linear {}, 2e-3, 0.5));
    assert_eq!(schedule.warmup_steps, Some(10));
    assert_reads_back(&plan);
}

#[test]
fn one_warm_up_length_counts() {
    let read = |keys: &str| {
        let (plan, notices) = with(&format!("  {{type: cosine, learning_rate: 1e-3, {keys}}}\n"));
        let Schedule { warmup_steps, warmup_ratio, warmup_epochs, .. } = plan.settings.schedule;
        let notices = notices.into_iter().filter(|notice| notice.contains("warm-up"));
        ((warmup_steps, warmup_ratio, warmup_epochs), notices.collect::<Vec<_>>())
    };
    let notice = |winner: &str| vec![format!("lr_schedule: of several warm-up lengths {winner} is used")];
    assert_eq!(read("warmup_ratio: 0.1, warmup_steps: 0"), ((None, Some(0.1), None), vec![]));
    assert_eq!(read("warmup_ratio: 0.1, warmup_steps: 5"), ((None, Some(0.1), None), notice("warmup_ratio")));
    assert_eq!(
        read("warmup_ratio: 0.1, warmup_epochs: 5"),
        ((None, Some(0.1), None), notice("warmup_ratio"))
    );
    assert_eq!(read("warmup_epochs: 2, warmup_steps: 5"), ((None, None, Some(2)), notice("warmup_epochs")));
    assert_eq!(read("warmup_epochs: 2, warmup_ratio: None"), ((None, None, Some(2)), vec![]));
}

#[test]
fn keys_of_another_type_are_named() {
    let (_, notices) =
        with("  {type: linear, learning_rate: 1e-3, lr_end: 1e-5, power: 2, warmup_steps: 1}\n");
    let about = |key: &str| format!("lr_schedule.{key}: `LinearWithWarmUpLR` does not read it");
    let mine: Vec<_> = notices.into_iter().filter(|notice| notice.contains("lr_schedule")).collect();
    assert_eq!(mine, [about("lr_end"), about("power")]);
}
