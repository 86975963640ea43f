//! The self-test of the kernels of a mixture of experts.

use super::harness::Harness;
use super::{D, N};
use crate::ops::grouped_matmul::{grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight};
use crate::ops::permute::{
    CombineSaved, Placement, PlacementConfig, RowAllocation, combine, combine_backward, permute,
    permute_backward, place,
};
use crate::ops::route::{RouterConfig, RouterOutput, Score, route, route_backward};
use crate::ops::work_list::WorkList;
use crate::record::Tensor;
use crate::reference;

/// Inner width of an expert, in features.
const F: u32 = 72;
const ROUTE: RouterConfig = RouterConfig {
    experts: 6,
    chosen: 2,
    score: Score::Softmax,
    groups: None,
    norm_top_k: true,
    scaling: 1.5,
};
/// Rows of all experts: one for each choice of a token.
const ROWS: u32 = N * ROUTE.chosen;

const LABELS: [&str; 5] = ["permute", "permute dx", "combine", "combine drows", "combine dgates"];

/// What the router decided on the device, and the gates and placement that the reference derives.
struct Choices {
    routed: RouterOutput,
    gates: Vec<f64>,
    placed: reference::permute::Placement,
}

/// Routing, permutations and expert products, forward and backward.
pub(super) fn experts(harness: &mut Harness<'_>) {
    let choices = routes(harness);
    let (placement, x) = rows(harness, &choices);
    products(harness, &choices, &placement, x);
}

fn routes(harness: &mut Harness<'_>) -> Choices {
    let (experts, chosen) = (ROUTE.experts, ROUTE.chosen);
    let ((logits, values), (d_gates, d_values)) = (harness.input(N, experts), harness.input(N, chosen));
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
    let formula = reference::route::RouterConfig {
        experts: experts as usize,
        chosen: chosen as usize,
        is_sigmoid: false,
        groups: None,
        norm_top_k: ROUTE.norm_top_k,
        scaling: ROUTE.scaling.into(),
    };
    let scores = reference::route::scores(&values, &formula);
    let ids = reference::route::choose(&scores, None, &formula);
    let gates = reference::route::gates(&values, &ids, &formula);
    let d_scores = reference::route::gates_backward(&values, &ids, &d_values, &formula);
    harness.expect("route", routed.gates, gates.clone());
    harness.expect(
        "route dlogits",
        d_logits,
        reference::route::scores_backward(&values, &d_scores, &formula),
    );
    let ids: Vec<usize> = ids.into_iter().map(|id| id as usize).collect();
    let allocation = reference::permute::RowAllocation::Dropless { extra: 0 };
    let placed = reference::permute::place(&ids, formula.chosen, formula.experts, &allocation);
    Choices { routed, gates, placed }
}

/// Permutes tokens to rows of experts and combines them into tokens again. Returns the placement and the rows (R, D),
/// with their expected values.
fn rows(harness: &mut Harness<'_>, choices: &Choices) -> (Placement, (Tensor, Vec<f64>)) {
    let Choices { routed, gates, placed } = choices;
    let allocation = RowAllocation::Dropless { safe_tokens: false };
    let routes = PlacementConfig { tokens: N, chosen: ROUTE.chosen, experts: ROUTE.experts, allocation };
    let placement = place(&mut harness.job.rec, &routes, routed.ids, None);
    let ((x, x_values), (dy, dy_values)) = (harness.input(N, D), harness.input(N, D));
    let (k, cols) = (ROUTE.chosen as usize, D as usize);

    let (permuted, dx) = (harness.output(ROWS, D), harness.output(N, D));
    permute(&mut harness.job.rec, &placement, x, permuted);
    let permuted_values = reference::permute::permute(&x_values, placed, k, cols);
    harness.expect(LABELS[0], permuted, permuted_values.clone());
    let (d_permuted, d_values) = harness.input(ROWS, D);
    permute_backward(&mut harness.job.rec, &placement, d_permuted, dx, false);
    harness.expect(LABELS[1], dx, reference::permute::permute_backward(&d_values, placed, k, cols));

    let (y, d_rows, d_gates) =
        (harness.output(N, D), harness.output(ROWS, D), harness.output(N, ROUTE.chosen));
    combine(&mut harness.job.rec, &placement, permuted, routed.gates, None, y);
    let saved = CombineSaved { rows: permuted, gates: routed.gates };
    combine_backward(&mut harness.job.rec, &placement, &saved, dy, d_rows, d_gates);
    let want = reference::permute::combine_backward(&permuted_values, gates, placed, &dy_values, k, cols);
    harness.expect(LABELS[2], y, reference::permute::combine(&permuted_values, gates, placed, k, cols));
    harness.expect(LABELS[3], d_rows, want.0);
    harness.expect(LABELS[4], d_gates, want.1);
    (placement, (permuted, permuted_values))
}

/// The linear layers of all experts: forward, and the gradients of their rows and of their weights.
fn products(
    harness: &mut Harness<'_>,
    choices: &Choices,
    placement: &Placement,
    (x, x_values): (Tensor, Vec<f64>),
) {
    let work = WorkList::new(&mut harness.job.rec, placement.offsets, ROWS);
    let ((w, w_values), (dy, dy_values)) = (harness.input(ROUTE.experts * F, D), harness.input(ROWS, F));
    let (y, dx, dw) =
        (harness.output(ROWS, F), harness.output(ROWS, D), harness.output(ROUTE.experts * F, D));
    grouped_matmul(&mut harness.job.rec, x, &[w], &work, y);
    grouped_matmul_backward(&mut harness.job.rec, dy, &[w], &work, dx, false);
    grouped_matmul_backward_weight(&mut harness.job.rec, dy, x, &work, &[dw]);
    let (offsets, out, inner) = (&choices.placed.offsets, F as usize, D as usize);
    let want = reference::grouped_matmul::grouped_matmul(&x_values, &w_values, offsets, out, inner);
    let (want_dx, want_dw) = reference::grouped_matmul::grouped_matmul_backward(
        &x_values, &w_values, offsets, &dy_values, out, inner,
    );
    harness.expect("grouped_matmul", y, want);
    harness.expect("grouped_matmul dx", dx, want_dx);
    harness.expect("grouped_matmul dw", dw, want_dw);
}
