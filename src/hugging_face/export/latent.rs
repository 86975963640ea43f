//! The keys of `config.json` that multi-head latent attention adds.

use crate::model::config::{LatentAttention, ModelConfig};
use serde_json::{Value, json};

/// Adds the keys of DeepSeek's configurations to `config`, and takes those out that mean something else there.
pub(super) fn change(config: &mut Value, model: &ModelConfig, sizes: &LatentAttention) {
    let LatentAttention { q_rank, kv_rank, nope_dim, rope_dim, value_dim } = *sizes;
    config["q_lora_rank"] = json!(q_rank);
    config["kv_lora_rank"] = kv_rank.into();
    config["qk_nope_head_dim"] = nope_dim.into();
    config["qk_rope_head_dim"] = rope_dim.into();
    config["v_head_dim"] = value_dim.into();
    config["rope_interleave"] = true.into();
    // The frequencies are those of a head of this width, all of which rotates.
    config["head_dim"] = rope_dim.into();
    config["partial_rotary_factor"] = json!(1.0);
    // A mixture has its own numbers: without one no layer has experts.
    config["first_k_dense_replace"] = model.num_layers.into();
    config["num_nextn_predict_layers"] = 0.into();
}
