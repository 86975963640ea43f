//! Every key we know and what becomes of it: used, ignored because it has no meaning here, taken with a notice
//! because it means something else, or refused because it is wanted but not built. Any other key is unknown.
//! What an issue builds moves from the rules to `used`.

use super::keys::{Keys, Outcome, Passes, Rule};
pub(crate) use super::model_keys::{MODEL, MOE};

/// Where each kind of section stands, for "it belongs in".
pub(crate) const SECTIONS: [(&str, &Keys); 13] = [
    ("", &TOP),
    ("runner_config", &RUNNER),
    ("runner_wrapper", &WRAPPER),
    ("optimizer", &OPTIMIZER),
    ("lr_schedule", &SCHEDULE),
    ("model.model_config", &MODEL),
    ("train_dataset", &DATASET),
    ("context", &CONTEXT),
    ("parallel_config", &PARALLEL),
    ("recompute_config", &RECOMPUTE),
    ("moe_config", &MOE),
    ("swap_config", &SWAP),
    ("sample", &SAMPLE),
];

pub(crate) const TOP: Keys = Keys {
    used: "run_name seed output_dir load_checkpoint resume_training run_mode do_eval eval_step_interval \
        eval_epoch_interval eval_batches sample trainer runner_config runner_wrapper optimizer lr_schedule grouped_lr_schedule no_decay_params \
        train_dataset train_dataset_task eval_dataset eval_dataset_task model moe_config recompute_config \
        swap_config monitor_config callbacks context parallel_config micro_batch_interleave_num",
    ignored: "use_parallel auto_trans_ckpt transform_process_num src_strategy_path_or_dir load_ckpt_format \
        load_ckpt_async use_legacy layer_decay lr_scale_factor remote_save_url auto_tune autotune_per_step \
        filepath_prefix profile_start_step profile_stop_step profile_communication profile_memory \
        profile_rank_ids profile_pipeline profiler_level init_start_profile mstx parallel processor metric \
        eval_callbacks infer train_precision_sync print_separate_loss remove_redundancy run_status \
        use_graceful_exit",
    rules: &[
        refuse("profile", Passes::Off, "write `profile: False`"),
        refuse("only_save_strategy", Passes::Off, "write `only_save_strategy: False`"),
        refuse("layer_scale lr_scale", Passes::Off, "write `False` and set lr_schedule.learning_rate"),
        refuse("ignore_data_skip data_skip_steps", Passes::Off, "remove it: resuming continues exactly"),
        refuse("pretrained_model_dir", Passes::Off, "write the shape under model.model_config"),
        refuse("base_config", Passes::Off, "copy its keys into this file"),
        refuse(
            "calculate_per_token_loss check_for_nan_in_loss_and_grad use_skip_data_by_global_norm \
                use_checkpoint_health_monitor tensorboard",
            Passes::Off,
            "remove it",
        ),
    ],
};

/// `trainer`, `model.arch` and the dataset tasks only say which of the original's classes to use.
pub(crate) const TRAINER: Keys = Keys { used: "type", ignored: "model_name", rules: &[] };
pub(crate) const ARCH: Keys = Keys {
    used: "type",
    ignored: "",
    rules: &[refuse(
        "auto_register",
        Passes::Off,
        "the model must be `LlamaForCausalLM` or `GPT2LMHeadModel`",
    )],
};
pub(crate) const TASK: Keys = Keys { used: "type dataset_config", ignored: "", rules: &[] };
pub(crate) const MODEL_SECTION: Keys = Keys { used: "model_config arch", ignored: "", rules: &[] };

pub(crate) const RUNNER: Keys = Keys {
    used: "epochs batch_size gradient_accumulation_steps stop_step",
    ignored: "sink_mode sink_size num_classes image_size per_epoch_size initial_epoch has_trained_epoches \
        has_trained_steps",
    rules: &[],
};

pub(crate) const WRAPPER: Keys = Keys {
    used: "type scale_sense use_clip_grad max_grad_norm",
    ignored: "enable_check_overflow enable_global_norm",
    rules: &[
        refuse(
            "local_norm calculate_per_token_loss use_skip_data_by_global_norm",
            Passes::Off,
            "write `False`",
        ),
        refuse("global_norm_spike_threshold", Passes::UpToOne, "remove it"),
        refuse("sens", Passes::UpToOne, "write `scale_sense: 1.0` instead"),
    ],
};
pub(crate) const LOSS_SCALE: Keys = Keys { used: "type loss_scale_value", ignored: "", rules: &[] };

