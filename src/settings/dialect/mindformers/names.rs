//! Names of one key: those of MindFormers' older files, of Megatron and of Hugging Face.

use crate::settings::engine::{Named, Names, Node, Source, join, words};

const TOP: &str = "";
const MODEL: &str = "model.model_config";
/// The keys of a mixture may be among those of the model.
const MOE: &str = "moe_config model.model_config";
const PARALLEL: &str = "parallel_config";
const OPTIMIZER: &str = "optimizer";
const PET: &str = "model.model_config.pet_config";
const SWAP: &str = "swap_config";
const MEGATRON: &str = "train_dataset.data_loader.config eval_dataset.data_loader.config";

/// Every key that has several names.
pub(crate) const NAMES: Names = Names(&[
    named(MODEL, "vocab_size", "padded_vocab_size"),
    named(MODEL, "hidden_size", "n_embd embedding_size"),
    named(MODEL, "num_layers", "num_hidden_layers n_layer"),
    named(MODEL, "num_heads", "num_attention_heads n_head"),
    named(MODEL, "n_kv_heads", "num_key_value_heads num_query_groups multi_query_group_num"),
    named(MODEL, "intermediate_size", "ffn_hidden_size n_inner"),
    named(MODEL, "hidden_act", "activation_function activation_func"),
    named(MODEL, "max_position_embedding", "max_position_embeddings n_positions n_position n_ctx"),
    named(MODEL, "rms_norm_eps", "layernorm_epsilon layer_norm_epsilon"),
    named(MODEL, "theta", "rope_theta rotary_base"),
    named(MODEL, "scaling_factor", "factor rotary_scaling_factor"),
    named(MODEL, "qk_nope_head_dim", "qk_head_dim"),
    named(MODEL, "qk_rope_head_dim", "qk_pos_emb_head_dim"),
    named(MODEL, "rotary_percent", "partial_rotary_factor rotary_pct"),
    named(MODEL, "rotary_interleaved", "rope_interleave"),
    named(MODEL, "qkv_has_bias", "attention_bias add_qkv_bias"),
    named(MODEL, "attn_proj_has_bias", "out_proj_has_bias wo_has_bias"),
    named(MODEL, "use_qk_norm", "qk_layernorm"),
    named(
        MODEL,
        "attention_dropout",
        "attention_dropout_rate attention_dropout_prob attention_probs_dropout_prob attn_pdrop",
    ),
    named(MODEL, "hidden_dropout", "hidden_dropout_rate hidden_dropout_prob resid_pdrop"),
    named(MODEL, "emb_dropout_prob", "embedding_dropout_prob embed_dropout_prob dropout_prob embd_pdrop"),
    named(MODEL, "init_method_std", "initializer_range sigma"),
    named(MODEL, "compute_dtype", "compute_type dtype"),
    named(MODEL, "param_init_type", "params_dtype"),
    named(MODEL, "softmax_compute_type", "softmax_compute_dtype softmax_dtype"),
    named(MODEL, "layernorm_compute_type", "layernorm_compute_dtype layernorm_dtype"),
    named(MODEL, "mtp_depth", "num_nextn_predict_layers mtp_num_layers"),
    named(MODEL, "mtp_loss_factor", "mtp_loss_scaling_factor"),
    named(MODEL, "pp_interleave_num", "virtual_pipeline_model_parallel_size"),
    named(MOE, "expert_num", "n_routed_experts num_experts num_moe_experts num_local_experts"),
    named(MOE, "num_experts_chosen", "num_experts_per_tok moe_router_topk per_token_num_experts_chosen"),
    named(MOE, "moe_intermediate_size", "moe_ffn_hidden_size"),
    named(MOE, "shared_expert_num", "n_shared_experts"),
    named(MOE, "moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
    named(MOE, "use_gating_sigmoid", "scoring_func moe_router_score_function"),
    named(MOE, "routed_scaling_factor", "moe_router_topk_scaling_factor"),
    named(MOE, "n_group", "moe_router_num_groups"),
    named(MOE, "topk_group", "moe_router_group_topk"),
    named(MOE, "balance_via_topk_bias", "moe_router_enable_expert_bias"),
    named(MOE, "topk_bias_update_rate", "moe_router_bias_update_rate"),
    named(MOE, "z_loss_factor", "moe_z_loss_coeff"),
    named(MOE, "use_gmm", "moe_grouped_gemm"),
    named(MOE, "enable_gmm_safe_tokens", "use_pad_tokens"),
    named(MOE, "capacity_factor", "moe_expert_capacity_factor"),
    named(MOE, "enable_sdrop", "moe_token_drop_policy"),
    named(MOE, "router_dense_type", "moe_router_dtype"),
    named(PARALLEL, "data_parallel", "data_parallel_size"),
    named(PARALLEL, "model_parallel", "tensor_model_parallel_size"),
    named(PARALLEL, "pipeline_stage", "pipeline_model_parallel_size"),
    named(PARALLEL, "context_parallel", "context_parallel_size"),
    named(PARALLEL, "expert_parallel", "expert_model_parallel_size"),
    named(PARALLEL, "pp_interleave_num", "virtual_pipeline_model_parallel_size"),
    named(PARALLEL, "use_seq_parallel", "sequence_parallel"),
    named(PET, "target_modules", "reg_rules"),
    named(OPTIMIZER, "nesterov", "use_nesterov"),
    named(MODEL, "use_seq_parallel", "sequence_parallel"),
    named(MODEL, "use_fused_rope", "apply_rope_fusion"),
    named(MODEL, "use_fused_swiglu", "bias_swiglu_fusion"),
    named(MODEL, "residual_dtype", "res_dtype"),
    named(MOE, "use_fused_ops_permute", "moe_permute_fusion"),
    named(SWAP, "swap", "cpu_offloading"),
    named(MEGATRON, "seed", "random_seed"),
    named(TOP, "callbacks", "callback"),
]);

const fn named(sections: &'static str, key: &'static str, names: &'static str) -> Named {
    Named { sections, key, names }
}

/// Writes each key under the name that is read. One that is given under two names is a fault.
pub(super) fn unify(source: &mut Source) {
    for section in
        [TOP, MODEL, "moe_config", PARALLEL, PET, OPTIMIZER, SWAP].into_iter().chain(words(MEGATRON))
    {
        drop_twins(source, section);
        for name in names_in(source, section) {
            source.document.rename(section, &name, NAMES.key(section, &name));
        }
    }
}

/// Leaves of several names of one key the first.
fn drop_twins(source: &mut Source, section: &str) {
    let names = names_in(source, section);
    for (index, name) in names.iter().enumerate() {
        let key = NAMES.key(section, name);
        if let Some(twin) = names[..index].iter().find(|other| NAMES.key(section, other) == key) {
            let (path, message) = (
                join(section, name),
                format!("another name of `{twin}`, which is given too; keep one of them"),
            );
            source.fault_of(&join(section, key), &path, message);
            source.document.take(&path);
        }
    }
}

fn names_in(source: &Source, section: &str) -> Vec<String> {
    match source.document.get(section) {
        Some(Node::Map(entries)) => entries.iter().map(|(name, _)| name.clone()).collect(),
        _ => Vec::new(),
    }
}
