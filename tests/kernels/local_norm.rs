//! Sums of squares of single tensors.

use crate::lab::{allowed, check};
use gristmill::element::Element::F32;
use gristmill::ops::grad_norm::{StepRules, StepTensors};
use gristmill::ops::local_norm::local_norm;
use gristmill::ops::step_state::{LossState, StepState};

#[test]
fn the_sum_of_squares_of_each_tensor() {
    check("three tensors", |case| {
        let tensors = [700, 5000, 1].map(|count| case.input(1, count, F32));
        let loss_scale = 8.0;
        let step = StepTensors {
            state: case.state(StepState { loss_scale, ..StepState::default() }),
            loss: case.state(LossState::default()),
            schedule: case.input_of(&[0.5, 1.0, 1.0], 1, 3, F32).tensor,
        };
        let infinite = case.input_of(&[1.0, f64::INFINITY, 1.0], 1, 3, F32).tensor;
        let norms = case.output(1, 3, F32);
        // The first one lies in two parts.
        let parts: [&[_]; 3] = [&[tensors[0].tensor, tensors[1].tensor], &[tensors[2].tensor], &[infinite]];
        for (index, parts) in (0..).zip(parts) {
            local_norm(&mut case.rec, parts, &step, &StepRules::default(), norms, index);
        }
        let square = |values: &[f64]| values.iter().map(|g| (g / f64::from(loss_scale)).powi(2)).sum::<f64>();
        let want = [square(&tensors[0].values) + square(&tensors[1].values), square(&tensors[2].values)];
        case.expect_words("norms", norms, move |words| {
            for (word, want) in words.iter().zip(want) {
                let error = (f64::from(f32::from_bits(*word)) - want).abs() / want;
                // Norms of rows are squared again.
                assert!(error <= 3.0 * allowed(F32, 5700), "{} and not {want}", f32::from_bits(*word));
            }
            assert_eq!(f32::from_bits(words[2]), f32::INFINITY);
        });
    });
}
