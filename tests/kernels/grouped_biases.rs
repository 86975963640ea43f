//! Grouped products with a bias for each expert, through GELU and its slope, and the gradients of the biases: against
//! the f64 reference, bit by bit against the kernels they save, and as a network in the middle of a graph.

use crate::grouped::starts;
use crate::lab::{Bits, Case, Input, allowed, check, check_tier, check_units, sum, tensors, values};
use ::reference::grouped_matmul::{self as reference, add_biases, biases_backward};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::kernels::Tier;
use gristmill::ops::add::add;
use gristmill::ops::column_sum::grouped_column_sum;
use gristmill::ops::gelu::{self, Gelu};
use gristmill::ops::grouped_matmul::{grouped_matmul, grouped_matmul_backward};
use gristmill::ops::matmul::{Activated, Epilogue};
use gristmill::ops::work_list::WorkList;
use gristmill::tape::{Parameter, Tape};

const KINDS: [(Gelu, ::reference::gelu::Gelu); 3] = [
    (Gelu::Tanh, ::reference::gelu::Gelu::Tanh),
    (Gelu::Exact, ::reference::gelu::Gelu::Exact),
    (Gelu::Fast, ::reference::gelu::Gelu::Fast),
];

/// As for products of one matrix (`gelu_products`): an error before GELU is at most 1.13 times as large behind it, and
/// what is stored in between is rounded once more.
const BEHIND: f64 = 2.2;

/// Rows of each expert, and the rows and columns of its matrix.
type Shape<'s> = (&'s [u32], (u32, u32));

const SHAPES: [Shape<'_>; 5] = [
    (&[0, 1, 15, 16, 17], (31, 33)),
    (&[63, 0, 64, 65, 1], (12, 20)),
    (&[5, 0, 33, 1], (129, 7)),
    (&[1], (1, 1)),
    (&[0, 0, 131, 0], (66, 9)),
];

fn both_ways(
    case: &mut Case,
    (sizes, shape): Shape<'_>,
    parts: &[u32],
    kind: (Gelu, ::reference::gelu::Gelu),
    element: Element,
) {
    let starts = starts(sizes);
    let offsets = case.integers(&starts);
    let starts: Vec<usize> = starts.iter().map(|&start| start as usize).collect();
    let rows = starts[sizes.len()] as u32;
    let work = WorkList::new(&mut case.rec, offsets, rows);
    forward(case, (&starts, work), shape, parts, kind, element);
    backward(case, (&starts, work), shape, parts, kind, element);
}

fn forward(
    case: &mut Case,
    (offsets, work): (&[usize], WorkList),
    (out, cols): (u32, u32),
    parts: &[u32],
    (kind, formula): (Gelu, ::reference::gelu::Gelu),
    element: Element,
) {
    let (x, bias) = (case.input(work.rows, cols, element), case.input(work.experts, out, element));
    let stack: Vec<Input> = parts.iter().map(|&experts| case.input(experts * out, cols, element)).collect();
    let (o, i) = (out as usize, cols as usize);
    let want = reference::grouped_matmul(&x.values, &values(&stack), offsets, o, i);
    let want = add_biases(&want, &bias.values, offsets, o);
    let stack = tensors(&stack);
    let [y, value, y_alone, value_alone] = [0; 4].map(|_| case.output(work.rows, out, element));
    let bias = Epilogue { bias: Some(bias.tensor), ..Default::default() };
    let activated = Some(Activated::Gelu(kind, value));
    grouped_matmul(&mut case.rec, x.tensor, &stack, &work, y, Epilogue { activated, ..bias });
    grouped_matmul(&mut case.rec, x.tensor, &stack, &work, y_alone, bias);
    gelu::gelu(&mut case.rec, y_alone, value_alone, kind);
    let bits = Bits::of_different_kernels();
    for (name, tensor) in [("y", y), ("y", y_alone), ("value", value), ("value", value_alone)] {
        bits.expect(case, name, tensor);
    }
    let of_value = ::reference::gelu::gelu(&want, formula);
    case.expect("value", value, of_value, BEHIND * allowed(element, cols));
    case.expect("y", y, want, allowed(element, cols));
}

