//! SwiGLU, GeGLU and their gradients in the epilogues of products: against the f64 reference, and bit by bit against the kernels
//! they save.

use crate::lab::{Bits, Case, Input, allowed, check, check_tier, check_units, sum};
use crate::packed::{pack_gate_up, split_gate_up};
use ::reference::matmul::{matmul_nn, matmul_nt};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::kernels::{Capabilities, Tier};
use gristmill::ops::gelu::Gelu;
use gristmill::ops::matmul::{Activated, Epilogue, Layout, Problem, matmul, plan};
use gristmill::ops::swiglu::{Gate, gate_up_cols, swiglu, swiglu_backward};
use gristmill::record::Recorder;
use gristmill::tape::{Parameter, Tape};
use reference::swiglu::Gate as Formula;

/// An error, relative to the size of an element and of all, is at most so many times as large behind the activation:
/// |silu'| and |gelu'| are at most 1.13, and what the error of one factor is multiplied by, the other, is up to 4 times as large as
/// all of it, while the rest of the product may vanish and all are 0.6 of theirs in size.
const BEHIND: f64 = 8.0;

/// Rows, columns of the value, and the length of sums: whole tiles, parts of them, one row, few rows.
const SHAPES: [(u32, u32, u32); 4] = [(33, 31, 20), (70, 65, 33), (1, 31, 20), (3, 66, 9)];

/// The activation of a gate, and the reference's.
pub type Gates = (Gate, Formula);

/// SwiGLU.
pub const SILU: Gates = (Gate::Silu, Formula::Silu);
/// GeGLU by tanh, as in Gemma.
pub const TANH: Gates = (Gate::Gelu(Gelu::Tanh), Formula::Gelu(reference::gelu::Gelu::Tanh));
/// GeGLU by the error function.
pub const EXACT: Gates = (Gate::Gelu(Gelu::Exact), Formula::Gelu(reference::gelu::Gelu::Exact));

/// The clamped form, as in gpt-oss.
pub const CLAMPED: Gates = (Gate::Clamped, Formula::Clamped);

#[test]
fn products_through_swiglu() {
    let of_silu = [F32, Bf16, F16].into_iter().flat_map(|element| SHAPES.map(|shape| (SILU, shape, element)));
    let of_gelu = [(TANH, F32), (EXACT, F32), (TANH, Bf16), (EXACT, F16), (CLAMPED, F32), (CLAMPED, Bf16)]
        .into_iter()
        .flat_map(|(gates, element)| [SHAPES[0], SHAPES[3]].map(|shape| (gates, shape, element)));
    for (gates, shape, element) in of_silu.chain(of_gelu) {
        check(&format!("product {shape:?} {element:?} through {:?}", gates.0), |case| {
            both_ways(case, shape, element, gates);
        });
    }
}

/// In tiles that have gate beside up: whole ones and parts, of a gate that ends within a group of 4, of 64 rows and of
/// 128.
#[test]
fn products_of_a_gpu_through_swiglu() {
    for (element, gates) in
        [(F32, SILU), (Bf16, SILU), (F16, SILU), (F32, TANH), (Bf16, EXACT), (F32, CLAMPED)]
    {
        for (units, rows4, (m, f, k)) in
            [(1, 2, (200, 305, 37)), (1, 2, (200, 64, 20)), (1, 1, (130, 305, 33)), (1, 1, (40, 126, 33))]
        {
            let name = format!("large product {m}x{f}x{k} {element:?} through {:?}", gates.0);
            check_units(&name, units, &|case| {
                let problem = Problem { layout: Layout::Nt, m, n: gate_up_cols(f), k };
                let kernel = plan(problem, element, case.rec.capabilities()).kernel;
                let is_wide = [("TM4", rows4), ("TN4", 2)].iter().all(|of| kernel.constants().contains(of));
                assert!(is_wide || kernel.file != "matmul/portable", "{kernel}");
                forward(case, (m, f, k), [element; 2], gates);
            });
        }
        check_tier(&format!("product in parts {element:?} through {:?}", gates.0), Tier::Portable, &|case| {
            let problem = Problem { layout: Layout::Nn, m: 70, n: 31, k: 1030 };
            assert!(plan(problem, element, case.rec.capabilities()).part_k < 1030);
            both_ways(case, (70, 31, 1030), element, gates);
        });
    }
}

