//! Sections of MindFormers none of whose keys is used: each key is ignored, or refused where it asks for something.

use crate::settings::engine::*;

/// Their paths and tables.
pub(crate) fn tables() -> [(&'static str, Table); 2] {
    let trainer = [
        ignored("model_name", "a name for MindFormers' logs"),
        refused(
            "type",
            Passes::Words("CausalLanguageModelingTrainer"),
            "write `type: CausalLanguageModelingTrainer`",
        ),
    ];
    let swap = [
        ignored("layer_swap op_swap default_prefetch", "without effect while nothing is swapped"),
        refused(
            "swap",
            Passes::Off,
            "write `swap: False` and `recompute_config.recompute: True`, which saves the memory without the transfers; \
                `gristmill plan` says what a run takes, and `context.max_device_memory` limits it",
        ),
    ];
    [
        ("trainer", "which of MindFormers' trainers to use; there is one.", trainer),
        ("swap_config", "activations kept in the host's memory.", swap),
    ]
    .map(|(path, about, others)| (path, Table::unused(&format!("`{path}`: {about}"), others)))
}

/// Checks them.
pub(crate) fn check(source: &Source) {
    for (path, table) in tables() {
        Reader::open(source, path, &[&table]);
    }
}
