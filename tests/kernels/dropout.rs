//! Dropout: the device draws the words of the host's generator, and the gradient uses the mask of the forward pass. The
//! statistics of masks are tested in masks.rs.

use crate::draws::DropoutWords;
use crate::lab::{Bits, Case, Input, allowed, check, check_tier};
use gristmill::element::Element::{Bf16, F16, F32, U32};
use gristmill::kernels::Tier;
use gristmill::ops::attention::Attention;
use gristmill::ops::dropout::{Dropout, DropoutState, count_micro_step, dropout, random_words};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::step_state::StepState;
use gristmill::tape::{LowRankMap, Parameter, Tape};
use reference::low_rank::low_rank_backward;

const STEP: u32 = 70_001;
const MICRO_STEP: u32 = 3;

fn place(case: &mut Case, probability: f32, site: u32) -> Dropout {
    let state = case.state(DropoutState { step: STEP, micro_step: MICRO_STEP });
    Dropout { probability, seed: 0x1234_5678_9abc_def0, site, state, part: None }
}

fn words_of(place: &Dropout, step: u32, micro_step: u32) -> DropoutWords {
    DropoutWords { seed: place.seed, site: place.site, step, micro_step }
}

/// The factor of each element of a (rows, cols) tensor.
fn factors(dropout: &Dropout, rows: u32, cols: u32) -> Vec<f64> {
    let (groups, words) = (cols.div_ceil(4), words_of(dropout, STEP, MICRO_STEP));
    let factor = |row: u32, col: u32| {
        let word = words.at(row * groups + col / 4, 0)[(col % 4) as usize];
        if word < dropout.threshold() { 0.0 } else { 1.0 / (1.0 - f64::from(dropout.probability)) }
    };
    (0..rows).flat_map(|row| (0..cols).map(move |col| factor(row, col))).collect()
}

#[test]
pub fn the_device_draws_the_host_s_words() {
    check("random words", |case| {
        let (rows, cols) = (67, 12);
        let (words, place) = (case.output(rows, cols, U32), place(case, 0.0, 32767));
        random_words(&mut case.rec, words, &place);
        let want: Vec<u32> =
            (0..rows * cols / 4).flat_map(|group| words_of(&place, STEP, MICRO_STEP).at(group, 0)).collect();
        case.expect_words("words", words, move |words| {
            assert!(words == want, "the words differ from the host's")
        });
    });
}

#[test]
pub fn dropout_is_the_mask_times_its_input() {
    for element in [F32, F16, Bf16] {
        for (rows, cols) in [(1, 1), (33, 31), (5, 257), (64, 32)] {
            for (has_residual, accumulate) in [(false, false), (true, false), (false, true)] {
                let name =
                    format!("dropout {rows}x{cols} {element:?} residual {has_residual} +={accumulate}");
                check(&name, |case| {
                    let place = place(case, 0.3, 5);
                    let x = case.input(rows, cols, element);
                    let residual = has_residual.then(|| case.input(rows, cols, element));
                    let before = accumulate.then(|| case.input(rows, cols, element));
                    let y = before.as_ref().map_or_else(|| case.output(rows, cols, element), |y| y.tensor);
                    let skip = residual.as_ref().map(|r| r.tensor);
                    dropout(&mut case.rec, x.tensor, skip, y, accumulate, &place);
                    let mut want = factors(&place, rows, cols);
                    want.iter_mut().zip(&x.values).for_each(|(want, x)| *want *= x);
                    for added in [&residual, &before].into_iter().flatten() {
                        want.iter_mut().zip(&added.values).for_each(|(want, added)| *want += added);
                    }
                    case.expect("y", y, want, allowed(element, 2));
                });
            }
        }
    }
}

/// Micro-batches are counted within the step of `StepState`; a new step starts from 0.
#[test]
pub fn micro_batches_are_counted() {
    check("count_micro_step", |case| {
        let [sixth, seventh] = [5, 6].map(|step| case.state(StepState { step, ..StepState::default() }));
        let state = case.state(DropoutState::default());
        let place = Dropout { probability: 0.5, seed: 3, site: 0, state, part: None };
        for (step, number, micro_step) in
            [(sixth, 6, 0), (sixth, 6, 1), (sixth, 6, 2), (seventh, 7, 0), (seventh, 7, 1)]
        {
            count_micro_step(&mut case.rec, step, state, 0, 1);
            let words = case.output(1, 4, U32);
            random_words(&mut case.rec, words, &place);
            let want = words_of(&place, number, micro_step).at(0, 0);
            case.expect_words("words", words, move |words| {
                assert_eq!(words, want, "micro-batch {micro_step} of step {number}");
            });
        }
        case.expect_words("state", state, |words| assert_eq!(words[..2], [7, 1]));
    });
}

/// Runs `test` on each tier with and without recomputation in the backward pass.
fn recomputed_or_not(name: &str, test: impl Fn(&mut Case, bool, &Bits)) {
    for tier in Tier::EVERYWHERE {
        let bits = Bits::of_different_kernels(); // checked and unchecked ones
        for recompute in [false, true] {
            let name = format!("{name}, recomputed: {recompute}");
            check_tier(&name, tier, &|case: &mut Case| test(case, recompute, &bits));
        }
    }
}

