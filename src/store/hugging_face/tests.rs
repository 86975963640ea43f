use super::*;
use crate::model::config::Sizes;

fn llama(num_heads: usize, head_dim: usize) -> ModelConfig {
    let hidden_size = num_heads * head_dim;
    let sizes =
        Sizes { vocab_size: 16, hidden_size, num_layers: 3, num_heads, intermediate_size: 12, seq_length: 8 };
    ModelConfig::llama(sizes)
}

/// `transformers` 5.23 was run on each of these: its losses are ours. It ignores `partial_rotary_factor` in Llama's
/// classes, expects a bias of `o_proj` beside those of q, k and v in Llama and Qwen3, and none of q, k and v in Mistral.
#[test]
fn each_dense_shape_has_the_architecture_that_computes_it() {
    let plain = llama(2, 8);
    let expect = |model: ModelConfig, class: &str, note: Option<&str>| {
        let config = hugging_face_config(&model);
        assert_eq!(config["architectures"], json!([class]), "{model:?}");
        let found =
            config.get("gristmill_note").map(|note| note.as_str().unwrap().split_once("it has ").unwrap().1);
        assert_eq!(found, note, "{class}");
    };
    let with = |qkv_bias, qk_norm, sliding_window| ModelConfig {
        qkv_bias,
        qk_norm,
        sliding_window,
        ..plain.clone()
    };
    expect(with(false, false, None), "LlamaForCausalLM", None);
    expect(with(false, false, Some(4)), "MistralForCausalLM", None);
    expect(with(true, false, Some(4)), "Qwen2ForCausalLM", None);
    expect(with(false, true, Some(4)), "Qwen3ForCausalLM", None);
    expect(with(true, true, None), "Glm4MoeForCausalLM", None);
    expect(with(true, true, Some(4)), "Glm4MoeForCausalLM", Some("no sliding window"));
    let partial = |model: ModelConfig| ModelConfig { rotary_dim: 4, ..model };
    expect(partial(with(true, false, None)), "Glm4MoeForCausalLM", None);
    expect(partial(with(false, true, None)), "Glm4MoeForCausalLM", None);
    expect(partial(with(false, false, Some(4))), "Glm4MoeForCausalLM", Some("no sliding window"));
    let of_glm =
        |model: ModelConfig| ModelConfig { family: Family::Glm, rotary_interleaved: true, ..partial(model) };
    expect(of_glm(with(true, false, None)), "GlmForCausalLM", None);
    expect(of_glm(with(true, false, Some(4))), "GlmForCausalLM", Some("no sliding window"));
    // Files hold interleaved heads as halves.
    expect(ModelConfig { rotary_interleaved: true, ..plain.clone() }, "LlamaForCausalLM", None);
    let biased = |[qkv_bias, output_bias, gate_up_bias, down_bias]: [bool; 4]| ModelConfig {
        qkv_bias,
        output_bias,
        gate_up_bias,
        down_bias,
        ..plain.clone()
    };
    expect(biased([true, true, false, false]), "LlamaForCausalLM", None);
    expect(biased([true; 4]), "LlamaForCausalLM", None);
    expect(biased([false, false, true, true]), "LlamaForCausalLM", None);
    let output = "no bias of attention's output projection alone";
    expect(biased([false, true, false, false]), "LlamaForCausalLM", Some(output));
    let telechat = format!("{output}, no bias of the down projection alone");
    expect(biased([false, true, false, true]), "LlamaForCausalLM", Some(&telechat));
    expect(
        biased([true, false, true, false]),
        "Qwen2ForCausalLM",
        Some("no bias of the gate and up projections"),
    );
}

#[test]
fn a_glm_has_no_token_for_padding() {
    let model = ModelConfig { family: Family::Glm, rotary_dim: 4, qkv_bias: true, ..llama(2, 8) };
    let config = hugging_face_config(&model);
    assert_eq!((&config["pad_token_id"], &config["attention_bias"]), (&json!(null), &json!(true)));
}

#[test]
fn a_dense_glm_has_no_layer_of_experts() {
    let config = hugging_face_config(&ModelConfig { rotary_dim: 4, qk_norm: true, ..llama(2, 8) });
    assert_eq!(
        (&config["first_k_dense_replace"], &config["num_nextn_predict_layers"]),
        (&json!(3), &json!(0))
    );
    assert_eq!((&config["use_qk_norm"], &config["partial_rotary_factor"]), (&json!(true), &json!(0.5)));
}

#[test]
fn a_window_of_qwen_is_in_every_layer() {
    let config = hugging_face_config(&ModelConfig { qkv_bias: true, sliding_window: Some(4), ..llama(2, 8) });
    assert_eq!(config["layer_types"], json!(["sliding_attention", "sliding_attention", "sliding_attention"]));
    assert_eq!(config["max_window_layers"], json!(0));
    assert!(hugging_face_config(&llama(2, 8)).get("layer_types").is_none());
}

#[test]
fn the_rotating_share_rounds_down_to_the_rotating_dimensions() {
    for head_dim in (4..=256).step_by(4) {
        for rotary_dim in (2..=head_dim).step_by(2) {
            let share = rotary_factor(&ModelConfig { rotary_dim, ..llama(1, head_dim) });
            assert_eq!((head_dim as f64 * share) as usize, rotary_dim, "of {head_dim}");
        }
    }
}
