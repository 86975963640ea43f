//! causal_conv against the f64 reference.

use crate::lab::{Case, allowed, check, sum};
use ::reference::causal_conv as reference;
use ::reference::swiglu::{swiglu, swiglu_backward};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::attention::DocumentBounds;
use gristmill::ops::causal_conv::{
    CausalConv, ConvForm, causal_conv, causal_conv_backward, causal_conv_backward_weight, causal_conv_slopes,
    causal_conv_state, causal_conv_step, gated_conv_backward, kept_tokens,
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
    fn form(&self) -> ConvForm {
        if self.has_silu { ConvForm::Silu } else { ConvForm::Plain }
    }

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
    let conv = CausalConv { tokens, documents, form: shape.form() };
    let y = case.output(rows, channels, element);
    causal_conv(&mut case.rec, x, w.tensor, y, &conv);

    let [dy, more] = [channels, channels + 8].map(|cols| case.input(rows, cols, element));
    let dx = case.output(rows, channels, element);
    let before = case.input(1, width * channels, F32);
    causal_conv_slopes(&mut case.rec, x, w.tensor, dy.tensor, None, &conv);
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
    let form = shape.form();
    causal_conv_state(&mut case.rec, x, last_rows, state, width, form);
    causal_conv_step(&mut case.rec, one.tensor, w.tensor, state, of_one, form);
    causal_conv_step(&mut case.rec, two.tensor, w.tensor, state, of_two, form);

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

/// What the reference makes of [b | c | v] (N, 3 C).
struct Gated {
    /// Each part (N, C).
    parts: [Vec<f64>; 3],
    /// b · v.
    u: Vec<f64>,
    /// The sums over u, and those of the sizes of their terms.
    z: [Vec<f64>; 2],
}

impl Gated {
    fn of(x: &[f64], weights: &[f64], formula: &reference::CausalConv<'_>) -> Self {
        let c = formula.channels;
        let part = |first: usize| x.chunks(3 * c).flat_map(|row| row[first * c..][..c].to_vec()).collect();
        let parts: [Vec<f64>; 3] = [0, 1, 2].map(part);
        let u = product(&parts[0], &parts[2]);
        let sizes = |values: &[f64]| values.iter().map(|value| value.abs()).collect::<Vec<_>>();
        let sums = reference::causal_conv(&u, weights, formula);
        let terms = reference::causal_conv(&sizes(&u), &sizes(weights), formula);
        Self { parts, u, z: [sums, terms] }
    }

    /// c · z, and c times the sizes of their terms.
    fn y(&self) -> [Vec<f64>; 2] {
        self.z.each_ref().map(|z| product(&self.parts[1], z))
    }
}

fn product(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// The sizes of values; a subnormal half is rounded by as much as the smallest normal one.
fn sizes_of(values: &[f64], element: Element) -> Vec<f64> {
    let smallest = if element == F16 { 2f64.powi(-14) } else { 0.0 };
    values.iter().map(|value| value.abs().max(smallest)).collect()
}

/// All passes of a convolution between gates, on columns of wider tensors.
fn check_gates(case: &mut Case, shape: &Shape, element: Element) {
    let Shape { tokens, channels, width, .. } = *shape;
    let (rows, c) = (shape.sequences * tokens, channels as usize);
    let (wide, w) = (case.input(rows, 3 * channels + 8, element), case.input(width, channels, element));
    let x = wide.tensor.columns(4, 3 * channels);
    let x_values: Vec<f64> =
        wide.values.chunks(3 * c + 8).flat_map(|row| row[4..4 + 3 * c].to_vec()).collect();
    let bounds = shape.bounds();
    let starts: Option<Vec<usize>> =
        bounds.as_ref().map(|[starts, _]| starts.iter().map(|start| *start as usize).collect());
    let documents = bounds.map(|bounds| {
        let [starts, ends] = bounds.map(|bound| case.integers(&bound));
        DocumentBounds { starts, ends }
    });
    let conv = CausalConv { tokens, documents, form: ConvForm::Gated };
    let y = case.output(rows, channels, element);
    causal_conv(&mut case.rec, x, w.tensor, y, &conv);

    let (dy, other) = (case.input(rows, channels, element), case.input(rows, 3 * channels + 8, element));
    let (dx, before) = (other.tensor.columns(4, 3 * channels), case.input(1, width * channels, F32));
    causal_conv_slopes(&mut case.rec, x, w.tensor, dy.tensor, Some(dx), &conv);
    causal_conv_backward_weight(&mut case.rec, x, w.tensor, dy.tensor, before.tensor, &conv);
    gated_conv_backward(&mut case.rec, x, w.tensor, dy.tensor, dx, &conv);

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
    let gated = Gated::of(&x_values, &weights, &formula);
    let [b, gate, v] = &gated.parts;
    let dz = product(gate, &dy.values);
    let (du, dw) = reference::causal_conv_backward(&gated.u, &weights, &dz, &formula);
    let sizes = |values: &[f64]| sizes_of(values, element);
    let (terms_du, terms_dw) =
        reference::causal_conv_backward(&sizes(&gated.u), &sizes(&weights), &sizes(&dz), &formula);
    // Stored gradients that a sum takes were rounded, and so is what is made of the sum.
    let bound = |terms| 2.0 * allowed(element, terms);
    let ([want, terms], all) = (gated.y(), 0..channels);
    case.expect_terms("y", y, all.clone(), want, bound(width), sizes(&terms));
    case.expect_terms("dz", dy.tensor, all, dz.clone(), bound(1), sizes(&dz));
    let gradients = [(&du, v), (&gated.z[0], &dy.values), (&du, b)].map(|(a, b)| product(a, b));
    let terms = [(&terms_du, v), (&gated.z[1], &dy.values), (&terms_du, b)].map(|(a, b)| product(a, b));
    for (number, (want, terms)) in (0..).zip(gradients.into_iter().zip(terms)) {
        let first = 4 + number * channels;
        let (name, columns) = (["db", "dc", "dv"][number as usize], first..first + channels);
        case.expect_terms(name, other.tensor, columns, want, bound(width), sizes(&terms));
    }
    let by_place = |values: &[f64]| across(values, width as usize);
    let want = sum(&before.values, &by_place(&dw));
    let terms = sum(&sizes(&before.values), &by_place(&terms_dw));
    case.expect_terms("dw", before.tensor, 0..width * channels, want, bound(rows), terms);
}

#[test]
pub fn gates_and_their_backward() {
    let shapes = [
        Shape { tokens: 9, width: 3, documents: Some(&[0, 1, 2, 6]), ..PLAIN },
        Shape { tokens: 70, channels: 68, width: 3, ..PLAIN },
        Shape { sequences: 3, tokens: 1, channels: 4, width: 2, ..PLAIN },
    ];
    for (shape, elements) in shapes.iter().zip([[F32, Bf16], [F16, F32], [Bf16, F16]]) {
        for element in elements {
            let Shape { sequences, tokens, channels, width, .. } = shape;
            let name = format!("gates of {sequences}x{tokens}x{channels}, {width} wide, {element:?}");
            check(&name, |case| check_gates(case, shape, element));
        }
    }
}

/// Prompts of `lasts` + 1 tokens in rows of `tokens`, each followed by two more tokens, between gates.
fn check_gated_steps(case: &mut Case, shape: &Shape, lasts: &[u32], element: Element) {
    let Shape { tokens, channels, width, .. } = *shape;
    let (sequences, c) = (lasts.len() as u32, channels as usize);
    let prompts = case.input(sequences * tokens, 3 * channels, element);
    let w = case.input(width, channels, element);
    let [one, two] = [0; 2].map(|_| case.input(sequences, 3 * channels, element));
    let rows: Vec<u32> = (0..).zip(lasts).map(|(sequence, last)| sequence * tokens + last).collect();
    let last_rows = case.integers(&rows);
    let state = case.output(sequences * kept_tokens(width), channels, element);
    let [of_one, of_two] = [0; 2].map(|_| case.output(sequences, channels, element));
    causal_conv_state(&mut case.rec, prompts.tensor, last_rows, state, width, ConvForm::Gated);
    causal_conv_step(&mut case.rec, one.tensor, w.tensor, state, of_one, ConvForm::Gated);
    causal_conv_step(&mut case.rec, two.tensor, w.tensor, state, of_two, ConvForm::Gated);

    let weights: Vec<f64> = (0..c).flat_map(|col| w.values.iter().skip(col).step_by(c).copied()).collect();
    let (mut want, mut terms) = ([const { Vec::new() }; 2], [const { Vec::new() }; 2]);
    let mut held = Vec::new();
    for (sequence, last) in lasts.iter().enumerate() {
        let first = sequence * tokens as usize;
        let mut text = prompts.values[3 * c * first..3 * c * (first + *last as usize + 1)].to_vec();
        for next in [&one, &two] {
            text.extend(&next.values[sequence * 3 * c..(sequence + 1) * 3 * c]);
        }
        let count = text.len() / (3 * c);
        let formula =
            reference::CausalConv { tokens: count, channels: c, width: width as usize, starts: None };
        let gated = Gated::of(&text, &weights, &formula);
        let [y, sizes] = gated.y();
        for (number, place) in [count - 2, count - 1].into_iter().enumerate() {
            want[number].extend(&y[place * c..(place + 1) * c]);
            terms[number].extend(&sizes[place * c..(place + 1) * c]);
        }
        let padded = [vec![0.0; (width as usize - 1) * c], gated.u].concat();
        held.extend_from_slice(&padded[padded.len() - (width as usize - 1) * c..]);
    }
    let ([want_one, want_two], [terms_one, terms_two]) = (want, terms.map(|terms| sizes_of(&terms, element)));
    // What the state holds was rounded, and so is the result.
    let bound = 2.0 * allowed(element, width);
    case.expect_terms("the next token", of_one, 0..channels, want_one, bound, terms_one);
    case.expect_terms("the token after it", of_two, 0..channels, want_two, bound, terms_two);
    let sizes = sizes_of(&held, element);
    case.expect_terms("the state", state, 0..channels, held, allowed(element, 1), sizes);
}

#[test]
pub fn decoding_continues_a_prompt_between_gates() {
    for (width, channels, element) in [(3, 12, F32), (2, 68, F16), (5, 12, Bf16)] {
        let shape = Shape { width, channels, ..PLAIN };
        let name = format!("decoding between gates, {} wide, {element:?}", shape.width);
        check(&name, |case| check_gated_steps(case, &shape, &[6, 0, 3], element));
    }
}
