//! What stands after attention in Qwen3-Next, and linear attention as a whole on the tape, against the f64 reference.

use crate::lab::{Case, Input, allowed, check, sum};
use ::reference::causal_conv as conv_reference;
use ::reference::gated_delta_rule as rule_reference;
use ::reference::l2_norm::{l2_norm, l2_norm_backward};
use ::reference::rms_norm::{rms_norm, rms_norm_backward};
use ::reference::swiglu::{swiglu, swiglu_backward};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::attention::DocumentBounds;
use gristmill::ops::causal_conv::{CausalConv, ConvForm};
use gristmill::ops::gated_delta_rule::{GatedDeltaRule, gate_cols};
use gristmill::ops::gated_norm::{GatedNorm, gated_norm, gated_norm_backward, gated_norm_backward_weight};
use gristmill::ops::sigmoid_gate::{sigmoid_gate, sigmoid_gate_backward};
use gristmill::tape::{Parameter, Tape};

/// The slope of SiLU is at most this.
const SLOPE: f64 = 1.1;

/// `count` columns from `first` on, of rows of `cols`.
fn part(values: &[f64], cols: u32, first: u32, count: u32) -> Vec<f64> {
    let [cols, first, count] = [cols, first, count].map(|count| count as usize);
    values.chunks(cols).flat_map(|row| row[first..first + count].to_vec()).collect()
}

