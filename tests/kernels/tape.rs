//! Every op of the tape in the middle of a graph: the incoming gradient is not 1, the input has a second user, and the
//! gradients are the reference's.

use crate::lab::{Case, Input, allowed, check, order_by_id, sum};
use crate::norms_and_sums::{factors, of_weights};
use crate::packed::{columns, pack_gate_up, pack_qkv, split_gate_up, split_qkv};
use gristmill::element::Element::F32;
use gristmill::ops::attention::{Attention, DocumentBounds};
use gristmill::ops::gelu::Gelu;
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::latent_heads::{Angles, LatentHeads, LatentParts};
use gristmill::ops::layer_norm::LayerNorm;
use gristmill::ops::qk_norm::Values;
use gristmill::ops::rms_norm::RmsNorm;
use gristmill::ops::rope::{Rope, cos_sin_table};
use gristmill::ops::rope_scaling::RopeScaling;
use gristmill::ops::swiglu::{Gate, gate_up_cols};
use gristmill::ops::work_list::WorkList;
use gristmill::tape::{LowRankMap, Parameter, Tape, Var};

const N: u32 = 10;
const LAYOUT: HeadLayout = HeadLayout { heads: 4, kv_heads: 2, head_dim: 8, value_dim: 8 };

/// A parameter, and the contents of its gradient before the backward pass.
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

fn expect_weight(case: &mut Case, label: &str, weight: &Weight, gradient: &[f64], terms: u32) {
    let want = sum(&weight.before, gradient);
    let tensor = weight.parameter.gradient().expect("it trains");
    case.expect(label, tensor, want, allowed(F32, terms));
}

/// Runs `op` on a leaf x, gives the result a gradient `dy` and the leaf, as if by a residual, a gradient `dx0`, and
/// expects x's gradient to be dx0 plus the reference's.
fn mid_graph(
    case: &mut Case,
    x: &Input,
    cols: u32,
    terms: u32,
    op: impl for<'a> Fn(&mut Tape<'_, 'a>, Var, &'a [Weight]) -> Var,
    weights: &[Weight],
    backward: impl Fn(&[f64]) -> (Vec<f64>, Vec<Vec<f64>>),
) {
    let (dy, dx0) = (case.input(N, cols, F32), case.input(N, x.tensor.cols, F32));
    let mut tape = Tape::new(&mut case.rec);
    let leaf = tape.leaf(x.tensor, true);
    tape.give(leaf, dx0.tensor);
    let y = op(&mut tape, leaf, weights);
    tape.give(y, dy.tensor);
    tape.backward();
    let gradient = tape.gradient(leaf).expect("x needs a gradient");
    let (dx, dw) = backward(&dy.values);
    case.expect("dx", gradient, sum(&dx, &dx0.values), 4.0 * allowed(F32, terms));
    for (i, (weight, dw)) in weights.iter().zip(&dw).enumerate() {
        expect_weight(case, &format!("dw {i}"), weight, dw, terms);
    }
}

#[test]
fn linear() {
    check("tape linear", |case| {
        let (k, m) = (12u32, 9u32);
        let x = case.input(N, k, F32);
        let weights = [weight(case, m, k), weight(case, 1, m)];
        let (values, w) = (x.values.clone(), weights[0].values.clone());
        mid_graph(
            case,
            &x,
            m,
            m + N,
            |tape, x, w| tape.linear(x, &w[0].parameter, Some(&w[1].parameter), None),
            &weights,
            |dy| {
                let (n, m, k) = (N as usize, m as usize, k as usize);
                let (dx, dw, db) = reference::matmul::linear_backward(&values, &w, dy, n, m, k);
                (dx, vec![dw, db])
            },
        );
    });
}

/// A term of a residual stream, times a factor: residual, product and bias.
#[test]
fn scaled_linear() {
    check("tape scaled linear", |case| {
        let (k, factor) = (9u32, 0.75f32);
        let x = case.input(N, k, F32);
        let weights = [weight(case, k, k), weight(case, 1, k)];
        let (values, w) = (x.values.clone(), weights[0].values.clone());
        mid_graph(
            case,
            &x,
            k,
            k + N,
            |tape, x, w| {
                let (w, bias) = (&w[0].parameter, &w[1].parameter);
                tape.scaled_linear(x, w, Some(bias), Some(x), Some(factor))
            },
            &weights,
            |dy| {
                let (n, k) = (N as usize, k as usize);
                let scaled: Vec<f64> = dy.iter().map(|dy| f64::from(factor) * dy).collect();
                let (dx, dw, db) = reference::matmul::linear_backward(&values, &w, &scaled, n, k, k);
                (sum(&dx, dy), vec![dw, db])
            },
        );
    });
}

