//! The embedded shader files. `tests/without_adapter/shaders.rs` checks that none is missing.

macro_rules! shaders {
    ($($path:literal),* $(,)?) => {
        /// Every shader file: its path below `shaders/` without extension, and its text.
        pub const SOURCES: &[(&str, &str)] =
            &[$(($path, include_str!(concat!("../../shaders/", $path, ".wgsl")))),*];
    };
}

shaders![
    "adamw",
    "add",
    "attention/backward_kv",
    "attention/backward_q",
    "attention/decode",
    "attention/forward",
    "attention/queries",
    "balance",
    "cast",
    "column_sum",
    "dropout",
    "embedding",
    "gelu",
    "grad_norm",
    "hot_experts",
    "lanes",
    "layer_norm",
    "lib/attention",
    "lib/best",
    "lib/dropout",
    "lib/element",
    "lib/grid",
    "lib/group",
    "lib/lanes",
    "lib/philox",
    "lib/reduce",
    "lib/row",
    "lib/step_state",
    "linear_cross_entropy",
    "matmul/operands",
    "matmul/portable",
    "matmul/software",
    "muon",
    "permute/composed",
    "permute/fused",
    "permute/gates",
    "permute/sort",
    "qk_norm",
    "rms_norm",
    "rope",
    "route",
    "row_gate",
    "swiglu",
    "tally",
    "unfused",
    "work_list",
];
