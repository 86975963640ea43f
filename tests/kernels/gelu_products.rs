//! GELU and its gradient in the epilogues of products: against the f64 reference, and bit by bit against the kernels
//! they save.

use crate::lab::{Bits, Case, allowed, check, check_tier, check_units};
use ::reference::matmul::{matmul_nn, matmul_nt};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::kernels::{Capabilities, Tier};
use gristmill::ops::gelu::{self, Gelu};
use gristmill::ops::matmul::{Activated, Epilogue, Layout, Problem, matmul, plan};
use gristmill::record::Recorder;
use gristmill::tape::{Parameter, Tape};

const KINDS: [(Gelu, reference::gelu::Gelu); 5] = [
    (Gelu::Tanh, reference::gelu::Gelu::Tanh),
    (Gelu::Exact, reference::gelu::Gelu::Exact),
    (Gelu::Fast, reference::gelu::Gelu::Fast),
    (Gelu::Relu, reference::gelu::Gelu::Relu),
    (Gelu::ReluSquared, reference::gelu::Gelu::ReluSquared),
];

/// An error in GELU's argument, or in the gradient of its value, is at most 1.13 times as large behind it; and what is
/// stored in between is rounded once more. Behind ReLU half of the values are 0, so that their root mean square is √2
/// times as small; the slope of ReLU² is 2x, up to 3.5 times the root mean square of 2x here.
fn behind(kind: Gelu) -> f64 {
    match kind {
        Gelu::Relu => 2.5,
        Gelu::ReluSquared => 6.0,
        _ => 2.2,
    }
}

/// Rows, columns and the length of sums: whole tiles, parts of them, one row, few rows.
const SHAPES: [(u32, u32, u32); 4] = [(33, 31, 20), (70, 65, 33), (1, 31, 20), (3, 66, 9)];

#[test]
fn products_through_gelu() {
    for (kind, element) in KINDS.into_iter().zip([F32, Bf16, F16, Bf16, F32]) {
        // Tiles are those of any formula; those of few rows are kernels of their own.
        let shapes = if kind.0 == Gelu::Tanh { &SHAPES[..] } else { &SHAPES[2..] };
        for &shape in shapes {
            check(&format!("product {shape:?} {element:?} through {:?}", kind.0), |case| {
                both_ways(case, shape, kind, element);
            });
        }
    }
    for (kind, element) in KINDS.into_iter().zip([F16, F32, Bf16, F16, F16]) {
        check(&format!("product {:?} {element:?} through {:?}", SHAPES[1], kind.0), |case| {
            both_ways(case, SHAPES[1], kind, element);
        });
    }
}

/// In parts, whose sum goes through GELU, and in the largest tiles.
#[test]
#[ignore = "long; `products_through_gelu` has other tiles"]
fn products_of_a_gpu_through_gelu() {
    for (kind, element) in KINDS.into_iter().zip([Bf16, F32, F16, F32, Bf16]) {
        let name = format!("product in parts {element:?} through {:?}", kind.0);
        check_tier(&name, Tier::Portable, &|case| {
            let problem = Problem { layout: Layout::Nt, m: 70, n: 31, k: 1030 };
            assert!(plan(problem, element, case.rec.capabilities()).part_k < 1030);
            both_ways(case, (70, 31, 1030), kind, element);
        });
        check_units(&format!("large product {element:?} through {:?}", kind.0), 1, &|case| {
            let problem = Problem { layout: Layout::Nn, m: 200, n: 610, k: 37 };
            let kernel = plan(problem, element, case.rec.capabilities()).kernel;
            assert!(kernel.constants().contains(&("TN4", 2)), "{kernel}");
            both_ways(case, (200, 610, 37), kind, element);
        });
    }
}

fn both_ways(case: &mut Case, shape: (u32, u32, u32), kind: (Gelu, reference::gelu::Gelu), element: Element) {
    forward(case, shape, kind, element);
    backward(case, shape, kind, element, None);
    backward(case, shape, kind, element, Some(0.75));
}

fn forward(
    case: &mut Case,
    (m, n, k): (u32, u32, u32),
    (kind, formula): (Gelu, reference::gelu::Gelu),
    element: Element,
) {
    let [x, w, bias] = [(m, k), (n, k), (1, n)].map(|(rows, cols)| case.input(rows, cols, element));
    let mut want = matmul_nt(&x.values, &w.values, m as usize, n as usize, k as usize);
    want.iter_mut().enumerate().for_each(|(i, y)| *y += bias.values[i % n as usize]);
    let [y, value, y_alone, value_alone] = [0; 4].map(|_| case.output(m, n, element));
    let bias = Epilogue { bias: Some(bias.tensor), ..Default::default() };
    let activated = Some(Activated::Gelu(kind, value));
    matmul(&mut case.rec, Layout::Nt, x.tensor, w.tensor, y, Epilogue { activated, ..bias });
    matmul(&mut case.rec, Layout::Nt, x.tensor, w.tensor, y_alone, bias);
    gelu::gelu(&mut case.rec, y_alone, value_alone, kind);
    let bits = Bits::of_different_kernels();
    for (name, tensor) in [("y", y), ("y", y_alone), ("value", value), ("value", value_alone)] {
        bits.expect(case, name, tensor);
    }
    case.expect("value", value, reference::gelu::gelu(&want, formula), behind(kind) * allowed(element, k));
    case.expect("y", y, want, allowed(element, k));
}

