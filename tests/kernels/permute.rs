//! permute and combine against the f64 reference.
//!
//! With or without safe tokens, recomputed or not, the bits are the same.

use crate::lab::{Bits, Case, allowed, check, sum};
use crate::placement::reference_rule;
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::add::add;
use gristmill::ops::permute::{
    self, CombineSaved, DropOrder, HotAndCold, NONE, Placement, PlacementConfig, RowAllocation, Slots, place,
};
use gristmill::record::Tensor;
use gristmill::tape::{Parameter, Tape};
use reference::permute as formula;

/// A copy between guard zones, which a transient tensor in the pool does not have.
fn copied(case: &mut Case, tensor: Tensor) -> Tensor {
    let copy = case.output(tensor.rows, tensor.cols, tensor.element);
    add(&mut case.rec, tensor, copy, 1.0, false);
    copy
}

/// Choices, and the rows the reference gives them.
struct Placed {
    routes: PlacementConfig,
    ids: Tensor,
    capacities: Option<Tensor>,
    want: formula::Placement,
}

impl Placed {
    /// Random choices, k different experts for each token.
    fn random(case: &mut Case, routes: PlacementConfig) -> Self {
        let mut ids = Vec::new();
        for _ in 0..routes.tokens {
            let first = case.ids_below(1, routes.experts)[0];
            ids.extend((0..routes.chosen).map(|j| (first + j) % routes.experts));
        }
        Self::of(case, routes, &ids)
    }

    fn of(case: &mut Case, routes: PlacementConfig, ids: &[u32]) -> Self {
        let capacities = match routes.allocation {
            RowAllocation::Dropless { .. } => vec![],
            RowAllocation::Capacity { slots: Slots::Equal(rows), .. } => vec![rows; routes.experts as usize],
            RowAllocation::Capacity { slots: Slots::HotAndCold(two), .. } => two.initial(routes.experts),
        };
        let allocation = reference_rule(&routes, &capacities);
        let chosen: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
        let want = formula::place(&chosen, routes.chosen as usize, routes.experts as usize, &allocation);
        let is_hot = matches!(routes.allocation, RowAllocation::Capacity { slots: Slots::HotAndCold(_), .. });
        let capacities = is_hot.then(|| case.integers(&capacities));
        Self { routes, ids: case.integers(ids), capacities, want }
    }

    /// s · dy / Σ of a token's kept gates: the operands of the subtraction in the gradient of renormalised gates, which
    /// cancels almost completely for a token with a single kept gate.
    fn terms(&self, gates: &[f64], dy: &[f64], scaling: f64) -> Vec<f64> {
        let chosen = self.routes.chosen as usize;
        let is_kept = |choice: &usize| self.want.places[*choice].is_some();
        let term = |choice: usize| {
            let first = choice / chosen * chosen;
            let sum: f64 = (first..first + chosen).filter(is_kept).map(|choice| gates[choice]).sum();
            if is_kept(&choice) { scaling * dy[choice] / sum } else { 0.0 }
        };
        (0..gates.len()).map(term).collect()
    }

    fn place(&self, case: &mut Case) -> Placement {
        place(&mut case.rec, &self.routes, self.ids, self.capacities)
    }
}

/// Every allocation, with capacities that drop choices.
fn allocations(tokens: u32, chosen: u32, experts: u32) -> [RowAllocation; 5] {
    let capacity = permute::capacity_slots(chosen, tokens, 0.8, experts, 1);
    let two = HotAndCold::new(experts / 2, capacity + 1, 0.5);
    [
        RowAllocation::Dropless { safe_tokens: false },
        RowAllocation::Dropless { safe_tokens: true },
        RowAllocation::Capacity { slots: Slots::Equal(capacity), order: DropOrder::Choice },
        RowAllocation::Capacity { slots: Slots::Equal(tokens), order: DropOrder::Token },
        RowAllocation::Capacity { slots: Slots::HotAndCold(two), order: DropOrder::Token },
    ]
}

/// N, k, E, D.
const SHAPES: [(u32, u32, u32, u32); 7] = [
    (1, 1, 1, 1),
    (1, 16, 16, 5),
    (257, 2, 8, 31),
    (33, 4, 4, 257),
    (31, 1, 64, 12),
    (9, 3, 512, 130),
    (5, 5, 7, 600),
];

fn every_case(look: impl Fn(&mut Case, &Placed, u32, Element)) {
    for element in [F32, F16, Bf16] {
        for (tokens, chosen, experts, width) in SHAPES {
            for allocation in allocations(tokens, chosen, experts) {
                let routes = PlacementConfig { tokens, chosen, experts, allocation };
                check(&format!("{routes:?} D {width} {element:?}"), |case| {
                    let placed = Placed::random(case, routes);
                    look(case, &placed, width, element);
                });
            }
        }
    }
}

