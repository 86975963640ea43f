//! One file per kernel: its params struct, its plan and the functions that append it to a recording.
//!
//! An op asserts the shapes and elements of its tensors and records; nothing runs here. The plan of a run has checked
//! the configuration before, so a failed assertion is a bug.

pub mod adamw;
pub mod add;
pub mod attention;
pub mod balance;
pub mod cast;
pub mod causal_conv;
pub mod clip;
pub mod column_scale;
pub mod column_sum;
pub mod decode;
pub mod delta_gates;
pub mod draw;
pub mod dropout;
pub mod embedding;
pub mod expert_scale;
pub mod fingerprint;
pub mod gated_delta_rule;
pub mod gated_norm;
pub mod gelu;
pub mod grad_norm;
pub mod grouped_matmul;
pub mod heads;
pub mod hot_copies;
pub mod hot_experts;
pub mod l2_norm;
pub mod largest;
pub mod latent_heads;
pub mod layer_norm;
pub mod linear_cross_entropy;
pub mod loss_scale;
pub mod matmul;
pub mod matrix_ranks;
pub mod max_logit;
pub mod muon;
pub mod permute;
pub mod preference;
pub mod qk_layer_norm;
pub mod qk_norm;
pub mod rms_norm;
pub mod rope;
pub mod rope_scaling;
pub mod rounding;
pub mod route;
pub mod row_gate;
pub mod row_squares;
pub mod sgd;
pub mod sigmoid_gate;
mod soft_cap;
pub mod spread;
pub mod squares;
pub mod step_state;
pub mod swiglu;
pub mod tally;
pub mod unit_heads;
pub mod work_list;
pub mod xielu;
pub mod zero;

use crate::element::Element;
use crate::kernels::{Capabilities, Condition, Kernel, Tier};
use crate::record::{Recorder, fold_grid};

/// Workgroup size of kernels whose invocations do not cooperate.
pub(crate) const LANES: u32 = 64;

/// A kernel with one invocation for each of `count` items, and its grid.
#[track_caller]
pub(crate) fn per_item(
    file: &'static str,
    entry: &'static str,
    element: Element,
    count: u64,
) -> (Kernel, [u32; 3]) {
    (Kernel::new(file, entry, element).constant("LANES", LANES), fold_grid(count.div_ceil(LANES as u64)))
}

/// A kernel over rows, and its grid: one workgroup per row, or one invocation on the software tier.
#[track_caller]
pub(crate) fn per_row(
    rec: &Recorder,
    file: &'static str,
    entry: &'static str,
    element: Element,
    rows: u32,
) -> (Kernel, [u32; 3]) {
    let kernel = Kernel::new(file, entry, element);
    match rec.capabilities().tier {
        // Small workgroups, so that a few hundred rows keep several cores busy.
        Tier::Software => (kernel.constant("LANES", 16), fold_grid(rows.div_ceil(16) as u64)),
        Tier::Portable | Tier::Matrix => {
            (kernel.constant("LANES", 128).condition(Condition::SharedTile, true), fold_grid(rows as u64))
        }
    }
}

/// A kernel over rows, and its grid: a workgroup per row, which on the software tier is a subgroup if it has any. For
/// so few rows that one invocation per row would leave most lanes and cores idle, as when a single token is decoded.
#[track_caller]
pub(crate) fn shared_rows(
    rec: &Recorder,
    file: &'static str,
    entry: &'static str,
    element: Element,
    rows: u32,
) -> (Kernel, [u32; 3]) {
    let capabilities = rec.capabilities();
    let lanes = match capabilities.tier {
        Tier::Software => capabilities.software_workgroup,
        Tier::Portable | Tier::Matrix => 128,
    };
    let kernel = Kernel::new(file, entry, element).constant("LANES", lanes);
    (kernel.condition(sharing(capabilities), true), fold_grid(rows as u64))
}

/// A kernel over rows, and its grid: a workgroup of 256 lanes per row on any tier, for rows over which fewer lanes
/// would take more turns than [`Capabilities::most_turns`].
#[track_caller]
pub(crate) fn long_rows(
    file: &'static str,
    entry: &'static str,
    element: Element,
    rows: u32,
) -> (Kernel, [u32; 3]) {
    let kernel = Kernel::new(file, entry, element).constant("LANES", 256);
    (kernel.condition(Condition::SharedTile, true), fold_grid(rows as u64))
}

/// A kernel that sums each block of rows by groups of 4 columns, and its grid: one lane per group or, where barriers
/// are fast, one workgroup for 16 groups, whose lanes share the rows (`shaders/lib/reduce.wgsl`).
#[track_caller]
pub(crate) fn per_block(
    rec: &Recorder,
    file: &'static str,
    entry: &'static str,
    element: Element,
    [columns4, blocks]: [u32; 2],
) -> (Kernel, [u32; 3]) {
    let kernel = Kernel::new(file, entry, element);
    let (kernel, across) = match rec.capabilities().tier {
        Tier::Software => (kernel.constant("LANES", LANES), LANES),
        Tier::Portable | Tier::Matrix => {
            (kernel.constant("LANES", 256).condition(Condition::SharedTile, true), 16)
        }
    };
    (kernel, [columns4.div_ceil(across), blocks, 1])
}

/// The condition that says how invocations that share a row reduce (`shaders/lib/reduce.wgsl`).
pub(crate) fn sharing(capabilities: Capabilities) -> Condition {
    match (capabilities.tier, capabilities.lanes) {
        (Tier::Software, 2..) => Condition::Shuffled,
        _ => Condition::SharedTile,
    }
}

/// [`shared_rows`] for up to 16 rows, which is the workgroup size of [`per_row`] on the software tier, and `per_row`
/// for more.
#[track_caller]
pub(crate) fn few_or_many_rows(
    rec: &Recorder,
    file: &'static str,
    entry: &'static str,
    element: Element,
    rows: u32,
) -> (Kernel, [u32; 3]) {
    if rows <= 16 {
        shared_rows(rec, file, entry, element, rows)
    } else {
        per_row(rec, file, entry, element, rows)
    }
}

/// A kernel of one workgroup that reduces a vector.
pub(crate) fn fold(file: &'static str, entry: &'static str, element: Element) -> Kernel {
    Kernel::new(file, entry, element).constant("LANES", LANES).condition(Condition::SharedTile, true)
}
