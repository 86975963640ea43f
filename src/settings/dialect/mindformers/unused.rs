//! Keys of MindFormers' files that are known and not used: without meaning here, computed differently, or not built.

use super::classes::OUTSIDE;
use crate::settings::engine::*;

/// Such keys, by the table that they are in.
pub(crate) const UNUSED: &[(TableId, &[Other])] = &[
    (TableId::of(""), RUN),
    (TableId::of("runner_config"), RUNNER_CONFIG),
    (TableId::of("runner_wrapper"), RUNNER_WRAPPER),
    (TableId::of("monitor_config"), MONITOR_CONFIG),
    (TableId::of("monitor_config.stable_rank_config"), STABLE_RANK),
    (TableId::of("optimizer"), OPTIMIZER),
    (TableId::of("lr_schedule"), LR_SCHEDULE),
    (TableId::of("model.model_config"), MODEL_CONFIG),
    (TableId::of("model.model_config.pet_config"), PET_CONFIG),
    (TableId::of("moe_config"), MOE_CONFIG),
    (TableId::of("train_dataset"), TRAIN_DATASET),
    (TableId::of("train_dataset.tokenizer"), TOKENIZER),
    (TableId::of("train_dataset.data_loader"), DATA_LOADER),
    (TableId::of("train_dataset.data_loader.config"), MEGATRON),
    (TableId::of("metric"), METRIC),
    (TableId::of("tensorboard"), TENSORBOARD),
    (TableId::of("context"), CONTEXT),
    (TableId::of("parallel_config"), PARALLEL_CONFIG),
    (TableId::of("parallel"), PARALLEL),
    (TableId::of("parallel.parallel_optimizer_config"), PARALLEL_OPTIMIZER_CONFIG),
    (TableId::of("callbacks.MFLossMonitor"), LOSS_MONITOR),
    (TableId::of("callbacks.CheckpointMonitor"), CHECKPOINT_MONITOR),
    (TableId::of("callbacks.ColdHotExpertMonitor"), COLD_HOT_MONITOR),
    (TableId::of("callbacks.SummaryMonitor"), SUMMARY_MONITOR),
    (TableId::of("callbacks.TopkBiasBalanceCallback"), TOPK_BIAS_CALLBACK),
    (of_type("LlamaConfig"), LLAMA),
    (of_type("GPT2Config"), GPT2),
    (of_type("ChatGLM2Config"), CHATGLM2),
    (of_type("TelechatConfig"), TELECHAT),
    (of_type("Baichuan2_7BConfig"), BAICHUAN),
    (of_type("Baichuan_13BConfig"), BAICHUAN),
    (of_type("Baichuan2_13BConfig"), BAICHUAN),
    (of_type("BloomConfig"), BLOOM),
    (of_type("WizardCoderConfig"), WIZARD_CODER),
    (of_type("PanguAlphaConfig"), PANGU_ALPHA),
    (of_type("DeepseekV3Config"), DEEPSEEK),
    (of_type("DeepseekV2Config"), DEEPSEEK),
];

/// Those of models of one type.
const fn of_type(word: &'static str) -> TableId {
    TableId::of("model.model_config").of_type(word)
}

const RUN: &[Other] = &[
    keys(
        "auto_trans_ckpt transform_process_num src_strategy_path_or_dir src_strategy dst_strategy \
         load_ckpt_format load_ckpt_async ckpt_use_legacy_format balanced_load save_file \
         remote_save_url processor auto_tune autotune_per_step filepath_prefix remove_redundancy \
         use_graceful_exit run_status register_path exclude_cann_cpu enable_mindio_ttp_save_ckpt",
    )
    .ignored("about MindFormers' devices, files and launcher"),
    keys(
        "profile_start_step profile_stop_step profile_communication profile_memory \
         profile_rank_ids profile_pipeline profiler_level profile_level init_start_profile mstx",
    )
    .ignored("about MindFormers' profiler"),
    keys(
        "use_legacy layer_decay lr_scale_factor eval_callbacks infer train_precision_sync \
         infer_precision_sync postprocess_use_numpy predict_batch_size input_data adapter_id",
    )
    .ignored("of another branch of MindFormers, or without effect on training"),
    keys("lazy_inline disable_lazy_inline")
        .ignored("about compiling each layer once, which is always so here"),
    keys("run_mode").refused(Passes::Words("train finetune"), "write `run_mode: train`"),
    keys("profile").refused(Passes::Off, "write `profile: False`; --profile N times launches"),
    keys("only_save_strategy").refused(Passes::Off, "write `only_save_strategy: False`"),
    keys("layer_scale lr_scale").refused(Passes::Off, "write `False` and set lr_schedule.learning_rate"),
    keys("ignore_data_skip data_skip_steps").refused(Passes::Off, "remove it: resuming continues exactly"),
    keys("use_checkpoint_health_monitor").refused(Passes::Off, "remove it"),
];

