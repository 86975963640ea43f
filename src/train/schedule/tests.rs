//! Rates worked out by hand from the formulas.

use super::*;

/// lr 1e-3 down to 1e-4 in 100 steps, 10 of them of warm-up.
fn schedule(decay: Decay) -> Schedule {
    Schedule::new(&config(decay, Warmup::Steps(10)), 100, 25)
}

fn config(decay: Decay, warmup: Warmup) -> ScheduleConfig {
    let (learning_rate, lr_end, warmup_lr_init) = (1e-3, 1e-4, 0.0);
    ScheduleConfig { decay, learning_rate, lr_end, warmup, warmup_lr_init, total_steps: None, scale: 1.0 }
}

#[track_caller]
fn assert_rates(decay: Decay, expected: &[(u64, f64)]) {
    follows(&schedule(decay), expected);
}

#[track_caller]
fn follows(schedule: &Schedule, expected: &[(u64, f64)]) {
    for &(step, rate) in expected {
        let found = schedule.lr_at(step);
        assert!((found - rate).abs() <= 1e-15, "step {step}: {found}, not {rate}");
    }
}

const WARMUP: [(u64, f64); 3] = [(0, 0.0), (5, 5e-4), (10, 1e-3)];

#[test]
fn cosine() {
    // Half way down at (10 + 100) / 2; a third of the way the cosine is 1/2: 1e-4 + 9e-4 · 3/4.
    let half = |decay_steps| Decay::Cosine { num_cycles: 0.5, decay_steps };
    assert_rates(half(None), &WARMUP);
    assert_rates(half(None), &[(40, 7.75e-4), (55, 5.5e-4), (70, 3.25e-4), (100, 1e-4), (101, 1e-4)]);
    assert_rates(half(Some(55)), &[(54, 5.5e-4 + 4.5e-4 * (PI / 90.0).sin()), (55, 1e-4)]);
    // A whole cycle goes down and up again.
    assert_rates(
        Decay::Cosine { num_cycles: 1.0, decay_steps: None },
        &[(40, 3.25e-4), (55, 1e-4), (70, 3.25e-4)],
    );
}

#[test]
fn cosine_with_restarts() {
    // Two ways down, of 45 steps each: at 10 + 15 and 55 + 15 the cosine is 1/2.
    let decay = |decay_steps| Decay::CosineWithRestarts { num_cycles: 2.0, decay_steps };
    assert_rates(decay(None), &WARMUP);
    assert_rates(
        decay(None),
        &[(25, 7.75e-4), (40, 3.25e-4), (55, 1e-3), (70, 7.75e-4), (85, 3.25e-4), (100, 1e-4)],
    );
    assert_rates(decay(Some(200)), &[(100, 1e-4), (150, 1e-4)]);
    // One cycle is `CosineWithWarmUpLR` with half a cycle.
    assert_rates(
        Decay::CosineWithRestarts { num_cycles: 1.0, decay_steps: None },
        &[(40, 7.75e-4), (55, 5.5e-4)],
    );
}

#[test]
fn straight_lines_and_powers() {
    assert_rates(Decay::Linear, &WARMUP);
    assert_rates(Decay::Linear, &[(55, 5e-4), (91, 1e-4), (100, 0.0), (200, 0.0)]);
    assert_rates(Decay::Constant, &[(5, 5e-4), (10, 1e-3), (1000, 1e-3)]);
    let polynomial = |power, decay_steps| Decay::Polynomial { power, decay_steps };
    assert_rates(polynomial(1.0, None), &[(5, 5e-4), (10, 1e-3), (55, 5.5e-4), (100, 1e-4), (101, 1e-4)]);
    // (1 - 1/2)² and (1 - 2/3)².
    assert_rates(polynomial(2.0, None), &[(55, 3.25e-4), (70, 2e-4)]);
    assert_rates(polynomial(1.0, Some(45)), &[(10, 1e-3), (40, 4e-4), (55, 1e-4), (90, 1e-4)]);
}

#[test]
fn constant_with_cool_down() {
    let decay =
        |length| Decay::CoolDown { keep_steps: 20, length, num_cycles: 0.5, final_steps: 10, lr_end2: 5e-5 };
    // Up to 10, kept to 30, down to 60, at the first end to 70.
    let thirty = [
        (29, 1e-3),
        (30, 1e-3),
        (40, 7.75e-4),
        (45, 5.5e-4),
        (50, 3.25e-4),
        (60, 1e-4),
        (69, 1e-4),
        (70, 5e-5),
    ];
    assert_rates(decay(CoolDown::Steps(30)), &WARMUP);
    assert_rates(decay(CoolDown::Steps(30)), &thirty);
    assert_rates(decay(CoolDown::Ratio(0.3)), &thirty);
    // What is left: 100 - 10 - 20 - 10 = 60 steps.
    assert_rates(decay(CoolDown::Rest), &[(30, 1e-3), (50, 7.75e-4), (60, 5.5e-4), (90, 1e-4), (100, 5e-5)]);
    assert_rates(decay(CoolDown::Steps(0)), &[(29, 1e-3), (30, 1e-4), (40, 5e-5)]);
}

