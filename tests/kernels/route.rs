//! The router, its balance losses, tallies and selection bias, against the f64 reference.

use crate::lab::{Case, Input, allowed, check, sum};
use gristmill::element::Element::F32;
use gristmill::ops::balance::{Balance, BalanceGradient, balance};
use gristmill::ops::route::{
    ExpertGroups, GroupScore, RouterConfig, RouterOutput, Score, route, route_backward,
};
use gristmill::ops::tally::{TallyColumns, tally, tally_columns, update_bias};
use gristmill::record::Tensor;
use gristmill::reference;
use gristmill::reference::balance::{Factors, losses, losses_backward, updated_bias};
use gristmill::tape::{RouterLosses, Tape};
use gristmill::train::state::StepState;

const SCALE: f32 = 8.0;
const ACCUMULATION: u32 = 4;

/// B sequences of T tokens and their routing.
#[derive(Clone, Copy)]
struct Shape {
    sequences: u32,
    tokens: u32,
    route: RouterConfig,
    has_bias: bool,
}

const fn shape(sequences: u32, tokens: u32, experts: u32, chosen: u32) -> Shape {
    let (score, norm_top_k, scaling) = (Score::Softmax, true, 1.0);
    let route = RouterConfig { experts, chosen, score, groups: None, norm_top_k, scaling };
    Shape { sequences, tokens, route, has_bias: false }
}

impl Shape {
    fn sigmoid(mut self) -> Self {
        self.route.score = Score::Sigmoid;
        self.route.scaling = 2.5;
        self
    }

    fn groups(mut self, count: u32, chosen: u32, score: GroupScore) -> Self {
        self.route.groups = Some(ExpertGroups { count, chosen, score });
        self
    }

    fn bias(mut self) -> Self {
        self.has_bias = true;
        self
    }

    fn unnormalised(mut self) -> Self {
        self.route.norm_top_k = false;
        self
    }

    fn rows(&self) -> u32 {
        self.sequences * self.tokens
    }

    fn name(&self) -> String {
        let Self { sequences, tokens, route: RouterConfig { experts, chosen, score, groups, .. }, has_bias } =
            self;
        let groups = groups.map_or(0, |groups| groups.count);
        let bias = if *has_bias { ", bias" } else { "" };
        format!("{sequences}x{tokens} to {chosen} of {experts}, {score:?}, {groups} groups{bias}")
    }
}

fn shapes() -> Vec<Shape> {
    vec![
        shape(1, 1, 1, 1),
        shape(1, 31, 5, 2),
        shape(12, 1, 6, 2).unnormalised(),
        shape(1, 16, 16, 16),
        shape(3, 3, 257, 16),
        shape(2, 35, 8, 2).bias().groups(4, 2, GroupScore::BestTwo),
        shape(2, 65, 33, 5).sigmoid().groups(3, 2, GroupScore::Best).unnormalised(),
        shape(3, 11, 31, 3).sigmoid().bias(),
        shape(1, 257, 64, 8).sigmoid().bias().groups(8, 4, GroupScore::BestTwo),
        shape(4, 5, 512, 16).sigmoid().bias().groups(8, 4, GroupScore::BestTwo),
        shape(1, 33, 4, 1).sigmoid(),
    ]
}

/// The route as the reference takes it.
fn formula(route: &RouterConfig) -> reference::route::RouterConfig {
    reference::route::RouterConfig {
        experts: route.experts as usize,
        chosen: route.chosen as usize,
        is_sigmoid: route.score == Score::Sigmoid,
        groups: route.groups.map(|groups| reference::route::ExpertGroups {
            count: groups.count as usize,
            chosen: groups.chosen as usize,
            best: if groups.score == GroupScore::BestTwo { 2 } else { 1 },
        }),
        norm_top_k: route.norm_top_k,
        scaling: route.scaling.into(),
    }
}

/// The tensors that the router writes, NaN at the start.
fn outputs(case: &mut Case, shape: &Shape, keeps_unbiased: bool) -> RouterOutput {
    let (rows, RouterConfig { experts, chosen, .. }) = (shape.rows(), shape.route);
    let gates = case.output(rows, chosen, F32);
    let (scores, statistics) = (case.output(rows, experts, F32), case.output(rows, 4, F32));
    let [ids, unbiased] = [0; 2].map(|_| case.output(1, rows * chosen, F32));
    RouterOutput { ids, gates, scores, statistics, unbiased: keeps_unbiased.then_some(unbiased) }
}

fn bias_of(case: &mut Case, shape: &Shape) -> Option<Input> {
    let scale = if shape.route.score == Score::Sigmoid { 0.2 } else { 1.0 / shape.route.experts as f64 };
    let values: Vec<f64> = (0..shape.route.experts).map(|_| scale * case.normal()).collect();
    shape.has_bias.then(|| case.input_of(&values, 1, shape.route.experts, F32))
}

