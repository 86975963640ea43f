//! The router against the f64 reference, alone and on the tape.

use crate::lab::{Case, allowed, check, sum};
use crate::routing::{
    ACCUMULATION, SCALE, Shape, bias_of, expect_ids, formula, gates_gradient, gradient_bound, outputs,
    score_bound, shape, shapes,
};
use gristmill::element::Element::F32;
use gristmill::ops::balance::{Balance, BalanceGradient};
use gristmill::ops::route::{GroupScore, route, route_backward};
use gristmill::ops::step_state::StepState;
use gristmill::ops::tally::{TallyColumns, tally_columns};
use gristmill::tape::{RouterLosses, Tape};
use reference::balance::{Factors, losses_backward};

#[test]
pub fn routes_and_their_backward() {
    for shape in shapes() {
        check(&format!("route {}", shape.name()), |case| {
            let (rows, e, k) = (shape.rows(), shape.route.experts, shape.route.chosen);
            let logits = case.input(rows, e, F32);
            let bias = bias_of(case, &shape);
            let out = outputs(case, &shape, shape.has_bias);
            route(&mut case.rec, &shape.route, logits.tensor, bias.as_ref().map(|b| b.tensor), &out);

            let r = formula(&shape.route);
            let scores = reference::route::scores(&logits.values, &r);
            let ids = reference::route::choose(&scores, bias.as_ref().map(|b| &b.values[..]), &r);
            let bound = score_bound(&shape);
            case.expect("gates", out.gates, reference::route::gates(&logits.values, &ids, &r), bound);
            let per_row = |f: &dyn Fn(usize) -> f64| (0..rows as usize).map(f).collect::<Vec<f64>>();
            let row = |t: usize| &scores[t * e as usize..][..e as usize];
            let lse = per_row(&|t| {
                logits.values[t * e as usize..][..e as usize].iter().map(|z| z.exp()).sum::<f64>().ln()
            });
            let chosen_sum =
                per_row(&|t| ids[t * k as usize..][..k as usize].iter().map(|&id| row(t)[id as usize]).sum());
            case.expect_columns("lse", out.statistics, 0..1, lse, bound);
            case.expect_columns("sum", out.statistics, 1..2, per_row(&|t| row(t).iter().sum()), bound);
            case.expect_columns("chosen sum", out.statistics, 2..3, chosen_sum, bound);
            case.expect("scores", out.scores, scores.clone(), bound);
            if let Some(unbiased) = out.unbiased {
                let want = reference::route::choose(&scores, None, &r);
                assert_ne!(want, ids, "the bias changes no choice, so it is not tested");
                expect_ids(case, "unbiased", unbiased, want);
            }

            let d_gates = case.input(rows, k, F32);
            let d_logits = case.output(rows, e, F32);
            let given = Some(d_gates.tensor);
            route_backward(&mut case.rec, &shape.route, &out, logits.tensor, given, None, d_logits);
            let (want, terms) = gates_gradient(&logits.values, &ids, &d_gates.values, &shape);
            case.expect_difference("d_logits", d_logits, want, gradient_bound(&shape), &terms);
            expect_ids(case, "ids", out.ids, ids);
        });
    }
}

/// The gates of SparseMixer are not its scores, and have a gradient of their own, beside that of the balance losses.
#[test]
pub fn sparse_mixers_and_their_backward() {
    const JITTERS: [(u32, u32, f32); 3] = [(37, 5, 0.2), (1, 130, 0.05), (9, 2, 0.0)];
    for (tokens, experts, jitter) in JITTERS {
        let shape = shape(1, tokens, experts, 2).sparse_mixer(jitter);
        check(&format!("sparse mixer {}", shape.name()), |case| {
            let logits = case.input(tokens, experts, F32);
            let out = outputs(case, &shape, false);
            route(&mut case.rec, &shape.route, logits.tensor, None, &out);
            let (e, jitter, scaling) = (experts as usize, f64::from(jitter), f64::from(shape.route.scaling));
            let rows = logits.values.chunks_exact(e);
            let ids: Vec<u32> =
                rows.flat_map(|z| reference::mixture::choose(z, None, 2)).map(|id| id as u32).collect();
            let own = reference::sparse_mixer::gates(&logits.values, &ids, e, jitter);
            assert!(jitter == 0.0 || own.iter().any(|gate| *gate < 0.99), "no expert is near another");
            let bound = score_bound(&shape);
            case.expect("gates", out.gates, own.iter().map(|gate| scaling * gate).collect(), bound);
            case.expect(
                "scores",
                out.scores,
                reference::route::scores(&logits.values, &formula(&shape.route)),
                bound,
            );

            let d_gates = case.input(tokens, 2, F32);
            let step = case.state(StepState { loss_scale: SCALE, ..StepState::default() });
            let d_scores = case.input(1, experts, F32);
            let balance = Balance { expert: 0.5, sequence: 0.0, z: 0.25, tokens, accumulation: ACCUMULATION };
            let gradient = BalanceGradient { balance, d_scores: Some(d_scores.tensor), step };
            let scaled: Vec<f64> = d_gates.values.iter().map(|dg| scaling * dg).collect();
            let through_gates =
                reference::sparse_mixer::gates_backward(&logits.values, &ids, &scaled, e, jitter);
            let seed = f64::from(SCALE) / f64::from(ACCUMULATION);
            let of_losses = softmax_gradient(&logits.values, &d_scores.values, seed, 0.25);
            for (d_gates, losses) in [
                (Some(d_gates.tensor), None),
                (Some(d_gates.tensor), Some(&gradient)),
                (None, Some(&gradient)),
            ] {
                let d_logits = case.output(tokens, experts, F32);
                route_backward(&mut case.rec, &shape.route, &out, logits.tensor, d_gates, losses, d_logits);
                let gates = through_gates.iter().map(|d| if d_gates.is_some() { *d } else { 0.0 });
                let losses = of_losses.iter().map(|d| if losses.is_some() { *d } else { 0.0 });
                let want: Vec<f64> = gates.zip(losses).map(|(one, other)| one + other).collect();
                case.expect_difference("d_logits", d_logits, want, gradient_bound(&shape), &through_gates);
            }
            expect_ids(case, "ids", out.ids, ids);
        });
    }
}