/// y = x + dropout(W dropout(x)).
#[test]
fn the_gradient_has_the_mask_of_the_forward_pass() {
    recomputed_or_not("tape dropout", |case, recompute, bits| {
        let (n, d) = (10, 9);
        let (x, w, dy) = (case.input(n, d, F32), case.input(d, d, F32), case.input(n, d, F32));
        let (inner, outer) = (place(case, 0.4, 1), place(case, 0.2, 2));
        let parameter = &Parameter { weight: vec![w.tensor], gradient: None };
        let mut tape = Tape::new(&mut case.rec);
        let leaf = tape.leaf(x.tensor, true);
        let y = tape.recompute(
            move |_| recompute,
            |tape| {
                let h = tape.dropout(leaf, None, inner);
                let h = tape.linear(h, parameter, None, None);
                tape.dropout(h, Some(leaf), outer)
            },
        );
        tape.give(y, dy.tensor);
        tape.backward();
        let gradient = tape.gradient(leaf).expect("x needs a gradient");
        let (inner, outer) = (factors(&inner, n, d), factors(&outer, n, d));
        let dh: Vec<f64> = dy.values.iter().zip(&outer).map(|(dy, m)| dy * m).collect();
        let (n, d) = (n as usize, d as usize);
        let dh = reference::matmul::matmul_nn(&dh, &w.values, n, d, d);
        let want: Vec<f64> = (0..n * d).map(|i| dh[i] * inner[i] + dy.values[i]).collect();
        case.expect("dx", gradient, want, 4.0 * allowed(F32, 9));
        bits.expect(case, "dx", gradient);
    });
}

/// y = x Wᵀ + B A dropout(x): the gradients of A and of x have the mask that the forward pass had.
#[test]
fn adapters_draw_their_mask_again() {
    recomputed_or_not("tape low rank with dropout", |case, recompute, bits| {
        let (n, d, r) = (10, 9, 4);
        let (x, w, dy) = (case.input(n, d, F32), case.input(d, d, F32), case.input(n, d, F32));
        let (a, b, da) = (case.input(r, d, F32), case.input(d, r, F32), case.input(r, d, F32));
        let inner = place(case, 0.4, 1);
        let frozen = |w: &Input| Parameter { weight: vec![w.tensor], gradient: None };
        let (w_parameter, b_parameter) = (&frozen(&w), &frozen(&b));
        let a_parameter = &Parameter { weight: vec![a.tensor], gradient: Some(vec![da.tensor]) };
        let mut tape = Tape::new(&mut case.rec);
        let leaf = tape.leaf(x.tensor, true);
        let y = tape.recompute(
            move |_| recompute,
            |tape| {
                let y = tape.linear(leaf, w_parameter, None, None);
                let z = tape.low_rank_down(leaf, a_parameter, Some(inner), 2.0);
                let map = LowRankMap { first: 0, count: d, rank: r, factor: None };
                tape.low_rank_up(y, z, b_parameter, vec![map])
            },
        );
        tape.give(y, dy.tensor);
        tape.backward();
        let gradient = tape.gradient(leaf).expect("x needs a gradient");
        let masked = |values: &[f64]| -> Vec<f64> {
            values.iter().zip(factors(&inner, n, d)).map(|(value, factor)| value * factor).collect()
        };
        let (n, d, r) = (n as usize, d as usize, r as usize);
        let (dropped, sizes) = (masked(&x.values), [n, d, d, r]);
        let through = low_rank_backward(&dropped, &a.values, &b.values, &dy.values, 2.0, sizes);
        let past = reference::matmul::matmul_nn(&dy.values, &w.values, n, d, d);
        let want: Vec<f64> =
            past.iter().zip(masked(&through.0)).map(|(past, through)| past + through).collect();
        case.expect("dx", gradient, want, 16.0 * allowed(F32, 9));
        let want: Vec<f64> = da.values.iter().zip(&through.1).map(|(before, da)| before + da).collect();
        case.expect("da", da.tensor, want, 16.0 * allowed(F32, 10));
        bits.expect(case, "dx", gradient);
        bits.expect(case, "da", da.tensor);
    });
}

/// The same for the mask of attention weights, whose values attention.rs compares with the reference.
#[test]
fn recomputed_attention_drops_the_same_weights() {
    let layout = HeadLayout { heads: 2, kv_heads: 1, head_dim: 8, value_dim: 4 };
    recomputed_or_not("tape attention with dropout", |case, recompute, bits| {
        let x = case.input(20, layout.cols(), F32).tensor;
        let dy = case.input(20, layout.out_cols(), F32).tensor;
        let dropout = Some(place(case, 0.3, 1));
        let shape = Attention {
            layout,
            tokens: 10,
            is_causal: true,
            scale: 0.4,
            soft_cap: None,
            window: None,
            has_alibi: false,
            head_range: None,
            dropout,
        };
        let mut tape = Tape::new(&mut case.rec);
        let leaf = tape.leaf(x, true);
        let y = tape.recompute(move |_| recompute, |tape| tape.attention(leaf, None, shape, None, None));
        tape.give(y, dy);
        tape.backward();
        let gradient = tape.gradient(leaf).expect("x needs a gradient");
        tape.rec.keep(gradient);
        bits.expect(case, "dqkv", gradient);
    });
}