const RUNNER_CONFIG: &[Other] = &[
    keys("sink_mode sink_size per_epoch_size initial_epoch has_trained_epoches has_trained_steps")
        .ignored("about MindFormers' data sink and its way of resuming; no step waits for the host here"),
    keys("num_classes image_size").ignored("of image models"),
];

const RUNNER_WRAPPER: &[Other] = &[
    keys("enable_check_overflow enable_global_norm").ignored("always on here"),
    keys("type").refused(Passes::Words("MFTrainOneStepCell"), "write `type: MFTrainOneStepCell`"),
    keys("sens").refused(Passes::UpToOne, "write `scale_sense: 1.0` instead"),
];

const MONITOR_CONFIG: &[Other] = &[
    keys("dump_path").ignored("about the files in which MindFormers passes these numbers on"),
    keys("check_for_global_norm").refused(
        Passes::Off,
        "write `False`, and `use_skip_data_by_global_norm: True` to make no update in steps whose \
         norm spikes",
    ),
];

const STABLE_RANK: &[Other] = &[keys("do_aggregation")
    .ignored("about matrices of which each device has a part, where here each rank has them whole")];

const OPTIMIZER: &[Other] = &[
    keys("qk_clip_threshold").refused(Passes::Off, "remove it"),
    keys("swap offload amsgrad maximize").refused(Passes::Off, "write `False`"),
];

const LR_SCHEDULE: &[Other] = &[
    keys("auto_register").refused(Passes::Off, "remove it"),
    keys("max_lr min_lr num_iters").ignored("of `MegatronLR`, which is not built"),
];

const MODEL_CONFIG: &[Other] = &[
    keys(
        "bos_token_id eos_token_id eos_token pad_token batch_size repetition_penalty \
         max_decode_length max_length max_new_tokens top_k top_p do_sample temperature is_dynamic \
         is_flexible_shape block_size num_blocks use_paged_attention use_past_shard \
         use_kvcache_op use_cache",
    )
    .ignored("about generation; `gristmill generate` takes flags"),
    keys("compute_in_2d fine_grain_interleave use_seq_parallel seq_parallel lm_head_dp")
        .ignored("`parallel_config` says how ranks share matrices, which is done in one way"),
    keys("use_ring_attention").ignored("about sequences that ranks share, which is not built"),
    keys("num_layers_of_each_stage")
        .refused(Passes::Off, "write `offset`: by how many layers a stage differs from an even share"),
    keys("parallel_optimizer").ignored("`parallel.enable_parallel_optimizer` shares out the optimizer"),
    keys("micro_batch_interleave_num").ignored("counts at the top level"),
    keys("input_sliced_sig").ignored("a loader knows whether its targets are shifted"),
    keys(
        "qkv_concat ffn_concat use_attn_mask_compression use_prompt_flash_attention \
         use_incre_flash_attention use_rope_slice use_contiguous_weight_layout_attention \
         use_interleaved_weight_layout_mlp is_sample_acceleration fp32_residual_connection \
         mlp_concat fused_rms_norm is_npu_acceleration use_contiguous_weight_layout \
         use_attention_mask mask_type input_layout sparse_mode rotary_cos_format \
         persist_layer_norm memory_efficient_layer_norm masked_softmax_fusion \
         bias_activation_fusion bias_dropout_fusion moe_router_fusion attention_softmax_in_fp32",
    )
    .ignored("about MindFormers' kernels and the layout of its weights"),
    keys(
        "rotary_emb_base auto_register architectures model_type output_router_logits model_name \
         net_name num_labels is_encoder_decoder use_select_recompute no_recompute_layers \
         transformers_version torch_dtype single_checkpoint_name_or_path",
    )
    .ignored("read by other programs, or without effect in MindFormers"),
    keys("lazy_inline disable_lazy_inline")
        .ignored("about compiling each layer once, which is always so here"),
    keys("use_past")
        .differs(Passes::Off, "training keeps no cache of keys and values; MindFormers sets it to False too"),
    keys("window_attn_skip_freq use_mup is_reward_model").refused(Passes::Off, "remove it"),
    keys("eod_reset reset_position_ids reset_attention_mask eod_mask_loss")
        .refused(Passes::Off, "write it under train_dataset instead"),
    keys("use_flash_attention")
        .differs(Passes::On, "attention never stores its matrix here, whatever this says"),
    keys("use_fused_rope use_fused_swiglu").differs(Passes::On, "always fused here"),
    keys("residual_dtype").differs(Passes::Never, "the residual stream is stored as `compute_dtype` says"),
    keys("pad_token_id").differs(
        Passes::Never,
        "is left out of the loss in rows of MindDataset; other loaders know padding by its place \
         and not by an id",
    ),
    keys("checkpoint_name_or_path").differs(
        Passes::Off,
        "names a download of MindFormers and is ignored; weights come from `load_checkpoint`",
    ),
];