fn both_ways(case: &mut Case, shape: (u32, u32, u32), element: Element, gates: Gates) {
    forward(case, shape, [element; 2], gates);
    backward(case, shape, element, None, gates);
    backward(case, shape, element, Some(0.75), gates);
}

/// Rows of gate and of up, `width` each, whose padding is zero as that of parameters.
fn packed_rows(case: &mut Case, width: u32, cols: u32, element: Element) -> Input {
    let mut rows = case.input(gate_up_cols(width), cols, element).values;
    let half = gate_up_cols(width) / 2;
    rows.chunks_mut(cols as usize)
        .zip(0..)
        .filter(|(_, row)| row % half >= width)
        .for_each(|(r, _)| r.fill(0.0));
    case.input_of(&rows, gate_up_cols(width), cols, element)
}

/// The product of factors of these types, with and without a bias.
pub fn forward(
    case: &mut Case,
    (m, f, k): (u32, u32, u32),
    [element, weights]: [Element; 2],
    (gate_kind, formula): Gates,
) {
    let packed = gate_up_cols(f);
    let (x, w) = (case.input(m, k, element), packed_rows(case, f, k, weights));
    let bias = packed_rows(case, f, 1, element).values;
    let bias = case.input_of(&bias, 1, packed, element);
    for bias in [None, Some(&bias)] {
        let mut want = matmul_nt(&x.values, &w.values, m as usize, packed as usize, k as usize);
        if let Some(bias) = bias {
            want.iter_mut().enumerate().for_each(|(i, y)| *y += bias.values[i % packed as usize]);
        }
        let [y, y_alone] = [0; 2].map(|_| case.output(m, packed, element));
        let [value, value_alone] = [0; 2].map(|_| case.output(m, f, element));
        let alone = Epilogue { bias: bias.map(|bias| bias.tensor), ..Default::default() };
        matmul(&mut case.rec, Layout::Nt, x.tensor, w.tensor, y_alone, alone);
        swiglu(&mut case.rec, y_alone, value_alone, gate_kind);
        let activated = Some(Activated::Swiglu(gate_kind, value));
        matmul(&mut case.rec, Layout::Nt, x.tensor, w.tensor, y, Epilogue { activated, ..alone });
        let bits = Bits::of_different_kernels();
        for (name, tensor) in [("y", y), ("y", y_alone), ("value", value), ("value", value_alone)] {
            bits.expect(case, name, tensor);
        }
        let [gate, up] = split_gate_up(&want, f);
        let allowed = case.allowed([element, weights], k);
        case.expect("value", value, reference::swiglu::gated(&gate, &up, formula), BEHIND * allowed);
        case.expect("y", y, want, allowed);
    }
}

/// The gradient of gate and up, of a product with or without a factor.
fn backward(
    case: &mut Case,
    (m, f, k): (u32, u32, u32),
    element: Element,
    factor: Option<f32>,
    (gate_kind, formula): Gates,
) {
    let (dy, w) = (case.input(m, k, element), case.input(k, f, element));
    let [gate, up] = [0; 2].map(|_| case.input(m, f, element).values);
    let argument = case.input_of(&pack_gate_up(&gate, &up, f), m, gate_up_cols(f), element);
    let of_value = case.output(m, f, element);
    let [dx, dx_alone] = [0; 2].map(|_| case.output(m, gate_up_cols(f), element));
    let alone = Epilogue { factor, ..Epilogue::default() };
    matmul(&mut case.rec, Layout::Nn, dy.tensor, w.tensor, of_value, alone);
    swiglu_backward(&mut case.rec, argument.tensor, of_value, dx_alone, gate_kind);
    let activated = Some(Activated::SwigluSlopes(gate_kind, argument.tensor));
    matmul(&mut case.rec, Layout::Nn, dy.tensor, w.tensor, dx, Epilogue { activated, ..alone });
    let bits = Bits::of_different_kernels();
    bits.expect(case, "dx", dx);
    bits.expect(case, "dx", dx_alone);
    let mut gradient = matmul_nn(&dy.values, &w.values, m as usize, f as usize, k as usize);
    gradient.iter_mut().for_each(|dh| *dh *= f64::from(factor.unwrap_or(1.0)));
    let (d_gate, d_up) = reference::swiglu::gated_backward(&gate, &up, &gradient, formula);
    case.expect("dx", dx, pack_gate_up(&d_gate, &d_up, f), BEHIND * allowed(element, k));
}