#[test]
pub fn permute_and_its_backward() {
    every_case(|case, placed, width, element| {
        let PlacementConfig { tokens, chosen, .. } = placed.routes;
        let (x, before) = (case.input(tokens, width, element), case.input(tokens, width, element));
        let d_rows = case.input(placed.routes.rows(), width, element);
        let (k, d) = (chosen as usize, width as usize);
        let want_rows = formula::permute(&x.values, &placed.want, k, d);
        let want_dx = formula::permute_backward(&d_rows.values, &placed.want, k, d);
        let want_added = sum(&want_dx, &before.values);
        let placement = placed.place(case);
        let rows = case.output(placed.routes.rows(), width, element);
        permute::permute(&mut case.rec, &placement, x.tensor, rows);
        case.expect("rows", rows, want_rows, 0.0);
        let dx = case.output(tokens, width, element);
        permute::permute_backward(&mut case.rec, &placement, d_rows.tensor, dx, false);
        case.expect("dx", dx, want_dx, allowed(element, chosen));
        let added = case.input_of(&before.values, tokens, width, element).tensor;
        permute::permute_backward(&mut case.rec, &placement, d_rows.tensor, added, true);
        case.expect("dx added", added, want_added, allowed(element, chosen + 1));
    });
}

#[test]
pub fn combine_and_its_backward() {
    every_case(|case, placed, width, element| {
        let PlacementConfig { tokens, chosen, .. } = placed.routes;
        let (k, d) = (chosen as usize, width as usize);
        let rows = case.input(placed.routes.rows(), width, element);
        let gates = case.input(tokens, chosen, F32);
        let residual = case.input(tokens, width, element);
        let dy = case.input(tokens, width, element);
        let want = formula::combine(&rows.values, &gates.values, &placed.want, k, d);
        let want_added = sum(&want, &residual.values);
        let (d_rows, d_gates) =
            formula::combine_backward(&rows.values, &gates.values, &placed.want, &dy.values, k, d);
        let saved = CombineSaved { rows: rows.tensor, gates: gates.tensor };
        let placement = placed.place(case);
        let [y, added] = [0; 2].map(|_| case.output(tokens, width, element));
        permute::combine(&mut case.rec, &placement, rows.tensor, gates.tensor, None, y);
        let skip = Some(residual.tensor);
        permute::combine(&mut case.rec, &placement, rows.tensor, gates.tensor, skip, added);
        let into = case.output(placed.routes.rows(), width, element);
        let into_gates = case.output(tokens, chosen, F32);
        permute::combine_backward(&mut case.rec, &placement, &saved, dy.tensor, into, into_gates);
        case.expect("y", y, want, allowed(element, chosen));
        case.expect("y with residual", added, want_added, allowed(element, chosen + 1));
        case.expect("d_rows", into, d_rows, allowed(element, 1));
        case.expect("d_gates", into_gates, d_gates, allowed(F32, width));
    });
}

#[test]
pub fn renormalised_gates_and_their_backward() {
    for (tokens, chosen, experts) in [(1, 1, 1), (257, 2, 8), (33, 16, 16), (31, 3, 9), (64, 1, 4)] {
        for allocation in allocations(tokens, chosen, experts) {
            let routes = PlacementConfig { tokens, chosen, experts, allocation };
            check(&format!("renormalise_gates {routes:?}"), |case| {
                let placed = Placed::random(case, routes);
                // Positive, as a router makes them.
                let values: Vec<f64> = (0..routes.choices()).map(|_| 0.01 + case.normal().abs()).collect();
                let gates = case.input_of(&values, tokens, chosen, F32);
                let dy = case.input(tokens, chosen, F32);
                let (k, scaling) = (chosen as usize, 2.5);
                let want = formula::renormalise_gates(&gates.values, &placed.want, k, scaling);
                let d_gates =
                    formula::renormalise_gates_backward(&gates.values, &placed.want, &dy.values, k, scaling);
                let placement = placed.place(case);
                let [out, into] = [0; 2].map(|_| case.output(tokens, chosen, F32));
                permute::renormalise_gates(&mut case.rec, &placement, gates.tensor, out, 2.5);
                permute::renormalise_gates_backward(
                    &mut case.rec,
                    &placement,
                    gates.tensor,
                    dy.tensor,
                    into,
                    2.5,
                );
                case.expect("gates", out, want, allowed(F32, chosen));
                let terms = placed.terms(&gates.values, &dy.values, scaling);
                case.expect_difference("d_gates", into, d_gates, allowed(F32, chosen), &terms);
            });
        }
    }
}

