//! The kernels of a mixture of experts.

use super::bench::Bench;
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

/// Inner width of an expert.
const F: u32 = 72;
const ROUTE: RouterConfig = RouterConfig {
    experts: 6,
    chosen: 2,
    score: Score::Softmax,
    groups: None,
    norm_top_k: true,
    scaling: 1.5,
};
/// Rows of all experts: as many as choices.
const ROWS: u32 = N * ROUTE.chosen;

/// Labels of what moves rows: one kernel each, and several.
const FUSED: [&str; 5] =
    ["fused permute", "fused permute dx", "fused combine", "fused combine drows", "fused combine dgates"];
const COMPOSED: [&str; 5] = ["permute", "permute dx", "combine", "combine drows", "combine dgates"];

/// What the router decided, and the same from the reference.
struct Choices {
    routed: RouterOutput,
    gates: Vec<f64>,
    placed: reference::permute::Placement,
}

/// The way of tokens to experts and back, forward and backward.
pub(super) fn experts(bench: &mut Bench<'_>) {
    let choices = routes(bench);
    rows(bench, &choices, true, FUSED);
    let (placement, x) = rows(bench, &choices, false, COMPOSED);
    products(bench, &choices, &placement, x);
}

fn routes(bench: &mut Bench<'_>) -> Choices {
    let (experts, chosen) = (ROUTE.experts, ROUTE.chosen);
    let ((logits, values), (d_gates, d_values)) = (bench.input(N, experts), bench.input(N, chosen));
    let routed = RouterOutput {
        ids: bench.output(1, ROWS),
        gates: bench.output(N, chosen),
        scores: bench.output(N, experts),
        statistics: bench.output(N, 4),
        unbiased: None,
    };
    let d_logits = bench.output(N, experts);
    route(&mut bench.rec, &ROUTE, logits, None, &routed);
    route_backward(&mut bench.rec, &ROUTE, &routed, logits, Some(d_gates), None, d_logits);
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
    bench.expect("route", routed.gates, gates.clone());
    bench.expect("route dlogits", d_logits, reference::route::scores_backward(&values, &d_scores, &formula));
    let ids: Vec<usize> = ids.into_iter().map(|id| id as usize).collect();
    let allocation = reference::permute::RowAllocation::Dropless { extra: 0 };
    let placed = reference::permute::place(&ids, formula.chosen, formula.experts, &allocation);
    Choices { routed, gates, placed }
}

/// Tokens become rows of experts, and those become tokens again. Returns the rows (R, D), and whose they are.
fn rows(
    bench: &mut Bench<'_>,
    choices: &Choices,
    is_fused: bool,
    labels: [&'static str; 5],
) -> (Placement, (Tensor, Vec<f64>)) {
    let Choices { routed, gates, placed } = choices;
    let allocation = RowAllocation::Dropless { safe_tokens: false };
    let routes =
        PlacementConfig { tokens: N, chosen: ROUTE.chosen, experts: ROUTE.experts, allocation, is_fused };
    let placement = place(&mut bench.rec, &routes, routed.ids, None);
    let ((x, x_values), (dy, dy_values)) = (bench.input(N, D), bench.input(N, D));
    let (k, cols) = (ROUTE.chosen as usize, D as usize);

    let (permuted, dx) = (bench.output(ROWS, D), bench.output(N, D));
    permute(&mut bench.rec, &placement, x, permuted);
    let permuted_values = reference::permute::permute(&x_values, placed, k, cols);
    bench.expect(labels[0], permuted, permuted_values.clone());
    let (d_permuted, d_values) = bench.input(ROWS, D);
    permute_backward(&mut bench.rec, &placement, d_permuted, dx, false);
    bench.expect(labels[1], dx, reference::permute::permute_backward(&d_values, placed, k, cols));

    let (y, d_rows, d_gates) = (bench.output(N, D), bench.output(ROWS, D), bench.output(N, ROUTE.chosen));
    combine(&mut bench.rec, &placement, permuted, routed.gates, None, y);
    let saved = CombineSaved { rows: permuted, gates: routed.gates };
    combine_backward(&mut bench.rec, &placement, &saved, dy, d_rows, d_gates);
    let wanted = reference::permute::combine_backward(&permuted_values, gates, placed, &dy_values, k, cols);
    bench.expect(labels[2], y, reference::permute::combine(&permuted_values, gates, placed, k, cols));
    bench.expect(labels[3], d_rows, wanted.0);
    bench.expect(labels[4], d_gates, wanted.1);
    (placement, (permuted, permuted_values))
}

/// An expert's linear layer: forward, and the gradients of its rows and of its weights.
fn products(
    bench: &mut Bench<'_>,
    choices: &Choices,
    placement: &Placement,
    (x, x_values): (Tensor, Vec<f64>),
) {
    let work = WorkList::new(&mut bench.rec, placement.offsets, ROWS);
    let ((w, w_values), (dy, dy_values)) = (bench.input(ROUTE.experts * F, D), bench.input(ROWS, F));
    let (y, dx, dw) = (bench.output(ROWS, F), bench.output(ROWS, D), bench.output(ROUTE.experts * F, D));
    grouped_matmul(&mut bench.rec, x, &[w], &work, y);
    grouped_matmul_backward(&mut bench.rec, dy, &[w], &work, dx, false);
    grouped_matmul_backward_weight(&mut bench.rec, dy, x, &work, &[dw]);
    let (offsets, out, inner) = (&choices.placed.offsets, F as usize, D as usize);
    let want = reference::grouped_matmul::grouped_matmul(&x_values, &w_values, offsets, out, inner);
    let (want_dx, want_dw) = reference::grouped_matmul::grouped_matmul_backward(
        &x_values, &w_values, offsets, &dy_values, out, inner,
    );
    bench.expect("grouped_matmul", y, want);
    bench.expect("grouped_matmul dx", dx, want_dx);
    bench.expect("grouped_matmul dw", dw, want_dw);
}