fn expect_ids(case: &mut Case, label: &'static str, ids: Tensor, want: Vec<u32>) {
    case.expect_words(label, ids, move |words| {
        let wrong = words.iter().zip(&want).position(|(got, want)| got != want);
        assert!(wrong.is_none(), "{label}: choice {wrong:?} of {words:?} differs from {want:?}");
        assert!(words.len() >= want.len());
    });
}

/// The gradient through the gates, and the operands of the subtraction in it.
fn gates_gradient(logits: &[f64], ids: &[u32], d_gates: &[f64], shape: &Shape) -> (Vec<f64>, Vec<f64>) {
    let route = formula(&shape.route);
    let d_scores = reference::route::gates_backward(logits, ids, d_gates, &route);
    let gates = reference::route::gates(logits, ids, &route);
    let mut terms = vec![0.0; logits.len()];
    for (i, id) in ids.iter().enumerate() {
        terms[i / route.chosen * route.experts + *id as usize] = gates[i] * d_gates[i];
    }
    (reference::route::scores_backward(logits, &d_scores, &route), terms)
}

/// An exponential, divided by a sum of E terms.
fn score_bound(shape: &Shape) -> f64 {
    2.0 * allowed(F32, shape.route.experts)
}

/// A score, a sum over E terms, a difference and a product.
fn gradient_bound(shape: &Shape) -> f64 {
    4.0 * allowed(F32, shape.route.experts)
}