/// A feed-forward network whose value has one reader, as in a model, or two, of which the second gives its gradient
/// after the product.
#[test]
fn a_network_with_swiglu_is_two_products_each_way() {
    for (readers, (gate_kind, formula)) in [(1, SILU), (2, SILU), (1, TANH), (2, EXACT)] {
        check(&format!("tape {gate_kind:?} between products, {readers} readers"), |case| {
            let (n, k, f) = (10u32, 12u32, 9u32);
            let [x, dx, dy] = [(n, k), (n, k), (n, f)].map(|(rows, cols)| case.input(rows, cols, F32));
            let (w1, w2) = (packed_rows(case, f, k, F32), case.input(f, f, F32));
            let frozen = |tensor| Parameter { weight: vec![tensor], gradient: None };
            let [w_gate_up, w_down] = [frozen(w1.tensor), frozen(w2.tensor)];
            let mut tape = Tape::new(&mut case.rec);
            let leaf = tape.leaf(x.tensor, true);
            tape.give(leaf, dx.tensor);
            let h = tape.linear_swiglu(leaf, &w_gate_up, None, f, gate_kind);
            let y = tape.linear(h, &w_down, None, (readers == 2).then_some(h));
            tape.give(y, dy.tensor);
            tape.backward();

            let packed = gate_up_cols(f) as usize;
            let [n, k, width] = [n, k, f].map(|size| size as usize);
            let gate_up = matmul_nt(&x.values, &w1.values, n, packed, k);
            let [gate, up] = split_gate_up(&gate_up, f);
            let value = reference::swiglu::gated(&gate, &up, formula);
            let mut want_y = matmul_nt(&value, &w2.values, n, width, width);
            let mut of_value = matmul_nn(&dy.values, &w2.values, n, width, width);
            if readers == 2 {
                want_y.iter_mut().zip(&value).for_each(|(y, h)| *y += h);
                of_value.iter_mut().zip(&dy.values).for_each(|(dh, dy)| *dh += dy);
            }
            let (d_gate, d_up) = reference::swiglu::gated_backward(&gate, &up, &of_value, formula);
            let want = matmul_nn(&pack_gate_up(&d_gate, &d_up, f), &w1.values, n, k, packed);
            let bound = BEHIND * allowed(F32, 2 * (12 + 9));
            case.expect("y", y.tensor, want_y, bound);
            case.expect("dx", dx.tensor, sum(&dx.values, &want), bound);
        });
    }
}

/// The launches of a network on GPUs, and of its backward pass: no kernel of SwiGLU alone, unless the value has a
/// second reader.
#[test]
fn swiglu_costs_no_launch() {
    let entries = |(capabilities, element), readers: u32, gate| {
        let mut rec = Recorder::new("case", capabilities);
        let [x, dy] = [0; 2].map(|_| rec.tensor("x", 8192, 512, element));
        let [up, down] = [(2048, 512), (512, 1024)].map(|(rows, cols)| Parameter {
            weight: vec![rec.tensor("w", rows, cols, element)],
            gradient: None,
        });
        let mut tape = Tape::new(&mut rec);
        let leaf = tape.leaf(x, true);
        let h = tape.linear_swiglu(leaf, &up, None, 1024, gate);
        let y = tape.linear(h, &down, None, None);
        if readers == 2 {
            let other = tape.linear(h, &down, None, None);
            tape.give(other, dy);
        }
        tape.give(y, dy);
        tape.backward();
        let dispatches = rec.finish().dispatches;
        dispatches.iter().map(|dispatch| dispatch.kernel.entry).collect::<Vec<_>>()
    };
    for gpu in [(Capabilities::portable(), F32), (Capabilities::matrix(), F16)] {
        assert_eq!(entries(gpu, 1, Gate::Silu), ["matmul"; 4]);
        assert_eq!(entries(gpu, 1, TANH.0), ["matmul"; 4]);
        assert_eq!(entries(gpu, 2, Gate::Silu)[4..], ["matmul", "swiglu_backward", "add", "matmul"]);
    }
}