const PET_CONFIG: &[Other] = &[
    keys("lora_b_init").refused(Passes::Words("zero zeros"), "write `lora_b_init: zeros`"),
    keys("param_init_type").differs(Passes::Words("float32"), "A and B are updated in float32"),
    keys("compute_dtype")
        .differs(Passes::Never, "A and B are read as `model.model_config.compute_dtype` says"),
];

const MOE_CONFIG: &[Other] = &[
    keys(
        "use_allgather_dispatcher enable_deredundency npu_nums_per_device group_wise_a2a \
         dispatch_global_max_bs",
    )
    .ignored("other ways to the same results of exchanging routed tokens, which go by all-to-all here"),
    keys("comp_comm_parallel comp_comm_parallel_degree moe_shared_expert_overlap")
        .ignored("what MindFormers computes during an exchange; here whatever does not need its result"),
    keys("ep_extend_tp expert_model_parallel")
        .ignored("the matrices of experts are divided as all others, by `parallel_config.model_parallel`"),
    keys("expert_group_size")
        .ignored("how many tokens MindFormers' first router takes at once; here those of a micro-batch"),
    keys("enable_expert_relocation expert_relocation_initial_iteration expert_relocation_freq").ignored(
        "about moving experts between devices as their load changes; here an expert stays on its \
         rank",
    ),
    keys("cur_layer moe_module_name max_router_load print_expert_load")
        .ignored("what MindFormers must be told and a mixture here knows"),
    keys("use_fused_ops_topkrouter use_fused_ops_permute").differs(Passes::On, "always fused here"),
    keys("router_aux_loss_coef").differs(
        Passes::Off,
        "not read, as in MindFormers; `moe_aux_loss_coeff` or `aux_loss_factors` says what \
         balance counts",
    ),
    keys("moe_router_force_expert_balance").refused(Passes::Off, "write `False`"),
    keys("moe_layer_freq decoder_sparse_step").refused(Passes::UpToOne, "write `first_k_dense_replace`"),
    keys("mlp_only_layers").refused(Passes::Off, "write `first_k_dense_replace`"),
];

const TRAIN_DATASET: &[Other] = &[
    keys(
        "output_columns construct_args_key column_order num_parallel_workers \
         python_multiprocessing numa_enable prefetch_size batch_size micro_batch do_eval",
    )
    .ignored("about MindSpore's data pipeline; the trainer's own keys decide batches and evaluation"),
    keys(
        "prompt max_length modal_to_text_transform modal_content_transforms \
         modal_content_input_columns modal_content_output_columns net_input_columns \
         project_columns return_attention_mask eos_id gmask_id sop_id dataset_dir eval_interval \
         eval_offset profile autotune filepath_prefix autotune_per_step use_generator",
    )
    .ignored("of data loaders that are not built"),
    keys("max_seq_length")
        .differs(Passes::Off, "samples are cut and padded to model.model_config.seq_length"),
    keys("ignore_pad_token_for_loss").refused(Passes::On, "write `True`: padding does not enter the loss"),
    keys("drop_remainder").differs(Passes::On, "what does not fill a step is always dropped"),
    keys("repeat").refused(Passes::UpToOne, "write `repeat: 1` and raise runner_config.epochs"),
    keys("num_samples").refused(Passes::Off, "set runner_config.stop_step"),
    keys("eos_reset").refused(Passes::Off, "write `eod_reset`"),
    keys(
        "dynamic_batch divisor remainder transforms text_transforms label_transforms mixup_op \
         mask_policy handler",
    )
    .refused(Passes::Off, "remove it"),
];

