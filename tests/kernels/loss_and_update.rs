//! linear_cross_entropy, grad_norm and adamw against the f64 reference.

use crate::lab::{Input, allowed, check, sum, tensors, values};
use gristmill::element::Element::F32;
use gristmill::ops::adamw::{AdamW, AdamWTensors, adamw};
use gristmill::ops::grad_norm::{StepTensors, grad_norm, rate_column};
use gristmill::ops::linear_cross_entropy::{
    LinearCrossEntropy, linear_cross_entropy, linear_cross_entropy_forward,
};
use gristmill::record::Tensor;
use gristmill::reference;
use gristmill::reference::adamw::Correction;
use gristmill::train::state::StepState;

const SCALE: f32 = 8.0;

#[test]
fn linear_cross_entropy_matches_the_reference() {
    let shapes = [(1, 1, 4, 1), (33, 31, 20, 1), (130, 257, 36, 1), (65, 64, 33, 2)];
    for (tokens, vocab, width, parts) in shapes {
        check(&format!("linear_cross_entropy {tokens}x{width} to {vocab} in {parts}"), |case| {
            let h = case.input(tokens, width, F32);
            let rows = |part: u32| if part == 0 { vocab / parts } else { vocab - vocab / parts };
            let head: Vec<_> = (0..parts).map(|p| case.input(rows(p), width, F32)).collect();
            let dhead: Vec<_> = (0..parts).map(|p| case.input(rows(p), width, F32)).collect();
            let mut targets = case.ids_below(tokens as usize, vocab);
            let ignore = u32::MAX;
            targets.iter_mut().skip(2).step_by(5).for_each(|t| *t = ignore);
            let counted = targets.iter().filter(|&&t| t != ignore).count();
            let seed = SCALE as f64 / 4.0 / counted.max(1) as f64;
            let want = reference::linear_cross_entropy::linear_cross_entropy(
                &h.values,
                &values(&head),
                &targets,
                ignore,
                seed,
            );

            let (dh, step) = (
                case.output(tokens, width, F32),
                case.step_state(StepState { loss_scale: SCALE, ..StepState::default() }),
            );
            let (loss, eval_loss) = (case.integers(&[0; 8]), case.integers(&[0; 8]));
            let (head_tensors, targets) = (tensors(&head), case.integers(&targets));
            let op = LinearCrossEntropy {
                h: h.tensor,
                head: &head_tensors,
                targets,
                ignore,
                step,
                loss,
                accumulation: 4,
                factor: 1.0,
            };
            linear_cross_entropy(&mut case.rec, &op, dh, Some(&tensors(&dhead)));
            linear_cross_entropy_forward(&mut case.rec, &LinearCrossEntropy { loss: eval_loss, ..op });

            // Two products with a softmax in between.
            let bound = 2.0 * allowed(F32, vocab.max(width));
            case.expect("dh", dh, want.dh, bound);
            let mut rest = &want.dw[..];
            for part in &dhead {
                let (mine, others) = rest.split_at(part.values.len());
                rest = others;
                case.expect(
                    "dhead",
                    part.tensor,
                    sum(mine, &part.values),
                    2.0 * allowed(F32, tokens.max(width)),
                );
            }
            for (name, tensor) in [("loss", loss), ("eval loss", eval_loss)] {
                case.expect_words(name, tensor, move |words| {
                    let [seen_seed, count, sum, tokens_seen, mean] =
                        [0, 1, 2, 3, 4].map(|i| f32::from_bits(words[i]) as f64);
                    let near = |got: f64, want: f64| (got - want).abs() <= bound * (want.abs() + 1.0);
                    assert!(near(seen_seed, seed), "seed {seen_seed} instead of {seed}");
                    assert_eq!((count, tokens_seen), (counted as f64, counted as f64));
                    assert!(near(sum / tokens_seen.max(1.0), want.loss_sum / counted.max(1) as f64));
                    assert!(near(mean, want.loss_sum / counted.max(1) as f64 / 4.0));
                });
            }
        });
    }
}

/// What varies between optimizers and groups: the bias correction, eps, and the column of the learning rate.
#[derive(Clone, Copy)]
struct Variation {
    correction: Correction,
    epsilon: f32,
    group: usize,
}

const PUBLISHED: Variation = Variation { correction: Correction::Published, epsilon: 1e-8, group: 0 };

struct Update {
    global_step: u32,
    variation: Variation,
    norm: f64,
    max_norm: Option<f32>,
    overflow: Option<f32>,
}

