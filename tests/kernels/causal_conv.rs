//! causal_conv against the f64 reference.

use crate::lab::{Case, allowed, check, sum};
use ::reference::causal_conv as reference;
use ::reference::swiglu::{swiglu, swiglu_backward};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::attention::DocumentBounds;
use gristmill::ops::causal_conv::{
    CausalConv, causal_conv, causal_conv_backward, causal_conv_backward_weight, causal_conv_slopes,
    causal_conv_state, causal_conv_step, kept_tokens,
};

/// The slope of SiLU is at most this.
const SLOPE: f64 = 1.1;

struct Shape {
    sequences: u32,
    tokens: u32,
    channels: u32,
    width: u32,
    /// The first token of each document of a sequence.
    documents: Option<&'static [u32]>,
    has_silu: bool,
}

const PLAIN: Shape =
    Shape { sequences: 2, tokens: 7, channels: 12, width: 4, documents: None, has_silu: true };

const SHAPES: [Shape; 6] = [
    Shape { documents: Some(&[0, 1, 2, 6]), ..PLAIN },
    PLAIN,
    Shape { tokens: 133, channels: 68, documents: Some(&[0, 64, 66, 130]), ..PLAIN },
    Shape { sequences: 3, tokens: 1, channels: 4, ..PLAIN },
    Shape { tokens: 2, width: 3, has_silu: false, ..PLAIN },
    Shape { sequences: 1, tokens: 70, channels: 260, width: 1, has_silu: false, ..PLAIN },
];

impl Shape {
    /// For each token of all sequences the first of its document, and one past the last.
    fn bounds(&self) -> Option<[Vec<u32>; 2]> {
        let first = self.documents?;
        let start = |t: u32| first.iter().copied().filter(|first| *first <= t).max().expect("a document");
        let end = |t: u32| first.iter().copied().filter(|first| *first > t).min().unwrap_or(self.tokens);
        let of_all = |bound: &dyn Fn(u32) -> u32| {
            (0..self.sequences * self.tokens).map(|row| bound(row % self.tokens)).collect()
        };
        Some([of_all(&start), of_all(&end)])
    }
}

/// All passes on columns of wider tensors.
fn check_shape(case: &mut Case, shape: &Shape, element: Element) {
    let Shape { tokens, channels, width, has_silu, .. } = *shape;
    let (rows, c) = (shape.sequences * tokens, channels as usize);
    let (wide, w) = (case.input(rows, channels + 8, element), case.input(width, channels, element));
    let x = wide.tensor.columns(4, channels);
    let x_values: Vec<f64> = wide.values.chunks(c + 8).flat_map(|row| row[4..4 + c].to_vec()).collect();
    let bounds = shape.bounds();
    let starts: Option<Vec<usize>> =
        bounds.as_ref().map(|[starts, _]| starts.iter().map(|start| *start as usize).collect());
    let documents = bounds.map(|bounds| {
        let [starts, ends] = bounds.map(|bound| case.integers(&bound));
        DocumentBounds { starts, ends }
    });
    let conv = CausalConv { tokens, documents, has_silu };
    let y = case.output(rows, channels, element);
    causal_conv(&mut case.rec, x, w.tensor, y, &conv);

    let [dy, more] = [channels, channels + 8].map(|cols| case.input(rows, cols, element));
    let dx = case.output(rows, channels, element);
    let before = case.input(1, width * channels, F32);
    causal_conv_slopes(&mut case.rec, x, w.tensor, dy.tensor, &conv);
    causal_conv_backward_weight(&mut case.rec, x, w.tensor, dy.tensor, before.tensor, &conv);
    causal_conv_backward(&mut case.rec, w.tensor, dy.tensor, dx, false, &conv);
    causal_conv_backward(&mut case.rec, w.tensor, dy.tensor, more.tensor.columns(4, channels), true, &conv);

    // The reference has the weights of a channel side by side.
    let across = |values: &[f64], cols: usize| -> Vec<f64> {
        (0..cols).flat_map(|col| values.iter().skip(col).step_by(cols).copied().collect::<Vec<_>>()).collect()
    };
    let weights = across(&w.values, c);
    let formula = reference::CausalConv {
        tokens: tokens as usize,
        channels: c,
        width: width as usize,
        starts: starts.as_deref(),
    };
    let z = reference::causal_conv(&x_values, &weights, &formula);
    let ones = vec![1.0; z.len()];
    let (want, dz) = match has_silu {
        true => (swiglu(&z, &ones), swiglu_backward(&z, &ones, &dy.values).0),
        false => (z, dy.values.clone()),
    };
    let (want_dx, want_dw) = reference::causal_conv_backward(&x_values, &weights, &dz, &formula);
    // Each dz that a sum takes was rounded when it was stored, and the sum is rounded once more; a subnormal half by as
    // much as the smallest normal one.
    let smallest = if element == F16 { 2f64.powi(-14) } else { 0.0 };
    let sizes = |values: &[f64]| values.iter().map(|value| value.abs().max(smallest)).collect::<Vec<_>>();
    let (terms_dx, terms_dw) =
        reference::causal_conv_backward(&sizes(&x_values), &sizes(&weights), &sizes(&dz), &formula);
    let bound = |terms| 2.0 * allowed(element, terms);
    case.expect("y", y, want, SLOPE * allowed(element, width));
    case.expect("dz", dy.tensor, dz, SLOPE * allowed(element, width));
    let kept: Vec<f64> = more.values.chunks(c + 8).flat_map(|row| row[4..4 + c].to_vec()).collect();
    let (want, terms) = (sum(&kept, &want_dx), sum(&sizes(&kept), &terms_dx));
    case.expect_terms("dx on top", more.tensor, 4..4 + channels, want, bound(width), terms);
    case.expect_terms("dx", dx, 0..channels, want_dx, bound(width), sizes(&terms_dx));
    let by_place = |values: &[f64]| across(values, width as usize);
    let want = sum(&before.values, &by_place(&want_dw));
    let terms = sum(&sizes(&before.values), &by_place(&terms_dw));
    case.expect_terms("dw", before.tensor, 0..width * channels, want, bound(rows), terms);
}