/// Rank 3 and a last range of 9 columns, neither a multiple of 4; between the ranges lie columns that nothing adds to.
#[test]
fn low_rank() {
    low_rank_of("tape low rank", [3, 3], [None, None]);
}

/// The second map has fewer columns of B than there are.
#[test]
fn low_rank_of_several_ranks_and_factors() {
    low_rank_of("tape low rank of several ranks", [3, 2], [Some(0.25), Some(1.5)]);
}

fn low_rank_of(label: &str, ranks: [u32; 2], own: [Option<f32>; 2]) {
    check(label, |case| {
        let (k, m, r) = (10u32, 21u32, 3u32);
        let ranges = [(0u32, 8u32), (12, 9)];
        let x = case.input(N, k, F32);
        let weights = [weight(case, m, k), stacked_weight(case, 2, r, k), weight(case, 17, r)];
        let values = x.values.clone();
        let [w, a, b] = [0, 1, 2].map(|i| weights[i].values.clone());
        let before = weights[2].before.clone();
        let factors = |i: usize| {
            let (first, rows) = ([0, 8][i], ranges[i].1 as usize);
            let a: Vec<f64> = a[i * 4 * k as usize..][..(ranks[i] * k) as usize].to_vec();
            let b = b[first * r as usize..][..rows * r as usize].chunks(r as usize);
            (a, b.flat_map(|row| row[..ranks[i] as usize].to_vec()).collect::<Vec<f64>>())
        };
        mid_graph(
            case,
            &x,
            m,
            m + N + k,
            |tape, x, w| {
                let y = tape.linear(x, &w[0].parameter, None, None);
                let z = tape.low_rank_down(x, &w[1].parameter, None, 0.5);
                let map = |i: usize| {
                    let (first, count) = ranges[i];
                    LowRankMap { first, count, rank: ranks[i], factor: own[i] }
                };
                tape.low_rank_up(y, z, &w[2].parameter, [0, 1].map(map).to_vec())
            },
            &weights,
            |dy| {
                let (n, k) = (N as usize, k as usize);
                let (mut dx, dw, _) = reference::matmul::linear_backward(&values, &w, dy, n, m as usize, k);
                let (mut da, mut db) = (Vec::new(), Vec::new());
                for (i, (first, count)) in ranges.into_iter().enumerate() {
                    let (a, b) = factors(i);
                    let dy = columns(dy, m, first as usize..(first + count) as usize);
                    let rank = ranks[i] as usize;
                    let scale = 0.5 * f64::from(own[i].unwrap_or(1.0));
                    let (dx_i, da_i, db_i) = reference::low_rank::low_rank_backward(
                        &values,
                        &a,
                        &b,
                        &dy,
                        scale,
                        [n, count as usize, k, rank],
                    );
                    dx = sum(&dx, &dx_i);
                    da.extend(da_i.into_iter().chain(vec![0.0; (4 - rank) * k])); // rows of padding
                    // Further columns of B are padding, which becomes zeros.
                    for (row, own) in db_i.chunks(rank).enumerate() {
                        let start = ([0, 8][i] + row) * r as usize;
                        let padding = before[start..][rank..r as usize].iter().map(|before| -before);
                        db.extend(own.iter().copied().chain(padding));
                    }
                }
                (dx, vec![dw, da, db])
            },
        );
    });
}

/// Three experts, of which one has no rows, with rank 3 and 21 outputs each.
#[test]
fn grouped_low_rank() {
    check("tape grouped low rank", |case| {
        let (k, m, r, sizes) = (10u32, 21u32, 3u32, [N - 2, 0, 2]);
        let x = case.input(N, k, F32);
        let weights = [weight(case, 3 * m, k), weight(case, 3 * r, k), weight(case, 3 * m, r)];
        let values = x.values.clone();
        let [w, a, b] = [0, 1, 2].map(|i| weights[i].values.clone());
        let starts = crate::grouped::starts(&sizes);
        let offsets = case.integers(&starts);
        let starts: Vec<usize> = starts.into_iter().map(|start| start as usize).collect();
        mid_graph(
            case,
            &x,
            m,
            m + N + k,
            |tape, x, w| {
                let work = WorkList::new(tape.rec, offsets, N);
                let y = tape.grouped_linear(x, &w[0].parameter, None, &work);
                let z = tape.grouped_low_rank_down(x, &w[1].parameter, &work, 0.5);
                tape.grouped_low_rank_up(y, z, &w[2].parameter, &work)
            },
            &weights,
            |dy| {
                let (k, m, r) = (k as usize, m as usize, r as usize);
                let (mut dx, dw) =
                    reference::grouped_matmul::grouped_matmul_backward(&values, &w, &starts, dy, m, k);
                let (mut da, mut db) = (Vec::new(), Vec::new());
                for (expert, range) in starts.windows(2).map(|range| range[0]..range[1]).enumerate() {
                    let (a, b) = (&a[expert * r * k..][..r * k], &b[expert * m * r..][..m * r]);
                    let (x, dy) =
                        (&values[range.start * k..range.end * k], &dy[range.start * m..range.end * m]);
                    let shape = [range.len(), m, k, r];
                    let (through, of_a, of_b) =
                        reference::low_rank::low_rank_backward(x, a, b, dy, 0.5, shape);
                    let rows = &mut dx[range.start * k..range.end * k];
                    rows.iter_mut().zip(through).for_each(|(dx, through)| *dx += through);
                    da.extend(of_a);
                    db.extend(of_b);
                }
                (dx, vec![dw, da, db])
            },
        );
    });
}