const TOKENIZER: &[Other] = &[
    // Files of MindFormers name a class and its special tokens; here the file says both.
    keys(
        "type tokenizer_type model_max_length max_length padding_side trust_remote_code pad_token \
         bos_token unk_token add_bos_token add_eos_token auto_register cls_token mask_token \
         sep_token do_lower_case is_tokenize_char add_special_tokens padding truncation legacy \
         image_tag added_tokens_file checkpoint_name_or_path prefix stage src_max_length \
         tgt_max_length lang use_fast do_basic_tokenize",
    )
    .ignored("said by the tokenizer's own file"),
    keys("vocab_file merges_file pretrained_model_dir_or_path").differs(
        Passes::Off,
        "not read; convert it to Hugging Face's tokenizer.json and write `tokenizer_file`",
    ),
];

const DATA_LOADER: &[Other] = &[
    keys(
        "num_parallel_workers column_names columns_list schema num_shards shard_id \
         shard_equal_rows stage phase python_multiprocessing padded_sample num_padded \
         create_attention_mask create_compressed_eod_mask compressed_eod_mask_length \
         use_broadcast_data adaptor_config load_func tokenizer max_length file_format",
    )
    .ignored("about MindSpore's data pipeline, or of loaders that are not built"),
    keys("num_samples").refused(Passes::Off, "set runner_config.stop_step, or max_bytes of a loader of text"),
    keys("dataset_name").refused(
        Passes::Words("multi-round-chat multi-round-chat-dyn"),
        "write `multi-round-chat`, or `HFDataLoader` with the handler `AlpacaInstructDataHandler` \
         for Alpaca's records",
    ),
    keys("read_function map_function").refused(Passes::Off, "prepare the data before the run"),
    keys("datasets_type").refused(Passes::Words("GPTDataset"), "write `datasets_type: GPTDataset`"),
];

const MEGATRON: &[Other] = &[
    keys(
        "num_dataset_builder_threads path_to_cache mmap_bin_files eod_pad_length \
         create_attention_mask tokenizer",
    )
    .ignored("about how MindFormers reads the files, which are mapped into memory here"),
    keys("add_extra_token_to_sequence")
        .refused(Passes::On, "write `True`: the target of a sample's last token is the token after it"),
];

const METRIC: &[Other] = &[keys("eval_type").ignored("about metrics that are not computed")];

const TENSORBOARD: &[Other] = &[keys("tensorboard_queue_size").ignored("each step is written at once")];

const CONTEXT: &[Other] = &[keys(
    "mode device_target max_call_depth save_graphs save_graphs_path enable_graph_kernel \
         graph_kernel_flags jit_config jit_level memory_optimize_level ascend_config gpu_config \
         mempool_block_size runtime_num_threads affinity_cpu_list infer_boost deterministic \
         pynative_synchronize memory_offload op_timeout inter_op_parallel_num env_config_path \
         precision_mode variable_memory_max_size check_bprop enable_compile_cache \
         compile_cache_path max_device_memory_offset save_dump_path print_file_path enable_dump \
         reserve_class_name_in_scope grad_for_scalar debug_level hccl_buffer_size \
         disable_format_transform parallel_speed_up_json_path",
)
.ignored("about Ascend devices and MindSpore's graph compiler")];

const PARALLEL_CONFIG: &[Other] = &[
    keys("optimizer_shard").ignored(
        "without effect in MindFormers too; `parallel.enable_parallel_optimizer` shares out the \
         optimizer",
    ),
    keys("gradient_aggregation_group").ignored(
        "how many gradients MindFormers exchanges at once; here they are exchanged in buckets of \
         one size",
    ),
    keys("fine_grain_interleave")
        .ignored("about how products of shared matrices are cut, which is done otherwise"),
    keys("context_parallel_algo ulysses_degree_in_cp")
        .ignored("about sequences that ranks share, which is not built"),
    keys("seq_split_num")
        .ignored("about pipelines whose stages take parts of a sequence, which are not built"),
    keys("mem_coeff").ignored("about MindFormers' search for degrees"),
];

