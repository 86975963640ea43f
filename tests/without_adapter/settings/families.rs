//! Two families of models: what their files write, and what one does not have of the other.

use super::{assert_answers, assert_reads_back, message, resolve};
use gristmill::model::config::{Activation, Family, Gate, Gelu, ModelConfig, Norm, Positions};

pub(super) fn with_model(model: &str) -> String {
    format!(
        "model:\n  model_config: {{{model}}}\nlr_schedule: {{learning_rate: 1e-3}}\n\
         train_dataset: {{data_loader: {{type: CargoRegistryDataLoader}}}}\nrunner_wrapper: {{use_clip_grad: False}}\n"
    )
}

const SIZES: &str = "vocab_size: 50257, hidden_size: 768, num_layers: 12, num_heads: 12, seq_length: 1024";

pub(super) fn model(text: &str) -> (ModelConfig, Vec<String>) {
    let (plan, notices) = resolve(text, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_reads_back(&plan);
    (plan.model, notices)
}

#[test]
fn gpt2_in_the_style_of_the_original() {
    let text = with_model(&format!(
        "type: GPT2Config, {SIZES}, expand_ratio: 4, hidden_act: gelu, hidden_dropout_rate: 0.0, use_past: False, \
         checkpoint_name_or_path: '', eos_token_id: 50256"
    )) + "trainer: {type: CausalLanguageModelingTrainer}\n";
    let text = text.replace("lr_schedule", "  arch: {type: GPT2LMHeadModel}\nlr_schedule");
    let (model, notices) = model(&text);
    assert_eq!((model.family, model.norm, model.norm_eps), (Family::Gpt2, Norm::LayerNorm, 1e-5));
    assert_eq!((model.positions, model.max_positions), (Positions::Learned, 1024));
    assert_eq!(
        (model.layer.intermediate_size, model.layer.head_dim, model.layer.num_kv_heads),
        (3072, 64, 12)
    );
    assert!(
        model.qkv_bias
            && model.output_bias
            && model.gate_up_bias
            && model.down_bias
            && model.tie_word_embeddings
            && !model.qk_norm
    );
    assert_eq!((model.activation, model.init_std), (Activation::Gelu(Gelu::Tanh), 0.02));
    assert_eq!(
        notices,
        [
            "model.model_config.hidden_act: `gelu` is the tanh form, as in MindFormers; `gelu_exact` is the one by the error \
             function",
            "without meaning here and ignored: model.model_config.{use_past, eos_token_id}",
        ]
    );
}

#[test]
fn gpt2_in_the_style_of_hugging_face() {
    let text = with_model(
        "type: GPT2Config, vocab_size: 512, n_embd: 96, n_layer: 3, n_head: 6, n_positions: 64, n_inner: 100, \
         seq_length: 16, layer_norm_epsilon: 1e-6, activation_function: gelu_new, initializer_range: 0.03, \
         tie_word_embeddings: False",
    );
    let (model, _) = model(&text);
    assert_eq!((model.hidden_size, model.num_layers, model.num_heads, model.layer.head_dim), (96, 3, 6, 16));
    assert_eq!((model.positions, model.layer.intermediate_size), (Positions::Learned, 100));
    assert_eq!(model.max_positions, 64);
    assert_eq!((model.norm_eps, model.init_std, model.tie_word_embeddings), (1e-6, 0.03, false));
    assert_eq!(model.activation, Activation::Gelu(Gelu::Tanh));
}

/// Megatron's switches name what the family has anyway.
#[test]
fn switches_of_the_family_pass() {
    let switches = "normalization: LayerNorm, position_embedding_type: learned_absolute, add_bias_linear: True, \
                    gated_linear_unit: False, qkv_has_bias: True, hidden_act: gelu_pytorch_tanh";
    model(&with_model(&format!("type: GPT2Config, {SIZES}, {switches}")));
    let switches = "normalization: RMSNorm, position_embedding_type: rope, add_bias_linear: False, \
                    gated_linear_unit: True, hidden_act: swiglu";
    model(&with_model(&format!("type: LlamaConfig, {SIZES}, {switches}")));
    let (gated, _) = model(&with_model(&format!("type: LlamaConfig, {SIZES}, hidden_act: gelu_exact")));
    assert_eq!(gated.activation, Activation::Gated(Gate::Gelu(Gelu::Exact)));
}

#[test]
fn what_a_family_does_not_have_is_refused() {
    assert_answers(REFUSED, |_, keys| {
        let found = message(&with_model(&format!("{SIZES}, type: {keys}")), &[]);
        found.strip_prefix("x.yaml:2: model.model_config.").unwrap_or(&found).to_string()
    });
    let text = with_model(&format!("type: GPT2Config, {SIZES}"))
        .replace("lr_schedule", "  arch: {type: LlamaForCausalLM}\nlr_schedule");
    assert_eq!(
        message(&text, &[]),
        "x.yaml:3: model.arch.type: is not the model of `GPT2Config`; change one of the two"
    );
}

const REFUSED: &str = "
+ GPT2Config, theta: 1e4
= theta: is a key of `type: LlamaConfig`, not of `GPT2Config`; remove it
+ GPT2Config, n_kv_heads: 4
= n_kv_heads: is a key of `type: LlamaConfig`, not of `GPT2Config`; remove it
+ GPT2Config, qk_layernorm: True
= qk_layernorm: is a key of `type: LlamaConfig`, not of `GPT2Config`; remove it
+ LlamaConfig, expand_ratio: 4
= expand_ratio: is a key of `type: GPT2Config`, not of `LlamaConfig`; remove it
+ GPT2Config, qkv_has_bias: False
= qkv_has_bias: not built yet (found `False`); write `True`
+ GPT2Config, normalization: RMSNorm
= normalization: not built yet (found `RMSNorm`); write `normalization: LayerNorm`
+ GPT2Config, add_bias_linear: False
= add_bias_linear: not built yet (found `False`); write `True`
+ LlamaConfig, rope_ratio: 2.0
= rope_ratio: is a key of `type: ChatGLM2Config`, not of `LlamaConfig`; remove it
+ LlamaConfig, kv_lora_rank: 16
= kv_lora_rank: is about latent attention; write `type: DeepseekV3Config`, or remove it
+ GPT2Config, multi_latent_attention: True, q_lora_rank: 16, v_head_dim: 8
= multi_latent_attention: is about latent attention; write `type: DeepseekV3Config`, or remove it and `q_lora_rank`, `v_head_dim`
+ LlamaConfig, multi_query_attention: True
= multi_query_attention: is a key of `type: ChatGLM2Config`, not of `LlamaConfig`; remove it
+ GPT2Config, hidden_act: silu
= hidden_act: not built yet (found `silu`); write `hidden_act: gelu_new`
+ LlamaConfig, hidden_act: relu
= hidden_act: not built yet (found `relu`); write `hidden_act: silu`
+ GPT2Config, n_positions: 512
= n_positions: is below seq_length 1024: raise it, or lower seq_length to 512
";

/// The types of MindFormers that are not followed, in each family: what is said to each of their values.
#[test]
fn every_type_is_float32_or_answered() {
    let keys = [
        "param_init_type",
        "params_dtype",
        "embedding_init_type",
        "softmax_compute_type",
        "softmax_compute_dtype",
        "softmax_dtype",
        "layernorm_compute_type",
        "layernorm_compute_dtype",
        "layernorm_dtype",
        "rotary_dtype",
    ];
    // A key with a row of its own is answered under the name that we use.
    let named =
        |key: &str| if key == "params_dtype" { "param_init_type".to_string() } else { key.to_string() };
    let notices = |family: &str, key: &str, word: &str| {
        let text = with_model(&format!("type: {family}, {SIZES}, {key}: {word}"));
        let prefix = format!("model.model_config.{}: ", named(key));
        model(&text).1.into_iter().filter(|notice| notice.starts_with(&prefix)).collect::<Vec<_>>()
    };
    for family in ["LlamaConfig", "GPT2Config"] {
        for key in keys {
            assert_eq!(notices(family, key, "float32"), [""; 0], "{family} {key}");
            for word in ["float16", "bfloat16"] {
                let said = notices(family, key, word);
                let expected =
                    format!("model.model_config.{}: float32 here, which is more precise", named(key));
                assert!(
                    said.len() == 1 && said[0].starts_with(&expected),
                    "{family} {key}: {word}: {said:?}"
                );
            }
        }
        for key in keys {
            let text = with_model(&format!("type: {family}, {SIZES}, {key}: flaot32"));
            let error = message(&text, &[]);
            assert!(
                error.contains(&format!("model.model_config.{key}: expected float32")),
                "{family}: {error}"
            );
        }
        for word in ["float32", "float16", "bfloat16"] {
            let expected =
                "model.model_config.residual_dtype: the residual stream is stored as `compute_dtype` says";
            assert_eq!(notices(family, "residual_dtype", word), [expected], "{family} {word}");
        }
    }
}

/// The type of the router, under both names and wherever a mixture's keys may be.
#[test]
fn the_router_is_float32_or_answered() {
    for key in ["router_dense_type", "moe_router_dtype"] {
        for (word, is_said) in [("float32", false), ("fp32", false), ("float16", true), ("bfloat16", true)] {
            let mixture = format!("expert_num: 4, num_experts_chosen: 2, {key}: {word}");
            let inside = with_model(&format!("type: LlamaConfig, {SIZES}, {mixture}"));
            let beside =
                with_model(&format!("type: LlamaConfig, {SIZES}")) + &format!("moe_config: {{{mixture}}}\n");
            for text in [inside, beside] {
                let said =
                    model(&text).1.into_iter().filter(|notice| notice.contains(key)).collect::<Vec<_>>();
                let answer = "the router computes in float32, which is more precise";
                assert_eq!(
                    said.iter().filter(|notice| notice.ends_with(answer)).count(),
                    usize::from(is_said),
                    "{said:?}"
                );
                assert_eq!(said.len(), usize::from(is_said), "{text}: {said:?}");
            }
        }
    }
}
