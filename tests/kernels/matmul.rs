//! matmul and its epilogues against the f64 reference.

use crate::lab::{Case, allowed, check, check_tier, check_units};
use crate::norms_and_sums::factors;
use crate::packed::columns;
use crate::swiglu_products::{Gates, SILU, TANH};
use gristmill::element::Element::{self, Bf16, F16, F32, Int8, Nf4};
use gristmill::kernels::Tier;
use gristmill::ops::matmul::{Epilogue, FewRows, Layout, Problem, matmul, matmul_of_few_rows, plan};
use gristmill::ops::rms_norm::RmsNorm;
use gristmill::ops::swiglu::gate_up_cols;
use gristmill::record::Tensor;

/// A factor of a product and its bias: below 1, so that it multiplies no error, and exact in f32.
const FACTOR: f32 = -0.75;

/// m, n, k: 1, odd, tile edges and one more.
const MATMUL_SHAPES: [(u32, u32, u32); 12] = [
    (1, 1, 1),
    (1, 31, 7),
    (33, 1, 31),
    (8, 64, 16),
    (9, 65, 33),
    (16, 128, 16),
    (17, 129, 33),
    (24, 64, 5),
    (33, 65, 3),
    (64, 64, 257),
    (130, 257, 12),
    (257, 31, 1),
];

#[test]
pub fn matmul_is_the_product() {
    for element in [F32, F16, Bf16] {
        for layout in [Layout::Nt, Layout::Nn, Layout::Tn] {
            for (m, n, k) in MATMUL_SHAPES {
                check(&format!("matmul {layout:?} {m}x{n}x{k} {element:?}"), |case| {
                    let (a, b, want) = product(case, layout, m, n, k, element);
                    let y = case.output(m, n, element);
                    matmul(&mut case.rec, layout, a, b, y, Epilogue::default());
                    case.expect("y", y, want, allowed(element, k));
                });
            }
        }
    }
}

/// The gradient of a weight over the largest micro-batch of the software tier.
#[test]
fn products_of_many_tokens() {
    let (m, n, k) = (5, 3, 64_535);
    check_tier(&format!("matmul {m}x{n}x{k}"), Tier::Software, &|case| {
        let (a, b, want) = product(case, Layout::Tn, m, n, k, F32);
        let y = case.output(m, n, F32);
        matmul(&mut case.rec, Layout::Tn, a, b, y, Epilogue::default());
        case.expect("y", y, want, allowed(F32, k));
    });
}

/// Rows and sums that every lane, some lanes and one lane have a part in; columns that end within a workgroup's eight.
#[test]
pub fn products_of_few_rows() {
    for element in [F32, F16, Bf16] {
        for (m, n, k) in [(1, 8, 4), (1, 65, 260), (2, 31, 33), (3, 4, 1027), (4, 33, 64)] {
            check(&format!("matmul of few rows {m}x{n}x{k} {element:?}"), |case| {
                let problem = Problem { layout: Layout::Nt, m, n, k };
                let kernel = plan(problem, element, case.rec.capabilities()).kernel;
                assert!(
                    ["matmul/vector", "matmul/gathered"].contains(&kernel.file),
                    "{kernel} for {problem:?}"
                );
                let (a, b, want) = product(case, Layout::Nt, m, n, k, element);
                let y = case.output(m, n, element);
                matmul(&mut case.rec, Layout::Nt, a, b, y, Epilogue::default());
                case.expect("y", y, want, allowed(element, k));
            });
        }
    }
}

/// Whole lines of weights and a rest, and what is quantised.
#[test]
pub fn products_of_few_rows_and_quantised_ones() {
    for [element, weights] in [[F32, F32], [F16, F16], [Bf16, Bf16], [F32, Nf4], [Bf16, Int8]] {
        for (m, n, k) in [(1, 1025, 258), (3, 1031, 270)] {
            let name = format!("matmul of few rows {m}x{n}x{k} {element:?} and {weights:?}");
            check_tier(&name, Tier::Software, &|case| {
                let (a, b, want) = product_of(case, Layout::Nt, (m, n, k), [element, weights]);
                let y = case.output(m, n, element);
                matmul(&mut case.rec, Layout::Nt, a, b, y, Epilogue::default());
                case.expect("y", y, want, allowed(element, k));
            });
        }
    }
}

