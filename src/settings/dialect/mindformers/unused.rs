//! Keys of MindFormers' files that are known and not used: without meaning here, computed differently, or not built.

use super::classes::OUTSIDE;
use crate::settings::engine::*;

/// Such keys, by the table that they are in.
pub(crate) const UNUSED: &[(TableId, &[Other])] = &[
    (TableId::of(""), RUN),
    (TableId::of("runner_config"), RUNNER_CONFIG),
    (TableId::of("runner_wrapper"), RUNNER_WRAPPER),
    (TableId::of("monitor_config"), MONITOR_CONFIG),
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

const LAUNCHER: &str = "about MindFormers' devices, files and launcher";
const PROFILER: &str = "about MindFormers' profiler";
const OTHER_BRANCH: &str = "of another branch of MindFormers, or without effect on training";
const LAZY_INLINE: &str = "about compiling each layer once, which is always so here";

const RUN: &[Other] = &[
    keys(
        "src_strategy_path_or_dir src_strategy dst_strategy load_ckpt_format save_file remote_save_url \
         processor filepath_prefix run_status register_path",
    )
    .ignored(LAUNCHER),
    keys(
        "auto_trans_ckpt load_ckpt_async ckpt_use_legacy_format balanced_load auto_tune \
         remove_redundancy use_graceful_exit exclude_cann_cpu enable_mindio_ttp_save_ckpt",
    )
    .idle_switches(LAUNCHER),
    keys("transform_process_num autotune_per_step").idle_numbers(LAUNCHER),
    keys("profile_rank_ids profiler_level profile_level").ignored(PROFILER),
    keys("profile_communication profile_memory profile_pipeline init_start_profile mstx")
        .idle_switches(PROFILER),
    keys("profile_start_step profile_stop_step").idle_numbers(PROFILER),
    keys("eval_callbacks infer predict_batch_size input_data adapter_id").ignored(OTHER_BRANCH),
    keys("use_legacy train_precision_sync infer_precision_sync postprocess_use_numpy")
        .idle_switches(OTHER_BRANCH),
    keys("layer_decay lr_scale_factor").idle_numbers(OTHER_BRANCH),
    keys("lazy_inline disable_lazy_inline").idle_switches(LAZY_INLINE),
    keys("run_mode").refused(Passes::Words("train finetune"), "write `run_mode: train`"),
    keys("profile").refused(Passes::Off, "write `profile: False`; --profile N times launches"),
    keys("only_save_strategy").refused(Passes::Off, "write `only_save_strategy: False`"),
    keys("layer_scale lr_scale").refused(Passes::Off, "write `False` and set lr_schedule.learning_rate"),
    keys("ignore_data_skip data_skip_steps").refused(Passes::Off, "remove it: resuming continues exactly"),
    keys("use_checkpoint_health_monitor").refused(Passes::Off, "remove it"),
];

const RUNNER_CONFIG: &[Other] = &[
    keys("sink_mode").idle_switches(SINK),
    keys("sink_size per_epoch_size initial_epoch has_trained_epoches has_trained_steps").idle_numbers(SINK),
    keys("num_classes image_size").ignored("of image models"),
];

const SINK: &str = "about MindFormers' data sink and its way of resuming; no step waits for the host here";

const RUNNER_WRAPPER: &[Other] = &[
    keys("enable_check_overflow enable_global_norm").idle_switches("always on here"),
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
    keys("device_local_norm_format").refused(Passes::Off, "remove it; the log has `global_norm`"),
    keys("device_local_loss_format").refused(Passes::Off, "write `local_loss_format`"),
    keys("throughput_baseline").refused(Passes::Off, "remove it; the log has tokens per second"),
    keys("stable_rank_config")
        .refused(Passes::Off, "remove it; `weight_state_format` reports the norm of the weights"),
];

const OPTIMIZER: &[Other] = &[
    keys("qk_clip_threshold").refused(Passes::Off, "remove it"),
    keys("loss_scale").refused(
        Passes::UpToOne,
        "write 1: `runner_wrapper.scale_sense` divides gradients by what it multiplied the loss with",
    ),
    keys("swap offload amsgrad maximize").refused(Passes::Off, "write `False`"),
];

const LR_SCHEDULE: &[Other] = &[
    keys("auto_register").refused(Passes::Off, "remove it"),
    keys("max_lr min_lr num_iters").ignored("of `MegatronLR`, which is not built"),
];

const GENERATION: &str = "about generation; `gristmill generate` takes flags";
const MATRICES: &str = "`parallel_config` says how ranks share matrices, which is done in one way";
const KERNELS: &str = "about MindFormers' kernels and the layout of its weights";
const READ_ELSEWHERE: &str = "read by other programs, or without effect in MindFormers";

const MODEL_CONFIG: &[Other] = &[
    keys("bos_token_id eos_token_id eos_token pad_token").ignored(GENERATION),
    keys(
        "do_sample is_dynamic is_flexible_shape use_paged_attention use_past_shard use_kvcache_op \
         use_cache",
    )
    .idle_switches(GENERATION),
    keys(
        "batch_size repetition_penalty max_decode_length max_length max_new_tokens top_k top_p \
         temperature block_size num_blocks",
    )
    .idle_numbers(GENERATION),
    keys("compute_in_2d use_seq_parallel seq_parallel lm_head_dp").idle_switches(MATRICES),
    keys("fine_grain_interleave").idle_numbers(MATRICES),
    keys("use_ring_attention").idle_switches("about sequences that ranks share, which is not built"),
    keys("num_layers_of_each_stage")
        .refused(Passes::Off, "write `offset`: by how many layers a stage differs from an even share"),
    keys("parallel_optimizer").idle_switches("`parallel.enable_parallel_optimizer` shares out the optimizer"),
    keys("micro_batch_interleave_num").idle_numbers("counts at the top level"),
    keys("input_sliced_sig").idle_switches("a loader knows whether its targets are shifted"),
    keys(
        "qkv_concat ffn_concat use_attn_mask_compression use_prompt_flash_attention \
         use_incre_flash_attention use_rope_slice use_contiguous_weight_layout_attention \
         use_interleaved_weight_layout_mlp is_sample_acceleration fp32_residual_connection \
         mlp_concat fused_rms_norm is_npu_acceleration use_contiguous_weight_layout \
         use_attention_mask persist_layer_norm memory_efficient_layer_norm masked_softmax_fusion \
         bias_activation_fusion bias_dropout_fusion moe_router_fusion attention_softmax_in_fp32",
    )
    .idle_switches(KERNELS),
    keys("mask_type input_layout sparse_mode rotary_cos_format").ignored(KERNELS),
    keys("use_fused_rope use_fused_swiglu").idle_switches("always fused where a model has it"),
    keys("use_flash_attention").idle_switches("attention never stores its matrix here, whatever this says"),
    keys(
        "auto_register architectures model_type model_name net_name no_recompute_layers \
         transformers_version torch_dtype single_checkpoint_name_or_path",
    )
    .ignored(READ_ELSEWHERE),
    keys("output_router_logits is_encoder_decoder use_select_recompute").idle_switches(READ_ELSEWHERE),
    keys("rotary_emb_base num_labels").idle_numbers(READ_ELSEWHERE),
    keys("lazy_inline disable_lazy_inline").idle_switches(LAZY_INLINE),
    keys("use_past")
        .idle_switches("training keeps no cache of keys and values; MindFormers sets it to False too"),
    keys("window_attn_skip_freq use_mup is_reward_model").refused(Passes::Off, "remove it"),
    keys("eod_reset reset_position_ids reset_attention_mask eod_mask_loss")
        .refused(Passes::Off, "write it under train_dataset instead"),
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

const DISPATCH: &str =
    "other ways to the same results of exchanging routed tokens, which go by all-to-all here";
const OVERLAP: &str = "what MindFormers computes during an exchange; here whatever does not need its result";
const MATRICES_OF_EXPERTS: &str =
    "the matrices of experts are divided as all others, by `parallel_config.model_parallel`";
const RELOCATION: &str =
    "about moving experts between devices as their load changes; here an expert stays on its rank";
const KNOWN_TO_MIXTURE: &str = "what MindFormers must be told and a mixture here knows";

const MOE_CONFIG: &[Other] = &[
    keys("use_allgather_dispatcher enable_deredundency group_wise_a2a").idle_switches(DISPATCH),
    keys("npu_nums_per_device dispatch_global_max_bs").idle_numbers(DISPATCH),
    keys("comp_comm_parallel moe_shared_expert_overlap").idle_switches(OVERLAP),
    keys("comp_comm_parallel_degree").idle_numbers(OVERLAP),
    keys("ep_extend_tp").idle_switches(MATRICES_OF_EXPERTS),
    keys("expert_model_parallel").idle_numbers(MATRICES_OF_EXPERTS),
    keys("expert_group_size")
        .idle_numbers("how many tokens MindFormers' first router takes at once; here those of a micro-batch"),
    keys("enable_expert_relocation").idle_switches(RELOCATION),
    keys("expert_relocation_initial_iteration expert_relocation_freq").idle_numbers(RELOCATION),
    keys("moe_module_name").ignored(KNOWN_TO_MIXTURE).of(IdleKind::Text),
    keys("cur_layer max_router_load").idle_numbers(KNOWN_TO_MIXTURE),
    keys("print_expert_load").idle_switches(KNOWN_TO_MIXTURE),
    keys("use_fused_ops_topkrouter use_fused_ops_permute").idle_switches("always fused here"),
    keys("router_aux_loss_coef").differs(
        Passes::Off,
        "not read, as in MindFormers; `moe_aux_loss_coeff` or `aux_loss_factors` says what \
         balance counts",
    ),
    keys("moe_router_force_expert_balance").refused(Passes::Off, "write `False`"),
    keys("moe_layer_freq decoder_sparse_step").refused(Passes::UpToOne, "write `first_k_dense_replace`"),
    keys("mlp_only_layers").refused(Passes::Off, "write `first_k_dense_replace`"),
];

const PIPELINE: &str =
    "about MindSpore's data pipeline; the trainer's own keys decide batches and evaluation";

const TRAIN_DATASET: &[Other] = &[
    keys("output_columns construct_args_key column_order").ignored(PIPELINE),
    keys("python_multiprocessing numa_enable do_eval").idle_switches(PIPELINE),
    keys("num_parallel_workers prefetch_size batch_size micro_batch").idle_numbers(PIPELINE),
    keys(
        "prompt max_length modal_to_text_transform modal_content_transforms \
         modal_content_input_columns modal_content_output_columns net_input_columns \
         project_columns eos_id gmask_id sop_id dataset_dir eval_interval eval_offset \
         filepath_prefix autotune_per_step",
    )
    .ignored("of data loaders that are not built"),
    keys("return_attention_mask profile autotune use_generator")
        .idle_switches("of data loaders that are not built"),
    keys("max_seq_length")
        .differs(Passes::Off, "samples are cut and padded to model.model_config.seq_length"),
    keys("ignore_pad_token_for_loss").refused(Passes::On, "write `True`: padding does not enter the loss"),
    keys("drop_remainder")
        .differs(Passes::On, "what does not fill a step is always dropped")
        .of(IdleKind::Switch),
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
        "type tokenizer_type model_max_length max_length padding_side pad_token bos_token unk_token \
         auto_register cls_token mask_token sep_token padding truncation image_tag added_tokens_file \
         checkpoint_name_or_path prefix stage src_max_length tgt_max_length lang",
    )
    .ignored("said by the tokenizer's own file"),
    keys(
        "trust_remote_code add_bos_token add_eos_token do_lower_case is_tokenize_char \
         add_special_tokens legacy use_fast do_basic_tokenize",
    )
    .idle_switches("said by the tokenizer's own file"),
    keys("vocab_file merges_file pretrained_model_dir_or_path").differs(
        Passes::Off,
        "not read; convert it to Hugging Face's tokenizer.json and write `tokenizer_file`",
    ),
];

const LOADERS: &str = "about MindSpore's data pipeline, or of loaders that are not built";

const DATA_LOADER: &[Other] = &[
    keys(
        "column_names columns_list schema stage phase padded_sample adaptor_config load_func tokenizer \
         file_format",
    )
    .ignored(LOADERS),
    keys(
        "shard_equal_rows python_multiprocessing create_attention_mask create_compressed_eod_mask \
         use_broadcast_data",
    )
    .idle_switches(LOADERS),
    keys("num_parallel_workers num_shards shard_id num_padded compressed_eod_mask_length max_length")
        .idle_numbers(LOADERS),
    keys("num_samples").refused(Passes::Off, "set runner_config.stop_step, or max_bytes of a loader of text"),
    keys("dataset_name").refused(
        Passes::Words("multi-round-chat multi-round-chat-dyn"),
        "write `multi-round-chat`, or `HFDataLoader` with the handler `AlpacaInstructDataHandler` \
         for Alpaca's records",
    ),
    keys("read_function map_function").refused(Passes::Off, "prepare the data before the run"),
    keys("datasets_type").refused(Passes::Words("GPTDataset"), "write `datasets_type: GPTDataset`"),
];

const MAPPED_FILES: &str = "about how MindFormers reads the files, which are mapped into memory here";

const MEGATRON: &[Other] = &[
    keys("path_to_cache tokenizer").ignored(MAPPED_FILES),
    keys("mmap_bin_files create_attention_mask").idle_switches(MAPPED_FILES),
    keys("num_dataset_builder_threads eod_pad_length").idle_numbers(MAPPED_FILES),
    keys("add_extra_token_to_sequence")
        .refused(Passes::On, "write `True`: the target of a sample's last token is the token after it"),
];

const METRIC: &[Other] = &[keys("eval_type").ignored("about metrics that are not computed")];

const TENSORBOARD: &[Other] = &[keys("tensorboard_queue_size").idle_numbers("each step is written at once")];

const ASCEND: &str = "about Ascend devices and MindSpore's graph compiler";

const CONTEXT: &[Other] = &[
    // `save_graphs` and `infer_boost` are numbers or words, too, and real files have text at `enable_graph_kernel`.
    keys(
        "mode device_target save_graphs save_graphs_path enable_graph_kernel graph_kernel_flags \
         jit_config jit_level memory_optimize_level ascend_config gpu_config mempool_block_size \
         affinity_cpu_list infer_boost deterministic memory_offload env_config_path precision_mode \
         variable_memory_max_size compile_cache_path save_dump_path print_file_path debug_level \
         max_device_memory_offset parallel_speed_up_json_path",
    )
    .ignored(ASCEND),
    keys(
        "pynative_synchronize check_bprop enable_compile_cache enable_dump \
         reserve_class_name_in_scope grad_for_scalar disable_format_transform",
    )
    .idle_switches(ASCEND),
    keys("max_call_depth runtime_num_threads op_timeout inter_op_parallel_num hccl_buffer_size")
        .idle_numbers(ASCEND),
];

const PARALLEL_CONFIG: &[Other] = &[
    keys("optimizer_shard").idle_switches(
        "without effect in MindFormers too; `parallel.enable_parallel_optimizer` shares out the \
         optimizer",
    ),
    keys("gradient_aggregation_group").idle_numbers(
        "how many gradients MindFormers exchanges at once; here they are exchanged in buckets of \
         one size",
    ),
    keys("fine_grain_interleave")
        .idle_numbers("about how products of shared matrices are cut, which is done otherwise"),
    keys("context_parallel_algo ulysses_degree_in_cp")
        .ignored("about sequences that ranks share, which is not built"),
    keys("seq_split_num")
        .idle_numbers("about pipelines whose stages take parts of a sequence, which are not built"),
    keys("mem_coeff").idle_numbers("about MindFormers' search for degrees"),
];

const HANDED_OUT: &str =
    "how MindFormers hands out the data; here each rank reads the micro-batches that it takes";
const DEGREES: &str = "about MindFormers' search for degrees; here they are those of `parallel_config`";

const PARALLEL: &[Other] = &[
    keys("parallel_optimizer_threshold").idle_numbers(
        "MindFormers keeps parameters below so many KiB whole; here small ones are shared out too",
    ),
    keys("gradients_mean loss_repeated_mean").idle_switches(
        "the gradients of a step are those of the mean over its micro-batches, on any number of \
         ranks",
    ),
    keys("gradient_fp32_sync force_fp32_communication")
        .idle_switches("gradients are exchanged and summed in float32, always"),
    keys("enable_alltoall").idle_switches("routed tokens are exchanged by all-to-all, always"),
    keys("full_batch").idle_switches(HANDED_OUT),
    keys("dataset_strategy").ignored(HANDED_OUT),
    keys("comm_fusion all_reduce_fusion_config communi_parallel_mode").ignored(
        "how MindFormers groups what it exchanges; here gradients are exchanged in buckets of one \
         size",
    ),
    keys("parameter_broadcast")
        .idle_switches("every rank makes the same initial weights from the seed, or reads the same files"),
    keys("search_mode auto_parallel_search_mode").ignored(DEGREES),
    keys("auto_pipeline auto_parallel_new_interface").idle_switches(DEGREES),
    keys(
        "strategy_ckpt_config strategy_ckpt_save_file strategy_ckpt_load_file \
         group_ckpt_save_file",
    )
    .ignored(
        "about files that describe MindFormers' checkpoints; those here are read by any number of \
         ranks",
    ),
    keys("device_num global_rank")
        .idle_numbers("the launcher says how many ranks there are, and which this is"),
    keys("grad_accumulation_step")
        .idle_numbers("`runner_config.gradient_accumulation_steps` says it, as in MindFormers"),
    keys("pipeline_stages").idle_numbers("`parallel_config.pipeline_stage` says it, as in MindFormers"),
    keys("pipeline_result_broadcast").idle_switches("about MindSpore's pipelines"),
    keys("pipeline_segments").idle_numbers("about MindSpore's pipelines"),
];

const PARALLEL_OPTIMIZER_CONFIG: &[Other] = &[keys("parallel_optimizer_threshold").idle_numbers(
    "MindFormers keeps parameters below so many KiB whole; here small ones are shared out too",
)];

const LOSS_MONITOR: &[Other] = &[keys("keep_default_action").idle_switches("about MindFormers' callback")];

const CHECKPOINT_MONITOR: &[Other] = &[
    keys("integrated_save async_save save_network_params remove_redundancy exception_save")
        .idle_switches("about MindFormers' files and its threads"),
    keys("checkpoint_format").differs(Passes::Words("safetensors"), "always safetensors"),
    keys("save_trainable_params").refused(Passes::Off, "write `False`: a checkpoint holds all weights, or the adapters alone where their base came from files"),
    keys("directory").refused(Passes::Off, "set output_dir"),
];

const COLD_HOT_MONITOR: &[Other] = &[
    keys("moe_config").ignored(KNOWN_TO_MIXTURE),
    keys("hidden_size intermediate_size ffn_hidden_size expert_parallel model_parallel")
        .idle_numbers(KNOWN_TO_MIXTURE),
];

const SUMMARY_MONITOR: &[Other] = &[
    keys("collect_specified_data custom_lineage_data").ignored("about MindInsight's files"),
    keys("keep_default_action").idle_switches("about MindInsight's files"),
    keys("max_file_size").idle_numbers("about MindInsight's files"),
];

const TOPK_BIAS_CALLBACK: &[Other] = &[
    keys("micro_batch_num").idle_numbers("about pipeline stages"),
    keys("log_expert_load_to_tensorboard").idle_switches("`tensorboard` says it"),
];

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
    keys("enable_high_performance").idle_switches("about MindFormers' kernels"),
    keys("gmask_token_id mask_token_id").ignored("about MindFormers' tokenizer"),
];

const TELECHAT: &[Other] = &[keys("mean").refused(Passes::Off, "write 0: initial weights have mean 0")];

const BLOOM: &[Other] = &[keys("unk_token_id").ignored("about MindFormers' tokenizer")];

const WIZARD_CODER: &[Other] =
    &[keys("start_token_id").ignored("about generation; `gristmill generate` takes flags")];

const PANGU_ALPHA: &[Other] =
    &[keys("dropout_rate")
        .idle_numbers("without effect in MindFormers, which reads one rate for each place")];

const BAICHUAN: &[Other] =
    &[keys("user_token_id assistant_token_id").ignored("about MindFormers' chat template")];

const DEEPSEEK: &[Other] = &[
    keys("mla_qkv_concat").idle_switches("about the layout of MindFormers' weights"),
    keys("ep_size pretraining_tp").idle_numbers("`parallel_config` says how a run is spread over ranks"),
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
