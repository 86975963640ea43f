//! Rates worked out by hand from the formulas.

use super::*;

/// The rate at which decays end.
const END: f64 = 1e-4;

/// lr 1e-3 down to 1e-4 in 100 steps, 10 of them of warm-up.
fn schedule(decay: Decay) -> Schedule {
    Schedule::new(&keys(decay, 10), 100, 25)
}

fn keys(decay: Decay, warmup_steps: u64) -> settings::Schedule {
    let (learning_rate, warmup_steps) = (Some(1e-3), Some(warmup_steps));
    settings::Schedule { decay, learning_rate, warmup_steps, ..settings::Schedule::default() }
}

fn cosine(num_cycles: f64, decay_steps: Option<u64>) -> Decay {
    Decay::Cosine { lr_end: END, num_cycles, decay_steps }
}

fn with_restarts(num_cycles: f64, decay_steps: Option<u64>) -> Decay {
    Decay::CosineWithRestarts { lr_end: END, num_cycles, decay_steps }
}

fn polynomial(power: f64, decay_steps: Option<u64>) -> Decay {
    Decay::Polynomial { lr_end: END, power, decay_steps }
}

/// 20 steps at lr, then `decay_steps` of decay, or a share of all steps.
fn cool_down(decay_steps: Option<u64>, decay_ratio: Option<f64>) -> Decay {
    let (lr_end1, lr_end2, num_cycles) = (END, Some(5e-5), 0.5);
    Decay::CoolDown {
        lr_end1,
        lr_end2,
        num_cycles,
        decay_steps,
        decay_ratio,
        keep_steps: 20,
        final_steps: 10,
    }
}

fn stable(decay_start_steps: Option<u64>, decay_start_ratio: Option<f64>) -> Decay {
    Decay::StableDecay { lr_end: END, decay_start_steps, decay_start_ratio }
}

fn annealing(t_max: u64) -> Decay {
    Decay::Annealing { eta_min: END, t_max }
}

