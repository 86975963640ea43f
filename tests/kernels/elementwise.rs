//! swiglu and geglu, gelu and rope against the f64 reference, and zeros.

use crate::lab::{Case, Input, allowed, check};
use crate::packed::{columns, pack_gate_up, split_gate_up};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::element::stride_of;
use gristmill::ops::clip::{clip, clip_backward};
use gristmill::ops::gelu::{Gelu, gelu, gelu_backward};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::rope::{Rope, cos_sin_table, rope, rope_backward};
use gristmill::ops::rope_scaling::{QueryScaling, RopeScaling, Yarn};
use gristmill::ops::swiglu::{Gate, gate_up_cols, swiglu, swiglu_backward};
use gristmill::ops::xielu::{Xielu, xielu, xielu_backward, xielu_backward_weight};
use gristmill::ops::zero::zero;
use gristmill::record::Tensor;

/// Rows and features: 1, odd, one more than a workgroup.
const SWIGLU_SHAPES: [(u32, u32); 6] = [(1, 1), (3, 31), (33, 32), (7, 257), (2, 1028), (257, 4)];

/// Each activation of a gate, and the reference's.
const GATES: [(Gate, reference::swiglu::Gate); 5] = [
    (Gate::Silu, reference::swiglu::Gate::Silu),
    (Gate::Gelu(Gelu::Exact), reference::swiglu::Gate::Gelu(reference::gelu::Gelu::Exact)),
    (Gate::Gelu(Gelu::Tanh), reference::swiglu::Gate::Gelu(reference::gelu::Gelu::Tanh)),
    (Gate::Gelu(Gelu::Fast), reference::swiglu::Gate::Gelu(reference::gelu::Gelu::Fast)),
    (Gate::Clamped, reference::swiglu::Gate::Clamped),
];

#[test]
pub fn swiglu_is_the_gated_activation() {
    for (element, (gate_kind, formula)) in
        [F32, F16, Bf16].into_iter().flat_map(|of| GATES.map(|gate| (of, gate)))
    {
        for (n, f) in SWIGLU_SHAPES {
            check(&format!("swiglu {gate_kind:?} {n}x{f} {element:?}"), |case| {
                let (gate_up, gate, up) = gate_and_up(case, n, f, element);
                let out = case.output(n, f, element);
                swiglu(&mut case.rec, gate_up, out, gate_kind);
                case.expect("out", out, reference::swiglu::gated(&gate, &up, formula), allowed(element, 2));
            });
        }
    }
}

#[test]
pub fn swiglu_backward_writes_both_gradients() {
    for (element, (gate_kind, formula)) in
        [F32, F16, Bf16].into_iter().flat_map(|of| GATES.map(|gate| (of, gate)))
    {
        for (n, f) in SWIGLU_SHAPES {
            check(&format!("swiglu_backward {gate_kind:?} {n}x{f} {element:?}"), |case| {
                let (gate_up, gate, up) = gate_and_up(case, n, f, element);
                let dout = case.input(n, f, element);
                let d_gate_up = case.output(n, gate_up_cols(f), element);
                swiglu_backward(&mut case.rec, gate_up, dout.tensor, d_gate_up, gate_kind);
                let (dgate, dup) = reference::swiglu::gated_backward(&gate, &up, &dout.values, formula);
                case.expect("d_gate_up", d_gate_up, pack_gate_up(&dgate, &dup, f), allowed(element, 4));
            });
        }
    }
}

#[test]
fn swiglu_survives_extreme_gates() {
    for (gate_kind, formula) in GATES {
        check(&format!("swiglu {gate_kind:?} of extremes"), |case| extreme_gates(case, gate_kind, formula));
    }
}