pub(crate) const OPTIMIZER: Keys = Keys {
    used: "type betas beta1 beta2 eps weight_decay learning_rate momentum nesterov ns_steps matched_adamw_rms \
        adamw_betas adamw_eps",
    ignored: "",
    rules: &[
        refuse("qk_clip_threshold", Passes::Off, "remove it"),
        refuse("swap offload amsgrad maximize", Passes::Off, "write `False`"),
    ],
};

/// What a schedule reads, as words: a group of parameters has a schedule and more.
macro_rules! schedule_keys {
    ($more:literal) => {
        concat!(
            "type learning_rate lr_end warmup_steps warmup_ratio warmup_epochs warmup_lr_init total_steps num_cycles ",
            "decay_steps decay_ratio power keep_steps final_steps lr_end1 lr_end2 decay_start_steps ",
            "decay_start_ratio base_lr eta_min t_max t_0 t_mult lr_scale",
            $more
        )
    };
}

pub(crate) const SCHEDULE: Keys = Keys {
    used: schedule_keys!(""),
    ignored: "",
    rules: &[refuse("auto_register", Passes::Off, "remove it")],
};
pub(crate) const GROUPED: Keys = Keys { used: "default grouped", ignored: "", rules: &[] };
pub(crate) const GROUP: Keys = Keys {
    used: schedule_keys!(" params weight_decay"),
    ignored: "",
    rules: &[refuse("auto_register", Passes::Off, "remove it")],
};

pub(crate) const RECOMPUTE: Keys = Keys {
    used: "",
    ignored: "parallel_optimizer_comm_recompute mp_comm_recompute recompute_slice_activation \
        select_recompute_exclude select_comm_recompute_exclude",
    rules: &[refuse("recompute select_recompute select_comm_recompute", Passes::Off, "write `False`")],
};

pub(crate) const SWAP: Keys = Keys {
    used: "",
    ignored: "layer_swap op_swap default_prefetch",
    rules: &[refuse("swap", Passes::Off, "write `swap: False`")],
};

pub(crate) const MONITOR: Keys = Keys {
    used: "",
    ignored: "dump_path target invert step_interval local_loss_format device_local_loss_format local_norm_format \
        device_local_norm_format optimizer_state_format weight_state_format throughput_baseline print_struct \
        global_norm_spike_threshold global_norm_spike_count_threshold",
    rules: &[refuse("monitor_on check_for_global_norm", Passes::Off, "write `False`")],
};

pub(crate) const PARALLEL: Keys = Keys {
    used: "data_parallel model_parallel pipeline_stage context_parallel",
    ignored: "expert_parallel micro_batch_num seq_split_num use_seq_parallel optimizer_shard \
        gradient_aggregation_group vocab_emb_dp context_parallel_algo ulysses_degree_in_cp mem_coeff \
        pp_interleave_num",
    rules: &[],
};

pub(crate) const CONTEXT: Keys = Keys {
    used: "device_name tier max_device_memory",
    ignored: "mode device_target device_id max_call_depth save_graphs save_graphs_path enable_graph_kernel \
        graph_kernel_flags jit_config jit_level memory_optimize_level ascend_config mempool_block_size \
        runtime_num_threads affinity_cpu_list infer_boost",
    rules: &[],
};

pub(crate) const DATASET: Keys = Keys {
    used: "data_loader seed eval_fraction tokenizer eod_token_id eod_reset reset_position_ids \
        reset_attention_mask eod_mask_loss",
    ignored: "input_columns output_columns construct_args_key column_order num_parallel_workers \
        python_multiprocessing numa_enable prefetch_size batch_size micro_batch do_eval",
    rules: &[
        differs("drop_remainder", Passes::On, "what does not fill a step is always dropped"),
        refuse("repeat", Passes::UpToOne, "write `repeat: 1` and raise runner_config.epochs"),
        refuse("eos_reset", Passes::Off, "write `eod_reset`"),
        refuse(
            "dynamic_batch divisor remainder transforms text_transforms handler",
            Passes::Off,
            "remove it",
        ),
    ],
};

/// A `tokenizer` that is no path. Files of the original name a class and its special tokens; here the file says both.
pub(crate) const TOKENIZER: Keys = Keys {
    used: "tokenizer_file eos_token",
    ignored: "type tokenizer_type model_max_length max_length padding_side trust_remote_code pad_token bos_token \
        unk_token add_bos_token add_eos_token auto_register",
    rules: &[refuse(
        "vocab_file merges_file pretrained_model_dir_or_path",
        Passes::Off,
        "convert it to Hugging Face's tokenizer.json and write `tokenizer_file`",
    )],
};

