//! linear_cross_entropy against the f64 reference.

use crate::lab::{allowed, check, sum, tensors, values};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::linear_cross_entropy::{
    LinearCrossEntropy, linear_cross_entropy, linear_cross_entropy_forward,
};
use gristmill::ops::step_state::{LossState, StepState};
use gristmill::record::State;
use gristmill::reference;
use gristmill::reference::storage::Storage;

/// Large enough that no gradient of a logit falls below the normal numbers of f16.
const SCALE: f32 = 4096.0;

/// What the reference rounds the gradient of logits to.
fn storage(element: Element) -> Storage {
    match element {
        F16 => Storage::F16,
        Bf16 => Storage::Bf16,
        _ => Storage::Exact,
    }
}

#[test]
fn linear_cross_entropy_matches_the_reference() {
    let shapes = [(1, 1, 4, 1), (33, 31, 20, 1), (130, 257, 36, 1), (65, 64, 33, 2)];
    for ((tokens, vocab, width, parts), element) in
        shapes.into_iter().flat_map(|shape| [F32, F16, Bf16].map(|element| (shape, element)))
    {
        check(&format!("linear_cross_entropy {tokens}x{width} to {vocab} in {parts} {element:?}"), |case| {
            let h = case.input(tokens, width, element);
            let rows = |part: u32| if part == 0 { vocab / parts } else { vocab - vocab / parts };
            let head: Vec<_> = (0..parts).map(|p| case.input(rows(p), width, element)).collect();
            let dhead: Vec<_> = (0..parts).map(|p| case.input(rows(p), width, F32)).collect();
            let mut targets = case.ids_below(tokens as usize, vocab);
            let ignore = u32::MAX;
            targets.iter_mut().skip(2).step_by(5).for_each(|t| *t = ignore);
            let counted = targets.iter().filter(|&&t| t != ignore).count();
            let seed = SCALE as f64 / 4.0 / counted.max(1) as f64;
            let want = reference::linear_cross_entropy::stored_linear_cross_entropy(
                &h.values,
                &values(&head),
                &targets,
                ignore,
                seed,
                storage(element),
            );

            let (dh, step) = (
                case.output(tokens, width, element),
                case.state(StepState { loss_scale: SCALE, ..StepState::default() }),
            );
            let [loss, eval_loss] = [0; 2].map(|_| case.state(LossState::default()));
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
                is_per_token: false,
            };
            linear_cross_entropy(&mut case.rec, &op, dh, Some(&tensors(&dhead)));
            linear_cross_entropy_forward(&mut case.rec, &LinearCrossEntropy { loss: eval_loss, ..op });

            // Two products with a softmax in between. Logits and loss are f32; their gradient is rounded here and there, and
            // where f32's errors tip the balance to different sides.
            let bound = 2.0 * allowed(F32, vocab.max(width));
            case.expect("dh", dh, want.dh, 2.0 * allowed(element, vocab.max(width)));
            let mut rest = &want.dw[..];
            for part in &dhead {
                let (mine, others) = rest.split_at(part.values.len());
                rest = others;
                case.expect(
                    "dhead",
                    part.tensor,
                    sum(mine, &part.values),
                    2.0 * allowed(element, tokens.max(width)),
                );
            }
            for (name, tensor) in [("loss", loss), ("eval loss", eval_loss)] {
                case.expect_words(name, tensor, move |words| {
                    let words = &words[..LossState::WORDS as usize];
                    let state: LossState = bytemuck::pod_read_unaligned(bytemuck::cast_slice(words));
                    let LossState { seed: seen_seed, count, loss_sum, token_sum, mean_sum } = state;
                    let [seen_seed, count, sum, tokens_seen, mean] =
                        [seen_seed, count, loss_sum, token_sum, mean_sum].map(f64::from);
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