/// Products of few rows with a norm before them, a bias, and SwiGLU or GeGLU after them: each alone and all together.
#[test]
fn products_of_few_rows_with_norm_and_gate() {
    let (plain, centred) =
        (Some(RmsNorm::new(1e-3)), Some(RmsNorm { is_zero_centered: true, ..RmsNorm::new(1e-3) }));
    let forms = [
        (plain, false, None),
        (None, true, Some(SILU)),
        (plain, true, Some(SILU)),
        (plain, false, Some(TANH)),
        (centred, false, None),
        (centred, true, Some(SILU)),
    ];
    for (types, forms) in [([F32, F32], &forms[..]), ([F16, F16], &forms[2..3]), ([Bf16, Int8], &forms[2..])]
    {
        for (form, (m, n, k)) in
            forms.iter().flat_map(|form| [(1, 34, 77), (4, 65, 260), (2, 5, 3)].map(|size| (form, size)))
        {
            let (norm, bias, gates) = form;
            let gate = gates.map(|gates| gates.0);
            let name =
                format!("matmul of few rows {m}x{n}x{k} {types:?} {norm:?}, bias {bias}, gate {gate:?}");
            check(&name, |case| fused_product(case, (m, n, k), types, *form));
        }
    }
}

fn fused_product(
    case: &mut Case,
    (m, n, k): (u32, u32, u32),
    [element, weights]: [Element; 2],
    (norm, has_bias, gates): (Option<RmsNorm>, bool, Option<Gates>),
) {
    let is_gated = gates.is_some();
    let rows = if is_gated { gate_up_cols(n) } else { n };
    let (a, b) = (case.input(m, k, element), case.input(rows, k, weights));
    let (weight, bias) = (case.input(1, k, element), case.input(1, rows, element));
    let y = case.output(m, n, element);
    let more = FewRows {
        norm: norm.map(|norm| (weight.tensor, norm)),
        bias: has_bias.then_some(bias.tensor),
        gate: gates.map(|gates| gates.0),
    };
    matmul_of_few_rows(&mut case.rec, a.tensor, b.tensor, y, more);
    let x = match norm {
        Some(norm) => {
            let w = factors(norm, &weight.values);
            reference::rms_norm::rms_norm(&a.values, &w, k as usize, norm.epsilon.into())
        }
        None => a.values,
    };
    let bias = has_bias.then_some(bias.values);
    let [m, all, k] = [m, rows, k].map(|size| size as usize);
    let product = reference::matmul::linear(&x, &b.values, bias.as_deref(), m, all, k);
    let want = match gates {
        Some((_, formula)) => {
            let [gate, up] = [0, all / 2].map(|first| columns(&product, rows, first..first + n as usize));
            reference::swiglu::gated(&gate, &up, formula)
        }
        None => product,
    };
    // The errors of gate and up are added, each of a sum over k and one for the norm.
    case.expect("y", y, want, allowed(element, 4 * k as u32));
}

