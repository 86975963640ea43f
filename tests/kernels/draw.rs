//! Draws of tokens: each is one that the f64 reference draws at its random number, and what it leaves for the next
//! step.

use crate::lab::{Case, check};
use gristmill::element::Element::{F32, U32};
use gristmill::ops::draw::{DRAWS, DrawTensors, SamplingState, draw};
use gristmill::random::{DRAW_STREAM, Philox};
use gristmill::record::Tensor;
use reference::draw::{Sampling, quantiles};
use reference::soft_cap::soft_capped;
use std::collections::BTreeSet;

/// Error of a quantile: f32 sums of up to 5,000 weights.
const ALLOWED: f64 = 1e-5;

const ALL: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };

#[test]
pub fn tokens_are_drawn_by_their_probability() {
    let ways = [
        ALL,
        Sampling { temperature: 0.0, ..ALL },
        Sampling { temperature: 0.0, repetition_penalty: 1.7, ..ALL },
        Sampling { temperature: 0.3, repetition_penalty: 1.7, ..ALL },
        Sampling { top_k: 7, ..ALL },
        Sampling { top_p: 0.6, ..ALL },
        Sampling { temperature: 1.5, top_k: 40, top_p: 0.9, repetition_penalty: 0.8 },
        Sampling { top_k: 1 << 30, top_p: 1e-9, ..ALL },
    ];
    for vocab in [1, 2, 33, 500, 4099] {
        for way in ways {
            check(&format!("draw from {vocab}: {way:?}"), |case| {
                let values: Vec<f64> = (0..4 * vocab).map(|_| 2.0 * case.normal()).collect();
                check_draws(case, &values, vocab, way, None);
            });
        }
    }
}

/// Logits under a soft cap, which a penalty and a temperature see.
#[test]
pub fn tokens_are_drawn_by_capped_logits() {
    for way in [ALL, Sampling { temperature: 0.7, top_k: 40, top_p: 0.9, repetition_penalty: 1.3 }] {
        for (vocab, cap) in [(33, 1.5), (500, 30.0)] {
            check(&format!("draw from {vocab} capped at {cap}: {way:?}"), |case| {
                let values: Vec<f64> = (0..4 * vocab).map(|_| 3.0 * case.normal()).collect();
                check_draws(case, &values, vocab, way, Some(cap));
            });
        }
    }
}

/// As many tokens as published vocabularies have, and so many that each sequence has launches of its own: more turns of
/// a loop than llvmpipe allows an invocation of a small workgroup.
#[test]
#[ignore = "long; tokens of small vocabularies are drawn so"]
fn tokens_of_a_large_vocabulary_are_drawn_by_their_probability() {
    let nucleus = Sampling { top_p: 0.6, ..ALL };
    for (vocab, way) in [(50_257, ALL), (50_257, Sampling { top_k: 7, ..ALL }), (800_001, nucleus)] {
        check(&format!("draw from {vocab}: {way:?}"), |case| {
            let values: Vec<f64> = (0..4 * vocab).map(|_| 2.0 * case.normal()).collect();
            check_draws(case, &values, vocab, way, None);
        });
    }
}

#[test]
fn ties_and_broken_logits() {
    let rows = [
        [0.5; 6],
        [f64::NAN, 1.0, 1.0, f64::NAN, 1.0, -3.0],
        [f64::NAN; 6],
        [f64::NEG_INFINITY, f64::from(f32::MIN), 2.0, -0.0, 0.0, 2.0],
    ];
    for way in [
        ALL,
        Sampling { temperature: 0.0, ..ALL },
        Sampling { top_k: 1, ..ALL },
        Sampling { top_p: 0.2, ..ALL },
    ] {
        check(&format!("draw from ties: {way:?}"), |case| {
            check_draws(case, rows.as_flattened(), 6, way, None)
        });
    }
}