pub(crate) const TEXT_LOADER: Keys = Keys {
    used: "type dataset_dir dataset_files data_path documents extensions max_bytes eod_byte shuffle",
    ignored: "num_parallel_workers",
    rules: &[],
};
pub(crate) const JSONL_LOADER: Keys = Keys {
    used: "type dataset_dir dataset_files data_path text_key extensions max_bytes eod_byte shuffle",
    ignored: "num_parallel_workers",
    rules: &[],
};
pub(crate) const TOKEN_LOADER: Keys = Keys {
    used: "type dataset_dir dataset_files data_path dtype shuffle",
    ignored: "num_parallel_workers",
    rules: &[],
};
pub(crate) const MEGATRON_LOADER: Keys = Keys {
    used: "type sizes config shuffle",
    ignored: "num_parallel_workers",
    rules: &[refuse("datasets_type", Passes::Words("GPTDataset"), "write `datasets_type: GPTDataset`")],
};
/// `config` of the Megatron loader.
pub(crate) const MEGATRON: Keys = Keys {
    used: "data_path split seed random_seed seq_length eod pad reset_position_ids reset_attention_mask eod_mask_loss \
        create_compressed_eod_mask",
    ignored: "num_dataset_builder_threads path_to_cache mmap_bin_files eod_pad_length create_attention_mask \
        tokenizer",
    rules: &[refuse(
        "add_extra_token_to_sequence",
        Passes::On,
        "write `True`: the target of a sample's last token is the token after it",
    )],
};
pub(crate) const CARGO_LOADER: Keys =
    Keys { used: "type max_bytes eod_byte shuffle", ignored: "dataset_dir num_parallel_workers", rules: &[] };

pub(crate) const SAMPLE: Keys = Keys { used: "prompt tokens temperature seed", ignored: "", rules: &[] };

pub(crate) const LOSS_MONITOR: Keys =
    Keys { used: "type per_print_times", ignored: "keep_default_action", rules: &[] };
pub(crate) const CHECKPOINT_MONITOR: Keys = Keys {
    used: "type prefix save_checkpoint_steps keep_checkpoint_max",
    ignored: "integrated_save async_save save_network_params remove_redundancy exception_save",
    rules: &[
        differs("checkpoint_format", Passes::Words("safetensors"), "always safetensors"),
        refuse("save_trainable_params", Passes::Off, "write `False`: checkpoints hold all weights"),
        refuse(
            "save_checkpoint_seconds keep_checkpoint_per_n_minutes",
            Passes::Off,
            "use save_checkpoint_steps",
        ),
        refuse("directory", Passes::Off, "set output_dir"),
    ],
};

pub(crate) const DROP_RATE: Keys =
    Keys { used: "type expert_num capacity_factor num_layers mtp_depth", ignored: "", rules: &[] };
pub(crate) const TOPK_BIAS: Keys = Keys {
    used: "type balance_via_topk_bias topk_bias_update_rate expert_num gradient_accumulation_steps num_layers \
        mtp_depth",
    // The original's count of micro-batches includes those of pipeline stages.
    ignored: "micro_batch_num log_expert_load_to_tensorboard",
    rules: &[],
};
pub(crate) const COLD_HOT: Keys = Keys {
    used: "type save_checkpoint_steps",
    ignored: "moe_config hidden_size intermediate_size expert_parallel model_parallel",
    rules: &[],
};
pub(crate) const SUMMARY: Keys = Keys {
    used: "type summary_dir collect_freq export_options",
    ignored: "collect_specified_data collect_tensor_freq keep_default_action custom_lineage_data max_file_size",
    rules: &[],
};
/// `export_options` of the summary.
pub(crate) const EXPORT: Keys = Keys {
    used: "",
    ignored: "",
    rules: &[refuse("tensor_format", Passes::Words("npy"), "write `tensor_format: npy`")],
};

pub(super) const fn refuse(keys: &'static str, passes: Passes, remedy: &'static str) -> Rule {
    Rule { keys, passes, outcome: Outcome::NotBuilt(remedy) }
}

pub(super) const fn differs(keys: &'static str, passes: Passes, text: &'static str) -> Rule {
    Rule { keys, passes, outcome: Outcome::Differs(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::aliases;

    #[test]
    fn every_key_has_one_fate_and_its_own_name() {
        for (section, keys) in SECTIONS {
            let lists = [keys.used, keys.ignored].into_iter().chain(keys.rules.iter().map(|rule| rule.keys));
            let mut names: Vec<_> = lists.flat_map(str::split_whitespace).collect();
            assert!(
                names.iter().all(|name| aliases::canonical(name) == *name),
                "{section}: an alias is listed"
            );
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{section} lists a key twice");
        }
    }
}