#[test]
fn matmul_adds_bias_residual_and_the_previous_contents() {
    let plain = [(F32, 33), (Bf16, 33), (F32, 3), (F16, 1), (Bf16, 2)].map(|of| (of, None));
    let scaled = [(F32, 33), (F16, 33), (F32, 2), (Bf16, 3)].map(|of| (of, Some(FACTOR)));
    for ((element, m), factor) in plain.into_iter().chain(scaled) {
        check(&format!("matmul epilogue {m} {element:?}, factor {factor:?}"), |case| {
            let (n, k) = (31, 20);
            let (a, b, mut want) = product(case, Layout::Nt, m, n, k, element);
            let (bias, residual, y) =
                (case.input(1, n, element), case.input(m, n, element), case.input(m, n, element));
            for (i, w) in want.iter_mut().enumerate() {
                *w = f64::from(factor.unwrap_or(1.0)) * (*w + bias.values[i % n as usize]);
                *w += residual.values[i] + y.values[i];
            }
            let epilogue = Epilogue {
                factor,
                bias: Some(bias.tensor),
                residual: Some(residual.tensor),
                accumulate: true,
                ..Default::default()
            };
            matmul(&mut case.rec, Layout::Nt, a, b, y.tensor, epilogue);
            case.expect("y", y.tensor, want, allowed(element, k));
        });
    }
}

#[test]
fn matmul_accumulates_gradients_in_f32() {
    check("matmul gradient of bf16 factors", |case| {
        let (m, n, k) = (31, 33, 40);
        let (a, b, mut want) = product(case, Layout::Tn, m, n, k, Bf16);
        let y = case.input(m, n, F32);
        want.iter_mut().zip(&y.values).for_each(|(w, y)| *w += y);
        matmul(
            &mut case.rec,
            Layout::Tn,
            a,
            b,
            y.tensor,
            Epilogue { accumulate: true, ..Default::default() },
        );
        case.expect("y", y.tensor, want, allowed(F32, k));
    });
}

/// 2 x 5 tiles of 128 x 128, which `portable` uses on a GPU of one unit. The last tile of each row and column is cut
/// off, and k is no multiple of a step.
const LARGE: (u32, u32, u32) = (200, 610, 37);

#[test]
fn large_products_of_every_layout() {
    for layout in [Layout::Nt, Layout::Nn, Layout::Tn] {
        check_large(&format!("{layout:?}"), |case| {
            let (m, n, k) = LARGE;
            uses_large_tiles(case, layout);
            let (a, b, want) = product(case, layout, m, n, k, F32);
            let y = case.output(m, n, F32);
            matmul(&mut case.rec, layout, a, b, y, Epilogue::default());
            case.expect("y", y, want, allowed(F32, k));
        });
    }
}

#[test]
fn large_products_with_epilogues() {
    check_large("Nt, factor, bias and residual, Bf16", |case| {
        let (m, n, k) = LARGE;
        uses_large_tiles(case, Layout::Nt);
        let (a, b, mut want) = product(case, Layout::Nt, m, n, k, Bf16);
        let (bias, residual, y) = (case.input(1, n, Bf16), case.input(m, n, Bf16), case.output(m, n, Bf16));
        for (i, w) in want.iter_mut().enumerate() {
            *w = f64::from(FACTOR) * (*w + bias.values[i % n as usize]) + residual.values[i];
        }
        let (bias, residual) = (Some(bias.tensor), Some(residual.tensor));
        let epilogue = Epilogue { factor: Some(FACTOR), bias, residual, ..Default::default() };
        matmul(&mut case.rec, Layout::Nt, a, b, y, epilogue);
        case.expect("y", y, want, allowed(Bf16, k));
    });
    check_large("Tn, factor, added to an f32 gradient, Bf16", |case| {
        let (m, n, k) = LARGE;
        uses_large_tiles(case, Layout::Tn);
        let (a, b, mut want) = product(case, Layout::Tn, m, n, k, Bf16);
        let y = case.input(m, n, F32);
        want.iter_mut().zip(&y.values).for_each(|(w, y)| *w = f64::from(FACTOR) * *w + y);
        let epilogue = Epilogue { factor: Some(FACTOR), accumulate: true, ..Epilogue::default() };
        matmul(&mut case.rec, Layout::Tn, a, b, y.tensor, epilogue);
        case.expect("y", y.tensor, want, allowed(F32, k));
    });
}

