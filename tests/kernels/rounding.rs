//! Weights in bfloat16, which updates round stochastically: the same bits as on the host, no bias, neighbours only.

use crate::draws::RoundingBits;
use crate::lab::{Case, Input, check};
use gristmill::element::Element::{Bf16, F32};
use gristmill::ops::adamw::{AdamW, AdamWTensors, adamw};
use gristmill::ops::grad_norm::StepTensors;
use gristmill::ops::muon::{Matrix, Muon, muon};
use gristmill::ops::rounding::Rounding;
use gristmill::ops::sgd::{Sgd, SgdTensors, sgd};
use gristmill::ops::step_state::{LossState, StepState};
use gristmill::record::Tensor;
use reference::adamw::Correction;
use reference::rounding::round;
use reference::storage::Storage;

const LR: f64 = 0.5;
const UPDATE: u32 = 7;
const SEED: u64 = 0x0123_4567_89ab_cdef;
const FIRST4: u32 = 1000;
const ROUNDING: Rounding = Rounding::consecutive(SEED, FIRST4);
const SGD: Sgd =
    Sgd { decay: 0.0, momentum: 0.0, dampening: 0.0, is_nesterov: false, rate_column: 0, rounding: ROUNDING };
const ADAMW: AdamW = AdamW {
    decay: 0.1,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    corrects_epsilon: false,
    rate_column: 0,
    rounding: ROUNDING,
};

/// The tensors of update number [`UPDATE`], as `grad_norm` leaves them; gradients are applied as they are.
fn step_tensors(case: &mut Case) -> StepTensors {
    let state = StepState {
        global_step: UPDATE,
        grad_factor: 1.0,
        bias_correction1: 1.0,
        bias_correction2: 1.0,
        ..StepState::default()
    };
    StepTensors {
        state: case.state(state),
        loss: case.state(LossState::default()),
        schedule: case.input_of(&[LR, 1.0, 1.0, 0.0], 1, 4, F32).tensor,
    }
}

/// Runs of 7 groups of 4, of which the first has begun 3 groups before, with 5 places between them.
const RUNS: Rounding = Rounding { skipped4: 3, run4: 7, gap4: 5, ..ROUNDING };

/// The places of `groups` groups of 4 weights, one after the other.
fn places(rounding: Rounding, groups: usize) -> Vec<u32> {
    let (mut place, mut left) = (rounding.first4, rounding.run4 - rounding.skipped4);
    let next = || {
        let own = place;
        left -= 1;
        place += 1;
        if left == 0 {
            (place, left) = (place + rounding.gap4, rounding.run4);
        }
        own
    };
    std::iter::repeat_with(next).take(groups).collect()
}

/// The halves of words, as values and in order.
fn values(words: &[u32]) -> Vec<f64> {
    let halves = words.iter().flat_map(|word| [*word << 16, *word & 0xffff_0000]);
    halves.map(|bits| f64::from(f32::from_bits(bits))).collect()
}

/// Expects of each weight what the reference `want` is rounded to by the same bits. f32 arithmetic may be off by
/// `error`, so the rounding of any value within it of `want` is right; rounding by given bits is monotone.
fn expect_rounded(
    case: &mut Case,
    weights: Tensor,
    (first, rounding): (usize, Rounding),
    [want, error]: [Vec<f64>; 2],
) {
    assert_eq!(weights.stride, weights.cols, "the test's rows have no pads");
    case.expect_words("rounded", weights, move |words| {
        // Those before the first one are not updated, and any bits leave them as they are.
        let places = [vec![0; first / 4], places(rounding, (want.len() - first) / 4)].concat();
        for (i, got) in values(words).into_iter().enumerate() {
            let bits = RoundingBits { seed: SEED, update: UPDATE }.at(places[i / 4])[i % 4];
            let (low, high) = (round(want[i] - error[i], bits), round(want[i] + error[i], bits));
            assert!((low..=high).contains(&got), "weight {i} is {got:e}, not {low:e} to {high:e}");
        }
    });
}