/// `count` matrices (rows, cols) on top of each other, each padded with rows of zeros to a multiple of 4.
fn stacked_weight(case: &mut Case, count: usize, rows: u32, cols: u32) -> Weight {
    let padded = rows.next_multiple_of(4);
    let row = |case: &mut Case, is_padding: bool| -> Vec<f64> {
        (0..cols).map(|_| if is_padding { 0.0 } else { case.normal() }).collect()
    };
    let values: Vec<f64> = (0..count as u32 * padded).flat_map(|i| row(case, i % padded >= rows)).collect();
    let values = case.input_of(&values, count as u32 * padded, cols, F32);
    let gradient = case.input(count as u32 * padded, cols, F32);
    let parameter = Parameter { weight: vec![values.tensor], gradient: Some(vec![gradient.tensor]) };
    Weight { parameter, values: values.values, before: gradient.values }
}

#[test]
fn join() {
    check("tape join", |case| {
        let x = case.input(N, 12, F32);
        mid_graph(
            case,
            &x,
            24,
            1,
            |tape, x, _| tape.join([x, x]),
            &[],
            |dy| (dy.chunks(24).flat_map(|row| sum(&row[..12], &row[12..])).collect(), vec![]),
        );
    });
}

/// A copy beside another reader, and one that is the only reader whose result has a gradient.
#[test]
fn copied_columns() {
    check("tape copied columns", |case| {
        let x = case.input(N, 20, F32);
        let widened = |dy: &[f64]| -> Vec<f64> {
            let row = |row: &[f64]| [&[0.0; 4][..], row, &[0.0; 4][..]].concat();
            dy.chunks(12).flat_map(row).collect()
        };
        let copy = |tape: &mut Tape<'_, '_>, x| tape.copied_columns(x, 4, 12);
        mid_graph(case, &x, 12, 1, |tape, x, _| copy(tape, x), &[], |dy| (widened(dy), vec![]));
        let dy = case.input(N, 12, F32);
        let mut tape = Tape::new(&mut case.rec);
        let leaf = tape.leaf(x.tensor, true);
        let y = copy(&mut tape, leaf);
        tape.give(y, dy.tensor);
        tape.backward();
        let gradient = tape.gradient(leaf).expect("x needs a gradient");
        let want = x.values.chunks(20).flat_map(|row| row[4..16].to_vec()).collect();
        case.expect("y", y.tensor, want, 0.0);
        case.expect("dx", gradient, widened(&dy.values), 0.0);
    });
}

#[test]
fn rms_norm() {
    check("tape rms_norm", |case| {
        let d = 13;
        let x = case.input(N, d, F32);
        let weights = [weight(case, 1, d)];
        let (values, w) = (x.values.clone(), weights[0].values.clone());
        mid_graph(
            case,
            &x,
            d,
            d + N,
            |tape, x, w| tape.rms_norm(x, &w[0].parameter, RmsNorm::new(1e-5)),
            &weights,
            |dy| {
                let (dx, dw) = reference::rms_norm::rms_norm_backward(&values, &w, dy, d as usize, 1e-5);
                (dx, vec![dw])
            },
        );
    });
}

/// x + norm(x): the residual takes the gradient of the sum itself, which the norm adds to.
#[test]
fn add_rms_norm() {
    check("tape add_rms_norm", |case| {
        let d = 13;
        let (x, weights) = (case.input(N, d, F32), [weight(case, 1, d)]);
        let norm = RmsNorm { epsilon: 1e-5, is_zero_centered: true, factor: Some(0.4) };
        let (values, w) = (x.values.clone(), factors(norm, &weights[0].values));
        mid_graph(
            case,
            &x,
            d,
            d + N,
            |tape, x, w| tape.add_rms_norm(x, x, &w[0].parameter, norm),
            &weights,
            |dy| {
                let (dx, dw) = reference::rms_norm::rms_norm_backward(&values, &w, dy, d as usize, 1e-5);
                (sum(&dx, dy), vec![of_weights(norm, &dw)])
            },
        );
    });
}