fn extreme_gates(case: &mut Case, gate_kind: Gate, formula: reference::swiglu::Gate) {
    let gate = [-3e38, -1e4, -200.0, -89.0, -80.0, -0.0, 80.0, 200.0, 1e4];
    let up = [1.0; 9];
    let gate_up = case.input_of(&pack_gate_up(&gate, &up, 9), 1, gate_up_cols(9), F32);
    let (out, d_gate_up) = (case.output(1, 9, F32), case.output(1, gate_up_cols(9), F32));
    let dout = case.input_of(&[1.0; 9], 1, 9, F32);
    swiglu(&mut case.rec, gate_up.tensor, out, gate_kind);
    swiglu_backward(&mut case.rec, gate_up.tensor, dout.tensor, d_gate_up, gate_kind);
    case.expect("out", out, reference::swiglu::gated(&gate, &up, formula), allowed(F32, 2));
    let (dgate, dup) = reference::swiglu::gated_backward(&gate, &up, &[1.0; 9], formula);
    case.expect("d_gate_up", d_gate_up, pack_gate_up(&dgate, &dup, 9), allowed(F32, 4));
}

/// Below, at and above each limit: what is clamped has no gradient, and what is at a limit has one.
#[test]
fn clamped_gates_have_limits() {
    for element in [F32, Bf16] {
        check(&format!("clamped gates {element:?}"), |case| {
            let limits = [-8.0, -7.0, -6.5, 0.0, 6.5, 7.0, 8.0];
            let (gate, up): (Vec<f64>, Vec<f64>) =
                limits.into_iter().flat_map(|gate| limits.map(|up| (gate, up))).unzip();
            let f = gate.len() as u32;
            let gate_up = case.input_of(&pack_gate_up(&gate, &up, f), 1, gate_up_cols(f), element);
            let (out, d_gate_up) = (case.output(1, f, element), case.output(1, gate_up_cols(f), element));
            let dout = case.input(1, f, element);
            swiglu(&mut case.rec, gate_up.tensor, out, Gate::Clamped);
            swiglu_backward(&mut case.rec, gate_up.tensor, dout.tensor, d_gate_up, Gate::Clamped);
            let formula = reference::swiglu::Gate::Clamped;
            case.expect("out", out, reference::swiglu::gated(&gate, &up, formula), allowed(element, 2));
            let (dgate, dup) = reference::swiglu::gated_backward(&gate, &up, &dout.values, formula);
            assert!(dgate.iter().chain(&dup).filter(|d| **d == 0.0).count() == 26);
            case.expect("d_gate_up", d_gate_up, pack_gate_up(&dgate, &dup, f), allowed(element, 4));
        });
    }
}

#[test]
fn swiglu_works_on_ranges() {
    check("swiglu on ranges of larger tensors", |case| {
        let (n, f) = (5, 12);
        let whole = case.input(9, 40, Bf16);
        let half = |first| columns(&whole.values[3 * 40..8 * 40], 40, first..first + 12);
        let out = case.output(n, f, Bf16);
        swiglu(&mut case.rec, whole.tensor.rows(3, n).columns(8, 24), out, Gate::Silu);
        case.expect("out", out, reference::swiglu::swiglu(&half(8), &half(20)), allowed(Bf16, 2));
    });
}

const GELUS: [(Gelu, reference::gelu::Gelu); 5] = [
    (Gelu::Exact, reference::gelu::Gelu::Exact),
    (Gelu::Tanh, reference::gelu::Gelu::Tanh),
    (Gelu::Fast, reference::gelu::Gelu::Fast),
    (Gelu::Relu, reference::gelu::Gelu::Relu),
    (Gelu::ReluSquared, reference::gelu::Gelu::ReluSquared),
];

#[test]
pub fn gelu_and_its_backward() {
    for (kind, formula) in GELUS {
        for element in [F32, F16, Bf16] {
            for (n, f) in SWIGLU_SHAPES {
                check(&format!("gelu {kind:?} {n}x{f} {element:?}"), |case| {
                    let values: Vec<f64> = (0..n * f).map(|_| 2.0 * case.normal()).collect();
                    let (x, dy) = (case.input_of(&values, n, f, element), case.input(n, f, element));
                    let [y, dx] = [0; 2].map(|_| case.output(n, f, element));
                    gelu(&mut case.rec, x.tensor, y, kind);
                    gelu_backward(&mut case.rec, x.tensor, dy.tensor, dx, kind);
                    case.expect("y", y, reference::gelu::gelu(&x.values, formula), allowed(element, 2));
                    let want = reference::gelu::gelu_backward(&x.values, &dy.values, formula);
                    case.expect("dx", dx, want, allowed(element, 4));
                });
            }
        }
    }
}