/// Worked by hand. Each expert has one row, and both choices of the second token are dropped. Gates change only if
/// renormalised.
#[test]
fn dropped_choices_contribute_nothing() {
    let allocation = RowAllocation::Capacity { slots: Slots::Equal(1), order: DropOrder::Choice };
    let routes = PlacementConfig { tokens: 3, chosen: 2, experts: 3, allocation };
    // First choices 0, 0, 2; second ones 1, 2, 1.
    let ids = [0, 1, 0, 2, 2, 1];
    check("dropped choices", |case| {
        let placed = Placed::of(case, routes, &ids);
        assert_eq!(placed.want.places, [Some(0), Some(1), None, None, Some(2), None]);
        let placement = placed.place(case);
        let places = placement.places;
        case.expect_words("places", places, |words| assert_eq!(words[..6], [0, 1, NONE, NONE, 2, NONE]));
        let gates = case.input_of(&[0.75, 0.25, 0.5, 0.5, 0.75, 0.25], 3, 2, F32).tensor;
        let rows = case.input_of(&[8.0, -4.0, 2.0], 3, 1, F32).tensor;
        let y = case.output(3, 1, F32);
        permute::combine(&mut case.rec, &placement, rows, gates, None, y);
        case.expect("y", y, vec![0.75 * 8.0 - 0.25 * 4.0, 0.0, 0.75 * 2.0], 0.0);
        let renormalised = case.output(3, 2, F32);
        permute::renormalise_gates(&mut case.rec, &placement, gates, renormalised, 1.0);
        case.expect("gates", renormalised, vec![0.75, 0.25, 0.0, 0.0, 1.0, 0.0], allowed(F32, 2));
    });
}

/// Worked by hand: hot expert 1 has four rows; cold expert 0 has trunc(4 · 0.25) = 1, so its second token is dropped.
#[test]
fn choices_over_a_cold_expert_s_capacity_contribute_nothing() {
    let two = HotAndCold::new(1, 4, 0.25);
    let allocation = RowAllocation::Capacity { slots: Slots::HotAndCold(two), order: DropOrder::Token };
    let routes = PlacementConfig { tokens: 5, chosen: 1, experts: 2, allocation };
    check("hot and cold rows", |case| {
        let ids = case.integers(&[1, 0, 1, 0, 1]);
        let capacities = case.integers(&[1, 4]);
        let placement = place(&mut case.rec, &routes, ids, Some(capacities));
        let x = case.input_of(&[1.0, 2.0, 3.0, 4.0, 5.0], 5, 1, F32).tensor;
        let gates = case.input_of(&[0.5; 5], 5, 1, F32).tensor;
        let (rows, y) = (case.output(5, 1, F32), case.output(5, 1, F32));
        permute::permute(&mut case.rec, &placement, x, rows);
        permute::combine(&mut case.rec, &placement, rows, gates, Some(x), y);
        case.expect("rows", rows, vec![2.0, 1.0, 3.0, 5.0, 0.0], 0.0);
        case.expect("y", y, vec![1.5, 3.0, 4.5, 4.0, 7.5], 0.0);
    });
}

/// Rows of zeros and a second run give outputs and gradients with the same bits.
#[test]
fn safe_tokens_and_runs_change_no_bit() {
    let bits = Bits::of_different_kernels();
    for safe_tokens in [false, true, true] {
        check(&format!("safe tokens {safe_tokens}"), |case| {
            let allocation = RowAllocation::Dropless { safe_tokens };
            let routes = PlacementConfig { tokens: 67, chosen: 3, experts: 9, allocation };
            let placed = Placed::random(case, routes);
            let (x, dy) = (case.input(67, 37, F32).tensor, case.input(67, 37, F32).tensor);
            let gates = case.input(67, 3, F32).tensor;
            let placement = placed.place(case);
            let mut tape = Tape::new(&mut case.rec);
            let (x, gates) = (tape.leaf(x, true), tape.leaf(gates, true));
            let rows = tape.permute(x, &placement);
            let y = tape.combine(rows, gates, None, &placement);
            tape.give(y, dy);
            tape.backward();
            let gradients = [x, gates].map(|var| tape.gradient(var).expect("a gradient"));
            let [dx, d_gates] = gradients.map(|gradient| copied(case, gradient));
            for (name, tensor) in [("y", y.tensor), ("dx", dx), ("d_gates", d_gates)] {
                bits.expect(case, name, tensor);
            }
        });
    }
}

