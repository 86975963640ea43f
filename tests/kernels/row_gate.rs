//! row_gate against the f64 reference.

use crate::lab::{Case, allowed, check, sum};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::row_gate::{row_gate, row_gate_backward};
use gristmill::tape::Tape;

fn check_row_gate(case: &mut Case, rows: u32, cols: u32, element: Element) {
    let (x, g, residual) =
        (case.input(rows, cols, element), case.input(rows, 1, F32), case.input(rows, cols, element));
    let [y, with_residual, dx] = [0; 3].map(|_| case.output(rows, cols, element));
    let [dg, dg_again] = [0; 2].map(|_| case.output(rows, 1, F32));
    let (dy, more) = (case.input(rows, cols, element), case.input(rows, cols, element));
    row_gate(&mut case.rec, x.tensor, g.tensor, None, y);
    row_gate(&mut case.rec, x.tensor, g.tensor, Some(residual.tensor), with_residual);
    row_gate_backward(&mut case.rec, x.tensor, g.tensor, dy.tensor, dx, false, dg);
    row_gate_backward(&mut case.rec, x.tensor, g.tensor, dy.tensor, more.tensor, true, dg_again);
    let want = reference::row_gate::row_gate(&x.values, &g.values);
    let (want_dx, want_dg) = reference::row_gate::row_gate_backward(&x.values, &g.values, &dy.values);
    let bound = allowed(element, cols);
    case.expect("y on a residual", with_residual, sum(&residual.values, &want), bound);
    case.expect("y", y, want, bound);
    case.expect("dx on top", more.tensor, sum(&more.values, &want_dx), bound);
    case.expect("dx", dx, want_dx, bound);
    case.expect("dg", dg, want_dg.clone(), allowed(F32, cols));
    case.expect("dg again", dg_again, want_dg, allowed(F32, cols));
}

#[test]
pub fn row_gates_and_their_backward() {
    for element in [F32, F16, Bf16] {
        for (rows, cols) in [(1, 1), (3, 31), (33, 4), (31, 33), (129, 257)] {
            check(&format!("row_gate {rows}x{cols} {element:?}"), |case| {
                check_row_gate(case, rows, cols, element);
            });
        }
    }
}

/// Where the sigmoid saturates at 0 or 1, no intermediate result overflows.
#[test]
fn row_gates_far_from_zero() {
    check("row_gate, saturated", |case| {
        let gates = [-1e4, -90.0, 90.0, 1e4];
        let (x, g) = (case.input(4, 5, F32), case.input_of(&gates, 4, 1, F32));
        let (y, dx, dg) = (case.output(4, 5, F32), case.output(4, 5, F32), case.output(4, 1, F32));
        row_gate(&mut case.rec, x.tensor, g.tensor, None, y);
        row_gate_backward(&mut case.rec, x.tensor, g.tensor, x.tensor, dx, false, dg);
        let want: Vec<f64> =
            x.values.iter().enumerate().map(|(i, x)| if i < 10 { 0.0 } else { *x }).collect();
        case.expect("y", y, want.clone(), allowed(F32, 1));
        case.expect("dx", dx, want, allowed(F32, 1));
        case.expect_difference("dg", dg, vec![0.0; 4], allowed(F32, 1), &[1.0]);
    });
}

#[test]
fn row_gates_on_the_tape() {
    check("tape row_gate", |case| {
        let (rows, cols) = (10, 7);
        let [x, residual, dy, dx0, dr0] = [0; 5].map(|_| case.input(rows, cols, F32));
        let (g, dg0) = (case.input(rows, 1, F32), case.input(rows, 1, F32));
        let mut tape = Tape::new(&mut case.rec);
        let leaves = [&x, &g, &residual].map(|input| tape.leaf(input.tensor, true));
        for (leaf, before) in leaves.into_iter().zip([&dx0, &dg0, &dr0]) {
            tape.give(leaf, before.tensor);
        }
        let y = tape.row_gate(leaves[0], leaves[1], Some(leaves[2]));
        tape.give(y, dy.tensor);
        tape.backward();
        let gradients = leaves.map(|leaf| tape.gradient(leaf).expect("a gradient"));
        let (dx, dg) = reference::row_gate::row_gate_backward(&x.values, &g.values, &dy.values);
        let wants = [sum(&dx0.values, &dx), sum(&dg0.values, &dg), sum(&dr0.values, &dy.values)];
        for ((label, gradient), want) in ["dx", "dg", "dr"].into_iter().zip(gradients).zip(wants) {
            case.expect(label, gradient, want, 4.0 * allowed(F32, cols));
        }
    });
}