/// Values from -5 to 5 in steps of 0.01, each within 16 ulps of its own size, including the lower tail.
#[test]
fn gelu_is_as_precise_as_f32() {
    for (kind, formula) in GELUS {
        check(&format!("gelu {kind:?}, relative"), |case| {
            let values: Vec<f64> = (-500..500).map(|i| i as f64 / 100.0).collect();
            let x = case.input_of(&values, 1, 1000, F32);
            let y = case.output(1, 1000, F32);
            gelu(&mut case.rec, x.tensor, y, kind);
            let want = reference::gelu::gelu(&x.values, formula);
            case.expect_words("y", y, move |words| {
                for ((word, want), x) in words.iter().zip(&want).zip(&x.values) {
                    let got = f32::from_bits(*word) as f64;
                    // The relative error of e^-a is a times the rounding of a: x²/2 for the exact form, 2u for tanh.
                    let exponent = (0.5 * x * x).max(1.6 * x.abs() * (1.0 + 0.045 * x * x));
                    let ulps = (got - want).abs() / (want.abs() * 2f64.powi(-24) + f64::MIN_POSITIVE);
                    assert!(ulps <= 16.0 + 2.0 * exponent, "gelu({x}) is {got}, not {want}: {ulps:.1} ulps");
                }
            });
        });
    }
}

#[test]
fn gelu_survives_extremes() {
    // Squares of the largest are beyond f32.
    for (kind, formula) in GELUS.into_iter().filter(|(kind, _)| *kind != Gelu::ReluSquared) {
        check(&format!("gelu {kind:?} of extremes"), |case| {
            let values = [-3e38, -1e4, -200.0, -13.0, -10.0, -0.0, 10.0, 200.0, 3e38];
            let x = case.input_of(&values, 1, 9, F32);
            let dy = case.input_of(&[1.0; 9], 1, 9, F32);
            let [y, dx] = [0; 2].map(|_| case.output(1, 9, F32));
            gelu(&mut case.rec, x.tensor, y, kind);
            gelu_backward(&mut case.rec, x.tensor, dy.tensor, dx, kind);
            case.expect_words("y", y, move |words| {
                let y: Vec<f32> = words[..9].iter().map(|&w| f32::from_bits(w)).collect();
                // The tail of the logistic function is longer: at -13 it is still 3e-9.
                let far = if kind == Gelu::Fast { 3 } else { 5 };
                assert!(y[..far].iter().chain(&y[5..6]).all(|y| y.abs() < 1e-20), "{y:?}");
                assert_eq!(y[6..], [10.0, 200.0, 3e38]);
            });
            let want = reference::gelu::gelu_backward(&x.values, &dy.values, formula);
            case.expect("dx", dx, want, allowed(F32, 4));
            // A NaN stays NaN, so that an overflow is not hidden.
            let bad = case.bits(&[0x7fc0_0000, 0x7f80_0001, 0xffc0_0000, 0x7fc0_0000]);
            let [y, dx] = [0; 2].map(|_| case.output(1, 4, F32));
            gelu(&mut case.rec, bad, y, kind);
            gelu_backward(&mut case.rec, bad, bad, dx, kind);
            for (label, tensor) in [("NaN", y), ("gradient of NaN", dx)] {
                case.expect_words(label, tensor, |words| {
                    assert!(words.iter().all(|&w| f32::from_bits(w).is_nan()), "{words:x?}");
                });
            }
        });
    }
}

#[test]
fn gelu_works_on_ranges() {
    check("gelu on ranges of larger tensors", |case| {
        let whole = case.input(9, 40, Bf16);
        let part = columns(&whole.values[3 * 40..8 * 40], 40, 8..20);
        let y = case.output(5, 12, Bf16);
        gelu(&mut case.rec, whole.tensor.rows(3, 5).columns(8, 12), y, Gelu::Exact);
        case.expect("y", y, reference::gelu::gelu(&part, reference::gelu::Gelu::Exact), allowed(Bf16, 2));
    });
}