#[test]
fn layer_norm() {
    check("tape layer_norm", |case| {
        let d = 13;
        let x = case.input(N, d, F32);
        let weights = [weight(case, 1, d), weight(case, 1, d)];
        let (values, w) = (x.values.clone(), weights[0].values.clone());
        mid_graph(
            case,
            &x,
            d,
            d + N,
            |tape, x, w| {
                let (w, b) = (&w[0].parameter, Some(&w[1].parameter));
                tape.layer_norm(x, w, b, LayerNorm::new(1e-5))
            },
            &weights,
            |dy| {
                let (dx, dw, db) =
                    reference::layer_norm::layer_norm_backward(&values, &w, dy, d as usize, 1e-5);
                (dx, vec![dw, db])
            },
        );
    });
}

#[test]
fn gelu() {
    for (kind, formula) in
        [(Gelu::Exact, reference::gelu::Gelu::Exact), (Gelu::Tanh, reference::gelu::Gelu::Tanh)]
    {
        check(&format!("tape gelu {kind:?}"), |case| {
            let x = case.input(N, 7, F32);
            let values = x.values.clone();
            mid_graph(
                case,
                &x,
                7,
                8,
                |tape, x, _| tape.gelu(x, kind),
                &[],
                |dy| (reference::gelu::gelu_backward(&values, dy, formula), vec![]),
            );
        });
    }
}

#[test]
fn clip() {
    check("tape clip", |case| {
        let x = case.input(N, 7, F32);
        let values = x.values.clone();
        let of_dy = |dy: &[f64]| {
            let of = |(x, dy): (&f64, &f64)| if x.abs() > 0.5 { 0.0 } else { *dy };
            values.iter().zip(dy).map(of).collect()
        };
        mid_graph(case, &x, 7, 1, |tape, x, _| tape.clip(x, 0.5), &[], |dy| (of_dy(dy), vec![]));
    });
}

#[test]
fn scale_gates() {
    check("tape scale_gates", |case| {
        let (chosen, experts) = (3, 5);
        let (gates, scale) = (case.input(N, chosen, F32), weight(case, 1, experts));
        let ids: Vec<u32> = (0..N * chosen).map(|choice| (choice * choice + choice / 2) % experts).collect();
        let (dy, before) = (case.input(N, chosen, F32), case.input(N, chosen, F32));
        let on_device = case.integers(&ids);
        let mut tape = Tape::new(&mut case.rec);
        let leaf = tape.leaf(gates.tensor, true);
        tape.give(leaf, before.tensor);
        let y = tape.scale_gates(leaf, on_device, &scale.parameter);
        tape.give(y, dy.tensor);
        tape.backward();
        let gradient = tape.gradient(leaf).expect("gates need a gradient");
        let ids: Vec<usize> = ids.into_iter().map(|id| id as usize).collect();
        let (d_gates, d_scale) =
            reference::expert_scale::scale_gates_backward(&gates.values, &ids, &scale.values, &dy.values);
        case.expect("d gates", gradient, sum(&before.values, &d_gates), 4.0 * allowed(F32, 1));
        expect_weight(case, "scale", &scale, &d_scale, N * chosen);
    });
}

#[test]
fn xielu() {
    check("tape xielu", |case| {
        let x = case.input(N, 7, F32);
        let (values, alphas, constants) = (x.values.clone(), weight(case, 1, 2), [0.5, -0.0625]);
        let fixed = case.input_of(&constants, 1, 2, F32).tensor;
        let fixed = Parameter { weight: vec![fixed], gradient: None };
        let ([a, b], [beta, epsilon]) = ([alphas.values[0], alphas.values[1]], constants);
        let numbers = reference::xielu::Xielu { a, b, beta, epsilon };
        let fixed = &fixed;
        let (dy, dx0) = (case.input(N, 7, F32), case.input(N, 7, F32));
        let mut tape = Tape::new(&mut case.rec);
        let leaf = tape.leaf(x.tensor, true);
        tape.give(leaf, dx0.tensor);
        let y = tape.xielu(leaf, &alphas.parameter, fixed);
        tape.give(y, dy.tensor);
        tape.backward();
        let gradient = tape.gradient(leaf).expect("x needs a gradient");
        let (dx, of_numbers) = reference::xielu::xielu_backward(&values, &dy.values, numbers);
        case.expect("dx", gradient, sum(&dx, &dx0.values), 4.0 * allowed(F32, 8));
        expect_weight(case, "numbers", &alphas, &of_numbers, 7 * N);
    });
}