/// One update of two segments with different decays, against the reference; after an overflow nothing may change.
fn check_update(name: &str, update: &Update) {
    let Update { global_step, variation, norm, max_norm, overflow } = *update;
    let Variation { correction: kind, epsilon, group } = variation;
    check(name, |case| {
        let counts = [1u32, 5000];
        let settings = |i: usize| AdamW {
            decay: [0.1, 0.0][i],
            beta1: 0.9,
            beta2: 0.95,
            epsilon,
            corrects_epsilon: kind == Correction::WithEps,
            rate_column: rate_column(group),
        };
        let lr = 1e-2;
        let correction = |beta: f64| match kind {
            Correction::Absent => 1.0,
            _ => 1.0 / (1.0 - beta.powi(global_step as i32 + 1)),
        };
        // Three groups; the other two have rates whose use would show.
        let rows: Vec<f64> = (0..=global_step + 1)
            .flat_map(|i| {
                let mut row = [99.0, correction(0.9f32 as f64), correction(0.95f32 as f64), 98.0, 97.0];
                row[rate_column(group) as usize] = lr;
                if i == global_step { row } else { [f64::NAN; 5] }
            })
            .collect();
        let schedule = case.input_of(&rows, global_step + 2, 5, F32).tensor;
        let (state, loss) = (
            case.step_state(StepState { loss_scale: SCALE, global_step, ..StepState::default() }),
            case.integers(&[0; 8]),
        );
        let mut raw: Vec<Vec<f64>> = counts.map(|n| (0..n).map(|_| case.normal()).collect()).to_vec();
        let length = raw.iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
        raw.iter_mut().flatten().for_each(|g| *g *= SCALE as f64 * norm / length);
        if let Some(value) = overflow {
            raw[1][4321] = value as f64;
        }
        let segments: Vec<[Input; 4]> = counts
            .iter()
            .zip(&raw)
            .map(|(&n, g)| {
                let (gradients, weights, m) =
                    (case.input_of(g, 1, n, F32), case.input(1, n, F32), case.input(1, n, F32));
                let v: Vec<f64> = (0..n).map(|_| case.normal().abs()).collect();
                [gradients, weights, m, case.input_of(&v, 1, n, F32)]
            })
            .collect();
        let gradients: Vec<Tensor> = segments.iter().map(|s| s[0].tensor).collect();
        let step = StepTensors { state, loss, schedule };
        grad_norm(&mut case.rec, &gradients, &step, max_norm);
        for (i, [g, w, m, v]) in segments.iter().enumerate() {
            let segment = AdamWTensors {
                gradients: g.tensor,
                weights: w.tensor,
                first_moments: m.tensor,
                second_moments: v.tensor,
            };
            adamw(&mut case.rec, &segment, &step, &settings(i));
        }

        let coefficient =
            max_norm.map_or(1.0, |max| reference::grad_norm::clip_coefficient(norm, max as f64));
        for (i, [g, w, m, v]) in segments.iter().enumerate() {
            let mut want = [w.values.clone(), m.values.clone(), v.values.clone()];
            if overflow.is_none() {
                let AdamW { decay, beta1, beta2, epsilon, .. } = settings(i);
                let settings = reference::adamw::AdamW {
                    lr,
                    beta1: beta1 as f64,
                    beta2: beta2 as f64,
                    eps: epsilon as f64,
                    weight_decay: decay as f64,
                    correction: kind,
                };
                let g: Vec<f64> = g.values.iter().map(|g| g * coefficient / SCALE as f64).collect();
                let [w, m, v] = &mut want;
                reference::adamw::adamw(&settings, global_step + 1, w, &g, m, v);
            }
            let bound = if overflow.is_none() { allowed(F32, 16) } else { 0.0 };
            for ((label, input), want) in [("w", w), ("m", m), ("v", v)].into_iter().zip(want) {
                case.expect(label, input.tensor, want, bound);
            }
        }
        let overflowed = overflow.is_some();
        case.expect_words("state", state, move |words| {
            assert_eq!(words[1], global_step + u32::from(!overflowed), "global_step");
            assert_eq!((words[2], words[10], words[11]), (overflowed.into(), overflowed.into(), 1), "flags");
            let seen = f32::from_bits(words[3]) as f64;
            assert!(
                overflowed || (seen - norm).abs() <= norm * allowed(F32, 5000),
                "norm {seen}, not {norm}"
            );
        });
    });
}

#[test]
fn update_clips_and_steps() {
    let update = |global_step, norm, max_norm| Update {
        global_step,
        variation: PUBLISHED,
        norm,
        max_norm,
        overflow: None,
    };
    check_update("update, clipped", &update(0, 5.0, Some(1.0)));
    check_update("update, below the bound", &update(6, 0.5, Some(1.0)));
    check_update("update, no clipping", &update(1, 3.0, None));
}

#[test]
fn update_of_every_optimizer_and_group() {
    // An eps as large as the moments, so that the place where it is added matters.
    for (name, correction) in [
        ("uncorrected", Correction::Absent),
        ("eps corrected", Correction::WithEps),
        ("group", Correction::Published),
    ] {
        for (group, global_step) in [(0, 0), (1, 6), (2, 2)] {
            let variation = Variation { correction, epsilon: 0.25, group };
            let update = Update { global_step, variation, norm: 5.0, max_norm: Some(1.0), overflow: None };
            check_update(&format!("update, {name}, group {group}"), &update);
        }
    }
}

#[test]
fn update_does_nothing_on_overflow() {
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let (variation, max_norm) = (PUBLISHED, Some(1.0));
        let update = Update { global_step: 3, variation, norm: 1.0, max_norm, overflow: Some(value) };
        check_update(&format!("update, {value} in the gradient"), &update);
    }
}