/// The roundings of an update in f32: a few of the operands and of the result, each half an ulp.
fn error_of(operands: &[&[f64]]) -> Vec<f64> {
    let sum = |i: usize| operands.iter().map(|operand| operand[i].abs()).sum::<f64>();
    (0..operands[0].len()).map(|i| 8.0 * 2f64.powi(-24) * sum(i)).collect()
}

#[test]
fn every_update_rounds_as_the_reference_does() {
    rounds_as_the_reference(0, ROUNDING);
    rounds_as_the_reference(0, RUNS);
    rounds_as_the_reference(460, RUNS);
}

/// The weights from `first` on, which is where no binding may start.
fn rounds_as_the_reference(first: usize, rounding: Rounding) {
    let part = move |input: &Input| {
        let Tensor { buffer, offset, cols, element, .. } = input.tensor;
        Tensor::new(buffer, offset + first as u64 * element.bytes(), 1, cols - first as u32, element)
    };
    check(&format!("rounded, sgd, {rounding:?}"), move |case| {
        let (w, g) = (case.input(1, 5000, Bf16), case.input(1, 5000, F32));
        let m = case.input(1, 5000, F32);
        let step = step_tensors(case);
        let tensors = SgdTensors { weights: part(&w), gradients: part(&g), moments: part(&m) };
        let settings = Sgd { decay: 0.25, momentum: 0.75, rounding, ..SGD };
        sgd(&mut case.rec, &tensors, &step, &settings);
        let [mut want, mut moments] = [&w, &m].map(|input| input.values.clone());
        let of = reference::sgd::Sgd {
            lr: LR,
            momentum: 0.75,
            dampening: 0.0,
            nesterov: false,
            weight_decay: 0.25,
        };
        reference::sgd::sgd(&of, UPDATE, &mut want[first..], &g.values[first..], &mut moments[first..]);
        let error = error_of(&[&w.values, &g.values, &m.values]);
        expect_rounded(case, w.tensor, (first, rounding), [want, error]);
    });
    check(&format!("rounded, adamw, {rounding:?}"), move |case| {
        let (w, g) = (case.input(1, 5000, Bf16), case.input(1, 5000, F32));
        let [m, v] = [0; 2].map(|_| case.input(1, 5000, F32));
        let squares: Vec<f64> = v.values.iter().map(|v| v.abs()).collect();
        let v = case.input_of(&squares, 1, 5000, F32);
        let step = step_tensors(case);
        let tensors = AdamWTensors {
            weights: part(&w),
            gradients: part(&g),
            first_moments: part(&m),
            second_moments: part(&v),
        };
        adamw(&mut case.rec, &tensors, &step, &AdamW { rounding, ..ADAMW });
        let [mut want, mut m1, mut m2] = [&w, &m, &v].map(|input| input.values.clone());
        let of = reference::adamw::AdamW {
            lr: LR,
            beta1: f64::from(ADAMW.beta1),
            beta2: f64::from(ADAMW.beta2),
            eps: f64::from(ADAMW.epsilon),
            weight_decay: f64::from(ADAMW.decay),
            correction: Correction::Absent,
        };
        reference::adamw::adamw(
            &of,
            UPDATE,
            &mut want[first..],
            &g.values[first..],
            &mut m1[first..],
            &mut m2[first..],
        );
        // m / √v, whose numerator may cancel: its operands over the root.
        let update = |i: usize| LR * (m1[i].abs() + g.values[i].abs() + m.values[i].abs()) / m2[i].sqrt();
        let update: Vec<f64> = (0..5000).map(update).collect();
        let error = error_of(&[&w.values, &update]);
        expect_rounded(case, w.tensor, (first, rounding), [want, error]);
    });
}

