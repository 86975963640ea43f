//! Keys of MindFormers' files that are known and not used: without meaning here, computed differently, or not built.

use super::classes::OUTSIDE;
use crate::settings::engine::*;

/// Such keys, by the section that they are in.
pub(crate) const UNUSED: &[(&str, &[Other])] = &[
    (
        "",
        &[
            ignored(
                "auto_trans_ckpt transform_process_num src_strategy_path_or_dir src_strategy dst_strategy load_ckpt_format \
                load_ckpt_async ckpt_use_legacy_format balanced_load save_file remote_save_url processor auto_tune \
                autotune_per_step filepath_prefix remove_redundancy use_graceful_exit run_status register_path \
                exclude_cann_cpu enable_mindio_ttp_save_ckpt",
                "about MindFormers' devices, files and launcher",
            ),
            ignored(
                "profile_start_step profile_stop_step profile_communication profile_memory profile_rank_ids \
                profile_pipeline profiler_level profile_level init_start_profile mstx",
                "about MindFormers' profiler",
            ),
            ignored(
                "use_legacy layer_decay lr_scale_factor eval_callbacks infer train_precision_sync \
                infer_precision_sync postprocess_use_numpy predict_batch_size input_data adapter_id",
                "of another branch of MindFormers, or without effect on training",
            ),
            ignored(
                "lazy_inline disable_lazy_inline",
                "about compiling each layer once, which is always so here",
            ),
            refused("run_mode", Passes::Words("train finetune"), "write `run_mode: train`"),
            refused("profile", Passes::Off, "write `profile: False`"),
            refused("only_save_strategy", Passes::Off, "write `only_save_strategy: False`"),
            refused("layer_scale lr_scale", Passes::Off, "write `False` and set lr_schedule.learning_rate"),
            refused("ignore_data_skip data_skip_steps", Passes::Off, "remove it: resuming continues exactly"),
            refused("pretrained_model_dir", Passes::Off, "write the shape under model.model_config"),
            refused("use_checkpoint_health_monitor", Passes::Off, "remove it"),
        ],
    ),
    (
        "runner_config",
        &[
            ignored(
                "sink_mode sink_size per_epoch_size initial_epoch has_trained_epoches has_trained_steps",
                "about MindFormers' data sink and its way of resuming; no step waits for the host here",
            ),
            ignored("num_classes image_size", "of image models"),
        ],
    ),
    (
        "runner_wrapper",
        &[
            ignored("enable_check_overflow enable_global_norm", "always on here"),
            refused("type", Passes::Words("MFTrainOneStepCell"), "write `type: MFTrainOneStepCell`"),
            refused("sens", Passes::UpToOne, "write `scale_sense: 1.0` instead"),
        ],
    ),
    (
        "monitor_config",
        &[
            ignored("dump_path", "about the files in which MindFormers passes these numbers on"),
            refused(
                "check_for_global_norm",
                Passes::Off,
                "write `False`, and `use_skip_data_by_global_norm: True` to make no update in steps whose norm spikes",
            ),
        ],
    ),
    (
        "monitor_config.stable_rank_config",
        &[ignored(
            "do_aggregation",
            "about matrices of which each device has a part, where here each rank has them whole",
        )],
    ),
    (
        "optimizer",
        &[
            refused("qk_clip_threshold", Passes::Off, "remove it"),
            refused("swap offload amsgrad maximize", Passes::Off, "write `False`"),
        ],
    ),
    (
        "lr_schedule",
        &[
            refused("auto_register", Passes::Off, "remove it"),
            ignored("max_lr min_lr num_iters", "of `MegatronLR`, which is not built"),
        ],
    ),
    (
        "model.model_config",
        &[
            ignored(
                "bos_token_id eos_token_id eos_token pad_token batch_size repetition_penalty max_decode_length max_length max_new_tokens top_k \
                top_p do_sample temperature is_dynamic is_flexible_shape block_size num_blocks use_paged_attention \
                use_past_shard use_kvcache_op use_cache",
                "about generation; `gristmill generate` takes flags",
            ),
            ignored(
                "compute_in_2d fine_grain_interleave use_seq_parallel seq_parallel lm_head_dp",
                "about matrices that ranks share, which is not built",
            ),
            ignored("use_ring_attention", "about sequences that ranks share, which is not built"),
            ignored("num_layers_of_each_stage", "about pipelines, which are not built"),
            ignored("parallel_optimizer", "`parallel.enable_parallel_optimizer` shares out the optimizer"),
            ignored("micro_batch_interleave_num", "counts at the top level"),
            ignored("input_sliced_sig", "a loader knows whether its targets are shifted"),
            ignored(
                "qkv_concat ffn_concat use_attn_mask_compression use_prompt_flash_attention use_incre_flash_attention \
                use_rope_slice use_contiguous_weight_layout_attention use_interleaved_weight_layout_mlp \
                is_sample_acceleration fp32_residual_connection mlp_concat fused_rms_norm is_npu_acceleration \
                use_contiguous_weight_layout use_attention_mask mask_type input_layout sparse_mode rotary_cos_format \
                persist_layer_norm memory_efficient_layer_norm masked_softmax_fusion bias_activation_fusion \
                bias_dropout_fusion moe_router_fusion attention_softmax_in_fp32",
                "about MindFormers' kernels and the layout of its weights",
            ),
            ignored(
                "rotary_emb_base auto_register architectures model_type output_router_logits model_name net_name num_labels \
                is_encoder_decoder use_select_recompute no_recompute_layers transformers_version \
                torch_dtype single_checkpoint_name_or_path",
                "read by other programs, or without effect in MindFormers",
            ),
            ignored(
                "lazy_inline disable_lazy_inline",
                "about compiling each layer once, which is always so here",
            ),
            differs(
                "use_past",
                Passes::Off,
                "training keeps no cache of keys and values; MindFormers sets it to False too",
            ),
            refused("window_attn_skip_freq use_mup is_reward_model", Passes::Off, "remove it"),
            refused(
                "eod_reset reset_position_ids reset_attention_mask eod_mask_loss",
                Passes::Off,
                "write it under train_dataset instead",
            ),
            differs(
                "use_flash_attention",
                Passes::On,
                "attention never stores its matrix here, whatever this says",
            ),
            differs("use_fused_rope use_fused_swiglu", Passes::On, "always fused here"),
            differs("residual_dtype", Passes::Never, "the residual stream is stored as `compute_dtype` says"),
            differs(
                "pad_token_id",
                Passes::Never,
                "is left out of the loss in rows of MindDataset; other loaders know padding by its place and not by an id",
            ),
            differs(
                "checkpoint_name_or_path",
                Passes::Off,
                "names a download of MindFormers and is ignored; weights come from `load_checkpoint`",
            ),
        ],
    ),
    (
        "model.model_config.pet_config",
        &[
            refused("lora_b_init", Passes::Words("zero zeros"), "write `lora_b_init: zeros`"),
            differs("param_init_type", Passes::Words("float32"), "A and B are updated in float32"),
            differs(
                "compute_dtype",
                Passes::Never,
                "A and B are read as `model.model_config.compute_dtype` says",
            ),
        ],
    ),
    (
        "moe_config",
        &[
            ignored(
                "use_allgather_dispatcher enable_deredundency npu_nums_per_device group_wise_a2a dispatch_global_max_bs",
                "other ways to the same results of exchanging routed tokens, which go by all-to-all here",
            ),
            ignored(
                "comp_comm_parallel comp_comm_parallel_degree moe_shared_expert_overlap",
                "what MindFormers computes during an exchange; here whatever does not need its result",
            ),
            ignored(
                "ep_extend_tp expert_model_parallel",
                "about matrices that ranks share, which is not built",
            ),
            ignored(
                "expert_group_size",
                "how many tokens MindFormers' first router takes at once; here those of a micro-batch",
            ),
            ignored(
                "enable_expert_relocation expert_relocation_initial_iteration expert_relocation_freq",
                "about moving experts between devices as their load changes; here an expert stays on its rank",
            ),
            ignored(
                "cur_layer moe_module_name max_router_load print_expert_load",
                "what MindFormers must be told and a mixture here knows",
            ),
            differs("use_fused_ops_topkrouter use_fused_ops_permute", Passes::On, "always fused here"),
            differs(
                "router_aux_loss_coef",
                Passes::Off,
                "not read, as in MindFormers; `moe_aux_loss_coeff` or `aux_loss_factors` says what balance counts",
            ),
            refused("moe_router_force_expert_balance", Passes::Off, "write `False`"),
            refused("moe_layer_freq decoder_sparse_step", Passes::UpToOne, "write `first_k_dense_replace`"),
            refused("mlp_only_layers", Passes::Off, "write `first_k_dense_replace`"),
        ],
    ),
    (
        "train_dataset",
        &[
            ignored(
                "output_columns construct_args_key column_order num_parallel_workers python_multiprocessing \
                numa_enable prefetch_size batch_size micro_batch do_eval",
                "about MindSpore's data pipeline; the trainer's own keys decide batches and evaluation",
            ),
            ignored(
                "prompt max_length \
                modal_to_text_transform modal_content_transforms modal_content_input_columns modal_content_output_columns \
                net_input_columns project_columns return_attention_mask eos_id gmask_id sop_id \
                dataset_dir eval_interval eval_offset profile autotune \
                filepath_prefix autotune_per_step use_generator",
                "of data loaders that are not built",
            ),
            differs(
                "max_seq_length",
                Passes::Off,
                "samples are cut and padded to model.model_config.seq_length",
            ),
            refused("ignore_pad_token_for_loss", Passes::On, "write `True`: padding does not enter the loss"),
            differs("drop_remainder", Passes::On, "what does not fill a step is always dropped"),
            refused("repeat", Passes::UpToOne, "write `repeat: 1` and raise runner_config.epochs"),
            refused("num_samples", Passes::Off, "set runner_config.stop_step"),
            refused("eos_reset", Passes::Off, "write `eod_reset`"),
            refused(
                "dynamic_batch divisor remainder transforms text_transforms label_transforms mixup_op mask_policy handler",
                Passes::Off,
                "remove it",
            ),
        ],
    ),
    (
        "train_dataset.tokenizer",
        &[
            // Files of MindFormers name a class and its special tokens; here the file says both.
            ignored(
                "type tokenizer_type model_max_length max_length padding_side trust_remote_code pad_token bos_token \
                unk_token add_bos_token add_eos_token auto_register cls_token mask_token sep_token do_lower_case \
                is_tokenize_char add_special_tokens padding truncation legacy image_tag added_tokens_file \
                checkpoint_name_or_path prefix stage src_max_length tgt_max_length lang use_fast do_basic_tokenize",
                "said by the tokenizer's own file",
            ),
            differs(
                "vocab_file merges_file pretrained_model_dir_or_path",
                Passes::Off,
                "not read; convert it to Hugging Face's tokenizer.json and write `tokenizer_file`",
            ),
        ],
    ),
    (
        "train_dataset.data_loader",
        &[
            ignored(
                "num_parallel_workers column_names columns_list schema num_shards shard_id shard_equal_rows stage phase \
                python_multiprocessing padded_sample num_padded create_attention_mask create_compressed_eod_mask \
                compressed_eod_mask_length use_broadcast_data adaptor_config load_func tokenizer max_length file_format",
                "about MindSpore's data pipeline, or of loaders that are not built",
            ),
            refused(
                "num_samples",
                Passes::Off,
                "set runner_config.stop_step, or max_bytes of a loader of text",
            ),
            refused(
                "dataset_name",
                Passes::Words("multi-round-chat multi-round-chat-dyn"),
                "write `multi-round-chat`, or `HFDataLoader` with the handler `AlpacaInstructDataHandler` for Alpaca's records",
            ),
            refused("read_function map_function", Passes::Off, "prepare the data before the run"),
            refused("datasets_type", Passes::Words("GPTDataset"), "write `datasets_type: GPTDataset`"),
        ],
    ),
    (
        "train_dataset.data_loader.config",
        &[
            ignored(
                "num_dataset_builder_threads path_to_cache mmap_bin_files eod_pad_length create_attention_mask tokenizer",
                "about how MindFormers reads the files, which are mapped into memory here",
            ),
            refused(
                "add_extra_token_to_sequence",
                Passes::On,
                "write `True`: the target of a sample's last token is the token after it",
            ),
        ],
    ),
    ("metric", &[ignored("eval_type", "about metrics that are not computed")]),
    ("tensorboard", &[ignored("tensorboard_queue_size", "each step is written at once")]),
    (
        "context",
        &[ignored(
            "mode device_target max_call_depth save_graphs save_graphs_path enable_graph_kernel \
            graph_kernel_flags jit_config jit_level memory_optimize_level ascend_config gpu_config mempool_block_size \
            runtime_num_threads affinity_cpu_list infer_boost deterministic pynative_synchronize memory_offload \
            op_timeout inter_op_parallel_num env_config_path precision_mode variable_memory_max_size check_bprop \
            enable_compile_cache compile_cache_path max_device_memory_offset save_dump_path print_file_path \
            enable_dump reserve_class_name_in_scope grad_for_scalar debug_level hccl_buffer_size disable_format_transform \
            parallel_speed_up_json_path",
            "about Ascend devices and MindSpore's graph compiler",
        )],
    ),
    (
        "parallel_config",
        &[
            ignored(
                "optimizer_shard",
                "without effect in MindFormers too; `parallel.enable_parallel_optimizer` shares out the optimizer",
            ),
            ignored(
                "gradient_aggregation_group",
                "how many gradients MindFormers exchanges at once; here they are exchanged in buckets of one size",
            ),
            ignored(
                "vocab_emb_dp fine_grain_interleave",
                "about matrices that ranks share, which is not built",
            ),
            ignored(
                "context_parallel_algo ulysses_degree_in_cp",
                "about sequences that ranks share, which is not built",
            ),
            ignored("seq_split_num", "about pipelines, which are not built"),
            ignored("mem_coeff", "about MindFormers' search for degrees"),
        ],
    ),
    (
        "parallel",
        &[
            ignored(
                "parallel_optimizer_threshold",
                "MindFormers keeps parameters below so many KiB whole; here small ones are shared out too",
            ),
            ignored(
                "gradients_mean loss_repeated_mean",
                "the gradients of a step are those of the mean over its micro-batches, on any number of ranks",
            ),
            ignored(
                "gradient_fp32_sync force_fp32_communication",
                "gradients are exchanged and summed in float32, always",
            ),
            ignored("enable_alltoall", "routed tokens are exchanged by all-to-all, always"),
            ignored(
                "full_batch dataset_strategy",
                "how MindFormers hands out the data; here each rank reads the micro-batches that it takes",
            ),
            ignored(
                "comm_fusion all_reduce_fusion_config communi_parallel_mode",
                "how MindFormers groups what it exchanges; here gradients are exchanged in buckets of one size",
            ),
            ignored(
                "parameter_broadcast",
                "every rank makes the same initial weights from the seed, or reads the same files",
            ),
            ignored(
                "search_mode auto_parallel_search_mode auto_pipeline auto_parallel_new_interface",
                "about MindFormers' search for degrees; here they are those of `parallel_config`",
            ),
            ignored(
                "strategy_ckpt_config strategy_ckpt_save_file strategy_ckpt_load_file group_ckpt_save_file",
                "about files that describe MindFormers' checkpoints; those here are read by any number of ranks",
            ),
            ignored(
                "device_num global_rank",
                "the launcher says how many ranks there are, and which this is",
            ),
            ignored(
                "grad_accumulation_step",
                "`runner_config.gradient_accumulation_steps` says it, as in MindFormers",
            ),
            ignored("pipeline_stages", "`parallel_config.pipeline_stage` says it, as in MindFormers"),
            ignored("pipeline_result_broadcast pipeline_segments", "about pipelines, which are not built"),
        ],
    ),
    (
        "parallel.parallel_optimizer_config",
        &[ignored(
            "parallel_optimizer_threshold",
            "MindFormers keeps parameters below so many KiB whole; here small ones are shared out too",
        )],
    ),
    ("parallel.pipeline_config", &[ignored("pipeline_scheduler", "about pipelines, which are not built")]),
    ("callbacks.MFLossMonitor", &[ignored("keep_default_action", "about MindFormers' callback")]),
    (
        "callbacks.CheckpointMonitor",
        &[
            ignored(
                "integrated_save async_save save_network_params remove_redundancy exception_save",
                "about MindFormers' files and its threads",
            ),
            differs("checkpoint_format", Passes::Words("safetensors"), "always safetensors"),
            refused("save_trainable_params", Passes::Off, "write `False`: checkpoints hold all weights"),
            refused("directory", Passes::Off, "set output_dir"),
        ],
    ),
    (
        "callbacks.ColdHotExpertMonitor",
        &[ignored(
            "moe_config hidden_size intermediate_size ffn_hidden_size expert_parallel model_parallel",
            "what MindFormers must be told and a mixture here knows",
        )],
    ),
    (
        "callbacks.SummaryMonitor",
        &[ignored(
            "collect_specified_data collect_tensor_freq keep_default_action custom_lineage_data max_file_size",
            "about MindInsight's files",
        )],
    ),
    (
        "callbacks.TopkBiasBalanceCallback",
        &[ignored("micro_batch_num log_expert_load_to_tensorboard", "about pipeline stages and TensorBoard")],
    ),
    (
        "model.model_config (LlamaConfig)",
        &[
            refused("gated_linear_unit", Passes::On, "write `True`"),
            refused("post_layernorm_residual", Passes::Off, "write `False`"),
            refused("normalization", Passes::Words("RMSNorm"), "write `normalization: RMSNorm`"),
        ],
    ),
    (
        "model.model_config (GPT2Config)",
        &[
            refused("gated_linear_unit post_layernorm_residual", Passes::Off, "write `False`"),
            refused("normalization", Passes::Words("LayerNorm"), "write `normalization: LayerNorm`"),
        ],
    ),
    (
        "model.model_config (ChatGLM2Config)",
        &[
            refused(
                "apply_residual_connection_post_layernorm post_self_attn_layernorm post_mlp_layernorm",
                Passes::Off,
                "write `False`, as in every published ChatGLM",
            ),
            refused("rmsnorm post_layer_norm", Passes::On, "write `True`, as in every published ChatGLM"),
            refused(
                "apply_query_key_layer_scaling",
                Passes::On,
                "write `True`: scores are always divided by the root of the width of a head",
            ),
            refused(
                "pre_seq_len prefix_projection",
                Passes::Off,
                "remove it to train all weights: P-tuning's prefixes of keys and values are not built",
            ),
            refused("quantization_bit", Passes::Off, "write 0; `compute_dtype` stores weights in 16 bits"),
            refused(
                "use_rearrange_rope interleaved_qkv",
                Passes::Off,
                "write `False`, the order of q and k in published weights",
            ),
            refused(
                "mask_generate",
                Passes::Off,
                "write `reset_attention_mask` under the data loader's `config` instead",
            ),
            ignored(
                "enable_high_performance gmask_token_id mask_token_id",
                "about MindFormers' kernels and tokenizer",
            ),
        ],
    ),
    (
        "model.model_config (TelechatConfig)",
        &[refused("mean", Passes::Off, "write 0: initial weights have mean 0")],
    ),
    ("model.model_config (Baichuan2_7BConfig)", BAICHUAN),
    ("model.model_config (Baichuan_13BConfig)", BAICHUAN),
    ("model.model_config (Baichuan2_13BConfig)", BAICHUAN),
    ("model.model_config (BloomConfig)", &[ignored("unk_token_id", "about MindFormers' tokenizer")]),
    (
        "model.model_config (WizardCoderConfig)",
        &[ignored("start_token_id", "about generation; `gristmill generate` takes flags")],
    ),
    (
        "model.model_config (PanguAlphaConfig)",
        &[ignored("dropout_rate", "without effect in MindFormers, which reads one rate for each place")],
    ),
    ("model.model_config (DeepseekV3Config)", DEEPSEEK),
    ("model.model_config (DeepseekV2Config)", DEEPSEEK),
];

