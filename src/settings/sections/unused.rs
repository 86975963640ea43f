//! Sections of the original none of whose keys is used: each key is ignored, or refused where it asks for something.

use crate::settings::engine::*;

/// Their paths and tables.
pub(crate) fn tables() -> [(&'static str, Table); 3] {
    let trainer = [
        ignored("model_name", "a name for the original's logs"),
        refused(
            "type",
            Passes::Words("CausalLanguageModelingTrainer"),
            "write `type: CausalLanguageModelingTrainer`",
        ),
    ];
    let recompute = [
        ignored(
            "parallel_optimizer_comm_recompute mp_comm_recompute recompute_slice_activation \
                select_recompute_exclude select_comm_recompute_exclude",
            "without effect while nothing is recomputed",
        ),
        refused("recompute select_recompute select_comm_recompute", Passes::Off, "write `False`"),
    ];
    let swap = [
        ignored("layer_swap op_swap default_prefetch", "without effect while nothing is swapped"),
        refused("swap|cpu_offloading", Passes::Off, "write `swap: False`"),
    ];
    [
        ("trainer", "which of the original's trainers to use; there is one.", trainer),
        ("recompute_config", "which activations are computed again in the backward pass.", recompute),
        ("swap_config", "activations kept in the host's memory.", swap),
    ]
    .map(|(path, about, others)| (path, Table::unused(&format!("`{path}`: {about}"), others)))
}

/// Checks them.
pub(crate) fn check(source: &Source<'_>) {
    for (path, table) in tables() {
        Reader::open(source, path, &[&table]);
    }
}