#[test]
pub fn causal_conv_and_its_backward() {
    for (number, shape) in SHAPES.iter().enumerate() {
        for element in [[F32, F16], [Bf16, F32], [F16, Bf16]][number % 3] {
            let Shape { sequences, tokens, channels, width, .. } = shape;
            let name = format!("causal_conv {sequences}x{tokens}x{channels}, {width} wide, {element:?}");
            check(&name, |case| check_shape(case, shape, element));
        }
    }
}

/// Prompts of `lasts` + 1 tokens in rows of `tokens`, each followed by two more tokens.
fn check_steps(case: &mut Case, shape: &Shape, lasts: &[u32], element: Element) {
    let Shape { tokens, channels, width, has_silu, .. } = *shape;
    let (sequences, c) = (lasts.len() as u32, channels as usize);
    let wide = case.input(sequences * tokens, channels + 4, element);
    let [w, one, two] = [width, sequences, sequences].map(|rows| case.input(rows, channels, element));
    let rows: Vec<u32> = (0..).zip(lasts).map(|(sequence, last)| sequence * tokens + last).collect();
    let (x, last_rows) = (wide.tensor.columns(4, channels), case.integers(&rows));
    let state = case.output(sequences * kept_tokens(width), channels, element);
    let [of_one, of_two] = [0; 2].map(|_| case.output(sequences, channels, element));
    causal_conv_state(&mut case.rec, x, last_rows, state, width);
    causal_conv_step(&mut case.rec, one.tensor, w.tensor, state, of_one, has_silu);
    causal_conv_step(&mut case.rec, two.tensor, w.tensor, state, of_two, has_silu);

    let weights: Vec<f64> = (0..c).flat_map(|col| w.values.iter().skip(col).step_by(c).copied()).collect();
    let mut want = [const { Vec::new() }; 2];
    let mut held = Vec::new();
    for (sequence, last) in lasts.iter().enumerate() {
        let first = sequence * tokens as usize;
        let prompt = wide.values.chunks(c + 4).skip(first).take(*last as usize + 1);
        let mut text: Vec<f64> = prompt.flat_map(|row| row[4..].to_vec()).collect();
        for next in [&one, &two] {
            text.extend(&next.values[sequence * c..(sequence + 1) * c]);
        }
        let count = text.len() / c;
        let formula =
            reference::CausalConv { tokens: count, channels: c, width: width as usize, starts: None };
        let z = reference::causal_conv(&text, &weights, &formula);
        let y = if has_silu { swiglu(&z, &vec![1.0; z.len()]) } else { z };
        for (want, place) in want.iter_mut().zip([count - 2, count - 1]) {
            want.extend(&y[place * c..(place + 1) * c]);
        }
        let padded = [vec![0.0; (width as usize - 1) * c], text].concat();
        held.extend_from_slice(&padded[padded.len() - (width as usize - 1) * c..]);
    }
    let [want_one, want_two] = want;
    case.expect("the next token", of_one, want_one, SLOPE * allowed(element, width));
    case.expect("the token after it", of_two, want_two, SLOPE * allowed(element, width));
    case.expect("the state", state, held, allowed(F32, 1));
}

#[test]
pub fn decoding_continues_a_prompt() {
    let narrow = Shape { width: 2, has_silu: false, channels: 260, ..PLAIN };
    for (shape, element) in [(PLAIN, F32), (Shape { channels: 68, ..PLAIN }, F16), (narrow, Bf16)] {
        let name = format!("decoding after causal_conv {} wide, {element:?}", shape.width);
        check(&name, |case| check_steps(case, &shape, &[6, 0, 3], element));
    }
}