#[test]
fn swiglu() {
    let gelu = (Gate::Gelu(Gelu::Tanh), reference::swiglu::Gate::Gelu(reference::gelu::Gelu::Tanh));
    for (width, (gate_kind, formula)) in [
        (12u32, (Gate::Silu, reference::swiglu::Gate::Silu)),
        (7, (Gate::Silu, reference::swiglu::Gate::Silu)),
        (7, gelu),
    ] {
        check(&format!("tape swiglu {gate_kind:?} {width}"), |case| {
            let [gate, up] = [0; 2].map(|_| (0..N * width).map(|_| case.normal()).collect::<Vec<f64>>());
            let x = case.input_of(&pack_gate_up(&gate, &up, width), N, gate_up_cols(width), F32);
            let [gate, up] = split_gate_up(&x.values, width);
            mid_graph(
                case,
                &x,
                width,
                8,
                |tape, x, _| tape.swiglu(x, width, gate_kind),
                &[],
                |dy| {
                    let (d_gate, d_up) = reference::swiglu::gated_backward(&gate, &up, dy, formula);
                    (pack_gate_up(&d_gate, &d_up, width), vec![])
                },
            );
        });
    }
}

#[test]
fn rope() {
    check("tape rope", |case| {
        let settings = Rope { rotary_dim: 6, theta: 100.0, is_interleaved: false };
        let x = case.input(N, LAYOUT.cols(), F32);
        let ids: Vec<u32> = (0..N).map(|n| (n * 3) % 16).collect();
        let positions = case.integers(&ids);
        let table: Vec<f64> =
            cos_sin_table(16, &settings, &RopeScaling::None, None).into_iter().map(f64::from).collect();
        let cos_sin = case.input_of(&columns(&table, 8, 0..6), 16, 6, F32).tensor;
        mid_graph(
            case,
            &x,
            LAYOUT.cols(),
            4,
            |tape, x, _| tape.rope(x, positions, cos_sin, LAYOUT, settings),
            &[],
            |dy| {
                let settings = reference::rope::Rope {
                    head_dim: 8,
                    rotary_dim: 6,
                    theta: 100.0,
                    interleaved: false,
                    scaling: reference::rope_scaling::Scaling::None,
                };
                let mut parts = split_qkv(dy, &LAYOUT);
                reference::rope::rope_backward(&mut parts[0], &ids, 4, &settings);
                reference::rope::rope_backward(&mut parts[1], &ids, 2, &settings);
                (pack_qkv(&parts, &LAYOUT), vec![])
            },
        );
    });
}

/// The parts of one value, one of them through a norm and a product: each writes its range of the gradient.
#[test]
fn latent_heads_of_parts() {
    const HEADS: LatentHeads =
        LatentHeads { heads: 3, nope_dim: 8, rope_dim: 4, is_interleaved: false, value_dim: 12 };
    const WIDTHS: [u32; 3] = [36, 8, 4];
    check("tape latent_heads", |case| {
        let x = case.input(N, 48, F32);
        let weights = [weight(case, 1, 8), weight(case, HEADS.kv_cols(), 8)];
        let ids: Vec<u32> = (0..N).map(|n| (n * 3) % 16).collect();
        let rope = Rope { rotary_dim: 4, theta: 100.0, is_interleaved: HEADS.is_interleaved };
        let table: Vec<f64> =
            cos_sin_table(16, &rope, &RopeScaling::None, None).into_iter().map(f64::from).collect();
        let cos_sin = case.input_of(&table, 16, 4, F32).tensor;
        let angles = Angles { positions: case.integers(&ids), cos_sin };
        let of_reference = reference::latent_heads::LatentHeads {
            heads: 3,
            nope_dim: 8,
            value_dim: 12,
            rope: reference::rope::Rope {
                head_dim: 4,
                rotary_dim: 4,
                theta: 100.0,
                interleaved: HEADS.is_interleaved,
                scaling: reference::rope_scaling::Scaling::None,
            },
        };
        let c = columns(&x.values, 48, 36..44);
        let [norm, up] = [0, 1].map(|i| weights[i].values.clone());
        mid_graph(
            case,
            &x,
            HEADS.layout().cols(),
            64,
            |tape, x, w| {
                let [q, c, k_rope] = tape.split(x, WIDTHS);
                let c = tape.rms_norm(c, &w[0].parameter, RmsNorm::new(1e-5));
                let kv = tape.linear(c, &w[1].parameter, None, None);
                tape.latent_heads(LatentParts { q, kv, k_rope }, angles, HEADS)
            },
            &weights,
            |dy| {
                let [dq, dk, dv] = split_qkv(dy, &HEADS.layout());
                let (dq, dkv, dk_rope) =
                    reference::latent_heads::latent_heads_backward(&dq, &dk, &dv, &ids, &of_reference);
                let normed = reference::rms_norm::rms_norm(&c, &norm, 8, 1e-5);
                let (n, m) = (N as usize, HEADS.kv_cols() as usize);
                let (dnormed, dup, _) = reference::matmul::linear_backward(&normed, &up, &dkv, n, m, 8);
                let (dc, dnorm) = reference::rms_norm::rms_norm_backward(&c, &norm, &dnormed, 8, 1e-5);
                let rows = dq.chunks(36).zip(dc.chunks(8)).zip(dk_rope.chunks(4));
                (rows.flat_map(|((dq, dc), dk_rope)| [dq, dc, dk_rope].concat()).collect(), vec![dnorm, dup])
            },
        );
    });
}