const PARALLEL: &[Other] = &[
    keys("parallel_optimizer_threshold")
        .ignored("MindFormers keeps parameters below so many KiB whole; here small ones are shared out too"),
    keys("gradients_mean loss_repeated_mean").ignored(
        "the gradients of a step are those of the mean over its micro-batches, on any number of \
         ranks",
    ),
    keys("gradient_fp32_sync force_fp32_communication")
        .ignored("gradients are exchanged and summed in float32, always"),
    keys("enable_alltoall").ignored("routed tokens are exchanged by all-to-all, always"),
    keys("full_batch dataset_strategy")
        .ignored("how MindFormers hands out the data; here each rank reads the micro-batches that it takes"),
    keys("comm_fusion all_reduce_fusion_config communi_parallel_mode").ignored(
        "how MindFormers groups what it exchanges; here gradients are exchanged in buckets of one \
         size",
    ),
    keys("parameter_broadcast")
        .ignored("every rank makes the same initial weights from the seed, or reads the same files"),
    keys("search_mode auto_parallel_search_mode auto_pipeline auto_parallel_new_interface")
        .ignored("about MindFormers' search for degrees; here they are those of `parallel_config`"),
    keys(
        "strategy_ckpt_config strategy_ckpt_save_file strategy_ckpt_load_file \
         group_ckpt_save_file",
    )
    .ignored(
        "about files that describe MindFormers' checkpoints; those here are read by any number of \
         ranks",
    ),
    keys("device_num global_rank").ignored("the launcher says how many ranks there are, and which this is"),
    keys("grad_accumulation_step")
        .ignored("`runner_config.gradient_accumulation_steps` says it, as in MindFormers"),
    keys("pipeline_stages").ignored("`parallel_config.pipeline_stage` says it, as in MindFormers"),
    keys("pipeline_result_broadcast pipeline_segments").ignored("about MindSpore's pipelines"),
];

const PARALLEL_OPTIMIZER_CONFIG: &[Other] = &[keys("parallel_optimizer_threshold")
    .ignored("MindFormers keeps parameters below so many KiB whole; here small ones are shared out too")];

const LOSS_MONITOR: &[Other] = &[keys("keep_default_action").ignored("about MindFormers' callback")];

const CHECKPOINT_MONITOR: &[Other] = &[
    keys("integrated_save async_save save_network_params remove_redundancy exception_save")
        .ignored("about MindFormers' files and its threads"),
    keys("checkpoint_format").differs(Passes::Words("safetensors"), "always safetensors"),
    keys("save_trainable_params").refused(Passes::Off, "write `False`: a checkpoint holds all weights, or the adapters alone where their base came from files"),
    keys("directory").refused(Passes::Off, "set output_dir"),
];

const COLD_HOT_MONITOR: &[Other] =
    &[keys("moe_config hidden_size intermediate_size ffn_hidden_size expert_parallel model_parallel")
        .ignored("what MindFormers must be told and a mixture here knows")];

const SUMMARY_MONITOR: &[Other] = &[keys(
    "collect_specified_data collect_tensor_freq keep_default_action custom_lineage_data \
         max_file_size",
)
.ignored("about MindInsight's files")];

const TOPK_BIAS_CALLBACK: &[Other] =
    &[keys("micro_batch_num log_expert_load_to_tensorboard")
        .ignored("about pipeline stages and TensorBoard")];

const LLAMA: &[Other] = &[
    keys("gated_linear_unit").refused(Passes::On, "write `True`"),
    keys("post_layernorm_residual").refused(Passes::Off, "write `False`"),
    keys("normalization").refused(Passes::Words("RMSNorm"), "write `normalization: RMSNorm`"),
];

const GPT2: &[Other] = &[
    keys("gated_linear_unit post_layernorm_residual").refused(Passes::Off, "write `False`"),
    keys("normalization").refused(Passes::Words("LayerNorm"), "write `normalization: LayerNorm`"),
];