fn backward(
    case: &mut Case,
    (m, n, k): (u32, u32, u32),
    (kind, formula): (Gelu, reference::gelu::Gelu),
    element: Element,
    factor: Option<f32>,
) {
    let [dy, w, argument] = [(m, k), (k, n), (m, n)].map(|(rows, cols)| case.input(rows, cols, element));
    let mut gradient = matmul_nn(&dy.values, &w.values, m as usize, n as usize, k as usize);
    gradient.iter_mut().for_each(|dy| *dy *= f64::from(factor.unwrap_or(1.0)));
    let [dx, of_value, dx_alone] = [0; 3].map(|_| case.output(m, n, element));
    let activated = Some(Activated::Slope(kind, argument.tensor));
    let alone = Epilogue { factor, ..Default::default() };
    matmul(&mut case.rec, Layout::Nn, dy.tensor, w.tensor, dx, Epilogue { activated, ..alone });
    matmul(&mut case.rec, Layout::Nn, dy.tensor, w.tensor, of_value, alone);
    gelu::gelu_backward(&mut case.rec, argument.tensor, of_value, dx_alone, kind);
    let bits = Bits::of_different_kernels();
    bits.expect(case, "dx", dx);
    bits.expect(case, "dx", dx_alone);
    let want = reference::gelu::gelu_backward(&argument.values, &gradient, formula);
    case.expect("dx", dx, want, behind(kind) * allowed(element, k));
}

/// A feed-forward network whose value has one reader, as in a model, or two, of which the second gives its gradient
/// after the product.
#[test]
fn a_network_with_gelu_is_two_products_each_way() {
    for readers in [1, 2] {
        check(&format!("tape gelu between products, {readers} readers"), |case| {
            let (n, k, f) = (10u32, 12u32, 9u32);
            let [x, dy] = [(n, k), (n, f)].map(|(rows, cols)| case.input(rows, cols, F32));
            let [up, down] = [(f, k), (f, f)].map(|(rows, cols)| case.input(rows, cols, F32));
            let frozen = |tensor| Parameter { weight: vec![tensor], gradient: None };
            let [w_up, w_down] = [frozen(up.tensor), frozen(down.tensor)];
            let mut tape = Tape::new(&mut case.rec);
            let leaf = tape.leaf(x.tensor, true);
            let h = tape.linear_gelu(leaf, &w_up, None, Gelu::Tanh);
            let y = tape.linear(h, &w_down, None, (readers == 2).then_some(h));
            tape.give(y, dy.tensor);
            tape.backward();
            let dx = tape.gradient(leaf).expect("x needs a gradient");

            let [n, k, f] = [n, k, f].map(|size| size as usize);
            let formula = reference::gelu::Gelu::Tanh;
            let argument = matmul_nt(&x.values, &up.values, n, f, k);
            let value = reference::gelu::gelu(&argument, formula);
            let mut want_y = matmul_nt(&value, &down.values, n, f, f);
            let mut of_value = matmul_nn(&dy.values, &down.values, n, f, f);
            if readers == 2 {
                want_y.iter_mut().zip(&value).for_each(|(y, h)| *y += h);
                of_value.iter_mut().zip(&dy.values).for_each(|(dh, dy)| *dh += dy);
            }
            let of_argument = reference::gelu::gelu_backward(&argument, &of_value, formula);
            let want = matmul_nn(&of_argument, &up.values, n, k, f);
            let bound = 4.0 * allowed(F32, 2 * (12 + 9));
            case.expect("y", y.tensor, want_y, bound);
            case.expect("dx", dx, want, bound);
        });
    }
}

/// The launches of a network, and of its backward pass: no kernel of GELU alone, unless the value has a second reader.
#[test]
fn gelu_costs_no_launch() {
    let entries = |readers: u32| {
        let mut rec = Recorder::new("case", Capabilities::portable());
        let [x, dy] = [12, 12].map(|cols| rec.tensor("x", 64, cols, F32));
        let weights =
            [0; 2].map(|_| Parameter { weight: vec![rec.tensor("w", 12, 12, F32)], gradient: None });
        let mut tape = Tape::new(&mut rec);
        let leaf = tape.leaf(x, true);
        let h = tape.linear_gelu(leaf, &weights[0], None, Gelu::Exact);
        let y = tape.linear(h, &weights[1], None, (readers == 2).then_some(h));
        tape.give(y, dy);
        tape.backward();
        let dispatches = rec.finish().dispatches;
        dispatches.iter().map(|dispatch| dispatch.kernel.entry).collect::<Vec<_>>()
    };
    assert_eq!(entries(1), ["matmul"; 4]);
    assert_eq!(entries(2), ["matmul", "matmul", "matmul", "gelu_backward", "add", "matmul"]);
}
