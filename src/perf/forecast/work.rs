//! The work of each launch of a recording.

use crate::kernels::Condition;
use crate::model::config::ModelConfig;
use crate::model::count;
use crate::ops::gated_delta_rule::CHUNK;
use crate::record::{Dispatch, Recording};
use crate::train::hot_copies::HotCopies;
use crate::train::recordings::Recordings;

/// The share of each launch in the time of a micro-batch, by its operations, chunk by chunk.
pub(super) fn shares(recordings: &Recordings) -> Vec<Vec<f64>> {
    let flops: Vec<Vec<f64>> =
        recordings.chunks().map(|recording| launch_flops(recordings, recording)).collect();
    let all = flops.iter().flatten().sum::<f64>().max(1.0);
    flops.into_iter().map(|chunk| chunk.into_iter().map(|one| one / all).collect()).collect()
}

/// Floating-point operations of each launch of one of the `recordings`: those of matrix products, of attention and of the
/// gated delta rule; the others are negligible. Products of experts count the rows that there are if all experts are chosen equally often,
/// not the rows that there is room for; products of copies of hot experts count all their rows.
pub fn launch_flops(recordings: &Recordings, recording: &Recording) -> Vec<f64> {
    let tokens = recordings.tensors.batch.tokens.cols;
    let mixture = recordings.model.mixture.as_ref();
    let rows = mixture.map_or(0, |mixture| {
        let placement = mixture.placement(tokens, false);
        if recordings.hot_copies.is_some() { placement.spread_rows() } else { placement.rows() }
    });
    let local = mixture.map_or(1, |mixture| mixture.experts() / recordings.ownership.ranks.expert) as u32;
    let hot = recordings.hot_copies.as_ref().map_or(1, HotCopies::count);
    let flops = |launch: &Dispatch| match launch.kernel.entry {
        "matmul" => product(launch, rows, [local, hot]),
        entry if entry.starts_with("gated_delta_rule") => delta_rule(launch),
        _ => attention(&recordings.model, launch) * f64::from(tokens),
    };
    recording.dispatches.iter().map(flops).collect()
}

/// Operations of a product. A launch over `rows` rows of experts in total does the share of its experts among `local`;
/// a launch over all rows of copies does the share of its experts among `hot`.
fn product(launch: &Dispatch, rows: u32, [local, hot]: [u32; 2]) -> f64 {
    let size = |name| f64::from(launch.param(name).unwrap_or(0));
    // For gate and up, n counts the columns of each.
    let has_pairs = launch.kernel.conditions().any(|condition| condition == Condition::Swiglu);
    let columns = size("n") * if has_pairs { 2.0 } else { 1.0 };
    let whole = 2.0 * size("m") * columns * size("k");
    let Some(experts) = launch.param("experts") else { return whole };
    // The rows are the first size of a product with them, and the last size of a gradient of matrices.
    let is_gradient = launch.bindings.iter().any(|binding| binding.variable == "offsets");
    let room = if is_gradient { size("k") } else { size("m") };
    let is_of_copies = launch.path.split('.').any(|part| part == "hot");
    let share = if is_of_copies { 1.0 } else { f64::from(rows) / room.max(1.0) };
    let all = if is_of_copies { hot } else { local };
    whole * share * f64::from(experts) / f64::from(all)
}

/// Operations per token of an attention kernel: the scores and sums of the forward pass are two products. The backward
/// pass computes the scores again, and then the gradients of queries, or of keys and values, or of all three if the
/// kernel leaves the gradient of queries in parts.
fn attention(model: &ModelConfig, launch: &Dispatch) -> f64 {
    let kernel = &launch.kernel;
    let leaves_parts = kernel.conditions().any(|condition| condition == Condition::Split);
    let products = match kernel.entry {
        "attention" => 2.0,
        "attention_backward_q" => 3.0,
        "attention_backward_kv" if leaves_parts => 5.0,
        "attention_backward_kv" => 4.0,
        _ => return 0.0,
    };
    let window = launch.param("window").filter(|window| *window > 0);
    let widths = kernel.constants().iter().filter(|(name, _)| matches!(*name, "D4" | "V4"));
    let width = widths.map(|(_, quads)| 4 * *quads as usize).sum();
    products / 2.0 * count::flops_per_token_of_heads(model, width, window.map(|window| window as usize))
}

/// Operations of a kernel of the gated delta rule: for each token and head products with a state (K, V), and with the
/// tokens of its chunk.
fn delta_rule(launch: &Dispatch) -> f64 {
    let size = |name| f64::from(launch.param(name).unwrap_or(0));
    let [k, v, chunk] = [4.0 * size("d4"), 4.0 * size("v4"), f64::from(CHUNK)];
    let state = k * v;
    let multiply_adds = match launch.kernel.entry {
        "gated_delta_rule_prepare" => 2.0 * chunk * k,
        "gated_delta_rule_states" => 2.0 * state + chunk * v,
        "gated_delta_rule_outputs" => state + chunk * v,
        "gated_delta_rule_states_backward" => 3.0 * state + 2.0 * chunk * v,
        "gated_delta_rule_pairs" => 2.0 * chunk * v,
        "gated_delta_rule_gradients" => 3.0 * state + 4.0 * chunk * k,
        "gated_delta_rule_written" => 2.0 * state,
        "gated_delta_rule_walk" | "gated_delta_rule_walk_backward" | "gated_delta_rule_step" => 3.0 * state,
        _ => 0.0,
    };
    // Those of a segment of each sequence, or the next of each.
    let tokens = match launch.param("sequences") {
        Some(sequences) => sequences.into(),
        None => {
            let of_segment = (size("chunks") * chunk).min(size("tokens") - size("begin"));
            size("rows") / size("tokens") * of_segment
        }
    };
    2.0 * tokens * size("heads") * multiply_adds
}
