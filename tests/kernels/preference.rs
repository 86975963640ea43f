//! The losses of pairs of answers against the f64 reference: log-probabilities, losses, weights of tokens, and the
//! gradients of the head by them.

use crate::lab::{Case, allowed, check, sum, tensors, values};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::linear_cross_entropy::{
    HeadGradient, OutputProjection, linear_cross_entropy, linear_cross_entropy_forward, token_losses,
};
use gristmill::ops::preference::{PAIR_WORDS, PairLoss, Preference, log_probabilities};
use gristmill::ops::step_state::{LossState, PreferenceState, StepState};
use gristmill::record::State;
use gristmill::tape::CrossEntropy;
use reference::preference::PairLoss as ReferenceLoss;
use std::ops::Range;

/// Large enough that no gradient of a logit falls below the normal numbers of f16.
const SCALE: f32 = 4096.0;
const IGNORE: u32 = u32::MAX;

/// The lengths of the chosen and the rejected answer of each pair.
type Lengths<'a> = &'a [[usize; 2]];

const LOSSES: [(PairLoss, ReferenceLoss); 4] = [
    (PairLoss::Dpo { beta: 0.3, label_smoothing: 0.1 }, ReferenceLoss::Dpo { beta: 0.3, smoothing: 0.1 }),
    (PairLoss::Ipo { beta: 0.25 }, ReferenceLoss::Ipo { beta: 0.25 }),
    (PairLoss::Orpo { beta: 0.5 }, ReferenceLoss::Orpo { beta: 0.5 }),
    (
        PairLoss::SimPo { beta: 2.0, gamma: 0.5, label_smoothing: 0.2 },
        ReferenceLoss::SimPo { beta: 2.0, gamma: 0.5, smoothing: 0.2 },
    ),
];

/// Pairs of answers of these lengths, one after the other, each followed by a token of padding.
fn pairs(lengths: &[[usize; 2]], tokens: usize) -> (Vec<[Range<usize>; 2]>, Vec<u32>) {
    let (mut answers, mut words, mut start) = (Vec::new(), Vec::new(), 0);
    for [chosen, rejected] in lengths {
        let (middle, end) = (start + chosen, start + chosen + rejected);
        answers.push([start..middle, middle..end]);
        words.extend([start, middle, end, 1].map(|word| word as u32));
        start = end + 1;
    }
    assert!(start <= tokens, "pairs of {start} tokens");
    words.resize(tokens / 4 * PAIR_WORDS as usize, 0);
    (answers, words)
}

