//! The gradient norm, the overflow flag and the clip factor, for gradients of any size that f32 holds.

use crate::lab::{Case, allowed, check, check_tier};
use ::reference::grad_norm as reference;
use gristmill::element::Element::{F32, U32};
use gristmill::kernels::{Capabilities, Tier};
use gristmill::ops::grad_norm::{StepRules, StepTensors, grad_norm};
use gristmill::ops::step_state::{HALTED, LossState, SKIPPED, StepState};
use gristmill::record::{Recorder, State};

/// Gradients in two segments: 1 and 5000.
const COUNT: usize = 5001;
const MAX_NORM: f32 = 1.0;

fn clipped(max_norm: f32) -> StepRules {
    StepRules { max_norm: Some(max_norm), ..StepRules::default() }
}

/// Checks norm, flag and factor against the reference, for the gradients that `value` gives by their number.
fn check_norm(name: &str, loss_scale: f32, value: impl Fn(&mut Case, usize) -> f64) {
    check(name, |case| {
        let values: Vec<f64> = (0..COUNT).map(|i| value(case, i)).collect();
        let segments =
            [&values[..1], &values[1..]].map(|part| case.input_of(part, 1, part.len() as u32, F32));
        let unscaled: Vec<Vec<f64>> = segments
            .iter()
            .map(|segment| segment.values.iter().map(|g| g / f64::from(loss_scale)).collect())
            .collect();
        let whole = reference::grad_norm(unscaled.iter().map(Vec::as_slice));
        let norm = whole.min(f64::from(f32::MAX));
        let factor = reference::clip_coefficient(norm, f64::from(MAX_NORM)) / f64::from(loss_scale);
        let step = StepTensors {
            state: case.state(StepState { loss_scale, ..StepState::default() }),
            loss: case.state(LossState::default()),
            schedule: case.input_of(&[0.5, 1.0, 1.0], 1, 3, F32).tensor,
        };
        grad_norm(&mut case.rec, &segments.map(|segment| segment.tensor), &step, &clipped(MAX_NORM));
        let name = name.to_string();
        case.expect_words("state", step.state, move |words| {
            let near = |what: &str, word: u32, want: f64| {
                let got = f64::from(f32::from_bits(word));
                let error = (got - want).abs() / want.max(f64::MIN_POSITIVE);
                println!("{name}: {what} {got:e}, relative error {error:.1e}");
                assert!(error <= allowed(F32, COUNT as u32), "{name}: {what} {got:e}, not {want:e}");
            };
            assert_eq!((words[1], words[2], words[10]), (1, 0, 0), "{name}: global step and overflow flags");
            near("norm", words[3], norm);
            near("factor", words[4], factor.max(f64::from(f32::MIN_POSITIVE)));
        });
    });
}

#[test]
fn squares_that_overflow_or_vanish() {
    let times = |size: f64| move |case: &mut Case, _| size * case.normal();
    check_norm("gradients near 1", 8.0, times(1.0));
    check_norm("gradients near 1e30", 8.0, times(1e30));
    check_norm("gradients near 1e-30", 8.0, times(1e-30));
    check_norm("gradients near 1e-30, huge scale", 2f32.powi(20), times(1e-30));
    check_norm("no gradients", 8.0, times(0.0));
}

/// Sums of squares of values of different sizes meet in one norm.
#[test]
pub fn sizes_that_are_summed_apart() {
    check_norm("gradients from 1e-30 to 1e30", 1.0, |case, i| case.normal() * 10f64.powi(i as i32 % 61 - 30));
    for power in [40, -40] {
        check_norm(&format!("gradients around 2^{power}"), 1.0, |case, _| 2f64.powi(power) * case.normal());
        // All but one lie on one side, and both sides matter.
        check_norm(&format!("one gradient above 2^{power}"), 1.0, |_, i| {
            2f64.powi(power) * if i == 2500 { 50.0 } else { 0.7 }
        });
        check_norm(&format!("one gradient below 2^{power}"), 1.0, |_, i| {
            2f64.powi(power) * if i == 2500 { 0.5 } else { 1.01 }
        });
    }
}

/// One workgroup reduces the partial sums of the first pass, so there are not many, however large the model.
#[test]
fn partial_sums_stay_few() {
    let mut rec = Recorder::new("norm", Capabilities::portable());
    let mut row = |cols, element| rec.tensor("row", 1, cols, element);
    let gradients = [1 << 28, 1 << 28, 1 << 20, 7].map(|count| row(count, F32));
    let step = StepTensors {
        state: row(StepState::WORDS, U32),
        loss: row(LossState::WORDS, U32),
        schedule: row(3, F32),
    };
    grad_norm(&mut rec, &gradients, &step, &StepRules::default());
    let recording = rec.finish();
    let partials = recording.transients.iter().find(|transient| transient.label == "partials");
    let partials = partials.expect("the partials").bytes / 8;
    println!("{partials} partial sums of 537 million gradients");
    assert!((8192..=16384 + 4).contains(&partials), "{partials} partial sums");
}

/// More gradients than one block for each row of the first pass: rows have two blocks, the last one a part of one.
#[test]
fn rows_of_several_blocks() {
    let count = 16384 * 1024 + 100_700;
    check_tier("17 million gradients", Tier::Portable, &|case| {
        let pattern: Vec<f64> = (0..1021).map(|_| case.normal()).collect();
        let values: Vec<f64> = pattern.iter().copied().cycle().take(count).collect();
        let gradients = case.input_of(&values, 1, count as u32, F32);
        let step = StepTensors {
            state: case.state(StepState { loss_scale: 1.0, ..StepState::default() }),
            loss: case.state(LossState::default()),
            schedule: case.input_of(&[0.5, 1.0, 1.0], 1, 3, F32).tensor,
        };
        grad_norm(&mut case.rec, &[gradients.tensor], &step, &StepRules::default());
        let norm = reference::grad_norm([gradients.values.as_slice()].into_iter());
        case.expect_words("state", step.state, move |words| {
            let got = f64::from(f32::from_bits(words[3]));
            // As accurate as a sum of some thousand: blocks are summed by themselves.
            assert!((got - norm).abs() <= norm * allowed(F32, 8192), "norm {got}, not {norm}");
        });
    });
}

