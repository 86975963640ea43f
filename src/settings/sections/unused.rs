//! Sections of the original none of whose keys is used: each key is ignored, or refused where it asks for something.

use crate::settings::engine::*;

/// Their paths and tables.
pub(crate) fn tables() -> [(&'static str, Table); 4] {
    let trainer = [
        ignored("model_name", "a name for the original's logs"),
        refused(
            "type",
            Passes::Words("CausalLanguageModelingTrainer"),
            "write `type: CausalLanguageModelingTrainer`",
        ),
    ];
    let swap = [
        ignored("layer_swap op_swap default_prefetch", "without effect while nothing is swapped"),
        refused(
            "swap|cpu_offloading",
            Passes::Off,
            "write `swap: False` and `recompute_config.recompute: True`, which saves the memory without the transfers; \
                `gristmill plan` says what a run takes, and `context.max_device_memory` limits it",
        ),
    ];
    let parallel = [
        sections("pipeline_config"),
        ignored(
            "parallel_mode search_mode auto_parallel_search_mode auto_parallel_new_interface enable_parallel_optimizer \
                parallel_optimizer_config full_batch dataset_strategy gradients_mean gradient_fp32_sync \
                loss_repeated_mean enable_alltoall strategy_ckpt_load_file strategy_ckpt_save_file strategy_ckpt_config \
                group_ckpt_save_file parameter_broadcast communi_parallel_mode comm_fusion \
                all_reduce_fusion_config auto_pipeline pipeline_stages pipeline_result_broadcast pipeline_segments \
                grad_accumulation_step force_fp32_communication device_num global_rank",
            "about several devices",
        ),
    ];
    let pipeline = [
        ignored("pipeline_scheduler", "about several devices"),
        differs(
            "pipeline_interleave",
            Passes::Off,
            "counts of layers in `recompute_config` follow it; nothing else does, as a run here has no pipeline",
        ),
    ];
    [
        ("trainer", "which of the original's trainers to use; there is one.", trainer),
        ("swap_config", "activations kept in the host's memory.", swap),
        ("parallel", "how MindSpore spreads a run over devices. A run here is one rank.", parallel),
        ("parallel.pipeline_config", "the order of a pipeline's stages.", pipeline),
    ]
    .map(|(path, about, others)| (path, Table::unused(&format!("`{path}`: {about}"), others)))
}

/// Checks them.
pub(crate) fn check(source: &Source<'_>) {
    for (path, table) in tables() {
        Reader::open(source, path, &[&table]);
    }
}