/// Rows of all `parts` side by side, each of which has so many columns.
fn joined(parts: &[(&[f64], u32)]) -> Vec<f64> {
    let rows = parts[0].0.len() / parts[0].1 as usize;
    let row = |row: usize| {
        parts.iter().flat_map(move |(part, cols)| part[row * *cols as usize..][..*cols as usize].to_vec())
    };
    (0..rows).flat_map(row).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn times(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

fn check_gates(case: &mut Case, [rows, heads, head]: [u32; 3], element: Element) {
    let cols = heads * head;
    let wide = case.input(rows, cols + 8, element);
    let (z, z_values) = (wide.tensor.columns(4, cols), part(&wide.values, cols + 8, 4, cols));
    let ([x, dy], w) = ([0; 2].map(|_| case.input(rows, cols, element)), case.input(1, head, element));
    let more = case.input(rows, cols + 8, element);
    let (dz, before) = (more.tensor.columns(4, cols), part(&more.values, cols + 8, 4, cols));
    let epsilon = 1e-5;
    let norm = GatedNorm { x: x.tensor, z, w: w.tensor, epsilon };
    let [y, dx] = [0; 2].map(|_| case.output(rows, cols, element));
    let dw = case.input(1, head, F32);
    gated_norm(&mut case.rec, &norm, y);
    gated_norm_backward(&mut case.rec, &norm, dy.tensor, dx, (dz, true));
    gated_norm_backward_weight(&mut case.rec, &norm, dy.tensor, dw.tensor);

    let n = rms_norm(&x.values, &w.values, head as usize, epsilon.into());
    let (of_gate, of_norm) = swiglu_backward(&z_values, &n, &dy.values);
    let (want_dx, want_dw) = rms_norm_backward(&x.values, &w.values, &of_norm, head as usize, epsilon.into());
    let bound = 3.0 * SLOPE * allowed(element, head);
    case.expect("y", y, swiglu(&z_values, &n), bound);
    case.expect("dx", dx, want_dx, bound);
    let terms: Vec<f64> =
        sum(&before, &of_gate).iter().zip(&before).map(|(z, b)| z.abs() + b.abs() + 1e-3).collect();
    case.expect_terms("dz", more.tensor, 4..4 + cols, sum(&before, &of_gate), bound, terms);
    case.expect("dw", dw.tensor, sum(&dw.values, &want_dw), 3.0 * allowed(F32, rows * heads));

    let ([y, dx], dg) = ([0; 2].map(|_| case.output(rows, cols, element)), case.output(rows, cols, element));
    sigmoid_gate(&mut case.rec, x.tensor, z, y);
    sigmoid_gate_backward(&mut case.rec, [x.tensor, z], dy.tensor, dx, (dg, false));
    let s: Vec<f64> = z_values.iter().map(|z| sigmoid(*z)).collect();
    let slope: Vec<f64> = s.iter().map(|s| s * (1.0 - s)).collect();
    case.expect("gated", y, times(&x.values, &s), 2.0 * allowed(element, 1));
    case.expect("gated dx", dx, times(&dy.values, &s), 2.0 * allowed(element, 1));
    case.expect("gated dg", dg, times(&times(&dy.values, &x.values), &slope), 2.0 * allowed(element, 1));
}

#[test]
pub fn gates_after_attention_and_their_backward() {
    for (shape, element) in [([7, 3, 12], F32), ([70, 2, 4], F16), ([3, 1, 132], Bf16)] {
        let [rows, heads, head] = shape;
        let name = format!("gates after attention {rows}x{heads}x{head}, {element:?}");
        check(&name, |case| check_gates(case, shape, element));
    }
}

const SEQUENCES: u32 = 2;
const TOKENS: u32 = 7;
const N: u32 = SEQUENCES * TOKENS;
const HEADS: u32 = 3;
const KEY: u32 = 8;
const VALUE: u32 = 12;
const WIDTH: u32 = 4;
/// Queries and keys of one head, and values of three.
const CHANNELS: u32 = 2 * KEY + HEADS * VALUE;
const EPSILON: f32 = 1e-6;

/// A parameter, its values, and those of its gradient before the backward pass.
struct Weight {
    parameter: Parameter,
    values: Vec<f64>,
    before: Vec<f64>,
}

fn weight(case: &mut Case, rows: u32, cols: u32) -> Weight {
    let (values, gradient) = (case.input(rows, cols, F32), case.input(rows, cols, F32));
    let parameter = Parameter { weight: vec![values.tensor], gradient: Some(vec![gradient.tensor]) };
    Weight { parameter, values: values.values, before: gradient.values }
}

/// Everything between the projections of linear attention: its value and, given dy, its gradients: of x, the
/// convolution, a_log, the bias of the decay, and the norm.
struct Reference {
    y: Vec<f64>,
    gradients: [Vec<f64>; 5],
}

/// Side by side in x: what is convolved, the gates of the norm, b and a.
fn of_reference(x: &Input, weights: &[Vec<f64>; 4], dy: &[f64], starts: &[usize]) -> Reference {
    let [conv, a_log, bias, norm] = weights;
    let (values, cols) = (HEADS * VALUE, x.tensor.cols);
    let half = gate_cols(HEADS) / 2;
    let of_x = |first: u32, count: u32| part(&x.values, cols, first, count);
    let (u, z) = (of_x(0, CHANNELS), of_x(CHANNELS, values));
    let [b, a] = [0, half].map(|first| of_x(CHANNELS + values + first, HEADS));
    let shape = conv_reference::CausalConv {
        tokens: TOKENS as usize,
        channels: CHANNELS as usize,
        width: WIDTH as usize,
        starts: Some(starts),
    };
    // The reference has the weights of a channel side by side.
    let turned = |values: &[f64], rows: u32| -> Vec<f64> {
        let cols = values.len() / rows as usize;
        (0..cols).flat_map(|col| (0..rows as usize).map(move |row| values[row * cols + col])).collect()
    };
    let conv = turned(conv, WIDTH);
    let c = conv_reference::causal_conv(&u, &conv, &shape);
    let ones = vec![1.0; c.len()];
    let s = swiglu(&c, &ones);
    let keys = [0, KEY].map(|first| part(&s, CHANNELS, first, KEY));
    let [q, k] = [0, 1].map(|i| l2_norm(&keys[i], KEY as usize, EPSILON.into()));
    let v = part(&s, CHANNELS, 2 * KEY, values);
    let log_decay = rule_reference::log_decay(&a, a_log, bias);
    let beta: Vec<f64> = b.iter().map(|b| sigmoid(*b)).collect();
    let rule = rule_reference::GatedDeltaRule {
        tokens: TOKENS as usize,
        heads: HEADS as usize,
        key_heads: 1,
        key_dim: KEY as usize,
        value_dim: VALUE as usize,
        scale: 0.5,
        starts: Some(starts),
    };
    let inputs = rule_reference::Inputs { q: &q, k: &k, v: &v, log_decay: &log_decay, beta: &beta };
    let o = rule_reference::gated_delta_rule(&inputs, &rule);
    let n = rms_norm(&o, norm, VALUE as usize, EPSILON.into());

    let (dz, dn) = swiglu_backward(&z, &n, dy);
    let (d_o, d_norm) = rms_norm_backward(&o, norm, &dn, VALUE as usize, EPSILON.into());
    let gradients = rule_reference::gated_delta_rule_backward(&inputs, &d_o, &rule);
    let [da, d_log, d_bias] = rule_reference::log_decay_backward(&a, a_log, bias, &gradients.log_decay);
    let db: Vec<f64> = beta.iter().zip(&gradients.beta).map(|(beta, d)| d * beta * (1.0 - beta)).collect();
    let [dq, dk] = [(&keys[0], &gradients.q), (&keys[1], &gradients.k)]
        .map(|(x, dy)| l2_norm_backward(x, dy, KEY as usize, EPSILON.into()));
    let ds = joined(&[(&dq, KEY), (&dk, KEY), (&gradients.v, values)]);
    let (dc, _) = swiglu_backward(&c, &ones, &ds);
    let (du, d_conv) = conv_reference::causal_conv_backward(&u, &conv, &dc, &shape);
    let pad = vec![0.0; (N * (half - HEADS)) as usize];
    let pad = (&pad[..], half - HEADS);
    let dx = joined(&[(&du, CHANNELS), (&dz, values), (&db, HEADS), pad, (&da, HEADS), pad]);
    Reference { y: swiglu(&z, &n), gradients: [dx, turned(&d_conv, CHANNELS), d_log, d_bias, d_norm] }
}

#[test]
fn linear_attention_on_the_tape() {
    check("linear attention on the tape", |case| {
        let (values, gates) = (HEADS * VALUE, gate_cols(HEADS));
        let half = gates / 2;
        let cols = CHANNELS + values + gates;
        // What pads the gates is zero, as the projections leave it.
        let numbers: Vec<f64> = (0..N * cols)
            .map(|i| match (i % cols).checked_sub(CHANNELS + values) {
                Some(gate) if gate % half >= HEADS => 0.0,
                _ => case.normal(),
            })
            .collect();
        let x = case.input_of(&numbers, N, cols, F32);
        let weights = [
            weight(case, WIDTH, CHANNELS),
            weight(case, 1, HEADS),
            weight(case, 1, HEADS),
            weight(case, 1, VALUE),
        ];
        let starts: Vec<u32> = (0..N).map(|row| if row % TOKENS < 3 { 0 } else { 3 }).collect();
        let ends: Vec<u32> = (0..N).map(|row| if row % TOKENS < 3 { 3 } else { TOKENS }).collect();
        let documents = Some(DocumentBounds { starts: case.integers(&starts), ends: case.integers(&ends) });
        let (dy, dx0) = (case.input(N, values, F32), case.input_of(&numbers, N, cols, F32));
        let conv = CausalConv { tokens: TOKENS, documents, form: ConvForm::Silu };
        let rule = GatedDeltaRule {
            tokens: TOKENS,
            heads: HEADS,
            key_heads: 1,
            key_dim: KEY,
            value_dim: VALUE,
            scale: 0.5,
            documents,
        };
        let mut tape = Tape::new(&mut case.rec);
        let leaf = tape.leaf(x.tensor, true);
        tape.give(leaf, dx0.tensor);
        let [u, z, ba] = tape.split(leaf, [CHANNELS, values, gates]);
        let u = tape.causal_conv(u, &weights[0].parameter, conv);
        let gated = tape.delta_gates(ba, &weights[1].parameter, &weights[2].parameter, None);
        let o = tape.gated_delta_rule(u, gated, rule, None);
        let y = tape.gated_norm(o, z, &weights[3].parameter, EPSILON);
        tape.give(y, dy.tensor);
        tape.backward();
        let gradient = tape.gradient(leaf).expect("x needs a gradient");

        let starts: Vec<usize> = starts.iter().map(|start| *start as usize).collect();
        let of_weights = [0, 1, 2, 3].map(|i| weights[i].values.clone());
        let Reference { y: want, gradients: [dx, rest @ ..] } =
            of_reference(&x, &of_weights, &dy.values, &starts);
        // A dozen sums and functions of slope about 1 follow each other, and the norm divides by a small rms.
        let bound = 40.0 * allowed(F32, CHANNELS + N);
        case.expect("y", y.tensor, want, bound);
        case.expect("dx", gradient, sum(&dx, &dx0.values), bound);
        for (number, (weight, want)) in weights.iter().zip(&rest).enumerate() {
            let tensor = weight.parameter.gradient().expect("it trains");
            case.expect(&format!("dw {number}"), tensor, sum(&weight.before, want), bound);
        }
    });
}

/// The gate of softmax attention, whose result and gate have other readers.
#[test]
fn a_gate_on_the_tape() {
    check("sigmoid gate on the tape", |case| {
        let [x, g, dy, dx0, dg0] = [0; 5].map(|_| case.input(N, 12, F32));
        let mut tape = Tape::new(&mut case.rec);
        let leaves = [(x.tensor, dx0.tensor), (g.tensor, dg0.tensor)].map(|(tensor, gradient)| {
            let leaf = tape.leaf(tensor, true);
            tape.give(leaf, gradient);
            leaf
        });
        let y = tape.sigmoid_gate(leaves[0], leaves[1]);
        tape.give(y, dy.tensor);
        tape.backward();
        let gradients = leaves.map(|leaf| tape.gradient(leaf).expect("it needs a gradient"));
        let s: Vec<f64> = g.values.iter().map(|g| sigmoid(*g)).collect();
        let slope: Vec<f64> = s.iter().map(|s| s * (1.0 - s)).collect();
        let (dx, dg) = (times(&dy.values, &s), times(&times(&dy.values, &x.values), &slope));
        case.expect("y", y.tensor, times(&x.values, &s), 2.0 * allowed(F32, 1));
        case.expect("dx", gradients[0], sum(&dx, &dx0.values), 4.0 * allowed(F32, 1));
        case.expect("dg", gradients[1], sum(&dg, &dg0.values), 4.0 * allowed(F32, 1));
    });
}