#[test]
fn warm_up_stable_decay() {
    let at_80 = [(79, 1e-3), (80, 1e-3), (85, 7.75e-4), (90, 5.5e-4), (100, 1e-4), (500, 1e-4)];
    assert_rates(Decay::StableDecay(DecayStart::Step(80)), &WARMUP);
    assert_rates(Decay::StableDecay(DecayStart::Step(80)), &at_80);
    assert_rates(Decay::StableDecay(DecayStart::Ratio(0.8)), &at_80);
}

#[test]
fn annealing() {
    let without_warmup = |decay| Schedule::new(&config(decay, Warmup::Steps(0)), 100, 25);
    // Down in 12 steps, up again in 12.
    let wave = [
        (0, 1e-3),
        (4, 7.75e-4),
        (6, 5.5e-4),
        (8, 3.25e-4),
        (12, 1e-4),
        (18, 5.5e-4),
        (24, 1e-3),
        (30, 5.5e-4),
    ];
    follows(&without_warmup(Decay::Annealing { t_max: 12 }), &wave);
    let restarts = |t_mult| without_warmup(Decay::AnnealingWithRestarts { t_0: 12, t_mult });
    follows(&restarts(1), &[(0, 1e-3), (6, 5.5e-4), (8, 3.25e-4), (12, 1e-3), (18, 5.5e-4), (36, 1e-3)]);
    // Ways down start at 0, 12, 36 and 84 and take 12, 24, 48 and 96 steps.
    follows(
        &restarts(2),
        &[(4, 7.75e-4), (12, 1e-3), (20, 7.75e-4), (24, 5.5e-4), (36, 1e-3), (60, 5.5e-4), (84, 1e-3)],
    );
}

#[test]
fn a_scale_multiplies_every_rate() {
    let scaled = ScheduleConfig { scale: 0.5, ..config(Decay::Linear, Warmup::Steps(10)) };
    let scaled = Schedule::new(&scaled, 100, 25);
    follows(&scaled, &[(0, 0.0), (5, 2.5e-4), (10, 5e-4), (55, 2.5e-4), (100, 0.0)]);
}

#[test]
fn warmup_lengths() {
    let steps = |warmup| Schedule::new(&config(Decay::Constant, warmup), 100, 25).warmup_steps();
    assert_eq!(steps(Warmup::Ratio(0.029)), 2);
    assert_eq!(steps(Warmup::Epochs(2)), 50);
    assert_eq!(steps(Warmup::Steps(7)), 7);
    assert_eq!(Schedule::new(&config(Decay::Constant, Warmup::Steps(0)), 100, 25).lr_at(0), 1e-3);
    let from = ScheduleConfig { warmup_lr_init: 2e-4, ..config(Decay::Constant, Warmup::Steps(10)) };
    follows(&Schedule::new(&from, 100, 25), &[(0, 2e-4), (5, 6e-4), (10, 1e-3)]);
}

#[test]
fn stays_finite_past_the_end_and_with_warmup_longer_than_the_run() {
    let all = [
        Decay::Cosine { num_cycles: 0.5, decay_steps: None },
        Decay::CosineWithRestarts { num_cycles: 3.0, decay_steps: Some(u64::MAX) },
        Decay::Linear,
        Decay::Polynomial { power: 0.5, decay_steps: Some(7) },
        Decay::Constant,
        Decay::CoolDown {
            keep_steps: 500,
            length: CoolDown::Rest,
            num_cycles: 0.5,
            final_steps: 500,
            lr_end2: 0.0,
        },
        Decay::StableDecay(DecayStart::Step(700)),
        Decay::Annealing { t_max: u64::MAX },
        Decay::AnnealingWithRestarts { t_0: 3, t_mult: 5 },
    ];
    for decay in all {
        let schedule = Schedule::new(&config(decay.clone(), Warmup::Steps(200)), 100, 25);
        for step in [0, 99, 100, 150, 200, 1000, u64::MAX] {
            assert!((0.0..=1e-3).contains(&schedule.lr_at(step)), "{decay:?} at {step}");
        }
    }
}

#[test]
fn schedules_know_whether_their_length_matters() {
    let cool_down =
        |length| Decay::CoolDown { keep_steps: 20, length, num_cycles: 0.5, final_steps: 10, lr_end2: 5e-5 };
    let decays = [
        Decay::Constant,
        Decay::Linear,
        Decay::Cosine { num_cycles: 0.5, decay_steps: Some(60) },
        Decay::CosineWithRestarts { num_cycles: 2.0, decay_steps: Some(60) },
        Decay::Polynomial { power: 2.0, decay_steps: Some(150) },
        cool_down(CoolDown::Steps(30)),
        cool_down(CoolDown::Ratio(0.2)),
        cool_down(CoolDown::Rest),
        Decay::StableDecay(DecayStart::Step(50)),
        Decay::StableDecay(DecayStart::Ratio(0.5)),
        Decay::Annealing { t_max: 40 },
        Decay::AnnealingWithRestarts { t_0: 20, t_mult: 2 },
    ];
    for decay in decays {
        let of_length = |steps| Schedule::new(&config(decay.clone(), Warmup::Steps(10)), steps, 25);
        let (short, long) = (of_length(100), of_length(200));
        let differs = (0..300).any(|step| short.lr_at(step) != long.lr_at(step));
        assert_eq!(short.depends_on_length(), differs, "{decay:?}");
    }
}