fn check_pairs(case: &mut Case, lengths: &[[usize; 2]], element: Element, form: usize, is_per_token: bool) {
    let (tokens, vocab, width) = (70u32, 33u32, 12u32);
    let (loss, reference_loss) = LOSSES[form];
    let (answers, words) = pairs(lengths, tokens as usize);
    let h = case.input(tokens, width, element);
    let head = [case.input(16, width, element), case.input(vocab - 16, width, element)];
    let dhead = [case.input(16, width, F32), case.input(vocab - 16, width, F32)];
    let mut targets = case.ids_below(tokens as usize, vocab);
    // Prompts and padding are not learned.
    let is_learned = |token: usize| {
        answers.iter().flatten().any(|range| range.contains(&token) && token > range.start + range.len() / 3)
    };
    (0..tokens as usize).filter(|token| !is_learned(*token)).for_each(|token| targets[token] = IGNORE);
    let counts: Vec<bool> = targets.iter().map(|target| *target != IGNORE).collect();
    let of_reference: Vec<[f64; 2]> =
        answers.iter().map(|_| [case.normal(), case.normal()].map(|x| -4.0 + x)).collect();
    let mut reference_words = vec![f64::NAN; words.len()];
    for (place, [chosen, rejected]) in of_reference.iter().enumerate() {
        reference_words[4 * place..][..4].copy_from_slice(&[*chosen, 1.0, *rejected, 1.0]);
    }

    let rows = values(&head);
    let logits =
        reference::matmul::linear(&h.values, &rows, None, tokens as usize, vocab as usize, width as usize);
    let loss_of = |(row, target): (&[f64], &u32)| {
        reference::linear_cross_entropy::cross_entropy(row, &[*target], vocab as usize, IGNORE).0
    };
    let losses: Vec<f64> = logits.chunks_exact(vocab as usize).zip(&targets).map(loss_of).collect();
    let (weights, found) =
        reference::preference::token_weights(reference_loss, &losses, &counts, &answers, &of_reference);
    let divisor = if is_per_token { f64::from(tokens) } else { answers.len().max(1) as f64 };
    let seed = f64::from(SCALE) / 2.0 / divisor;
    // The gradient of each token by itself, so that each has a weight of its own.
    let (mut want_dh, mut want_dw) = (Vec::new(), vec![0.0; rows.len()]);
    for (token, row) in h.values.chunks_exact(width as usize).enumerate() {
        let one = reference::linear_cross_entropy::stored_linear_cross_entropy(
            row,
            &rows,
            &targets[token..=token],
            IGNORE,
            seed * weights[token],
            None,
            match element {
                F16 => reference::storage::Storage::F16,
                Bf16 => reference::storage::Storage::Bf16,
                _ => reference::storage::Storage::Exact,
            },
        );
        want_dh.extend(one.dh);
        want_dw.iter_mut().zip(one.dw).for_each(|(sum, term)| *sum += term);
    }

    let step = case.state(StepState { loss_scale: SCALE, ..StepState::default() });
    let before = LossState { loss_sum: 3.0, token_sum: 2.0, ..LossState::default() };
    let [state, eval_state] = [0; 2].map(|_| case.state(before));
    let [sums, eval_sums] =
        [0; 2].map(|_| case.state(PreferenceState { accurate: 1.0, ..PreferenceState::default() }));
    let reference = case.input_of(&reference_words, 1, words.len() as u32, F32).tensor;
    let preference = Preference {
        loss,
        pairs: case.integers(&words),
        reference: loss.has_reference().then_some(reference),
        state: sums,
    };
    let entropy = CrossEntropy {
        ignore: IGNORE,
        accumulation: 2,
        is_per_token,
        preference: Some(preference),
        ..CrossEntropy::new(case.integers(&targets), step, state)
    };
    let head_tensors = tensors(&head);
    let op = OutputProjection {
        h: h.tensor,
        head: &head_tensors,
        bias: None,
        factor: None,
        soft_cap: None,
        ranks: None,
    };
    let dh = case.output(tokens, width, element);
    let into = HeadGradient { parts: &tensors(&dhead), accumulate: true };
    linear_cross_entropy(&mut case.rec, &op, &entropy, dh, Some(into));
    let of_evaluation = Some(Preference { state: eval_sums, ..preference });
    let evaluated = CrossEntropy { loss: eval_state, preference: of_evaluation, ..entropy };
    linear_cross_entropy_forward(&mut case.rec, &op, &evaluated);
    let log_probs = case.output(1, words.len() as u32, F32);
    let of_tokens = token_losses(&mut case.rec, &op, &entropy);
    log_probabilities(&mut case.rec, &preference, &entropy, of_tokens, Some(log_probs));

    // As of a head without weights, and of the weights, which are sums of as many losses as an answer has tokens.
    let bound = 4.0 * allowed(F32, tokens);
    let mut want_log_probs = vec![0.0; words.len()];
    for (place, [chosen, rejected]) in found.iter().enumerate() {
        let numbers = [chosen.log_prob, chosen.tokens, rejected.log_prob, rejected.tokens];
        want_log_probs[4 * place..][..4].copy_from_slice(&numbers);
    }
    case.expect("log-probabilities", log_probs, want_log_probs, bound);
    case.expect("dh", dh, want_dh, 4.0 * allowed(element, tokens));
    let (first, second) = want_dw.split_at(16 * width as usize);
    for (part, own) in dhead.iter().zip([first, second]) {
        case.expect("dhead", part.tensor, sum(own, &part.values), 4.0 * allowed(element, tokens));
    }
    let loss_sum: f64 = found.iter().map(|pair| reference_loss.of(*pair)).sum();
    let rewards: Vec<[f64; 2]> = found.iter().map(|pair| reference_loss.rewards(*pair)).collect();
    let shown = |answer: reference::preference::Answer| match loss.has_reference() {
        true => answer.log_prob,
        false => answer.log_prob / answer.tokens,
    };
    let count = answers.len() as f64;
    let near =
        move |got: f32, want: f64| (f64::from(got) - want).abs() <= 2.0 * bound * (want.abs() + count + 1.0);
    for tensor in [state, eval_state] {
        case.expect_words("loss", tensor, move |words| {
            let words = &words[..LossState::WORDS as usize];
            let state: LossState = bytemuck::pod_read_unaligned(bytemuck::cast_slice(words));
            assert!(near(state.seed, seed) && f64::from(state.count) == count, "{state:?}, seed {seed}");
            assert!(near(state.loss_sum, 3.0 + loss_sum), "{state:?}, losses {loss_sum}");
            assert!(f64::from(state.token_sum) == 2.0 + count, "{state:?}");
            assert!(near(state.mean_sum, loss_sum / count.max(1.0) / 2.0), "{state:?}, losses {loss_sum}");
        });
    }
    let want = [
        rewards.iter().map(|[chosen, _]| chosen).sum::<f64>(),
        rewards.iter().map(|[_, rejected]| rejected).sum(),
        1.0 + rewards.iter().filter(|[chosen, rejected]| chosen > rejected).count() as f64,
        found.iter().map(|[chosen, _]| shown(*chosen)).sum(),
        found.iter().map(|[_, rejected]| shown(*rejected)).sum(),
    ];
    for tensor in [sums, eval_sums] {
        case.expect_words("rewards", tensor, move |words| {
            for (word, want) in words.iter().zip(want) {
                assert!(near(f32::from_bits(*word), want), "{} and {want}", f32::from_bits(*word));
            }
        });
    }
}