/// a, b, β and ε, the last of which is far enough below 0 that values lie between.
const NUMBERS: reference::xielu::Xielu =
    reference::xielu::Xielu { a: 0.25, b: -1.0, beta: 0.5, epsilon: -0.0625 };

/// `numbers` on the device.
fn on_device(case: &mut Case, numbers: reference::xielu::Xielu) -> Xielu {
    let reference::xielu::Xielu { a, b, beta, epsilon } = numbers;
    let alphas = case.input_of(&[a, b], 1, 2, F32).tensor;
    Xielu { alphas, constants: case.input_of(&[beta, epsilon], 1, 2, F32).tensor }
}

/// Three roundings more than GELU: of α, of the polynomial and of the sum.
#[test]
pub fn xielu_and_its_backward() {
    for element in [F32, F16, Bf16] {
        for (n, f) in SWIGLU_SHAPES {
            check(&format!("xielu {n}x{f} {element:?}"), |case| {
                let values: Vec<f64> = (0..n * f).map(|_| 2.0 * case.normal()).collect();
                let (x, dy) = (case.input_of(&values, n, f, element), case.input(n, f, element));
                let (numbers, gradient) = (on_device(case, NUMBERS), case.input(1, 2, F32));
                let [y, dx] = [0; 2].map(|_| case.output(n, f, element));
                xielu(&mut case.rec, x.tensor, numbers, y);
                xielu_backward_weight(&mut case.rec, x.tensor, numbers, dy.tensor, gradient.tensor);
                xielu_backward(&mut case.rec, x.tensor, numbers, dy.tensor, dx);
                let (want_dx, of_numbers) = reference::xielu::xielu_backward(&x.values, &dy.values, NUMBERS);
                case.expect("y", y, reference::xielu::xielu(&x.values, NUMBERS), allowed(element, 8));
                case.expect("dx", dx, want_dx, allowed(element, 8));
                // A sum of products of any sign, relative to their root mean square.
                let terms: Vec<f64> = [0, 1]
                    .map(|number| {
                        let of = |(x, dy): (&f64, &f64)| NUMBERS.backward(*x, *dy).1[number].powi(2);
                        x.values.iter().zip(&dy.values).map(of).sum::<f64>().sqrt()
                    })
                    .iter()
                    .zip(&gradient.values)
                    .map(|(terms, before)| terms + before.abs())
                    .collect();
                let want = gradient.values.iter().zip(of_numbers).map(|(before, own)| before + own).collect();
                case.expect_terms("numbers", gradient.tensor, 0..2, want, 2.0 * allowed(F32, n * f), terms);
            });
        }
    }
}

/// Near 0, where e^x - 1 - x would cancel: each value within 16 ulps of its own size, with ε as files have it.
#[test]
fn xielu_is_as_precise_as_f32() {
    let numbers = reference::xielu::Xielu { beta: 0.0, epsilon: -1e-6, ..NUMBERS };
    check("xielu, relative", |case| {
        let values: Vec<f64> = (0..400).map(|i| -1e-5 * 1.04f64.powi(i)).collect();
        let x = case.input_of(&values, 1, 400, F32);
        let y = case.output(1, 400, F32);
        let on_device = on_device(case, numbers);
        xielu(&mut case.rec, x.tensor, on_device, y);
        let want = reference::xielu::xielu(&x.values, numbers);
        case.expect_words("y", y, move |words| {
            for ((word, want), x) in words.iter().zip(&want).zip(&x.values) {
                let ulps = (f64::from(f32::from_bits(*word)) - want).abs() / (want.abs() * 2f64.powi(-24));
                assert!(ulps <= 16.0, "xielu({x}) is {ulps:.1} ulps from {want}");
            }
        });
    });
}

