//! Several names of one key: the original's own and those of Megatron and Hugging Face.

/// Every set of names; the first is the one we use.
const ALIASES: &[&[&str]] = &[
    &["data_parallel", "data_parallel_size"],
    &["model_parallel", "tensor_model_parallel_size"],
    &["pipeline_stage", "pipeline_model_parallel_size"],
    &["pp_interleave_num", "virtual_pipeline_model_parallel_size"],
    &["use_seq_parallel", "sequence_parallel"],
    &["param_init_type", "params_dtype"],
    &["mtp_depth", "num_nextn_predict_layers", "mtp_num_layers"],
    &["mtp_loss_factor", "mtp_loss_scaling_factor"],
    &["num_heads", "num_attention_heads", "n_head"],
    &["n_kv_heads", "num_key_value_heads", "num_query_groups"],
    &["hidden_size", "n_embd"],
    &["intermediate_size", "ffn_hidden_size", "n_inner"],
    &["hidden_act", "activation_function", "activation_func"],
    &["rms_norm_eps", "layernorm_epsilon", "layer_norm_epsilon"],
    &["qkv_has_bias", "attention_bias", "add_qkv_bias"],
    &["num_layers", "num_hidden_layers", "n_layer"],
    &["use_qk_norm", "qk_layernorm"],
    &["init_method_std", "initializer_range"],
    &["use_fused_rope", "apply_rope_fusion"],
    &["use_fused_swiglu", "bias_swiglu_fusion"],
    &["expert_num", "n_routed_experts", "num_experts", "num_moe_experts", "num_local_experts"],
    &["moe_intermediate_size", "moe_ffn_hidden_size"],
    &["num_experts_chosen", "num_experts_per_tok", "moe_router_topk", "per_token_num_experts_chosen"],
    &["n_group", "moe_router_num_groups"],
    &["topk_group", "moe_router_group_topk"],
    &["routed_scaling_factor", "moe_router_topk_scaling_factor"],
    &["use_gating_sigmoid", "scoring_func", "moe_router_score_function"],
    &["router_dense_type", "moe_router_dtype"],
    &["balance_via_topk_bias", "moe_router_enable_expert_bias"],
    &["topk_bias_update_rate", "moe_router_bias_update_rate"],
    &["use_gmm", "moe_grouped_gemm"],
    &["use_fused_ops_permute", "moe_permute_fusion"],
    &["z_loss_factor", "moe_z_loss_coeff"],
    &["capacity_factor", "moe_expert_capacity_factor"],
    &["enable_sdrop", "moe_token_drop_policy"],
    &["enable_gmm_safe_tokens", "use_pad_tokens"],
    &["shared_expert_num", "n_shared_experts"],
    &["moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"],
    &["callbacks", "callback"],
    &["theta", "rope_theta", "rotary_base"],
    &["scaling_factor", "factor", "rotary_scaling_factor"],
    &["swap", "cpu_offloading"],
    &["attention_dropout", "attention_dropout_rate", "attn_pdrop"],
    &["hidden_dropout", "hidden_dropout_rate", "resid_pdrop"],
    &["emb_dropout_prob", "embedding_dropout_prob", "embd_pdrop"],
    &["max_position_embedding", "max_position_embeddings", "n_positions", "n_ctx"],
    &["rotary_percent", "partial_rotary_factor", "rotary_pct"],
];

/// All names of `key`, the one we use first; empty for a key with one name.
pub(super) fn of(key: &str) -> &'static [&'static str] {
    ALIASES.iter().copied().find(|names| names.contains(&key)).unwrap_or(&[])
}

/// The name we use for `key`.
pub(super) fn canonical(key: &str) -> &str {
    of(key).first().copied().unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_means_two_keys() {
        let mut names: Vec<_> = ALIASES.concat();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(canonical("n_head"), "num_heads");
        assert_eq!(canonical("seq_length"), "seq_length");
    }
}