/// Four sequences with some tokens seen, after `n` draws: the row of the next is not the first.
fn check_draws(case: &mut Case, logits: &[f64], vocab: u32, way: Sampling, soft_cap: Option<f32>) {
    let batch = 4;
    let logits = case.input_of(logits, batch, vocab, F32);
    let sampling = case.state(SamplingState {
        temperature: way.temperature as f32,
        top_p: way.top_p as f32,
        repetition_penalty: way.repetition_penalty as f32,
        top_k: way.top_k as u32,
    });
    let (seed, draws) = (0x1234_5678_9abc_u64, DRAWS + 3);
    let states: Vec<u32> =
        (0..batch).flat_map(|number| [seed as u32 + number, (seed >> 32) as u32, draws, 0]).collect();
    let words = DrawTensors::seen_words(vocab).next_multiple_of(4);
    let seen: Vec<u32> =
        (0..batch * words).map(|i| i.wrapping_mul(0x9e37_79b9) & within(i % words, vocab)).collect();
    let shaped = |tensor: Tensor, cols, stride| Tensor { rows: batch, cols, stride, ..tensor };
    let tensors = DrawTensors {
        logits: logits.tensor,
        sampling,
        sequences: shaped(case.integers(&states), 4, 4),
        seen: shaped(case.integers(&seen), DrawTensors::seen_words(vocab), words),
        token: case.output(1, batch, U32),
        position: case.integers(&[0, 5, 9, 1]),
        drawn: case.output(1, DRAWS * batch, U32),
    };
    draw(&mut case.rec, &tensors, soft_cap);
    let tokens = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let capped = |row: &[f64]| row.iter().map(|x| soft_capped(*x, soft_cap.map(f64::from))).collect();
    let rows: Vec<Vec<f64>> = logits.values.chunks(vocab as usize).map(capped).collect();
    let before = seen.clone();
    let drawn = tokens.clone();
    case.expect_words("token", tensors.token, move |words| {
        for (number, (row, &token)) in rows.iter().zip(words).enumerate() {
            let bits = &before[number * before.len() / 4..][..before.len() / 4];
            let seen: BTreeSet<usize> =
                (0..vocab as usize).filter(|i| (bits[i / 32] >> (i % 32)) & 1 == 1).collect();
            let random = Philox::new(seed + number as u64, DRAW_STREAM).block(u64::from(draws))[1] >> 8;
            let at = f64::from(random) / f64::from(1 << 24);
            let range = quantiles(row, &seen, &way, token as usize);
            let [low, high] =
                range.unwrap_or_else(|| panic!("sequence {number}: token {token} is never drawn"));
            let is_near = (low - ALLOWED..high + ALLOWED).contains(&at);
            assert!(is_near, "sequence {number}: token {token} is drawn from {low} to {high}, not at {at}");
        }
        drawn.replace(words[..4].to_vec());
    });
    let drawn = tokens.clone();
    case.expect_words("drawn", tensors.drawn, move |words| {
        let row = (draws % DRAWS) as usize;
        for (i, &word) in words[..(DRAWS * batch) as usize].iter().enumerate() {
            let want = if i / 4 == row { drawn.borrow()[i % 4] } else { u32::MAX };
            assert_eq!(word, want, "word {i}");
        }
    });
    case.expect_words("seen", tensors.seen, move |words| {
        let mut want = seen.clone();
        for (number, &token) in tokens.borrow().iter().enumerate() {
            want[number * seen.len() / 4 + token as usize / 32] |= 1 << (token % 32);
        }
        assert_eq!(words, want);
    });
    case.expect_words("position", tensors.position, |words| assert_eq!(words[..4], [1, 6, 10, 2]));
    case.expect_words("sequences", tensors.sequences, move |words| {
        for (after, before) in words.chunks(4).zip(states.chunks(4)) {
            assert_eq!(after, [before[0], before[1], before[2] + 1, 0]);
        }
    });
}

/// The bits of word `word` that stand for tokens.
fn within(word: u32, vocab: u32) -> u32 {
    match vocab.saturating_sub(32 * word) {
        32.. => u32::MAX,
        count => (1 << count) - 1,
    }
}