const CHATGLM2: &[Other] = &[
    keys("apply_residual_connection_post_layernorm post_self_attn_layernorm post_mlp_layernorm")
        .refused(Passes::Off, "write `False`, as in every published ChatGLM"),
    keys("rmsnorm post_layer_norm").refused(Passes::On, "write `True`, as in every published ChatGLM"),
    keys("apply_query_key_layer_scaling")
        .refused(Passes::On, "write `True`: scores are always divided by the root of the width of a head"),
    keys("pre_seq_len prefix_projection").refused(
        Passes::Off,
        "remove it to train all weights: P-tuning's prefixes of keys and values are not built",
    ),
    keys("quantization_bit").refused(Passes::Off, "write 0; `compute_dtype` stores weights in 16 bits"),
    keys("use_rearrange_rope interleaved_qkv")
        .refused(Passes::Off, "write `False`, the order of q and k in published weights"),
    keys("mask_generate")
        .refused(Passes::Off, "write `reset_attention_mask` under the data loader's `config` instead"),
    keys("enable_high_performance gmask_token_id mask_token_id")
        .ignored("about MindFormers' kernels and tokenizer"),
];

const TELECHAT: &[Other] = &[keys("mean").refused(Passes::Off, "write 0: initial weights have mean 0")];

const BLOOM: &[Other] = &[keys("unk_token_id").ignored("about MindFormers' tokenizer")];

const WIZARD_CODER: &[Other] =
    &[keys("start_token_id").ignored("about generation; `gristmill generate` takes flags")];

const PANGU_ALPHA: &[Other] =
    &[keys("dropout_rate").ignored("without effect in MindFormers, which reads one rate for each place")];

const BAICHUAN: &[Other] =
    &[keys("user_token_id assistant_token_id").ignored("about MindFormers' chat template")];

const DEEPSEEK: &[Other] = &[
    keys("mla_qkv_concat").ignored("about the layout of MindFormers' weights"),
    keys("ep_size pretraining_tp").ignored("`parallel_config` says how a run is spread over ranks"),
    keys("aux_loss_alpha seq_aux")
        .differs(Passes::Off, "not read, as in MindFormers; `moe_aux_loss_coeff` says what balance counts"),
];

/// Sections of MindFormers none of whose keys is used.
pub(crate) fn tables() -> [(TableId, Table); 5] {
    let trainer = [
        keys("model_name").ignored("a name for MindFormers' logs"),
        keys("type").refused(
            Passes::Words("CausalLanguageModelingTrainer"),
            "write `type: CausalLanguageModelingTrainer`",
        ),
    ];
    let swap = [
        keys("layer_swap op_swap default_prefetch").ignored("without effect while nothing is swapped"),
        keys("swap").refused(
            Passes::Off,
            "write `swap: False` and `recompute_config.recompute: True`, which saves the memory \
         without the transfers; `gristmill plan` says what a run takes, and \
         `context.max_device_memory` limits it",
        ),
    ];
    let arch = [
        sections("type"),
        keys("auto_register").ignored("names MindFormers' code"),
        keys("pet").refused(Passes::Off, "write the adapters under `model_config.pet_config`"),
    ];
    let task = "`train_dataset_task` and `eval_dataset_task`: MindFormers' class around a data set, `dataset_config`. Its `type` must \
                be one of `CausalLanguageModelDataset`, `KeyWordGenDataset`, `MultiTurnDataset` and `SFTDataset` for the data to be \
                read.";
    let export = [keys("tensor_format").refused(Passes::Words("npy"), "write `tensor_format: npy`")];
    [
        (TableId::of("model.arch"), Table::unused(&about_classes(), arch)),
        (TableId::of("train_dataset_task"), Table::unused(task, [sections("dataset_config type")])),
        (
            TableId::of("callbacks.SummaryMonitor.export_options"),
            Table::unused("`export_options` of a `SummaryMonitor`.", export),
        ),
        (
            TableId::of("trainer"),
            Table::unused("`trainer`: which of MindFormers' trainers to use; there is one.", trainer),
        ),
        (
            TableId::of("swap_config"),
            Table::unused("`swap_config`: activations kept in the host's memory.", swap),
        ),
    ]
}

/// Checks the sections that nothing else opens.
pub(super) fn check(source: &Source) {
    for path in ["trainer", "swap_config"] {
        Reader::open(source, path, &[TableId::of(path)]);
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