#[test]
fn attention() {
    for (soft_cap, has_alibi, has_sinks) in
        [(Some(1.5), false, false), (None, true, false), (None, false, true)]
    {
        check(&format!("tape attention, cap {soft_cap:?} sinks {has_sinks}"), |case| {
            let x = case.input(N, LAYOUT.cols(), F32);
            let settings = Attention {
                layout: LAYOUT,
                tokens: 5,
                is_causal: true,
                scale: 0.4,
                soft_cap: soft_cap.map(|cap: f64| cap as f32),
                window: Some(4),
                has_alibi,
                head_range: None,
                dropout: None,
            };
            let documents = DocumentBounds {
                starts: case.integers(&[0, 0, 2, 2, 2, 0, 0, 0, 0, 0]),
                ends: case.integers(&[2, 2, 5, 5, 5, 5, 5, 5, 5, 5]),
            };
            let values = x.values.clone();
            let sinks: Vec<Weight> =
                (0..u32::from(has_sinks)).map(|_| weight(case, 1, LAYOUT.heads)).collect();
            let of_heads = sinks.first().map(|sinks| sinks.values.clone());
            mid_graph(
                case,
                &x,
                LAYOUT.q_cols(),
                16,
                |tape, x, w| {
                    let sinks = w.first().map(|sinks| &sinks.parameter);
                    tape.attention(x, Some(documents), settings, sinks, None)
                },
                &sinks,
                |dy| {
                    let settings = reference::attention::Attention {
                        tokens: 5,
                        heads: 4,
                        kv_heads: 2,
                        head_dim: 8,
                        value_dim: 8,
                        causal: true,
                        scale: 0.4f32 as f64,
                        soft_cap,
                        window: Some(4),
                        starts: Some(&[0, 0, 2, 2, 2, 0, 0, 0, 0, 0]),
                        factors: None,
                        alibi: has_alibi,
                        sinks: of_heads.as_deref(),
                    };
                    let [q, k, v] = split_qkv(&values, &LAYOUT);
                    let (dq, dk, dv) = reference::attention::attention_backward(&q, &k, &v, dy, &settings);
                    let dsinks = of_heads
                        .as_ref()
                        .map(|_| reference::attention::sinks_backward(&q, &k, &v, dy, &settings));
                    (pack_qkv(&[dq, dk, dv], &LAYOUT), dsinks.into_iter().collect())
                },
            );
        });
    }
}

/// q and k each normalised over all their heads; v is copied, and so is its gradient.
#[test]
fn joint_qk_norm() {
    check("tape joint_qk_norm", |case| {
        let x = case.input(N, LAYOUT.cols(), F32);
        let [q_cols, k_cols] = [32, 16];
        let weights = [weight(case, 1, q_cols as u32), weight(case, 1, k_cols as u32)];
        let norm = RmsNorm { is_zero_centered: true, ..RmsNorm::new(1e-6) };
        let [wq, wk] = [0, 1].map(|i: usize| factors(norm, &weights[i].values));
        let [q, k, v] = split_qkv(&x.values, &LAYOUT);
        let normed = |x: &[f64], w: &[f64]| reference::rms_norm::rms_norm(x, w, w.len(), 1e-6);
        let want = pack_qkv(&[normed(&q, &wq), normed(&k, &wk), v], &LAYOUT);
        let result = std::cell::Cell::new(None);
        mid_graph(
            case,
            &x,
            LAYOUT.cols(),
            q_cols as u32 + N,
            |tape, x, w| {
                let y = tape.joint_qk_norm(x, [&w[0].parameter, &w[1].parameter], LAYOUT, norm);
                result.set(Some(y.tensor));
                y
            },
            &weights,
            |dy| {
                let [dq, dk, dv] = split_qkv(dy, &LAYOUT);
                let (dq, dwq) = reference::rms_norm::rms_norm_backward(&q, &wq, &dq, q_cols, 1e-6);
                let (dk, dwk) = reference::rms_norm::rms_norm_backward(&k, &wk, &dk, k_cols, 1e-6);
                (pack_qkv(&[dq, dk, dv], &LAYOUT), vec![dwq, dwk])
            },
        );
        case.expect("y", result.get().expect("recorded"), want, allowed(F32, q_cols as u32));
    });
}

