//! The self-test of the kernels of a mixture of experts. Logits and gates are whole numbers, so all results except the
//! router's gates are known.

use super::harness::Harness;
use super::products::grouped;
use super::{D, N};
use crate::ops::permute::{
    CombineSaved, PlacementConfig, RowAllocation, combine, combine_backward, permute, permute_backward, place,
};
use crate::ops::route::{GateNorm, RouterConfig, RouterOutput, Score, route, route_backward};
use crate::record::Tensor;
use std::cmp::Reverse;

/// Inner width of an expert, in features.
const F: u32 = 72;
const ROUTE: RouterConfig = RouterConfig {
    experts: 6,
    chosen: 2,
    score: Score::Softmax,
    groups: None,
    norm: Some(GateNorm::SUM),
    scaling: 1.5,
};
/// Rows of all experts: one for each choice of a token.
const ROWS: u32 = N * ROUTE.chosen;

/// Routing, permutations and expert products, forward and backward.
pub(super) fn experts(harness: &mut Harness<'_>) {
    let (ids, expert_of) = routes(harness);
    rows(harness, ids, &expert_of);
}

/// Routes tokens. Returns the expert of each choice, on the device and as expected: the experts with the largest logits
/// of a token, the best first, and of equal ones the lower index.
fn routes(harness: &mut Harness<'_>) -> (Tensor, Vec<u32>) {
    let (experts, chosen) = (ROUTE.experts, ROUTE.chosen);
    let ((logits, values), d_gates) = (harness.whole(N, experts), harness.input(N, chosen));
    let routed = RouterOutput {
        ids: harness.job.integers(&[0; ROWS as usize]),
        gates: harness.output(N, chosen),
        scores: harness.output(N, experts),
        statistics: harness.output(N, 4),
        unbiased: None,
    };
    let d_logits = harness.output(N, experts);
    route(&mut harness.job.rec, &ROUTE, logits, None, &routed);
    route_backward(&mut harness.job.rec, &ROUTE, &routed, logits, Some(d_gates), None, d_logits);
    let best = |logits: &[i32]| {
        let mut order: Vec<u32> = (0..experts).collect();
        order.sort_by_key(|expert| Reverse(logits[*expert as usize]));
        order.into_iter().take(chosen as usize)
    };
    let expert_of: Vec<u32> = values.chunks(experts as usize).flat_map(best).collect();
    harness.expect("route ids", routed.ids, expert_of.clone());
    harness.compare("route", routed.gates);
    harness.compare("route dlogits", d_logits);
    (routed.ids, expert_of)
}

/// Permutes tokens to rows of experts, multiplies these, and combines them into tokens again.
fn rows(harness: &mut Harness<'_>, ids: Tensor, expert_of: &[u32]) {
    let allocation = RowAllocation::Dropless { safe_tokens: false };
    let (tokens, chosen, experts) = (N, ROUTE.chosen, ROUTE.experts);
    let config = PlacementConfig { tokens, chosen, experts, allocation };
    let placement = place(&mut harness.job.rec, &config, ids, None);
    let ((x, x_values), (dy, dy_values)) = (harness.whole(N, D), harness.whole(N, D));
    let ((d_permuted, d_values), (gates, gate_values)) = (harness.whole(ROWS, D), harness.whole(N, chosen));
    let [permuted, d_rows] = [(); 2].map(|()| harness.output(ROWS, D));
    let [dx, y] = [(); 2].map(|()| harness.output(N, D));
    let d_gates = harness.output(N, chosen);
    permute(&mut harness.job.rec, &placement, x, permuted);
    permute_backward(&mut harness.job.rec, &placement, d_permuted, dx, false);
    combine(&mut harness.job.rec, &placement, permuted, gates, None, y);
    let saved = CombineSaved { rows: permuted, gates };
    combine_backward(&mut harness.job.rec, &placement, &saved, dy, d_rows, d_gates);

    // The choice in each row: by expert, and in the order of the tokens.
    let mut choices: Vec<usize> = (0..expert_of.len()).collect();
    choices.sort_by_key(|choice| expert_of[*choice]);
    let (mut want_rows, mut want_d_rows) = (Vec::new(), Vec::new());
    let [mut want_dx, mut want_y] = [(); 2].map(|()| vec![0; x_values.len()]);
    let mut want_d_gates = vec![0; choices.len()];
    for (row, &choice) in choices.iter().enumerate() {
        for col in 0..D as usize {
            let at = choice / chosen as usize * D as usize + col;
            let (x, dy, gate) = (x_values[at], dy_values[at], gate_values[choice]);
            want_rows.push(x);
            want_dx[at] += d_values[row * D as usize + col];
            want_y[at] += gate * x;
            want_d_rows.push(gate * dy);
            want_d_gates[choice] += dy * x;
        }
    }
    let first_row = |expert| choices.partition_point(|choice| expert_of[*choice] < expert) as u32;
    let offsets: Vec<u32> = (0..=experts).map(first_row).collect();
    let labels = ["grouped_matmul", "grouped_matmul dx", "grouped_matmul dw"];
    grouped(harness, (permuted, &want_rows), (placement.offsets, &offsets), F, labels);
    harness.expect("permute", permuted, want_rows);
    harness.expect("permute dx", dx, want_dx);
    harness.expect("combine", y, want_y);
    harness.expect("combine drows", d_rows, want_d_rows);
    harness.expect("combine dgates", d_gates, want_d_gates);
}