/// Bit for bit, values at the limit included, which pass; in ranges of larger tensors.
#[test]
pub fn clipping_and_its_backward() {
    for element in [F32, F16, Bf16] {
        for (n, f) in SWIGLU_SHAPES {
            check(&format!("clip {n}x{f} {element:?}"), |case| {
                let limit = 0.75f32;
                let mut values: Vec<f64> = (0..n * f).map(|_| case.normal()).collect();
                values[0] = -0.75;
                let (x, dy) = (case.input_of(&values, n, f, element), case.input(n, f, element));
                let y = case.output(n, f, element);
                clip(&mut case.rec, x.tensor, y, limit);
                clip_backward(&mut case.rec, x.tensor, dy.tensor, limit);
                let of_dy = |(x, dy): (&f64, &f64)| if x.abs() > 0.75 { 0.0 } else { *dy };
                let dx = x.values.iter().zip(&dy.values).map(of_dy).collect();
                case.expect("y", y, x.values.iter().map(|x| x.clamp(-0.75, 0.75)).collect(), 0.0);
                case.expect("dx", dy.tensor, dx, 0.0);
            });
        }
    }
}

/// A packed tensor, and its gate and up.
fn gate_and_up(case: &mut Case, n: u32, f: u32, element: Element) -> (Tensor, Vec<f64>, Vec<f64>) {
    let values: Vec<f64> = (0..2 * n * f).map(|_| 2.0 * case.normal()).collect();
    let (gate, up) = values.split_at((n * f) as usize);
    let Input { tensor, values } = case.input_of(&pack_gate_up(gate, up, f), n, gate_up_cols(f), element);
    let [gate, up] = split_gate_up(&values, f);
    (tensor, gate, up)
}

/// A scaled table has a magnitude above 1, which multiplies the forward and the backward rotation.
#[test]
fn rope_follows_a_scaled_table() {
    let yarn = Yarn {
        factor: 4.0,
        original: 64.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        mscale: 1.0,
        mscale_all_dim: 0.0,
        is_truncated: true,
    };
    let (layout, rotation, scaling) =
        (HeadLayout { heads: 1, kv_heads: 1, head_dim: 8, value_dim: 8 }, HALF, RopeScaling::Yarn(yarn));
    let frequencies = scaling.frequencies(&rotation);
    assert!(scaling.magnitude() > 1.1);
    for direction in [1.0, -1.0] {
        check(&format!("rope scaled, direction {direction}"), |case| {
            let ids = [0u32, 99, 17, 40, 64];
            let (qkv, positions) = (case.input(5, layout.cols(), F32), case.integers(&ids));
            let table: Vec<f64> =
                cos_sin_table(100, &rotation, &scaling, None).into_iter().map(f64::from).collect();
            let cos_sin = case.input_of(&table, 100, 8, F32).tensor;
            match direction > 0.0 {
                true => rope(&mut case.rec, qkv.tensor, positions, layout, &rotation, cos_sin),
                false => rope_backward(&mut case.rec, qkv.tensor, positions, layout, &rotation, cos_sin),
            }
            let mut want = qkv.values;
            for (row, id) in want.chunks_mut(layout.cols() as usize).zip(ids) {
                for head in row[..16].chunks_mut(8) {
                    for (pair, frequency) in frequencies.iter().enumerate() {
                        let (sin, cos) = (direction * id as f64 * frequency).sin_cos();
                        let (a, b) = (head[pair], head[pair + 4]);
                        head[pair] = scaling.magnitude() * (a * cos - b * sin);
                        head[pair + 4] = scaling.magnitude() * (a * sin + b * cos);
                    }
                }
            }
            case.expect("qkv", qkv.tensor, want, allowed(F32, 2));
        });
    }
}

const HALF: Rope = Rope { rotary_dim: 8, theta: 10000.0, is_interleaved: false };

/// Query heads, key heads, head_dim and rotation.
const ROPES: [(u32, u32, u32, Rope); 9] = [
    (4, 4, 32, Rope { rotary_dim: 32, ..HALF }),
    (4, 2, 64, Rope { rotary_dim: 32, ..HALF }),
    (3, 1, 128, Rope { rotary_dim: 128, theta: 1e6, ..HALF }),
    (2, 1, 8, Rope { rotary_dim: 6, ..HALF }),
    (2, 2, 12, Rope { rotary_dim: 12, ..HALF }),
    (1, 1, 4, Rope { rotary_dim: 2, ..HALF }),
    (2, 1, 16, Rope { rotary_dim: 16, is_interleaved: true, ..HALF }),
    (5, 1, 12, Rope { rotary_dim: 6, is_interleaved: true, ..HALF }),
    (33, 11, 4, Rope { rotary_dim: 4, is_interleaved: true, ..HALF }),
];