#[test]
pub fn pairs_of_answers_and_their_gradients() {
    let some: Lengths = &[[9, 5], [2, 3], [4, 17], [12, 6]];
    let of_elements: [(Element, &[(usize, Lengths)]); 3] = [
        (F32, &[(0, some), (1, some), (2, some), (3, some), (0, &[])]),
        (F16, &[(1, &[[40, 29]]), (0, some)]),
        (Bf16, &[(2, some), (3, &[[40, 29]])]),
    ];
    for (element, forms) in of_elements {
        check(&format!("pairs {element:?}"), |case| {
            for (form, lengths) in forms {
                check_pairs(case, lengths, element, *form, form % 2 == 1);
            }
        });
    }
}

/// Where one answer is far likelier than the other, no loss overflows; a place without a pair gets no weight.
#[test]
fn losses_far_from_zero() {
    check("pairs far apart", |case| {
        for (loss, reference_loss) in LOSSES {
            let numbers = [[-1e4, -1e-6], [-1e-6, -1e4], [-300.0, -310.0]];
            let (answers, words) = pairs(&[[2, 2]; 3], 16);
            let of_tokens: Vec<f64> = (0..16)
                .map(|token| {
                    let found = answers.iter().zip(numbers).find_map(|(ranges, numbers)| {
                        (0..2).find(|side| ranges[*side].start == token).map(|side| -numbers[side])
                    });
                    found.unwrap_or(0.0)
                })
                .collect();
            // Two classes whose logits differ by the negative loss's inverse: log(1 + e^x) = loss.
            let logits: Vec<f64> = of_tokens
                .iter()
                .flat_map(|loss| [0.0, if *loss > 30.0 { *loss } else { loss.exp_m1().max(1e-30).ln() }])
                .collect();
            let h = case.input_of(&logits, 16, 2, F32);
            let head = [case.input_of(&[1.0, 0.0, 0.0, 1.0], 2, 2, F32)];
            let targets: Vec<u32> =
                of_tokens.iter().map(|loss| if *loss > 0.0 { 0 } else { IGNORE }).collect();
            let state = case.state(LossState::default());
            let reference = case.input_of(&vec![0.0; words.len()], 1, words.len() as u32, F32).tensor;
            let preference = Preference {
                loss,
                pairs: case.integers(&words),
                reference: Some(reference),
                state: case.state(PreferenceState::default()),
            };
            let step = case.state(StepState { loss_scale: 1.0, ..StepState::default() });
            let entropy = CrossEntropy {
                ignore: IGNORE,
                preference: Some(preference),
                ..CrossEntropy::new(case.integers(&targets), step, state)
            };
            let op = OutputProjection {
                h: h.tensor,
                head: &tensors(&head),
                bias: None,
                factor: None,
                soft_cap: None,
                ranks: None,
            };
            let dh = case.output(16, 2, F32);
            linear_cross_entropy(&mut case.rec, &op, &entropy, dh, None);
            let answer = |log_prob| reference::preference::Answer { log_prob, reference: 0.0, tokens: 1.0 };
            let want: f64 = numbers.iter().map(|pair| reference_loss.of(pair.map(answer))).sum();
            case.expect_words("loss", state, move |words| {
                let words = &words[..LossState::WORDS as usize];
                let state: LossState = bytemuck::pod_read_unaligned(bytemuck::cast_slice(words));
                let off = (f64::from(state.loss_sum) - want).abs() / want.abs();
                assert!(off <= 1e-3, "{} and {want}", state.loss_sum);
            });
            case.expect_words("dh", dh, |words| {
                assert!(words.iter().all(|word| f32::from_bits(*word).is_finite()), "{words:?}");
            });
        }
    });
}