/// The gradient of logits (N, E) through their softmax, of whose columns `d_scores` (E) are the gradients, and through
/// the z loss of this factor, both times `seed`.
fn softmax_gradient(logits: &[f64], d_scores: &[f64], seed: f64, z: f64) -> Vec<f64> {
    let tokens = (logits.len() / d_scores.len()) as f64;
    let of_row = |row: &[f64]| {
        let lse = row.iter().map(|z| z.exp()).sum::<f64>().ln();
        let s: Vec<f64> = row.iter().map(|z| (z - lse).exp()).collect();
        let mean: f64 = s.iter().zip(d_scores).map(|(s, d)| s * d).sum();
        let slope = |(s, d): (&f64, &f64)| seed * s * (d - mean + 2.0 * z * lse / tokens);
        s.iter().zip(d_scores).map(slope).collect::<Vec<f64>>()
    };
    logits.chunks_exact(d_scores.len()).flat_map(of_row).collect()
}

/// Scores with few distinct values: almost every choice is a tie, between experts and between groups.
#[test]
fn ties_go_to_the_lower_index() {
    let plain = shape(1, 33, 40, 7);
    for shape in [
        plain,
        plain.sigmoid(),
        plain.groups(8, 3, GroupScore::Best),
        plain.groups(8, 3, GroupScore::BestTwo),
    ] {
        check(&format!("ties {}", shape.name()), |case| {
            let values: Vec<f64> = (0..33 * 40).map(|_| case.normal().round()).collect();
            let logits = case.input_of(&values, 33, 40, F32);
            let out = outputs(case, &shape, false);
            route(&mut case.rec, &shape.route, logits.tensor, None, &out);
            let r = formula(&shape.route);
            let want = reference::route::choose(&reference::route::scores(&logits.values, &r), None, &r);
            expect_ids(case, "ids", out.ids, want);
        });
    }
    check("all equal", |case| {
        let shape = shape(1, 5, 12, 3);
        let logits = case.input_of(&[0.75; 60], 5, 12, F32);
        let out = outputs(case, &shape, false);
        route(&mut case.rec, &shape.route, logits.tensor, None, &out);
        expect_ids(case, "ids", out.ids, [0, 1, 2].repeat(5));
    });
}

/// Non-finite logits show in the gates, and the ids stay valid indices.
#[test]
fn non_finite_logits() {
    let plain = shape(1, 6, 9, 4);
    let grouped = plain.groups(3, 2, GroupScore::BestTwo);
    for shape in [plain, plain.sigmoid(), grouped, grouped.sigmoid(), shape(1, 6, 9, 2).sparse_mixer(0.1)] {
        let k = shape.route.chosen as usize;
        check(&format!("not finite, {}", shape.name()), |case| {
            let mut values: Vec<f64> = (0..6 * 9).map(|_| case.normal()).collect();
            values[9 + 5] = f64::NAN;
            values[2 * 9..3 * 9].fill(f64::NAN);
            values[3 * 9 + 2] = f64::INFINITY;
            values[4 * 9..5 * 9].fill(f64::NEG_INFINITY);
            let logits = case.input_of(&values, 6, 9, F32);
            let out = outputs(case, &shape, false);
            route(&mut case.rec, &shape.route, logits.tensor, None, &out);
            case.expect_words("ids", out.ids, move |words| {
                for row in words.chunks(k).take(6) {
                    let mut row = row.to_vec();
                    row.sort_unstable();
                    row.dedup();
                    assert!(row.len() == k && row[k - 1] < 9, "not {k} different experts: {words:?}");
                }
            });
            let is_finite = |bits: &u32| bits & 0x7f80_0000 != 0x7f80_0000;
            case.expect_words("gates", out.gates, move |words| {
                for (token, row) in words.chunks(4).take(6).enumerate() {
                    let is_sound = [0, 5].contains(&token);
                    assert_eq!(row.iter().all(is_finite), is_sound, "token {token}: {row:x?}");
                }
            });
        });
    }
}