/// A norm over the largest f32 is that, and the gradients are neither called infinite nor dropped.
#[test]
fn a_norm_that_no_f32_holds() {
    check_norm("gradients near the largest f32", 1.0, |_, _| 3e38);
}

/// The flag is about gradients that are not finite, unscaled: these are, but the loss scale was below 1.
#[test]
fn gradients_that_overflow_when_unscaled() {
    check("gradients over the largest f32", |case| {
        let gradients = case.input_of(&[1.0, 1e38, 1.0], 1, 3, F32).tensor;
        let step = StepTensors {
            state: case.state(StepState { loss_scale: 2f32.powi(-20), ..StepState::default() }),
            loss: case.state(LossState::default()),
            schedule: case.input_of(&[0.5, 1.0, 1.0], 1, 3, F32).tensor,
        };
        grad_norm(&mut case.rec, &[gradients], &step, &StepRules::default());
        case.expect_words("state", step.state, |words| {
            assert_eq!((words[1], words[2], words[10]), (0, 1, 1), "global step and overflow flags");
            assert_eq!(f32::from_bits(words[3]), f32::INFINITY);
        });
    });
}

/// The state after two gradients of 3 and 4 under `rules`, from a run at the loss scale 8 that halted for `halt`.
fn expect_state(
    name: &str,
    gradients: [f64; 2],
    loss: LossState,
    (rules, halt): (StepRules, u32),
    look: impl Fn(StepState) + Copy + 'static,
) {
    check(name, |case| {
        let gradients = case.input_of(&gradients, 1, 2, F32).tensor;
        let step = StepTensors {
            state: case.state(StepState { loss_scale: 8.0, halt, ..StepState::default() }),
            loss: case.state(loss),
            schedule: case.input_of(&[0.5, 1.0, 1.0], 1, 3, F32).tensor,
        };
        grad_norm(&mut case.rec, &[gradients], &step, &rules);
        case.expect_words("state", step.state, move |words| {
            look(bytemuck::pod_read_unaligned(bytemuck::cast_slice(words)))
        });
    });
}

/// A norm of 5 at bounds around it.
#[test]
fn a_norm_at_the_bound_is_a_spike() {
    for (bound, halt, is_spike) in
        [(5.1, 0, false), (5.0, 0, true), (4.9, 0, true), (5.1, SKIPPED, false), (4.9, HALTED, false)]
    {
        let rules = StepRules { spike_norm: Some(bound), ..StepRules::default() };
        let name = format!("norm 5, bound {bound}, halted {halt}");
        expect_state(&name, [24.0, 32.0], LossState::default(), (rules, halt), move |state| {
            let want = if halt == HALTED {
                HALTED
            } else if is_spike {
                SKIPPED
            } else {
                0
            };
            assert_eq!((state.halt, state.global_step, state.step), (want, u32::from(want == 0), 1));
            assert_eq!((state.is_overflow, state.grad_norm), (0, 5.0));
        });
    }
    let rules = StepRules { spike_norm: Some(5.0), ..StepRules::default() };
    expect_state("an overflow", [f64::INFINITY, 0.0], LossState::default(), (rules, 0), |state| {
        assert_eq!((state.is_overflow, state.halt, state.global_step), (1, 0, 0), "it is no spike");
    });
}

#[test]
fn a_gradient_or_loss_that_is_not_finite_halts() {
    let rules = StepRules { halts_on_nan: true, ..StepRules::default() };
    let loss = |mean_sum| LossState { mean_sum, ..LossState::default() };
    for (name, gradient, loss, halts) in [
        ("all finite", 1.0, loss(2.0), false),
        ("an infinite gradient", f64::INFINITY, loss(2.0), true),
        ("a NaN among the gradients", f64::NAN, loss(2.0), true),
        ("a NaN for a loss", 1.0, loss(f32::NAN), true),
        ("an infinite loss", 1.0, loss(f32::INFINITY), true),
    ] {
        expect_state(name, [gradient, 1.0], loss, (rules, 0), move |state| {
            assert_eq!((state.halt, state.global_step), if halts { (HALTED, 0) } else { (0, 1) }, "{name}");
        });
    }
    expect_state("off", [f64::NAN, 1.0], loss(f32::NAN), (StepRules::default(), 0), |state| {
        assert_eq!((state.halt, state.is_overflow), (0, 1));
    });
}

/// Gradients of the sum of 6 losses over 24 tokens become those of their mean: 4 times as large.
#[test]
fn gradients_per_token_are_of_the_mean_over_tokens_that_count() {
    let rules = StepRules { tokens: Some(24.0), max_norm: Some(10.0), ..StepRules::default() };
    let loss = LossState { loss_sum: 12.0, token_sum: 6.0, mean_sum: 7.0, ..LossState::default() };
    expect_state("per token", [24.0, 32.0], loss, (rules, 0), |state| {
        assert_eq!((state.grad_norm, state.loss), (20.0, 2.0));
        let want = f64::from(4.0f32 / 8.0) * 10.0 / (20.0 + 1e-6);
        let error = (f64::from(state.grad_factor) - want).abs() / want;
        assert!(error <= allowed(F32, 2), "factor {}, not {want}", state.grad_factor);
    });
}