/// Pieces of a matrix have the bits of their place, and neighbours stay as they are.
#[test]
fn muon_rounds_to_neighbours_of_the_reference() {
    let columns = Rounding { run4: 4, gap4: 9, ..ROUNDING };
    for rounding in [ROUNDING, columns] {
        rounds_pieces_to_neighbours(rounding);
    }
}

fn rounds_pieces_to_neighbours(rounding: Rounding) {
    let (rows, cols) = (20, 16);
    check(&format!("rounded, muon, {rounding:?}"), move |case| {
        let w = case.input(40, cols, Bf16);
        let (g, m) = (case.input(40, cols, F32), case.input(40, cols, F32));
        let step = step_tensors(case);
        let [weights, gradients, moments] = [&w, &g, &m].map(|input| input.tensor.rows(7, rows));
        let settings = Muon {
            momentum: 0.0,
            is_nesterov: false,
            steps: 1,
            rms: 0.2,
            decay: 0.0,
            rate_column: 0,
            rounding: Rounding { first4: FIRST4 + 7 * (cols / 4 + rounding.gap4), ..rounding },
        };
        muon(&mut case.rec, &Matrix { weights, gradients, moments }, &step, &settings);
        let mut want = w.values.clone();
        let piece = (7 * cols) as usize..((7 + rows) * cols) as usize;
        let (mut of_m, of_g) = (m.values[piece.clone()].to_vec(), &g.values[piece.clone()]);
        let of = reference::muon::Muon {
            lr: LR,
            momentum: 0.0,
            nesterov: false,
            steps: 1,
            rms: f64::from(settings.rms),
            weight_decay: 0.0,
        };
        reference::muon::muon(&of, &mut want[piece.clone()], of_g, &mut of_m, rows as usize, cols as usize);
        // A step of Newton-Schulz amplifies roundings of products of up to 20 terms by 3.44; outside nothing changes.
        let scale = LR * f64::from(settings.rms) * f64::from(rows).sqrt();
        let inside = |i: usize| {
            if piece.contains(&i) { 3.4445 * 32.0 * 2f64.powi(-24) * (scale + want[i].abs()) } else { 0.0 }
        };
        let error: Vec<f64> = (0..want.len()).map(inside).collect();
        expect_rounded(case, w.tensor, (0, rounding), [want, error]);
    });
}

/// Weights that all become `value`: the share of those rounded up is within 4 standard errors.
#[test]
fn roundings_are_unbiased() {
    const COUNT: u32 = 1 << 14;
    for share in [0.01, 0.3, 0.5, 0.97] {
        for (low, ulp) in [(1.0, 1.0 / 128.0), (-0.375, -1.0 / 512.0)] {
            check(&format!("rounded {share} above {low}"), move |case| {
                let [weights, gradient] = [low, -share * ulp / LR].map(|x: f64| vec![x; COUNT as usize]);
                let weights = case.input_of(&weights, 1, COUNT, Bf16).tensor;
                let gradients = case.input_of(&gradient, 1, COUNT, F32).tensor;
                let moments = case.input_of(&vec![0.0; COUNT as usize], 1, COUNT, F32).tensor;
                let step = step_tensors(case);
                sgd(&mut case.rec, &SgdTensors { weights, gradients, moments }, &step, &SGD);
                case.expect_words("weights", weights, move |words| {
                    let got = values(words);
                    assert!(got.iter().all(|&w| w == low || w == low + ulp), "only neighbours");
                    let up = got.iter().filter(|&&w| w != low).count() as f64 / f64::from(COUNT);
                    let standard_error = (share * (1.0 - share) / f64::from(COUNT)).sqrt();
                    assert!((up - share).abs() <= 4.0 * standard_error, "{up} were rounded up, not {share}");
                });
            });
        }
    }
}

