//! ChatGLM2, ChatGLM3, CodeGeeX2 and GLM-4.

use super::{Model, TypeEntry};
use crate::model::config::{Family, ModelConfig};
use crate::settings::engine::*;

pub(super) const CHATGLM2: TypeEntry = TypeEntry {
    word: "ChatGLM2Config",
    class: None,
    architectures: "ChatGLM2ForConditionalGeneration ChatGLM2WithLora",
    about: "ChatGLM2, ChatGLM3, CodeGeeX2 and GLM-4: a Llama whose query heads share 2 key and value heads, with a bias in the \
        projections to q, k and v, and of whose heads one half rotates, in interleaved pairs. Not taken over: its default sizes, \
        which follow from the others here.",
    base: super::LLAMA,
    others: &[
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
    prepare,
    family: Family::Glm,
    finish,
};

fn prepare(model: &mut Model, reader: &Reader<'_>) {
    model.n_kv_heads.get_or_insert(2);
    model.rotary_percent.get_or_insert(0.5);
    model.rotary_interleaved.get_or_insert(true);
    if !reader.has("emb_dropout_prob") {
        model.emb_dropout_prob = model.hidden_dropout;
    }
    if model.intermediate_size.is_none() {
        reader.missing("intermediate_size", "a whole number from 1, the width of the feed-forward layer");
    }
}

/// The published GLM computes neither experts nor other variations of a Llama, whose names such a model then has. Its checkpoint
/// holds gate and up as one tensor, without the padding between them that odd widths have here.
fn finish(_: &Model, model: &mut ModelConfig) {
    let has_other_biases = model.output_bias || model.gate_up_bias || model.down_bias;
    let varies = model.mixture.is_some() || model.multi_token.is_some() || model.qk_norm || has_other_biases;
    if varies || !model.rotary_interleaved || !model.intermediate_size.is_multiple_of(4) {
        model.family = Family::Llama;
    }
}