fn annealing_with_restarts(t_0: u64, t_mult: u64) -> Decay {
    Decay::AnnealingWithRestarts { eta_min: END, t_0, t_mult }
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
fn cosine_goes_down() {
    // Halfway down at (10 + 100) / 2; after a third of the way the cosine is 1/2: 1e-4 + 9e-4 · 3/4.
    let half = |decay_steps| cosine(0.5, decay_steps);
    assert_rates(half(None), &WARMUP);
    assert_rates(half(None), &[(40, 7.75e-4), (55, 5.5e-4), (70, 3.25e-4), (100, 1e-4), (101, 1e-4)]);
    assert_rates(half(Some(55)), &[(54, 5.5e-4 + 4.5e-4 * (PI / 90.0).sin()), (55, 1e-4)]);
    // A whole cycle goes down and up again.
    assert_rates(cosine(1.0, None), &[(40, 3.25e-4), (55, 1e-4), (70, 3.25e-4)]);
}

#[test]
fn cosine_restarts() {
    // Two ways down, of 45 steps each: at 10 + 15 and 55 + 15 the cosine is 1/2.
    let decay = |decay_steps| with_restarts(2.0, decay_steps);
    assert_rates(decay(None), &WARMUP);
    assert_rates(
        decay(None),
        &[(25, 7.75e-4), (40, 3.25e-4), (55, 1e-3), (70, 7.75e-4), (85, 3.25e-4), (100, 1e-4)],
    );
    assert_rates(decay(Some(200)), &[(100, 1e-4), (150, 1e-4)]);
    // One cycle equals `CosineWithWarmUpLR` with half a cycle.
    assert_rates(with_restarts(1.0, None), &[(40, 7.75e-4), (55, 5.5e-4)]);
}

#[test]
fn straight_lines_and_powers() {
    assert_rates(Decay::Linear {}, &WARMUP);
    assert_rates(Decay::Linear {}, &[(55, 5e-4), (91, 1e-4), (100, 0.0), (200, 0.0)]);
    assert_rates(Decay::Constant {}, &[(5, 5e-4), (10, 1e-3), (1000, 1e-3)]);
    assert_rates(polynomial(1.0, None), &[(5, 5e-4), (10, 1e-3), (55, 5.5e-4), (100, 1e-4), (101, 1e-4)]);
    // (1 - 1/2)² and (1 - 2/3)².
    assert_rates(polynomial(2.0, None), &[(55, 3.25e-4), (70, 2e-4)]);
    assert_rates(polynomial(1.0, Some(45)), &[(10, 1e-3), (40, 4e-4), (55, 1e-4), (90, 1e-4)]);
}

#[test]
fn constant_with_cool_down() {
    // Rising to 10, constant to 30, falling to 60, at the first end to 70.
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
    assert_rates(cool_down(Some(30), None), &WARMUP);
    assert_rates(cool_down(Some(30), None), &thirty);
    assert_rates(cool_down(None, Some(0.3)), &thirty);
    // The remainder: 100 - 10 - 20 - 10 = 60 steps.
    assert_rates(cool_down(None, None), &[(30, 1e-3), (50, 7.75e-4), (60, 5.5e-4), (90, 1e-4), (100, 5e-5)]);
    assert_rates(cool_down(Some(0), None), &[(29, 1e-3), (30, 1e-4), (40, 5e-5)]);
}

#[test]
fn warm_up_stable_decay() {
    let at_80 = [(79, 1e-3), (80, 1e-3), (85, 7.75e-4), (90, 5.5e-4), (100, 1e-4), (500, 1e-4)];
    assert_rates(stable(Some(80), None), &WARMUP);
    assert_rates(stable(Some(80), None), &at_80);
    assert_rates(stable(None, Some(0.8)), &at_80);
}

#[test]
fn annealing_goes_up_again() {
    let without_warmup = |decay| Schedule::new(&keys(decay, 0), 100, 25);
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
    follows(&without_warmup(annealing(12)), &wave);
    let restarts = |t_mult| without_warmup(annealing_with_restarts(12, t_mult));
    follows(&restarts(1), &[(0, 1e-3), (6, 5.5e-4), (8, 3.25e-4), (12, 1e-3), (18, 5.5e-4), (36, 1e-3)]);
    // Descents start at 0, 12, 36 and 84 and take 12, 24, 48 and 96 steps.
    follows(
        &restarts(2),
        &[(4, 7.75e-4), (12, 1e-3), (20, 7.75e-4), (24, 5.5e-4), (36, 1e-3), (60, 5.5e-4), (84, 1e-3)],
    );
}

#[test]
fn a_scale_multiplies_every_rate() {
    let scaled = settings::Schedule { lr_scale: Some(0.5), ..keys(Decay::Linear {}, 10) };
    let scaled = Schedule::new(&scaled, 100, 25);
    follows(&scaled, &[(0, 0.0), (5, 2.5e-4), (10, 5e-4), (55, 2.5e-4), (100, 0.0)]);
}

#[test]
fn warmup_lengths() {
    let constant = |warmup_steps| keys(Decay::Constant {}, warmup_steps);
    let steps = |keys| Schedule::new(&keys, 100, 25).warmup_steps();
    assert_eq!(steps(settings::Schedule { warmup_ratio: Some(0.029), ..constant(0) }), 2);
    assert_eq!(steps(settings::Schedule { warmup_epochs: Some(2), ..constant(0) }), 50);
    assert_eq!(steps(constant(7)), 7);
    assert_eq!(Schedule::new(&constant(0), 100, 25).lr_at(0), 1e-3);
    let from = settings::Schedule { warmup_lr_init: Some(2e-4), ..constant(10) };
    follows(&Schedule::new(&from, 100, 25), &[(0, 2e-4), (5, 6e-4), (10, 1e-3)]);
}

#[test]
fn stays_finite_past_the_end_and_with_warmup_longer_than_the_run() {
    let all = [
        cosine(0.5, None),
        with_restarts(3.0, Some(u64::MAX)),
        Decay::Linear {},
        polynomial(0.5, Some(7)),
        Decay::Constant {},
        Decay::CoolDown {
            lr_end1: END,
            lr_end2: Some(0.0),
            num_cycles: 0.5,
            decay_steps: None,
            decay_ratio: None,
            keep_steps: 500,
            final_steps: 500,
        },
        stable(Some(700), None),
        annealing(u64::MAX),
        annealing_with_restarts(3, 5),
    ];
    for decay in all {
        let schedule = Schedule::new(&keys(decay.clone(), 200), 100, 25);
        for step in [0, 99, 100, 150, 200, 1000, u64::MAX] {
            assert!((0.0..=1e-3).contains(&schedule.lr_at(step)), "{decay:?} at {step}");
        }
    }
}

#[test]
fn schedules_know_whether_their_length_matters() {
    let decays = [
        Decay::Constant {},
        Decay::Linear {},
        cosine(0.5, Some(60)),
        with_restarts(2.0, Some(60)),
        polynomial(2.0, Some(150)),
        cool_down(Some(30), None),
        cool_down(None, Some(0.2)),
        cool_down(None, None),
        stable(Some(50), None),
        stable(None, Some(0.5)),
        annealing(40),
        annealing_with_restarts(20, 2),
    ];
    for decay in decays {
        let of_length = |steps| Schedule::new(&keys(decay.clone(), 10), steps, 25);
        let (short, long) = (of_length(100), of_length(200));
        let differs = (0..300).any(|step| short.lr_at(step) != long.lr_at(step));
        assert_eq!(short.depends_on_length(), differs, "{decay:?}");
    }
}

#[test]
fn rows_hold_rates_and_the_corrections_of_the_paper() {
    let rates: [&dyn Fn(u64) -> f64; 3] = [&|step| step as f64, &|_| 7.0, &|step| 8.0 + step as f64];
    let table = schedule_table(3, &rates, Some([0.9, 0.95]));
    assert_eq!(table.len(), 3 * 8, "5 columns take 8");
    for (i, row) in table.chunks(8).enumerate() {
        let t = i as i32 + 1;
        let corrections = [0.9f64, 0.95].map(|beta| 1.0 / (1.0 - beta.powi(t)));
        let want = [i as f64, corrections[0], corrections[1], 7.0, 8.0 + i as f64, 0.0, 0.0, 0.0];
        assert!(row.iter().zip(want).all(|(&got, want)| (got as f64 - want).abs() <= 1e-6 * want), "{row:?}");
    }
    let uncorrected = schedule_table(2, &[&|_| 0.5], None);
    assert_eq!(uncorrected, [0.5, 1.0, 1.0, 0.0, 0.5, 1.0, 1.0, 0.0]);
}
