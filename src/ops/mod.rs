//! One file per kernel: its params struct, its plan, the functions that append it to a recording.
//!
//! An op asserts the shapes it is given with a sentence (the run's plan has proved them by then), and records. Nothing
//! here runs anything.

pub mod adamw;
pub mod add;
pub mod attention;
pub mod balance;
pub mod cast;
pub mod column_sum;
pub mod decode;
pub mod dropout;
pub mod embedding;
pub mod gelu;
pub mod grad_norm;
pub mod grouped_matmul;
pub mod heads;
pub mod hot_experts;
pub mod layer_norm;
pub mod linear_cross_entropy;
pub mod matmul;
pub mod muon;
pub mod permute;
pub mod qk_norm;
pub mod rms_norm;
pub mod rope;
pub mod rope_scaling;
pub mod route;
pub mod row_gate;
pub mod swiglu;
pub mod tally;
pub mod unfused;
pub mod work_list;

use crate::element::Element;
use crate::kernels::{Kernel, Tier};
use crate::record::{Recorder, fold_grid};

/// Invocations of a workgroup whose invocations work alone.
pub(crate) const LANES: u32 = 64;

/// A kernel in which each invocation works alone on one of `count` items, and its grid.
pub(crate) fn per_item(
    file: &'static str,
    entry: &'static str,
    element: Element,
    count: u64,
) -> (Kernel, [u32; 3]) {
    (Kernel::new(file, entry, element).constant("LANES", LANES), fold_grid(count.div_ceil(LANES as u64)))
}

/// A kernel that works on rows: a workgroup shares one, or on CPU adapters an invocation has one of its own.
pub(crate) fn per_row(
    rec: &Recorder,
    file: &'static str,
    entry: &'static str,
    element: Element,
    rows: u32,
) -> (Kernel, [u32; 3]) {
    let kernel = Kernel::new(file, entry, element);
    match rec.capabilities().tier {
        // Few invocations, so that a few hundred rows keep several cores busy.
        Tier::Software => (kernel.constant("LANES", 16), fold_grid(rows.div_ceil(16) as u64)),
        Tier::Portable => {
            (kernel.constant("LANES", 128).feature("shared_tile", true), fold_grid(rows as u64))
        }
    }
}

/// A kernel of one workgroup that folds a vector.
pub(crate) fn fold(file: &'static str, entry: &'static str, element: Element) -> Kernel {
    Kernel::new(file, entry, element).constant("LANES", LANES).feature("shared_tile", true)
}