/// How the tape routes in the middle of a graph.
#[derive(Clone, Copy, PartialEq)]
enum Graph {
    Plain,
    Losses,
    Recomputed,
    GatesUnused,
}

/// The logits have a second user, and the gates' gradient is not 1. Balance losses add their gradient whether or not
/// the gates have one, and are tallied once whether or not the block is recomputed.
#[test]
fn routes_on_the_tape() {
    for graph in [Graph::Plain, Graph::Losses, Graph::Recomputed, Graph::GatesUnused] {
        for is_sigmoid in [false, true] {
            let mut shape = shape(2, 5, 6, 2).bias();
            if is_sigmoid {
                shape = shape.sigmoid();
            }
            check(&format!("tape route {}, {}", graph as u32, shape.name()), |case| {
                route_on_the_tape(case, &shape, graph);
            });
        }
    }
}

fn route_on_the_tape(case: &mut Case, shape: &Shape, graph: Graph) {
    let (rows, e, k) = (shape.rows(), shape.route.experts, shape.route.chosen);
    let logits = case.input(rows, e, F32);
    let bias = bias_of(case, shape).expect("a bias");
    let (d_gates, before) = (case.input(rows, k, F32), case.input(rows, e, F32));
    let (step, tally) = (
        case.state(StepState { loss_scale: SCALE, ..StepState::default() }),
        case.integers(&vec![0; tally_columns(e) as usize]),
    );
    let counts = case.integers(&[7; 6]);
    let [expert, sequence, z] = [3.0, 2.0, 0.5];
    let balance = Balance { expert, sequence, z, tokens: shape.tokens, accumulation: ACCUMULATION };
    let losses = (graph != Graph::Plain).then_some(RouterLosses { balance, step, tally });

    let mut tape = Tape::new(&mut case.rec);
    let leaf = tape.leaf(logits.tensor, true);
    tape.give(leaf, before.tensor);
    let (how, bias_tensor) = (shape.route, bias.tensor);
    let block = move |tape: &mut Tape<'_, '_>, logits| {
        tape.tally(counts, None, tally);
        tape.route(logits, Some(bias_tensor), &how, losses.as_ref()).gates
    };
    let gates = match graph {
        Graph::Recomputed => tape.recompute(|_| true, |tape| block(tape, leaf)),
        _ => block(&mut tape, leaf),
    };
    if graph != Graph::GatesUnused {
        tape.give(gates, d_gates.tensor);
    }
    tape.backward();
    let gradient = tape.gradient(leaf).expect("logits need a gradient");

    let r = formula(&shape.route);
    let scores = reference::route::scores(&logits.values, &r);
    let ids = reference::route::choose(&scores, Some(&bias.values), &r);
    let counted = reference::route::choose(&scores, None, &r);
    let seed = f64::from(SCALE) / f64::from(ACCUMULATION);
    let mut want = before.values.clone();
    if losses.is_some() {
        let [expert, sequence, z] = [expert, sequence, z].map(|factor| seed * f64::from(factor));
        let factors = Factors { expert, sequence, z };
        want = sum(&want, &losses_backward(&logits.values, &counted, shape.tokens as usize, &r, &factors));
    }
    if graph != Graph::GatesUnused {
        want = sum(&want, &gates_gradient(&logits.values, &ids, &d_gates.values, shape).0);
    }
    case.expect("gates", gates.tensor, reference::route::gates(&logits.values, &ids, &r), score_bound(shape));
    case.expect("d_logits", gradient, want, gradient_bound(shape));
    let want = reference::balance::losses(&logits.values, &counted, shape.tokens as usize, &r);
    let (times, bound) = (f64::from(u32::from(losses.is_some())), 2.0 * allowed(F32, rows.max(e)));
    case.expect_words("tally", tally, move |words| {
        let got = f64::from(f32::from_bits(words[TallyColumns::of(e).z_loss as usize]));
        let want = times * want.z / f64::from(ACCUMULATION);
        assert!((got - want).abs() <= bound * want, "z loss {got}, not {want}");
        assert_eq!(words[..6], [7; 6], "choices");
    });
}