/// Grows twice within the 100 positions. The factor is in the table, so a product with it has no error of its own.
const GROWTH: QueryScaling = QueryScaling { beta: 0.4, original: 30.0 };

#[test]
pub fn rope_rotates_queries_and_keys_in_place() {
    for element in [F32, Bf16] {
        for row in &ROPES {
            check_rope(row, element);
        }
    }
    check_rope(&ROPES[1], F16);
    check_rope(&ROPES[3], F16);
    check_rope(&ROPES[7], F16);
}

fn check_rope(row: &(u32, u32, u32, Rope), element: Element) {
    for is_backward in [false, true] {
        let name = if is_backward { "rope_backward" } else { "rope" };
        check(&format!("{name} {row:?} {element:?}"), |case| turn(case, row, element, is_backward, None));
        if row.2 == row.3.rotary_dim {
            let label = format!("{name} {row:?} {element:?}, of queries that grow");
            check(&label, |case| turn(case, row, element, is_backward, Some(GROWTH)));
        }
    }
}

fn turn(
    case: &mut Case,
    row: &(u32, u32, u32, Rope),
    element: Element,
    is_backward: bool,
    growth: Option<QueryScaling>,
) {
    let &(heads, kv_heads, head_dim, rotation) = row;
    let layout = HeadLayout { heads, kv_heads, head_dim, value_dim: 8 };
    let (tokens, rows) = (9, 100);
    let qkv = case.input(tokens, layout.cols(), element);
    let mut ids = case.ids_below(tokens as usize, rows);
    ids[3] = rows - 1;
    let positions = case.integers(&ids);
    let cols = rotation.table_cols(growth.as_ref());
    let table = cos_sin_table(rows, &rotation, &RopeScaling::None, growth.as_ref());
    let table: Vec<f64> = table.into_iter().map(f64::from).collect();
    let table = columns(&table, stride_of(cols), 0..cols as usize);
    let cos_sin = case.input_of(&table, rows, cols, F32).tensor;
    match is_backward {
        false => rope(&mut case.rec, qkv.tensor, positions, layout, &rotation, cos_sin),
        true => rope_backward(&mut case.rec, qkv.tensor, positions, layout, &rotation, cos_sin),
    }
    let rotation = reference::rope::Rope {
        head_dim: head_dim as usize,
        rotary_dim: rotation.rotary_dim as usize,
        theta: rotation.theta,
        interleaved: rotation.is_interleaved,
        scaling: reference::rope_scaling::Scaling::None,
    };
    let mut want = qkv.values;
    for (token, row) in want.chunks_mut(layout.cols() as usize).enumerate() {
        let (turned, position) = (&mut row[..layout.v_start() as usize], &ids[token..token + 1]);
        match is_backward {
            false => reference::rope::rope(turned, position, (heads + kv_heads) as usize, &rotation),
            true => reference::rope::rope_backward(turned, position, (heads + kv_heads) as usize, &rotation),
        }
        if let Some(QueryScaling { beta, original }) = growth {
            let queries = &mut turned[..layout.q_cols() as usize];
            let growth = reference::query_scaling::QueryScaling { beta, original };
            growth.scale(queries, position, queries.len());
        }
    }
    case.expect("qkv", qkv.tensor, want, allowed(element, 2));
}

/// Of a tensor that starts within a binding, and nothing beside it.
#[test]
pub fn zeros_are_where_the_tensor_is() {
    for element in [F32, F16, Bf16] {
        for (n, f) in [(1, 1), (3, 31), (2, 1028), (1, 70_000)] {
            check(&format!("zero {n}x{f} {element:?}"), |case| {
                let y = case.output(n, f, element);
                zero(&mut case.rec, y);
                case.expect("y", y, vec![0.0; (n * f) as usize], 0.0);
            });
        }
        check(&format!("zero rows {element:?}"), |case| {
            let x = case.input(5, 12, element);
            zero(&mut case.rec, x.tensor.rows(1, 3));
            let mut want = x.values.clone();
            want[12..48].fill(0.0);
            case.expect("x", x.tensor, want, 0.0);
        });
    }
}