fn backward(
    case: &mut Case,
    (offsets, work): (&[usize], WorkList),
    (out, cols): (u32, u32),
    parts: &[u32],
    (kind, formula): (Gelu, ::reference::gelu::Gelu),
    element: Element,
) {
    let [dy, argument] = [out, cols].map(|cols| case.input(work.rows, cols, element));
    let stack: Vec<Input> = parts.iter().map(|&experts| case.input(experts * out, cols, element)).collect();
    let (o, i) = (out as usize, cols as usize);
    let x = vec![0.0; work.rows as usize * i];
    let (gradient, _) = reference::grouped_matmul_backward(&x, &values(&stack), offsets, &dy.values, o, i);
    let stack = tensors(&stack);
    let [dx, of_value, dx_alone] = [0; 3].map(|_| case.output(work.rows, cols, element));
    let activated = Some(Activated::Slope(kind, argument.tensor));
    let epilogue = Epilogue { activated, ..Default::default() };
    grouped_matmul_backward(&mut case.rec, dy.tensor, &stack, &work, dx, epilogue);
    grouped_matmul_backward(&mut case.rec, dy.tensor, &stack, &work, of_value, Epilogue::default());
    gelu::gelu_backward(&mut case.rec, argument.tensor, of_value, dx_alone, kind);
    let bits = Bits::of_different_kernels();
    bits.expect(case, "dx", dx);
    bits.expect(case, "dx", dx_alone);
    let want = ::reference::gelu::gelu_backward(&argument.values, &gradient, formula);
    case.expect("dx", dx, want, BEHIND * allowed(element, out));
}

#[test]
fn grouped_products_through_gelu() {
    for (turn, shape) in SHAPES.into_iter().enumerate() {
        for (index, element) in [F32, Bf16, F16].into_iter().enumerate() {
            let kind = KINDS[(turn + index) % 3];
            check(&format!("grouped {shape:?} {element:?} through {:?}", kind.0), |case| {
                both_ways(case, shape, &[shape.0.len() as u32], kind, element);
            });
        }
    }
}

/// A launch for each part of the stack reads the biases of its own experts.
#[test]
fn a_stack_in_parts_has_one_tensor_of_biases() {
    for (kind, element) in KINDS.into_iter().zip([Bf16, F16, F32]) {
        check(&format!("grouped in parts {element:?} through {:?}", kind.0), |case| {
            both_ways(case, SHAPES[0], &[2, 3], kind, element);
        });
    }
}

/// High tiles, and with one unit wide ones.
#[test]
fn large_grouped_products_through_gelu() {
    for (kind, element) in KINDS.into_iter().zip([Bf16, F32, F16]) {
        let name = format!("large grouped {element:?} through {:?}", kind.0);
        check_tier(&name, Tier::Portable, &|case| {
            both_ways(case, (&[700, 324], (140, 12)), &[2], kind, element);
        });
        check_units(&name, 1, &|case| {
            both_ways(case, (&[700, 324], (140, 132)), &[2], kind, element);
        });
    }
}

#[test]
fn the_rows_of_each_expert_are_added() {
    for element in [F32, F16, Bf16] {
        for (sizes, cols) in [
            (&[0, 1, 15, 16, 17][..], 31),
            (&[5, 0, 33, 1], 4),
            (&[1], 1),
            (&[0, 0], 5),
            (&[1500, 3, 0, 700], 70),
        ] {
            check(&format!("sums of {sizes:?} rows {cols} wide {element:?}"), |case| {
                let starts = starts(sizes);
                let offsets = case.integers(&starts);
                let starts: Vec<usize> = starts.iter().map(|&start| start as usize).collect();
                let rows = starts[sizes.len()] as u32;
                // Rows of no expert before and behind them, so that they start anywhere.
                let nothing = |rows: u32| vec![f64::NAN; (rows * cols) as usize];
                let rows_of_experts = (0..rows * cols).map(|_| case.normal()).collect();
                let values = [nothing(1), rows_of_experts, nothing(3)].concat();
                let x = case.input_of(&values, rows + 4, cols, element);
                let y = case.input(sizes.len() as u32, cols, F32);
                grouped_column_sum(&mut case.rec, x.tensor.rows(1, rows + 3), offsets, y.tensor);
                let of_experts = &x.values[cols as usize..];
                let want = sum(&y.values, &biases_backward(of_experts, &starts, cols as usize));
                case.expect("y", y.tensor, want, allowed(F32, rows.max(1)));
            });
        }
    }
}