#[test]
fn qk_norm() {
    check("tape qk_norm", |case| {
        let x = case.input(N, LAYOUT.cols(), F32);
        let weights = [weight(case, 1, 8), weight(case, 1, 8)];
        let (values, wq, wk) = (x.values.clone(), weights[0].values.clone(), weights[1].values.clone());
        let [q, k, v] = split_qkv(&values, &LAYOUT);
        let want = pack_qkv(
            &[
                reference::rms_norm::rms_norm(&q, &wq, 8, 1e-6),
                reference::rms_norm::rms_norm(&k, &wk, 8, 1e-6),
                v.clone(),
            ],
            &LAYOUT,
        );
        let result = std::cell::Cell::new(None);
        mid_graph(
            case,
            &x,
            LAYOUT.cols(),
            8 + N * 4,
            |tape, x, w| {
                let weights = (&w[0].parameter, Some(&w[1].parameter));
                let y = tape.qk_norm(x, weights, Values::Plain, LAYOUT, RmsNorm::new(1e-6));
                result.set(Some(y.tensor));
                y
            },
            &weights,
            |dy| {
                let [dq, dk, dv] = split_qkv(dy, &LAYOUT);
                let (dq, dwq) = reference::rms_norm::rms_norm_backward(&q, &wq, &dq, 8, 1e-6);
                let (dk, dwk) = reference::rms_norm::rms_norm_backward(&k, &wk, &dk, 8, 1e-6);
                (pack_qkv(&[dq, dk, dv], &LAYOUT), vec![dwq, dwk])
            },
        );
        case.expect("y", result.get().expect("recorded"), want, allowed(F32, 8));
    });
}

/// Weights and biases that all heads share.
#[test]
fn qk_layer_norm() {
    check("tape qk_layer_norm", |case| {
        let x = case.input(N, LAYOUT.cols(), F32);
        let weights = [weight(case, 1, 8), weight(case, 1, 8), weight(case, 1, 8), weight(case, 1, 8)];
        let [wq, wk, bq, bk] = [0, 1, 2, 3].map(|i| weights[i].values.clone());
        let [q, k, v] = split_qkv(&x.values, &LAYOUT);
        let norm = |x: &[f64], w: &[f64], b: &[f64]| reference::layer_norm::layer_norm(x, w, b, 8, 1e-2);
        let want = pack_qkv(&[norm(&q, &wq, &bq), norm(&k, &wk, &bk), v.clone()], &LAYOUT);
        let result = std::cell::Cell::new(None);
        mid_graph(
            case,
            &x,
            LAYOUT.cols(),
            16 + N * 4,
            |tape, x, w| {
                let [wq, wk, bq, bk] = [0, 1, 2, 3].map(|i| &w[i].parameter);
                let y = tape.qk_layer_norm(x, [wq, wk], Some([bq, bk]), LAYOUT, LayerNorm::new(1e-2));
                result.set(Some(y.tensor));
                y
            },
            &weights,
            |dy| {
                let [dq, dk, dv] = split_qkv(dy, &LAYOUT);
                let backward = reference::layer_norm::layer_norm_backward;
                let (dq, dwq, dbq) = backward(&q, &wq, &dq, 8, 1e-2);
                let (dk, dwk, dbk) = backward(&k, &wk, &dk, 8, 1e-2);
                (pack_qkv(&[dq, dk, dv], &LAYOUT), vec![dwq, dwk, dbq, dbk])
            },
        );
        case.expect("y", result.get().expect("recorded"), want, allowed(F32, 8));
    });
}

#[test]
fn embedding_adds_to_its_table() {
    check("tape embedding", |case| {
        let (ids, order) = ([3u32, 1, 3, 0, 3, 1, 2, 0, 3, 3], [3u32, 7, 1, 5, 6, 0, 2, 4, 8, 9]);
        let table = weight(case, 5, 6);
        let dy = case.input(N, 6, F32);
        let (ids_tensor, order) = (case.integers(&ids), case.integers(&order));
        let mut tape = Tape::new(&mut case.rec);
        let y = tape.embedding(ids_tensor, order, &table.parameter, Some(0.75), F32);
        tape.give(y, dy.tensor);
        tape.backward();
        let want = reference::embedding::embedding_backward(&dy.values, &ids, 5, 6);
        let want: Vec<f64> = want.iter().map(|sum| 0.75 * sum).collect();
        expect_weight(case, "dtable", &table, &want, N);
    });
}

