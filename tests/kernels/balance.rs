//! What keeps the load of experts even, against the f64 reference: balance losses, tallies of choices, and the
//! selection bias that follows them.

use crate::lab::{allowed, check, sum};
use crate::routing::{
    ACCUMULATION, SCALE, bias_of, formula, gates_gradient, gradient_bound, outputs, shapes,
};
use gristmill::element::Element::F32;
use gristmill::ops::balance::{Balance, BalanceGradient, balance};
use gristmill::ops::route::{route, route_backward};
use gristmill::ops::step_state::StepState;
use gristmill::ops::tally::{TallyColumns, tally, tally_columns, update_bias};
use reference::balance::{Factors, losses, losses_backward, updated_bias};

/// Each loss alone and all together, with and without a gradient through the gates.
#[test]
pub fn balance_losses_and_their_gradient() {
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
            let (step, columns) =
                (case.state(StepState { loss_scale: SCALE, ..StepState::default() }), TallyColumns::of(e));
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
                let d_scores = balance(&mut case.rec, &shape.route, &values, &routed, tally);
                assert_eq!(d_scores.is_some(), i != 2, "d_scores exists exactly for losses on choices");
                let gradient = BalanceGradient { balance: values, d_scores, step };
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

/// The bit of a capacity that marks a hot expert.
const HOT: u32 = 1 << 31;

#[test]
pub fn tallies_add_up() {
    for experts in [1u32, 5, 65, 512] {
        check(&format!("tally of {experts} experts"), |case| {
            let rounds = [0; 2].map(|_| case.ids_below(experts as usize, 100_000));
            let mut slots = case.ids_below(experts as usize, 100_000);
            slots.iter_mut().step_by(3).for_each(|slots| *slots |= HOT);
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
                    want[columns.dropped as usize] += second.saturating_sub(slots[e] & !HOT);
                }
                assert_eq!(words[..want.len()], want);
            });
        });
    }
}

#[test]
pub fn the_bias_follows_the_load() {
    let uneven: Vec<u32> = (0..257).map(|e| e * e % 97).collect();
    let (huge, flags) = ([3_000_000_000u32, 1_000_000_000, 5, 0, 7], [[0u32, 0], [1, 0], [0, 1]]);
    let cases: [&[u32]; 7] = [&[3], &[10, 6, 8, 8], &[7, 8, 8, 8], &[9, 8, 8, 8], &[0; 6], &huge, &uneven];
    for chosen in cases {
        for [is_overflow, halt] in flags {
            let name = format!("update_bias of {} experts, {is_overflow} {halt}", chosen.len());
            check(&name, |case| {
                let experts = chosen.len() as u32;
                let mut words = vec![0; tally_columns(experts) as usize];
                words[..chosen.len()].copy_from_slice(chosen);
                let state = StepState { is_overflow, halt, ..StepState::default() };
                let (row, state) = (case.integers(&words), case.state(state));
                let bias = case.input(1, experts, F32);
                let rate = 0.125;
                update_bias(&mut case.rec, row, bias.tensor, rate, state);
                let counts: Vec<u64> = chosen.iter().map(|&count| count.into()).collect();
                let want = match is_overflow + halt {
                    0 => updated_bias(&bias.values, &counts, rate.into()),
                    _ => bias.values.clone(),
                };
                case.expect("bias", bias.tensor, want, allowed(F32, 1));
            });
        }
    }
}