/// Both formats of weights, in the products that read them: forward, and the input's gradient.
#[test]
pub fn weights_may_be_quantised() {
    for weights in [Nf4, Int8] {
        for layout in [Layout::Nt, Layout::Nn] {
            for (m, n, k) in MATMUL_SHAPES {
                check(&format!("matmul {layout:?} {m}x{n}x{k} of {weights:?}"), |case| {
                    let (a, b, want) = product_of(case, layout, (m, n, k), [F32, weights]);
                    let y = case.output(m, n, F32);
                    matmul(&mut case.rec, layout, a, b, y, Epilogue::default());
                    let allowed = case.allowed([F32, weights], k);
                    case.expect("y", y, want, allowed);
                });
            }
            for element in [F16, Bf16] {
                check(&format!("matmul {layout:?} of {element:?} and {weights:?}"), |case| {
                    let (m, n, k) = (33, 65, 131);
                    let (a, b, want) = product_of(case, layout, (m, n, k), [element, weights]);
                    let y = case.output(m, n, element);
                    matmul(&mut case.rec, layout, a, b, y, Epilogue::default());
                    let allowed = case.allowed([element, weights], k);
                    case.expect("y", y, want, allowed);
                });
            }
            check_large(&format!("{layout:?} of {weights:?}"), |case| {
                let (m, n, k) = LARGE;
                uses_large_tiles(case, layout);
                let (a, b, want) = product_of(case, layout, LARGE, [Bf16, weights]);
                let y = case.output(m, n, Bf16);
                matmul(&mut case.rec, layout, a, b, y, Epilogue::default());
                let allowed = case.allowed([Bf16, weights], k);
                case.expect("y", y, want, allowed);
            });
            let (m, n, k, parts) = SPLIT[1];
            check_tier(&format!("matmul {layout:?} of {weights:?} in parts"), Tier::Portable, &|case| {
                is_split(case, Problem { layout, m, n, k }, parts);
                let (a, b, want) = product_of(case, layout, (m, n, k), [Bf16, weights]);
                let y = case.output(m, n, Bf16);
                matmul(&mut case.rec, layout, a, b, y, Epilogue::default());
                let allowed = case.allowed([Bf16, weights], k);
                case.expect("y", y, want, allowed);
            });
        }
    }
}

/// A matrix of an arena starts at any block of its buffer, and a layer may read some of its rows.
#[test]
fn quantised_rows_start_at_any_block() {
    for (factors, m) in [([F32, Nf4], 3), ([F32, Int8], 3), ([F16, Nf4], 5), ([Bf16, Int8], 5)] {
        check(&format!("matmul on rows of {factors:?}"), |case| {
            let (n, k, first) = (9, 70, 77);
            let (a, b) = (case.input(m, k, factors[0]), case.input(first + n + 3, k, factors[1]));
            let rows = &b.values[(first * k) as usize..((first + n) * k) as usize];
            let want = reference::matmul::matmul_nt(&a.values, rows, m as usize, n as usize, k as usize);
            let y = case.output(m, n, factors[0]);
            matmul(&mut case.rec, Layout::Nt, a.tensor, b.tensor.rows(first, n), y, Epilogue::default());
            let allowed = case.allowed(factors, k);
            case.expect("y", y, want, allowed);
        });
    }
}

fn check_large(name: &str, build: impl Fn(&mut Case)) {
    let (m, n, k) = LARGE;
    check_units(&format!("matmul {m}x{n}x{k} {name}"), 1, &build);
}

fn uses_large_tiles(case: &Case, layout: Layout) {
    uses_tiles(case, layout, LARGE, [2, 2]);
}

/// Asserts that an invocation computes so many groups of 4 rows and of 4 columns.
fn uses_tiles(case: &Case, layout: Layout, (m, n, k): (u32, u32, u32), [rows4, columns4]: [u32; 2]) {
    let kernel = plan(Problem { layout, m, n, k }, F32, case.rec.capabilities()).kernel;
    let has = |constant| kernel.constants().contains(&constant);
    assert!(has(("TM4", rows4)) && has(("TN4", columns4)), "{layout:?}: the plan has another tile: {kernel}");
}