/// Positions repeat and restart, and the table has two rows before theirs; x passes its gradient on unchanged.
#[test]
fn embedding_added_in_place() {
    check("tape add_embedding", |case| {
        let positions = [0u32, 1, 2, 0, 1, 0, 1, 2, 3, 4];
        let x = case.input(N, 6, F32);
        let weights = [weight(case, 8, 6)];
        let (ids, order) = (case.integers(&positions), case.integers(&order_by_id(&positions)));
        let places = positions.map(|position| position + 2);
        let rows = reference::embedding::embedding(&weights[0].values, &places, 6);
        let want = sum(&x.values, &rows);
        mid_graph(
            case,
            &x,
            6,
            N,
            |tape, x, w| tape.add_embedding(x, [ids, order], (&w[0].parameter, 2), true),
            &weights,
            |dy| (dy.to_vec(), vec![reference::embedding::embedding_backward(dy, &places, 8, 6)]),
        );
        case.expect("y", x.tensor, want, allowed(F32, 1));
    });
}

/// x + W rms_norm(x): the branch adds to the residual's gradient in place, with the block recomputed and without.
/// Embeddings of one of two layers, whose table has their rows side by side, on top of an even part of x.
#[test]
fn embedding_columns_added_to_parts() {
    check("tape embedding of columns", |case| {
        let ids = [3u32, 1, 3, 0, 3, 1, 2, 0, 3, 3];
        let (ids, order) = (case.integers(&ids), case.integers(&order_by_id(&ids)));
        let x = case.input(N, 16, F32);
        let table = [weight(case, 5, 16)];
        let at = [3usize, 1, 3, 0, 3, 1, 2, 0, 3, 3];
        mid_graph(
            case,
            &x,
            16,
            2 * N,
            |tape, x, w| {
                let parts = tape.split_evenly(x, 2);
                let [first, second] = [0, 1].map(|part: u32| {
                    let part_of_x = tape.copied_columns(parts[part as usize], 0, 8);
                    tape.add_embedding_columns(part_of_x, [ids, order], (&w[0].parameter, 8 * part), 0.5)
                });
                tape.join([second, first])
            },
            &table,
            |dy| {
                let swapped: Vec<f64> =
                    dy.chunks(16).flat_map(|row| [&row[8..], &row[..8]].concat()).collect();
                let mut dtable = vec![0.0; 5 * 16];
                for (row, id) in swapped.chunks(16).zip(at) {
                    dtable[id * 16..][..16].iter_mut().zip(row).for_each(|(sum, dy)| *sum += 0.5 * dy);
                }
                (swapped, vec![dtable])
            },
        );
    });
}

#[test]
fn residual_and_checkpoint() {
    for recompute in [false, true] {
        check(&format!("tape block, recomputed: {recompute}"), |case| {
            let d = 12;
            let (x, dy) = (case.input(N, d, F32), case.input(N, d, F32));
            let (norm, w) = (weight(case, 1, d), weight(case, d, d));
            let mut tape = Tape::new(&mut case.rec);
            let leaf = tape.leaf(x.tensor, true);
            let (p, q) = (&norm.parameter, &w.parameter);
            let y = tape.recompute(
                move |_| recompute,
                |tape| {
                    let h = tape.rms_norm(leaf, p, RmsNorm::new(1e-5));
                    tape.linear(h, q, None, Some(leaf))
                },
            );
            tape.give(y, dy.tensor);
            tape.backward();
            let gradient = tape.gradient(leaf).expect("x needs a gradient");
            let (n, d) = (N as usize, d as usize);
            let h = reference::rms_norm::rms_norm(&x.values, &norm.values, d, 1e-5);
            let (dh, dw, _) = reference::matmul::linear_backward(&h, &w.values, &dy.values, n, d, d);
            let (dx, dnorm) = reference::rms_norm::rms_norm_backward(&x.values, &norm.values, &dh, d, 1e-5);
            case.expect("dx", gradient, sum(&dx, &dy.values), 4.0 * allowed(F32, 24));
            expect_weight(case, "dw", &w, &dw, 24);
            expect_weight(case, "dnorm", &norm, &dnorm, 24);
        });
    }
}

/// A frozen weight gets no gradient, but its input does.
#[test]
fn frozen_weights_have_no_gradient() {
    check("tape frozen", |case| {
        let (x, w, dy) = (case.input(N, 8, F32), case.input(6, 8, F32), case.input(N, 6, F32));
        let frozen = Parameter { weight: vec![w.tensor], gradient: None };
        let mut tape = Tape::new(&mut case.rec);
        let leaf = tape.leaf(x.tensor, true);
        let y = tape.linear(leaf, &frozen, None, None);
        tape.give(y, dy.tensor);
        tape.backward();
        let gradient = tape.gradient(leaf).expect("x needs a gradient");
        let want = reference::matmul::matmul_nn(&dy.values, &w.values, N as usize, 8, 6);
        case.expect("dx", gradient, want, allowed(F32, 6));
    });
}
