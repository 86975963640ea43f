//! The keys of the model, and those of a mixture of experts, which stand in a section of their own or among the model's.

use super::keys::{Keys, Passes};
use super::known_keys::{differs, refuse};

/// What a mixture reads, as words.
macro_rules! mixture_keys {
    ($more:literal) => {
        concat!(
            "expert_num num_experts_chosen moe_intermediate_size first_k_dense_replace shared_expert_num ",
            "moe_shared_expert_intermediate_size use_shared_expert_gating use_gating_sigmoid moe_router_pre_softmax ",
            "norm_topk_prob routed_scaling_factor topk_method n_group topk_group balance_via_topk_bias ",
            "topk_bias_update_rate aux_loss_types aux_loss_factors aux_loss_factor moe_aux_loss_coeff ",
            "moe_router_load_balancing_type z_loss_factor use_gmm enable_gmm_safe_tokens use_fused_ops_permute ",
            "routing_policy capacity_factor enable_sdrop enable_cold_hot_expert hot_expert_num cold_token_percent ",
            "update_step callback_moe_droprate save_token_distribution router_dense_type ",
            $more
        )
    };
}

/// What concerns several devices, or what the original must be told and a mixture here knows.
macro_rules! mixture_ignored {
    ($more:literal) => {
        concat!(
            "expert_group_size group_wise_a2a comp_comm_parallel comp_comm_parallel_degree ep_extend_tp ",
            "expert_model_parallel cur_layer moe_module_name max_router_load enable_deredundency npu_nums_per_device ",
            "use_allgather_dispatcher moe_shared_expert_overlap dispatch_global_max_bs moe_token_dispatcher_type ",
            "print_expert_load enable_expert_relocation expert_relocation_initial_iteration expert_relocation_freq ",
            $more
        )
    };
}

/// The rules of a mixture's keys, behind others.
macro_rules! mixture_rules {
    ($($rule:expr),* $(,)?) => {
        &[
            $($rule,)*
            differs("use_fused_ops_topkrouter", Passes::On, "always fused here"),
            differs(
                "router_aux_loss_coef",
                Passes::Off,
                "not read, as in the original; `moe_aux_loss_coeff` or `aux_loss_factors` says what balance counts",
            ),
            refuse("moe_router_force_expert_balance", Passes::Off, "write `False`"),
            refuse("moe_layer_freq decoder_sparse_step", Passes::UpToOne, "write `first_k_dense_replace`"),
            refuse("mlp_only_layers", Passes::Off, "write `first_k_dense_replace`"),
        ]
    };
}

pub(crate) const MODEL: Keys = Keys {
    used: mixture_keys!(
        "type vocab_size hidden_size num_layers num_heads n_kv_heads head_dim kv_channels intermediate_size \
        multiple_of ffn_dim_multiplier seq_length rms_norm_eps theta tie_word_embeddings \
        untie_embeddings_and_output_weights qkv_has_bias use_qk_norm rotary_interleaved rotary_percent \
        init_method_std ignore_token_id freeze freeze_exclude eod_token_id sliding_window use_sliding_window \
        window_size attention_dropout hidden_dropout emb_dropout_prob max_position_embedding expand_ratio hidden_act \
        gated_linear_unit normalization position_embedding_type add_bias_linear out_proj_has_bias wo_has_bias has_bias \
        post_layernorm_residual extend_method scaling_factor rope_scaling pretrain_seqlen use_moe return_extra_loss \
        mtp_depth mtp_loss_factor"
    ),
    // Generation, pipeline stages, kernel choices and weight layouts of the original.
    ignored: mixture_ignored!(
        "bos_token_id eos_token_id batch_size repetition_penalty max_decode_length \
        max_length max_new_tokens top_k top_p do_sample temperature is_dynamic is_flexible_shape block_size \
        num_blocks use_paged_attention use_past_shard use_kvcache_op use_cache compute_in_2d \
        fine_grain_interleave offset pp_interleave_num parallel_optimizer use_seq_parallel seq_parallel \
        qkv_concat ffn_concat use_attn_mask_compression use_ring_attention use_prompt_flash_attention \
        use_incre_flash_attention use_rope_slice input_sliced_sig rotary_emb_base auto_register \
        architectures model_type fp32_residual_connection use_contiguous_weight_layout_attention \
        use_interleaved_weight_layout_mlp is_sample_acceleration micro_batch_interleave_num output_router_logits"
    ),
    rules: mixture_rules![
        refuse(
            "compute_dtype compute_type dtype",
            Passes::Words("float32"),
            "write `compute_dtype: float32`",
        ),
        refuse("use_past", Passes::Off, "write `use_past: False`"),
        refuse("pet_config", Passes::Off, "remove `pet_config` to train all weights"),
        refuse("multi_latent_attention q_lora_rank kv_lora_rank", Passes::Off, "remove it"),
        refuse(
            "qk_rope_head_dim qk_nope_head_dim v_head_dim window_attn_skip_freq use_mup",
            Passes::Off,
            "remove it",
        ),
        refuse(
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
        differs(
            "param_init_type embedding_init_type softmax_compute_type softmax_compute_dtype softmax_dtype \
                layernorm_compute_type layernorm_compute_dtype layernorm_dtype rotary_dtype residual_dtype",
            Passes::Words("float32"),
            "float32 here, which is more precise",
        ),
        differs(
            "pad_token_id",
            Passes::Never,
            "rows are never padded, so no token is left out of the loss for it",
        ),
        differs(
            "checkpoint_name_or_path",
            Passes::Off,
            "names a download of the original and is ignored; weights come from `load_checkpoint`",
        ),
    ],
};

pub(crate) const MOE: Keys =
    Keys { used: mixture_keys!(""), ignored: mixture_ignored!(""), rules: mixture_rules![] };