/// Few rows or few columns, for which `portable` uses tiles of 64 x 128 or of 128 x 64 on a GPU of one unit; with the
/// groups of 4 rows and columns of an invocation.
const NARROW: [((u32, u32, u32), [u32; 2]); 2] = [((33, 1000, 37), [1, 2]), ((1000, 33, 37), [2, 1])];

#[test]
fn narrow_products_of_every_layout() {
    for ((m, n, k), tile) in NARROW {
        for (layout, element) in [(Layout::Nt, F32), (Layout::Nn, F32), (Layout::Tn, F32), (Layout::Nt, Bf16)]
        {
            check_units(&format!("matmul {m}x{n}x{k} {layout:?} {element:?}"), 1, &|case| {
                uses_tiles(case, layout, (m, n, k), tile);
                let (a, b, want) = product(case, layout, m, n, k, element);
                let y = case.output(m, n, element);
                matmul(&mut case.rec, layout, a, b, y, Epilogue::default());
                case.expect("y", y, want, allowed(element, k));
            });
        }
    }
}

/// Few tiles with long sums, which `portable` splits: into parts of which the last is shorter and ends within a group
/// of 4. Two are the fewest, and 29 more than a GPU has for products of real sizes.
const SPLIT: [(u32, u32, u32, u32); 4] =
    [(70, 31, 610, 2), (70, 31, 1030, 4), (5, 65, 2570, 10), (5, 2, 7681, 29)];

#[test]
pub fn split_products_of_every_layout() {
    for element in [F32, F16, Bf16] {
        for layout in [Layout::Nt, Layout::Nn, Layout::Tn] {
            for (m, n, k, parts) in SPLIT {
                let name = format!("matmul {m}x{n}x{k} in {parts} parts, {layout:?} {element:?}");
                check_tier(&name, Tier::Portable, &|case| {
                    is_split(case, Problem { layout, m, n, k }, parts);
                    let (a, b, want) = product(case, layout, m, n, k, element);
                    let y = case.output(m, n, element);
                    matmul(&mut case.rec, layout, a, b, y, Epilogue::default());
                    case.expect("y", y, want, allowed(element, k));
                });
            }
        }
    }
}

#[test]
fn split_products_with_epilogues() {
    let (m, n, k, parts) = SPLIT[1];
    check_tier("matmul in parts, epilogue with a factor, Bf16", Tier::Portable, &|case| {
        is_split(case, Problem { layout: Layout::Nt, m, n, k }, parts);
        let (a, b, mut want) = product(case, Layout::Nt, m, n, k, Bf16);
        let (bias, residual, y) = (case.input(1, n, Bf16), case.input(m, n, Bf16), case.input(m, n, Bf16));
        for (i, w) in want.iter_mut().enumerate() {
            *w = f64::from(FACTOR) * (*w + bias.values[i % n as usize]) + residual.values[i] + y.values[i];
        }
        let (factor, bias, residual) = (Some(FACTOR), Some(bias.tensor), Some(residual.tensor));
        let epilogue = Epilogue { factor, bias, residual, accumulate: true, ..Default::default() };
        matmul(&mut case.rec, Layout::Nt, a, b, y.tensor, epilogue);
        case.expect("y", y.tensor, want, allowed(Bf16, k));
    });
    check_tier("matmul in parts, added to an f32 gradient, F16", Tier::Portable, &|case| {
        let n = 28;
        is_split(case, Problem { layout: Layout::Tn, m, n, k }, parts);
        let (a, b, mut want) = product(case, Layout::Tn, m, n, k, F16);
        // Columns of a wider tensor: parts and result have strides of their own.
        let y = case.input(m, n + 12, F32);
        for (row, y) in want.chunks_mut(n as usize).zip(y.values.chunks(n as usize + 12)) {
            row.iter_mut().zip(&y[8..]).for_each(|(w, y)| *w += y);
        }
        let epilogue = Epilogue { accumulate: true, ..Epilogue::default() };
        matmul(&mut case.rec, Layout::Tn, a, b, y.tensor.columns(8, n), epilogue);
        let mut whole = y.values.clone();
        for (row, sums) in whole.chunks_mut(n as usize + 12).zip(want.chunks(n as usize)) {
            row[8..8 + n as usize].copy_from_slice(sums);
        }
        case.expect("y", y.tensor, whole, allowed(F32, k));
    });
}