/// x + combine(W permute(x)) with renormalised gates, where x and the gates already have gradients and x is the
/// residual too; recomputed or not, the bits are the same.
#[test]
fn mid_graph() {
    for allocation in allocations(19, 3, 5) {
        let bits = Bits::of_different_kernels();
        for recompute in [false, true] {
            check(&format!("tape {allocation:?} recomputed: {recompute}"), |case| {
                let (n, k, d) = (19, 3, 12);
                let routes = PlacementConfig { tokens: n, chosen: k, experts: 5, allocation };
                let placed = Placed::random(case, routes);
                let placement = placed.place(case);
                let (x, dx0) = (case.input(n, d, F32), case.input(n, d, F32));
                let (dy, w) = (case.input(n, d, F32), case.input(d, d, F32));
                let values: Vec<f64> = (0..n * k).map(|_| 0.1 + case.normal().abs()).collect();
                let (gates, dg0) = (case.input_of(&values, n, k, F32), case.input(n, k, F32));
                let parameter = Parameter { weight: vec![w.tensor], gradient: None };

                let mut tape = Tape::new(&mut case.rec);
                let (leaf, gate_leaf) = (tape.leaf(x.tensor, true), tape.leaf(gates.tensor, true));
                tape.give(leaf, dx0.tensor);
                tape.give(gate_leaf, dg0.tensor);
                let weight = &parameter;
                let y = tape.recompute(
                    move |_| recompute,
                    |tape| {
                        let rows = tape.permute(leaf, &placement);
                        let rows = tape.linear(rows, weight, None, None);
                        let gates = tape.renormalise_gates(gate_leaf, &placement, 1.5);
                        tape.combine(rows, gates, Some(leaf), &placement)
                    },
                );
                tape.give(y, dy.tensor);
                tape.backward();
                let [dx, d_gates] = [leaf, gate_leaf].map(|var| tape.gradient(var).expect("a gradient"));

                let (k, d) = (k as usize, d as usize);
                let count = placed.want.sources.len();
                let rows = formula::permute(&x.values, &placed.want, k, d);
                let rows = reference::matmul::matmul_nt(&rows, &w.values, count, d, d);
                let sharp = formula::renormalise_gates(&gates.values, &placed.want, k, 1.5);
                let want = formula::combine(&rows, &sharp, &placed.want, k, d);
                let want = sum(&want, &x.values);
                let (d_rows, d_sharp) =
                    formula::combine_backward(&rows, &sharp, &placed.want, &dy.values, k, d);
                let d_rows = reference::matmul::matmul_nn(&d_rows, &w.values, count, d, d);
                let want_dx = formula::permute_backward(&d_rows, &placed.want, k, d);
                let want_dx = sum(&sum(&want_dx, &dy.values), &dx0.values);
                let want_dg =
                    formula::renormalise_gates_backward(&gates.values, &placed.want, &d_sharp, k, 1.5);
                let terms = placed.terms(&gates.values, &d_sharp, 1.5);
                let want_dg = sum(&want_dg, &dg0.values);
                let bound = 4.0 * allowed(F32, 12 + 3);
                case.expect("y", y.tensor, want, bound);
                case.expect("dx", dx, want_dx, bound);
                case.expect_difference("d_gates", d_gates, want_dg, bound, &terms);
                // The gradient that x had before is added last with recomputation and first without.
                let of_x = format!("dx, recomputed: {recompute}");
                for (name, tensor) in [("y", y.tensor), (&of_x, dx), ("d_gates", d_gates)] {
                    bits.expect(case, name, tensor);
                }
            });
        }
    }
}

/// Only the inputs that need a gradient get one.
#[test]
fn frozen_inputs_have_no_gradient() {
    for (x_needs, gates_need) in [(true, false), (false, true)] {
        check(&format!("tape, x needs {x_needs}, gates need {gates_need}"), |case| {
            let allocation = RowAllocation::Dropless { safe_tokens: false };
            let placed =
                Placed::random(case, PlacementConfig { tokens: 9, chosen: 2, experts: 4, allocation });
            let (x, gates, dy) = (case.input(9, 8, F32), case.input(9, 2, F32), case.input(9, 8, F32));
            let placement = placed.place(case);
            let mut tape = Tape::new(&mut case.rec);
            let (leaf, gate_leaf) = (tape.leaf(x.tensor, x_needs), tape.leaf(gates.tensor, gates_need));
            let rows = tape.permute(leaf, &placement);
            let y = tape.combine(rows, gate_leaf, None, &placement);
            tape.give(y, dy.tensor);
            tape.backward();
            let gradients = [leaf, gate_leaf].map(|var| tape.gradient(var));
            assert_eq!(gradients.map(|gradient| gradient.is_some()), [x_needs, gates_need]);
            let rows = formula::permute(&x.values, &placed.want, 2, 8);
            let (d_rows, d_gates) =
                formula::combine_backward(&rows, &gates.values, &placed.want, &dy.values, 2, 8);
            let gradients = gradients.map(|gradient| gradient.map(|gradient| copied(case, gradient)));
            if let Some(dx) = gradients[0] {
                let want = formula::permute_backward(&d_rows, &placed.want, 2, 8);
                case.expect("dx", dx, want, allowed(F32, 4));
            }
            if let Some(gradient) = gradients[1] {
                case.expect("d_gates", gradient, d_gates, allowed(F32, 8));
            }
        });
    }
}