/// Every normal bfloat16, zeros and infinities, under an update of 0; NaN stays NaN.
#[test]
fn representable_weights_stay() {
    check("rounded, representable", |case| {
        let is_kept = |bits: &u16| bits & 0x7f80 != 0 || bits & 0x7fff == 0;
        let halves: Vec<u16> = (0..=u16::MAX).filter(is_kept).collect();
        let count = halves.len() as u32;
        let weights: Vec<f64> = halves.iter().map(|&bits| half::bf16::from_bits(bits).to_f64()).collect();
        let zeros = vec![0.0; halves.len()];
        let weights = case.input_of(&weights, 1, count, Bf16).tensor;
        let [gradients, first_moments, second_moments] =
            [0; 3].map(|_| case.input_of(&zeros, 1, count, F32).tensor);
        let step = step_tensors(case);
        let tensors = AdamWTensors { weights, gradients, first_moments, second_moments };
        adamw(&mut case.rec, &tensors, &step, &AdamW { decay: 0.0, ..ADAMW });
        case.expect_words("weights", weights, move |words| {
            let got = words.iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]);
            for (got, want) in got.zip(&halves) {
                let is_nan = [got, *want].map(|bits| half::bf16::from_bits(bits).is_nan());
                assert!(got == *want || is_nan == [true; 2], "{want:04x} becomes {got:04x}");
            }
        });
    });
}

/// Between the largest finite bfloat16 and the next power of two there are both: the largest, and infinity.
#[test]
fn the_upper_neighbour_of_the_largest_is_infinity() {
    check("rounded, largest", |case| {
        let largest = half::bf16::MAX.to_f64();
        let ulp = 2f64.powi(120);
        let [w, g] = [largest, -0.5 * ulp / LR].map(|x: f64| vec![x; 64]);
        let (weights, gradients) =
            (case.input_of(&w, 1, 64, Bf16).tensor, case.input_of(&g, 1, 64, F32).tensor);
        let moments = case.input_of(&[0.0; 64], 1, 64, F32).tensor;
        let step = step_tensors(case);
        sgd(&mut case.rec, &SgdTensors { weights, gradients, moments }, &step, &SGD);
        case.expect_words("weights", weights, move |words| {
            let got = values(words);
            assert!(got.iter().all(|&w| w == largest || w == f64::INFINITY), "{got:?}");
            let infinite = got.iter().filter(|w| w.is_infinite()).count();
            assert!((8..56).contains(&infinite), "{infinite} of 64 are infinite");
        });
    });
}

/// 200 updates of a fiftieth of the distance to the next bfloat16: to nearest they change nothing, stochastically they
/// add up to 4 such distances, up to 4 standard errors of a mean over 4096 weights.
#[test]
fn small_updates_add_up() {
    const COUNT: u32 = 4096;
    let ulp = 1.0 / 128.0;
    let nearest = (0..200).fold(1.0, |w, _| Storage::Bf16.round(w + 0.02 * ulp));
    assert_eq!(nearest, 1.0, "rounded to nearest");
    check("rounded, many updates", move |case| {
        let [w, g] = [1.0, -0.02 * ulp / LR].map(|x: f64| vec![x; COUNT as usize]);
        let weights = case.input_of(&w, 1, COUNT, Bf16).tensor;
        let gradients = case.input_of(&g, 1, COUNT, F32).tensor;
        let moments = case.input_of(&vec![0.0; COUNT as usize], 1, COUNT, F32).tensor;
        let step = step_tensors(case);
        for update in 0..200 {
            // The state does not advance here, so each update has a seed instead.
            let rounding = Rounding { seed: update, ..ROUNDING };
            sgd(&mut case.rec, &SgdTensors { weights, gradients, moments }, &step, &Sgd { rounding, ..SGD });
        }
        case.expect_words("weights", weights, move |words| {
            let mean = values(words).iter().sum::<f64>() / f64::from(COUNT);
            let standard_error = ulp * (200.0 * 0.02 * 0.98 / f64::from(COUNT)).sqrt();
            assert!((mean - 1.0 - 4.0 * ulp).abs() <= 4.0 * standard_error, "the mean is {mean}");
        });
    });
}