#[test]
fn routes_and_their_backward() {
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

/// Each loss alone and all together, with and without a gradient through the gates.
#[test]
fn balance_losses_and_their_gradient() {
    for shape in shapes() {
        check(&format!("balance {}", shape.name()), |case| {
            let (rows, e, k) = (shape.rows(), shape.route.experts, shape.route.chosen);
            let logits = case.input(rows, e, F32);
            let bias = bias_of(case, &shape);
            let routed = outputs(case, &shape, shape.has_bias);
            route(&mut case.rec, &shape.route, logits.tensor, bias.as_ref().map(|b| b.tensor), &routed);
            let r = formula(&shape.route);
            let scores = reference::route::scores(&logits.values, &r);
            let counted = reference::route::choose(&scores, None, &r);
            let ids = reference::route::choose(&scores, bias.as_ref().map(|b| &b.values[..]), &r);

            let d_gates = case.input(rows, k, F32);
            let (through_gates, gate_terms) = gates_gradient(&logits.values, &ids, &d_gates.values, &shape);
            let (step, columns) = (
                case.step_state(StepState { loss_scale: SCALE, ..StepState::default() }),
                TallyColumns::of(e),
            );
            let seed = f64::from(SCALE) / f64::from(ACCUMULATION);
            let tally_row = case.integers(&vec![0; tally_columns(e) as usize]);
            // Factors that make these gradients as large as the one through the gates.
            let n = rows as f32;
            for (i, [expert, sequence, z]) in
                [[n, 0.0, 0.0], [0.0, n, 0.0], [0.0, 0.0, n], [0.5 * n, n, 0.25 * n]].into_iter().enumerate()
            {
                let values =
                    Balance { expert, sequence, z, tokens: shape.tokens, accumulation: ACCUMULATION };
                // Two of the step's four micro-batches are tallied.
                let tally = (i < 2).then_some(tally_row);
                let pull = balance(&mut case.rec, &shape.route, &values, &routed, tally);
                assert_eq!(pull.is_some(), i != 2, "a pull exists exactly for losses on choices");
                let gradient = BalanceGradient { balance: values, pull, step };
                let [alone, both] = [0; 2].map(|_| case.output(rows, e, F32));
                for (d_gates, d_logits) in [(None, alone), (Some(d_gates.tensor), both)] {
                    let balance = Some(&gradient);
                    route_backward(
                        &mut case.rec,
                        &shape.route,
                        &routed,
                        logits.tensor,
                        d_gates,
                        balance,
                        d_logits,
                    );
                }
                let [expert, sequence, z] = [expert, sequence, z].map(|factor| seed * f64::from(factor));
                let factors = Factors { expert, sequence, z };
                let tokens = shape.tokens as usize;
                let want = losses_backward(&logits.values, &counted, tokens, &r, &factors);
                let want_both = sum(&want, &through_gates);
                // The operands of the subtraction are f · E / N · p, at most E / N times the factors.
                let most = (expert + sequence) * f64::from(e) / f64::from(rows);
                let terms: Vec<f64> = scores.iter().zip(&want).map(|(s, d)| most * s + d.abs()).collect();
                let bound = gradient_bound(&shape);
                case.expect_difference(&format!("losses {i}"), alone, want, bound, &terms);
                let terms: Vec<f64> = terms.iter().zip(&gate_terms).map(|(a, b)| a.hypot(*b)).collect();
                case.expect_difference(&format!("losses {i} and gates"), both, want_both, bound, &terms);
            }
            let want = losses(&logits.values, &counted, shape.tokens as usize, &r);
            let bound = 2.0 * allowed(F32, rows.max(e));
            case.expect_words("tally", tally_row, move |words| {
                for (column, want) in [
                    (columns.expert_loss, want.expert),
                    (columns.sequence_loss, want.sequence),
                    (columns.z_loss, want.z),
                ] {
                    let got = f64::from(f32::from_bits(words[column as usize]));
                    let want = 2.0 * want / f64::from(ACCUMULATION);
                    assert!((got - want).abs() <= bound * want.abs(), "column {column}: {got}, not {want}");
                }
                assert!(words[..columns.expert_loss as usize].iter().all(|&word| word == 0));
            });
        });
    }
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
    for shape in [plain, plain.sigmoid(), plain.groups(3, 2, GroupScore::BestTwo)] {
        check(&format!("not finite, {}", shape.name()), |case| {
            let mut values: Vec<f64> = (0..6 * 9).map(|_| case.normal()).collect();
            values[9 + 5] = f64::NAN;
            values[2 * 9..3 * 9].fill(f64::NAN);
            values[3 * 9 + 2] = f64::INFINITY;
            values[4 * 9..5 * 9].fill(f64::NEG_INFINITY);
            let logits = case.input_of(&values, 6, 9, F32);
            let out = outputs(case, &shape, false);
            route(&mut case.rec, &shape.route, logits.tensor, None, &out);
            case.expect_words("ids", out.ids, |words| {
                for row in words.chunks(4).take(6) {
                    let mut row = row.to_vec();
                    row.sort_unstable();
                    row.dedup();
                    assert!(row.len() == 4 && row[3] < 9, "not four different experts: {words:?}");
                }
            });
            let is_finite = |bits: &u32| bits & 0x7f80_0000 != 0x7f80_0000;
            case.expect_words("gates", out.gates, move |words| {
                assert!(
                    words.chunks(4).take(1).flatten().all(is_finite),
                    "the gates of the finite token are not finite"
                );
                for row in words.chunks(4).skip(1).take(2) {
                    assert!(!row.iter().all(is_finite), "a NaN does not show in {row:?}");
                }
            });
        });
    }
}

#[test]
fn tallies_add_up() {
    for experts in [1u32, 5, 65, 512] {
        check(&format!("tally of {experts} experts"), |case| {
            let rounds = [0; 2].map(|_| case.ids_below(experts as usize, 100_000));
            let slots = case.ids_below(experts as usize, 100_000);
            let start: Vec<u32> = case.ids_below(tally_columns(experts) as usize, 1000);
            let (row, capacities) = (case.integers(&start), case.integers(&slots));
            for (counts, capacities) in rounds.iter().zip([None, Some(capacities)]) {
                let counts = case.integers(counts);
                tally(&mut case.rec, counts, capacities, row);
            }
            case.expect_words("tally", row, move |words| {
                let columns = TallyColumns::of(experts);
                let mut want = start.clone();
                for e in 0..experts as usize {
                    let [first, second] = [rounds[0][e], rounds[1][e]];
                    want[e] += first + second;
                    want[columns.last as usize + e] = second;
                    want[columns.choices as usize] += first + second;
                    want[columns.dropped as usize] += second.saturating_sub(slots[e]);
                }
                assert_eq!(words[..want.len()], want);
            });
        });
    }
}

#[test]
fn the_bias_follows_the_load() {
    let uneven: Vec<u32> = (0..257).map(|e| e * e % 97).collect();
    let (huge, flags) = ([3_000_000_000u32, 1_000_000_000, 5, 0, 7], [[0u32, 0], [1, 0], [0, 1]]);
    let cases: [&[u32]; 7] = [&[3], &[10, 6, 8, 8], &[7, 8, 8, 8], &[9, 8, 8, 8], &[0; 6], &huge, &uneven];
    for chosen in cases {
        for [is_overflow, is_halted] in flags {
            let name = format!("update_bias of {} experts, {is_overflow} {is_halted}", chosen.len());
            check(&name, |case| {
                let experts = chosen.len() as u32;
                let mut words = vec![0; tally_columns(experts) as usize];
                words[..chosen.len()].copy_from_slice(chosen);
                let state = StepState { is_overflow, is_halted, ..StepState::default() };
                let (row, state) = (case.integers(&words), case.step_state(state));
                let bias = case.input(1, experts, F32);
                let rate = 0.125;
                update_bias(&mut case.rec, row, bias.tensor, rate, state);
                let counts: Vec<u64> = chosen.iter().map(|&count| count.into()).collect();
                let want = match is_overflow + is_halted {
                    0 => updated_bias(&bias.values, &counts, rate.into()),
                    _ => bias.values.clone(),
                };
                case.expect("bias", bias.tensor, want, allowed(F32, 1));
            });
        }
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

/// The logits have a second user, and the gates' gradient is not 1. Balance losses add their gradient whether or not the gates
/// have one, and are tallied once whether or not the block is recomputed.
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
        case.step_state(StepState { loss_scale: SCALE, ..StepState::default() }),
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
        Graph::Recomputed => tape.checkpoint(leaf, block),
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
