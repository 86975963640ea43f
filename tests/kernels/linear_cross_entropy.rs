//! linear_cross_entropy against the f64 reference.

use crate::lab::{allowed, check, sum, tensors, values};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::linear_cross_entropy::{
    HeadBias, HeadGradient, OutputProjection, bias_of_parts, linear_cross_entropy,
    linear_cross_entropy_forward,
};
use gristmill::ops::step_state::{LossState, StepState};
use gristmill::record::State;
use gristmill::tape::{CrossEntropy, HeadForm, Parameter, Tape};
use reference::soft_cap::soft_capped;
use reference::storage::Storage;

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
pub fn linear_cross_entropy_matches_the_reference() {
    let shapes = [
        (1, 1, 4, 1, None),
        (33, 31, 20, 1, None),
        (130, 257, 36, 1, None),
        (65, 64, 33, 2, None),
        (33, 31, 20, 1, Some(30.0)),
        (130, 257, 36, 2, Some(3.0)),
    ];
    // As many classes as Qwen's vocabulary has tokens.
    let of_qwen = ((3, 151_936, 4, 1, None), Bf16);
    let all = shapes.into_iter().flat_map(|shape| [F32, F16, Bf16].map(|element| (shape, element)));
    for ((tokens, vocab, width, parts, soft_cap), element) in all.chain([of_qwen]) {
        let name = format!(
            "linear_cross_entropy {tokens}x{width} to {vocab} in {parts} cap {soft_cap:?} {element:?}"
        );
        check(&name, |case| {
            let h = case.input(tokens, width, element);
            let rows = |part: u32| if part == 0 { vocab / parts } else { vocab - vocab / parts };
            let head: Vec<_> = (0..parts).map(|p| case.input(rows(p), width, element)).collect();
            let dhead: Vec<_> = (0..parts).map(|p| case.input(rows(p), width, F32)).collect();
            let mut targets = case.ids_below(tokens as usize, vocab);
            let ignore = u32::MAX;
            targets.iter_mut().skip(2).step_by(5).for_each(|t| *t = ignore);
            let counted = targets.iter().filter(|&&t| t != ignore).count();
            let seed = SCALE as f64 / 4.0 / counted.max(1) as f64;
            // Logits with a factor are those of a head that has it.
            let factor = (element == F32 || parts > 1).then_some(0.75f32);
            let times =
                |x: &[f64]| x.iter().map(|x| f64::from(factor.unwrap_or(1.0)) * x).collect::<Vec<_>>();
            let scaled_head = times(&values(&head));
            let has_bias = parts == 2 || width == 20;
            let bias = has_bias.then(|| (case.input(1, vocab, element), case.input(1, vocab, F32)));
            let scaled_bias = bias.as_ref().map(|(bias, _)| times(&bias.values));
            let want = reference::linear_cross_entropy::biased_linear_cross_entropy(
                &h.values,
                (&scaled_head, scaled_bias.as_deref()),
                &targets,
                ignore,
                seed,
                soft_cap,
                storage(element),
            );
            let dw = times(&want.dw);

            let (dh, step) = (
                case.output(tokens, width, element),
                case.state(StepState { loss_scale: SCALE, ..StepState::default() }),
            );
            let [loss, eval_loss] = [0; 2].map(|_| case.state(LossState::default()));
            let logits = reference::matmul::linear(
                &h.values,
                &scaled_head,
                scaled_bias.as_deref(),
                tokens as usize,
                vocab as usize,
                width as usize,
            );
            let logits: Vec<f64> = logits.into_iter().map(|logit| soft_capped(logit, soft_cap)).collect();
            let loss_of = |(row, target): (&[f64], &u32)| {
                reference::linear_cross_entropy::cross_entropy(row, &[*target], vocab as usize, ignore).0
            };
            let want_losses: Vec<f64> =
                logits.chunks_exact(vocab as usize).zip(&targets).map(loss_of).collect();
            let losses = case.input_of(&vec![f64::NAN; tokens as usize], 1, tokens, F32).tensor;
            let (head_tensors, targets) = (tensors(&head), case.integers(&targets));
            let entropy = CrossEntropy { ignore, accumulation: 4, ..CrossEntropy::new(targets, step, loss) };
            let soft_cap = soft_cap.map(|cap| cap as f32);
            let of_parts = bias
                .as_ref()
                .map_or(Vec::new(), |(bias, _)| bias_of_parts(&mut case.rec, &head_tensors, bias.tensor));
            let head_bias =
                bias.as_ref().map(|(_, before)| HeadBias { parts: &of_parts, gradient: Some(before.tensor) });
            let op = OutputProjection {
                h: h.tensor,
                head: &head_tensors,
                bias: head_bias,
                factor,
                soft_cap,
                ranks: None,
            };
            linear_cross_entropy(
                &mut case.rec,
                &op,
                &entropy,
                dh,
                Some(HeadGradient { parts: &tensors(&dhead), accumulate: true }),
            );
            let evaluated = CrossEntropy { loss: eval_loss, losses: Some(losses), ..entropy };
            linear_cross_entropy_forward(&mut case.rec, &op, &evaluated);

            // Two products with a softmax in between. Logits and loss are f32; their gradient is rounded here and
            // there, and where f32's errors tip the balance to different sides.
            // A capped logit is off by 2^-21 of its cap more (`of_cap` in attention.rs): a loss by two of these, and a
            // gradient by three, with that of the cap's derivative.
            let of_cap = soft_cap.map_or(0.0, |cap| f64::from(cap) * 2f64.powi(-21));
            let bound = 2.0 * (allowed(F32, vocab.max(width)) + of_cap);
            case.expect("losses", losses, want_losses, bound);
            case.expect("dh", dh, want.dh, 2.0 * allowed(element, vocab.max(width)) + 3.0 * of_cap);
            if let Some((_, before)) = &bias {
                let of_rows = 2.0 * allowed(element, tokens.max(width)) + 3.0 * of_cap;
                case.expect("dbias", before.tensor, sum(&times(&want.dbias), &before.values), of_rows);
            }
            let mut rest = &dw[..];
            for part in &dhead {
                let (mine, others) = rest.split_at(part.values.len());
                rest = others;
                case.expect(
                    "dhead",
                    part.tensor,
                    sum(mine, &part.values),
                    2.0 * allowed(element, tokens.max(width)) + 3.0 * of_cap,
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

/// Whole numbers, of which products and sums are exact, so that logits are equal where those of the reference are. The
/// head is in two parts where it is large enough.
#[test]
fn correct_predictions_are_the_references() {
    let shapes = [
        (1, 1, 4, None),
        (33, 31, 20, None),
        (130, 257, 36, None),
        (65, 64, 33, None),
        (33, 31, 20, Some(30.0)),
    ];
    for ((tokens, vocab, width, soft_cap), element) in
        shapes.into_iter().flat_map(|shape| [F32, F16, Bf16].map(|element| (shape, element)))
    {
        let name = format!("correct predictions {tokens}x{width} of {vocab} cap {soft_cap:?} {element:?}");
        check(&name, |case| {
            let mut whole = |rows: u32| {
                let values: Vec<f64> = (0..rows * width).map(|_| case.normal().round()).collect();
                case.input_of(&values, rows, width, element)
            };
            let first = if vocab > 4 { vocab / 8 * 4 } else { 0 };
            let h = whole(tokens);
            let head: Vec<_> =
                [first, vocab - first].into_iter().filter(|rows| *rows > 0).map(whole).collect();
            let (rows, columns, width) = (tokens as usize, vocab as usize, width as usize);
            let logits = reference::matmul::linear(&h.values, &values(&head), None, rows, columns, width);
            let ignore = u32::MAX;
            let mut targets = case.ids_below(rows, vocab);
            for (number, (target, row)) in targets.iter_mut().zip(logits.chunks_exact(columns)).enumerate() {
                let largest = row.iter().copied().fold(f64::MIN, f64::max);
                let mut equal = (0..vocab).filter(|&id| row[id as usize] == largest);
                *target = match number % 4 {
                    0 => equal.next().expect("a largest logit"),
                    1 => equal.next_back().expect("a largest logit"),
                    2 => ignore,
                    _ => continue,
                };
            }
            let want = reference::linear_cross_entropy::correct(&logits, &targets, columns, ignore);
            println!("{want} of {tokens}");
            assert!(want > 0 && want <= rows.div_ceil(2));

            let dh = case.output(tokens, width as u32, element);
            let [correct, eval_correct] = [0; 2].map(|_| case.input_of(&[5.0], 1, 1, F32).tensor);
            let loss = CrossEntropy {
                ignore,
                correct: Some(correct),
                ..CrossEntropy::new(
                    case.integers(&targets),
                    case.state(StepState { loss_scale: 1.0, ..StepState::default() }),
                    case.state(LossState::default()),
                )
            };
            // A cap changes no order.
            let op = OutputProjection {
                h: h.tensor,
                head: &tensors(&head),
                bias: None,
                factor: None,
                soft_cap,
                ranks: None,
            };
            linear_cross_entropy(&mut case.rec, &op, &loss, dh, None);
            let evaluated = CrossEntropy { correct: Some(eval_correct), ..loss };
            linear_cross_entropy_forward(&mut case.rec, &op, &evaluated);
            for tensor in [correct, eval_correct] {
                case.expect("correct", tensor, vec![5.0 + want as f64], 0.0);
            }
        });
    }
}

/// Rows of the head that are divided by their length, in two parts; what is there of their gradient stays.
#[test]
fn a_head_of_unit_rows_matches_the_reference() {
    let (tokens, vocab, width, epsilon) = (33u32, 40u32, 12u32, 0.5f32);
    for element in [F32, F16, Bf16] {
        check(&format!("linear_cross_entropy of unit rows {element:?}"), |case| {
            let h = case.input(tokens, width, element);
            let head = [case.input(16, width, element), case.input(24, width, element)];
            let before = [case.input(16, width, F32), case.input(24, width, F32)];
            let targets = case.ids_below(tokens as usize, vocab);
            let (rows, cols, storage) = (values(&head), width as usize, storage(element));
            let units = reference::l2_norm::l2_norm(&rows, cols, f64::from(epsilon));
            let units: Vec<f64> = units.into_iter().map(|unit| storage.round(unit)).collect();
            let seed = f64::from(SCALE) / f64::from(tokens);
            let want = reference::linear_cross_entropy::stored_linear_cross_entropy(
                &h.values,
                &units,
                &targets,
                u32::MAX,
                seed,
                None,
                storage,
            );
            let dhead = reference::l2_norm::l2_norm_backward(&rows, &want.dw, cols, f64::from(epsilon));

            let loss = CrossEntropy::new(
                case.integers(&targets),
                case.state(StepState { loss_scale: SCALE, ..StepState::default() }),
                case.state(LossState::default()),
            );
            let table = Parameter { weight: tensors(&head), gradient: Some(tensors(&before)) };
            let mut tape = Tape::new(&mut case.rec);
            let leaf = tape.leaf(h.tensor, true);
            tape.linear_cross_entropy(
                leaf,
                &table,
                &loss,
                HeadForm { unit_epsilon: Some(epsilon), ..HeadForm::default() },
            );
            let dh = tape.gradient(leaf).expect("the hidden states need a gradient");
            let bound = 2.0 * allowed(element, vocab);
            case.expect("dh", dh, want.dh, bound);
            let (first, second) = dhead.split_at(16 * cols);
            for (part, dhead) in before.iter().zip([first, second]) {
                case.expect("dhead", part.tensor, sum(dhead, &part.values), bound);
            }
        });
    }
}