/// An expert of GPT-2, whose value has one reader: gradients of x, matrices and biases, added to what is there.
#[test]
fn an_expert_of_gpt2_is_a_loop_over_experts() {
    const SIZES: [u32; 5] = [3, 0, 17, 1, 12];
    let (d, f) = (20, 13);
    for (kind, formula) in KINDS {
        check(&format!("grouped mapping, {kind:?}, projection"), |case| {
            let experts = SIZES.len() as u32;
            let starts = starts(&SIZES);
            let offsets = case.integers(&starts);
            let starts: Vec<usize> = starts.iter().map(|&start| start as usize).collect();
            let rows = starts[SIZES.len()] as u32;
            let [x, dy] = [0; 2].map(|_| case.input(rows, d, F32));
            let shapes = [(experts * f, d), (experts, f), (experts * d, f), (experts, d)];
            let weights = shapes.map(|(rows, cols)| case.input(rows, cols, F32));
            let gradients = shapes.map(|(rows, cols)| case.input(rows, cols, F32));
            let parameter = |index: usize| Parameter {
                weight: vec![weights[index].tensor],
                gradient: Some(vec![gradients[index].tensor]),
            };
            let [mapping, mapping_bias, projection, projection_bias] = [0, 1, 2, 3].map(parameter);
            let (y_out, dx_out) = (case.output(rows, d, F32), case.output(rows, d, F32));
            let mut tape = Tape::new(&mut case.rec);
            let work = WorkList::new(tape.rec, offsets, rows);
            let leaf = tape.leaf(x.tensor, true);
            let h = tape.grouped_linear_gelu(leaf, &mapping, Some(&mapping_bias), kind, &work);
            let y = tape.grouped_linear(h, &projection, Some(&projection_bias), &work);
            add(tape.rec, y.tensor, y_out, 1.0, false);
            tape.give(y, dy.tensor);
            tape.backward();
            let dx = tape.gradient(leaf).expect("x needs a gradient");
            add(tape.rec, dx, dx_out, 1.0, false);

            let (d, f) = (d as usize, f as usize);
            let [w1, b1, w2, b2] = [0, 1, 2, 3].map(|index| &weights[index].values);
            let argument = reference::grouped_matmul(&x.values, w1, &starts, f, d);
            let argument = add_biases(&argument, b1, &starts, f);
            let value = ::reference::gelu::gelu(&argument, formula);
            let want_y = reference::grouped_matmul(&value, w2, &starts, d, f);
            let want_y = add_biases(&want_y, b2, &starts, d);
            let (of_value, d_w2) = reference::grouped_matmul_backward(&value, w2, &starts, &dy.values, d, f);
            let of_argument = ::reference::gelu::gelu_backward(&argument, &of_value, formula);
            let (want_dx, d_w1) =
                reference::grouped_matmul_backward(&x.values, w1, &starts, &of_argument, f, d);
            let d_biases =
                [biases_backward(&of_argument, &starts, f), biases_backward(&dy.values, &starts, d)];
            let [d_b1, d_b2] = d_biases;

            // The products of the chain, one after the other.
            let allowed = 4.0 * allowed(F32, 2 * (20 + 13) + 17);
            case.expect("y", y_out, want_y, allowed);
            case.expect("dx", dx_out, want_dx, allowed);
            let names = ["mapping", "mapping bias", "projection", "projection bias"];
            let wants = [d_w1, d_b1, d_w2, d_b2];
            for ((name, gradient), want) in names.iter().zip(&gradients).zip(wants) {
                case.expect(name, gradient.tensor, sum(&gradient.values, &want), allowed);
            }
        });
    }
}
