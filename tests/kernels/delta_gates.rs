//! The gates of the gated delta rule, and heads of length 1, against the f64 reference.

use crate::lab::{Case, allowed, check, sum};
use ::reference::gated_delta_rule::{log_decay, log_decay_backward};
use ::reference::l2_norm::{l2_norm, l2_norm_backward};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::delta_gates::{
    GateInputs, delta_gates, delta_gates_backward, delta_gates_backward_weight,
};
use gristmill::ops::gated_delta_rule::gate_cols;
use gristmill::ops::unit_heads::{unit_heads, unit_heads_backward};

/// `count` columns from `first` on, of rows of `cols`.
fn part(values: &[f64], cols: u32, first: u32, count: u32) -> Vec<f64> {
    let [cols, first, count] = [cols, first, count].map(|count| count as usize);
    values.chunks(cols).flat_map(|row| row[first..first + count].to_vec()).collect()
}

fn check_gates(case: &mut Case, [rows, heads]: [u32; 2], element: Element) {
    let (cols, half) = (gate_cols(heads), gate_cols(heads) / 2);
    let values: Vec<f64> = (0..rows * cols).map(|_| 4.0 * case.normal()).collect();
    let x = case.input_of(&values, rows, cols, element);
    let [a_log, bias] = [0; 2].map(|_| case.input(1, heads, element));
    let inputs = GateInputs { x: x.tensor, a_log: a_log.tensor, bias: bias.tensor };
    let gates = case.output(rows, cols, F32);
    delta_gates(&mut case.rec, &inputs, gates, None);
    let (dgates, dx) = (case.input(rows, cols, F32), case.output(rows, cols, element));
    let before = [0; 2].map(|_| case.input(1, heads, F32));
    let gradients = [0, 1].map(|i| Some(before[i].tensor));
    delta_gates_backward(&mut case.rec, &inputs, dgates.tensor, dx);
    delta_gates_backward_weight(&mut case.rec, &inputs, dgates.tensor, gradients);

    let [b, a] = [0, half].map(|first| part(&x.values, cols, first, heads));
    let [dlog, dbeta] = [0, half].map(|first| part(&dgates.values, cols, first, heads));
    let beta: Vec<f64> = b.iter().map(|b| 1.0 / (1.0 + (-b).exp())).collect();
    let db = beta.iter().zip(&dbeta).map(|(beta, dbeta)| dbeta * beta * (1.0 - beta)).collect();
    let [da, da_log, dbias] = log_decay_backward(&a, &a_log.values, &bias.values, &dlog);
    let decays = log_decay(&a, &a_log.values, &bias.values);
    // An exponential takes its argument's rounding times the argument, of at most 4 · 6 + 6; e^a_log another one.
    let exact = 8.0 * allowed(F32, 1);
    let sizes = |values: &[f64]| values.iter().map(|value| value.abs().max(1e-30)).collect::<Vec<f64>>();
    case.expect_terms("log_decay", gates, 0..heads, decays.clone(), exact, sizes(&decays));
    case.expect_columns("beta", gates, half..half + heads, beta, exact);
    let stored = allowed(element, 1) + exact;
    case.expect_columns("db", dx, 0..heads, db, stored);
    case.expect_columns("da", dx, half..half + heads, da, stored);
    let absolute: Vec<f64> = dlog.iter().map(|value| value.abs()).collect();
    let terms = log_decay_backward(&a, &a_log.values, &bias.values, &absolute);
    let [_, log_terms, bias_terms] = terms.map(|terms| sizes(&terms));
    let bound = allowed(F32, rows) + exact;
    for (name, before, want, terms) in
        [("da_log", &before[0], da_log, log_terms), ("dbias", &before[1], dbias, bias_terms)]
    {
        let terms = sum(&sizes(&before.values), &terms);
        case.expect_terms(name, before.tensor, 0..heads, sum(&before.values, &want), bound, terms);
    }
}

/// Two sequences that end before their last rows.
fn check_ends(case: &mut Case, [tokens, heads]: [u32; 2], lasts: [u32; 2], element: Element) {
    let (rows, cols) = (2 * tokens, gate_cols(heads));
    let x = case.input(rows, cols, element);
    let [a_log, bias] = [0; 2].map(|_| case.input(1, heads, element));
    let inputs = GateInputs { x: x.tensor, a_log: a_log.tensor, bias: bias.tensor };
    let gates = case.output(rows, cols, F32);
    let last_rows = case.integers(&lasts);
    delta_gates(&mut case.rec, &inputs, gates, Some(last_rows));

    let half = cols / 2;
    let [b, a] = [0, half].map(|first| part(&x.values, cols, first, heads));
    let counts = |index: usize| {
        let row = index as u32 / heads;
        f64::from(u8::from(row <= lasts[(row / tokens) as usize]))
    };
    let ended = |values: Vec<f64>| -> Vec<f64> {
        values.into_iter().enumerate().map(|(index, value)| counts(index) * value).collect()
    };
    let decays = ended(log_decay(&a, &a_log.values, &bias.values));
    let beta = ended(b.iter().map(|b| 1.0 / (1.0 + (-b).exp())).collect());
    let exact = 8.0 * allowed(F32, 1);
    case.expect_columns("log_decay", gates, 0..heads, decays, exact);
    case.expect_columns("beta", gates, half..half + heads, beta, exact);
}

#[test]
pub fn gates_and_their_backward() {
    for (shape, element) in [([7, 6], F32), ([130, 32], F16), ([66, 3], Bf16), ([65, 1], F32)] {
        let [rows, heads] = shape;
        check(&format!("delta_gates {rows}x{heads}, {element:?}"), |case| check_gates(case, shape, element));
    }
}

#[test]
pub fn gates_after_the_last_token_are_zero() {
    for (shape, lasts, element) in [([5, 3], [2, 9], F32), ([33, 8], [0, 40], Bf16)] {
        let [tokens, heads] = shape;
        let name = format!("delta_gates of 2x{tokens}x{heads} up to {lasts:?}, {element:?}");
        check(&name, |case| check_ends(case, shape, lasts, element));
    }
}

fn check_heads(case: &mut Case, [rows, heads, head_dim]: [u32; 3], element: Element) {
    let cols = heads * head_dim;
    let wide = case.input(rows, cols + 8, element);
    let (x, values) = (wide.tensor.columns(4, cols), part(&wide.values, cols + 8, 4, cols));
    let y = case.output(rows, cols, element);
    unit_heads(&mut case.rec, x, y, head_dim, 1e-6);
    let (dy, dx) = (case.input(rows, cols, element), case.output(rows, cols, element));
    unit_heads_backward(&mut case.rec, x, dy.tensor, dx, head_dim, 1e-6);
    let allowed = allowed(element, head_dim);
    case.expect("y", y, l2_norm(&values, head_dim as usize, 1e-6), allowed);
    case.expect("dx", dx, l2_norm_backward(&values, &dy.values, head_dim as usize, 1e-6), allowed);
}

#[test]
pub fn unit_heads_and_their_backward() {
    for (shape, element) in [([3, 2, 12], F32), ([67, 3, 4], F16), ([2, 1, 260], Bf16)] {
        let [rows, heads, head_dim] = shape;
        let name = format!("unit_heads {rows}x{heads}x{head_dim}, {element:?}");
        check(&name, |case| check_heads(case, shape, element));
    }
}