/// A tile of 128 x 128 on one unit, which has two workgroups if its sums are in two parts.
#[test]
fn large_tiles_of_split_products() {
    let (m, n, k) = (125, 125, 12301);
    for layout in [Layout::Nt, Layout::Nn, Layout::Tn] {
        check_units(&format!("matmul {layout:?} {m}x{n}x{k} in parts"), 1, &|case| {
            is_split(case, Problem { layout, m, n, k }, 2);
            uses_tiles(case, layout, (m, n, k), [2, 2]);
            let (a, b, want) = product(case, layout, m, n, k, F32);
            let y = case.output(m, n, F32);
            matmul(&mut case.rec, layout, a, b, y, Epilogue::default());
            case.expect("y", y, want, allowed(F32, k));
        });
    }
}

fn is_split(case: &Case, problem: Problem, parts: u32) {
    let plan = plan(problem, F32, case.rec.capabilities());
    assert_eq!((plan.grid[2], problem.k.div_ceil(plan.part_k)), (parts, parts), "{problem:?}: {plan:?}");
}

#[test]
fn matmul_works_on_column_ranges() {
    check("matmul on ranges of wider tensors", |case| {
        let (m, n, k) = (9, 12, 20);
        let (a, b) = (case.input(m, 44, F32), case.input(n, k, F32));
        let y = case.input(m, 40, F32);
        let part = columns(&a.values, 44, 8..28);
        let product = reference::matmul::matmul_nt(&part, &b.values, m as usize, n as usize, k as usize);
        let mut want = y.values.clone();
        for (r, row) in product.chunks(n as usize).enumerate() {
            want[r * 40 + 16..r * 40 + 28].copy_from_slice(row);
        }
        let (a, out) = (a.tensor.columns(8, k), y.tensor.columns(16, n));
        matmul(&mut case.rec, Layout::Nt, a, b.tensor, out, Epilogue::default());
        case.expect("y", y.tensor, want, allowed(F32, k));
    });
}

/// Random factors and their product.
pub fn product(
    case: &mut Case,
    layout: Layout,
    m: u32,
    n: u32,
    k: u32,
    element: Element,
) -> (Tensor, Tensor, Vec<f64>) {
    product_of(case, layout, (m, n, k), [element; 2])
}

/// The same for factors of two element types.
pub fn product_of(
    case: &mut Case,
    layout: Layout,
    (m, n, k): (u32, u32, u32),
    [of_a, of_b]: [Element; 2],
) -> (Tensor, Tensor, Vec<f64>) {
    let (a, b) = match layout {
        Layout::Nt => (case.input(m, k, of_a), case.input(n, k, of_b)),
        Layout::Nn => (case.input(m, k, of_a), case.input(k, n, of_b)),
        Layout::Tn => (case.input(k, m, of_a), case.input(k, n, of_b)),
    };
    let (m, n, k) = (m as usize, n as usize, k as usize);
    let want = match layout {
        Layout::Nt => reference::matmul::matmul_nt(&a.values, &b.values, m, n, k),
        Layout::Nn => reference::matmul::matmul_nn(&a.values, &b.values, m, n, k),
        Layout::Tn => reference::matmul::matmul_tn(&a.values, &b.values, m, n, k),
    };
    (a.tensor, b.tensor, want)
}
