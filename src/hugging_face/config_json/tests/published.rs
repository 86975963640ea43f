//! Files of models whose code was published with their weights.

use super::{config, equal, llama, refused};
use crate::hugging_face::export::tests::{in_pairs, rotating};
use crate::model::config::{Family, ModelConfig, RopeScaling};
use serde_json::json;

#[test]
fn published_models_are_read_by_their_own_names() {
    let glm = ModelConfig { family: Family::Glm, qkv_bias: true, ..in_pairs(rotating(llama(), 4)) };
    let glm = glm.with_layers(|layer| layer.head_dim = 8);
    let chatglm = json!({"model_type": "chatglm", "num_layers": 3, "padded_vocab_size": 32, "hidden_size": 16, "ffn_hidden_size": 24,
        "kv_channels": 8, "num_attention_heads": 4, "multi_query_attention": true, "multi_query_group_num": 2, "add_qkv_bias": true,
        "add_bias_linear": false, "rmsnorm": true, "post_layer_norm": true, "seq_length": 8192, "layernorm_epsilon": 1e-5,
        "apply_query_key_layer_scaling": true, "original_rope": true, "bias_dropout_fusion": true, "rope_ratio": 50});
    equal(&chatglm, &glm.clone().with_layers(|layer| layer.rope_theta = 5e5));
    refused(&chatglm, &glm, &["`rope_theta` is 500000.0"]);
    let qwen = json!({"model_type": "qwen", "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
        "kv_channels": 4, "intermediate_size": 48, "layer_norm_epsilon": 1e-5, "rotary_emb_base": 10000, "rotary_pct": 1.0,
        "use_logn_attn": true, "no_bias": true, "scale_attn_weights": true});
    equal(&qwen, &ModelConfig { qkv_bias: true, ..llama() }.with_layers(|layer| layer.num_kv_heads = 4));
    let internlm = |bias: bool| {
        config(
            "internlm2",
            json!({"bias": bias, "attn_implementation": "eager", "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
        )
    };
    equal(&internlm(false), &llama());
    refused(&internlm(true), &llama(), &["`bias` is True", "`bias` is True"]);
    let telechat = |length: u64| {
        json!({"model_type": "telechat", "vocab_size": 32, "hidden_size": 16, "n_layer": 3, "n_head": 4, "ffn_hidden_size": 24,
            "num_key_value_heads": 2, "layer_norm_epsilon": 1e-5, "base_seqlen": 8, "training_seqlen": length, "logn": true})
    };
    let model = ModelConfig { output_bias: true, down_bias: true, ..llama() };
    equal(&telechat(8), &model);
    let rope_scaling = RopeScaling::DynamicNtk { original: 8.0, length: 16.0 };
    equal(&telechat(16), &model.clone().with_layers(|layer| layer.rope_scaling = rope_scaling));
    refused(&telechat(16), &model, &["`rope_scaling` is {"]);
}
