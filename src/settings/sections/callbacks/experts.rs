//! The callbacks that watch experts.

use crate::settings::engine::*;
use std::path::PathBuf;

rows! {
    /// `MoEDropRateCallback`: a log line with each layer's drop rate, the share of the step's choices that were dropped.
    /// MindFormers' estimate stands beside it in `metrics.jsonl`. Its keys repeat settings of the model and must match them.
    pub struct DropRateCallback {
        /// Experts of a layer.
        expert_num: Option<u64> = Host.required(),
        /// Slots over an equal share of the choices.
        capacity_factor: Option<f64> = Host.required(),
        /// Blocks, those for multi-token prediction not counted.
        num_layers: Option<u64> = Host.required(),
        /// Blocks for multi-token prediction.
        mtp_depth: Option<u64> = Host.required(),
    }
    others [sections("type")]
}

rows! {
    /// `TopkBiasBalanceCallback`: moves the bias of the choice in MindFormers; here the device does. Its keys
    /// repeat settings of the model and must match them.
    pub struct TopkBiasCallback {
        /// Whether a bias takes part in the choice.
        balance_via_topk_bias: Option<bool> = Host.optional(),
        /// By how much it moves.
        topk_bias_update_rate: Option<f64> = Host.optional(),
        /// Experts of a layer.
        expert_num: Option<u64> = Host.optional(),
        /// Micro-batches in a step.
        gradient_accumulation_steps: Option<u64> = Host.optional(),
        /// Blocks, those for multi-token prediction not counted.
        num_layers: Option<u64> = Host.optional(),
        /// Blocks for multi-token prediction.
        mtp_depth: Option<u64> = Host.optional(),
    }
    // MindFormers' count of micro-batches includes those of pipeline stages.
    others [
        sections("type"),
        ignored("micro_batch_num log_expert_load_to_tensorboard", "about pipeline stages and TensorBoard"),
    ]
}

rows! {
    /// `ColdHotExpertMonitor`: when hot experts are chosen anew, beside `moe_config.update_step`.
    pub struct ColdHotMonitor {
        /// Step after which hot experts are selected again; by default that of the `CheckpointMonitor`. -1: none.
        save_checkpoint_steps: i64 = Numbers.default(-1).example("7"),
    }
    others [
        sections("type"),
        ignored(
            "moe_config hidden_size intermediate_size ffn_hidden_size expert_parallel model_parallel",
            "what MindFormers must be told and a mixture here knows",
        ),
    ]
}

rows! {
    /// `SummaryMonitor`: where and when `moe_config.save_token_distribution` writes.
    pub struct SummaryMonitor {
        /// Folder of the files; by default `summary` in the run's folder.
        summary_dir: PathBuf = Host.optional().example("./shown"),
        /// Steps between files.
        collect_freq: u64 = Host.default(COLLECT_FREQ).within(COUNT),
    }
    others [
        sections("type export_options"),
        ignored(
            "collect_specified_data collect_tensor_freq keep_default_action custom_lineage_data max_file_size",
            "about MindInsight's files",
        ),
    ]
}

/// MindFormers' `collect_freq`.
pub(crate) const COLLECT_FREQ: u64 = 10;

/// `export_options` of the summary.
pub(crate) fn export_table() -> Table {
    Table::unused(
        "`export_options` of a `SummaryMonitor`.",
        [refused("tensor_format", Passes::Words("npy"), "write `tensor_format: npy`")],
    )
}

/// What a callback repeats of the model: key and value. It must be so.
pub(crate) type Claim = (&'static str, Node);

/// What `callback` says of the model.
pub(crate) fn claims(callback: &impl Section) -> Vec<Claim> {
    callback.entries().into_iter().filter_map(|entry| Some((entry.key, entry.written?))).collect()
}