const BAICHUAN: &[Other] = &[ignored("user_token_id assistant_token_id", "about MindFormers' chat template")];

const DEEPSEEK: &[Other] = &[
    ignored("mla_qkv_concat", "about the layout of MindFormers' weights"),
    ignored("ep_size pretraining_tp", "`parallel_config` says how a run is spread over ranks"),
    differs(
        "aux_loss_alpha seq_aux",
        Passes::Off,
        "not read, as in MindFormers; `moe_aux_loss_coeff` says what balance counts",
    ),
];

/// Sections of MindFormers none of whose keys is used.
pub(crate) fn tables() -> [(&'static str, Table); 5] {
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
    let arch = [
        sections("type"),
        ignored("auto_register", "names MindFormers' code"),
        refused("pet", Passes::Off, "write the adapters under `model_config.pet_config`"),
    ];
    let task = "`train_dataset_task` and `eval_dataset_task`: MindFormers' class around a data set, `dataset_config`. Its `type` must \
                be one of `CausalLanguageModelDataset`, `KeyWordGenDataset`, `MultiTurnDataset` and `SFTDataset` for the data to be \
                read.";
    let export = [refused("tensor_format", Passes::Words("npy"), "write `tensor_format: npy`")];
    [
        ("model.arch", Table::unused(&about_classes(), arch)),
        ("train_dataset_task", Table::unused(task, [sections("dataset_config type")])),
        (
            "callbacks.SummaryMonitor.export_options",
            Table::unused("`export_options` of a `SummaryMonitor`.", export),
        ),
        (
            "trainer",
            Table::unused("`trainer`: which of MindFormers' trainers to use; there is one.", trainer),
        ),
        ("swap_config", Table::unused("`swap_config`: activations kept in the host's memory.", swap)),
    ]
}

/// Checks the sections that nothing else opens.
pub(super) fn check(source: &Source) {
    for path in ["trainer", "swap_config"] {
        Reader::open(source, path, &[path]);
    }
}

/// The class of a model, and the classes that stay out.
fn about_classes() -> String {
    let outside = OUTSIDE.iter().map(|(classes, why)| {
        let classes: Vec<&str> = words(classes).collect();
        format!(" `{}`: {why}.", classes.join("`, `"))
    });
    let about =
        "`model.arch`: the class of the model, which goes with `model_config.type`. Some classes stay out.";
    about.to_string() + &outside.collect::<String>()
}
