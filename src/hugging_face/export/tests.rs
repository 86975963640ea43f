pub(in crate::hugging_face) mod mixture;

use super::*;
use crate::model::config::{
    Activation, Factors, Gate, Gelu, LatentAttention, LinearAttention, Mixer, NormPlacement, Positions,
    QkNorm, Sizes, Values,
};

fn llama(num_heads: usize, head_dim: usize) -> ModelConfig {
    let hidden_size = num_heads * head_dim;
    let sizes =
        Sizes { vocab_size: 16, hidden_size, num_layers: 3, num_heads, intermediate_size: 12, seq_length: 8 };
    ModelConfig::llama(sizes)
}

pub(in crate::hugging_face) fn windowed(model: ModelConfig, window: Option<usize>) -> ModelConfig {
    model.with_layers(|layer| layer.sliding_window = window)
}

pub(in crate::hugging_face) fn rotating(model: ModelConfig, rotary_dim: usize) -> ModelConfig {
    model.with_layers(|layer| layer.rotary_dim = rotary_dim)
}

pub(in crate::hugging_face) fn in_pairs(model: ModelConfig) -> ModelConfig {
    model.with_layers(|layer| layer.rotary_interleaved = true)
}

/// `transformers` 5.23 was run on each of these: its losses are ours. It ignores `partial_rotary_factor` in Llama's
/// classes, expects a bias of `o_proj` beside those of q, k and v in Llama and Qwen3, and none of q, k and v in
/// Mistral.
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
    let with =
        |qkv_bias, qk_norm, window| windowed(ModelConfig { qkv_bias, qk_norm, ..plain.clone() }, window);
    expect(with(false, false, None), "LlamaForCausalLM", None);
    expect(with(false, false, Some(4)), "MistralForCausalLM", None);
    expect(with(true, false, Some(4)), "Qwen2ForCausalLM", None);
    expect(with(false, true, Some(4)), "Qwen3ForCausalLM", None);
    expect(with(true, true, None), "Glm4MoeForCausalLM", None);
    expect(with(true, true, Some(4)), "Glm4MoeForCausalLM", Some("no sliding window"));
    let partial = |model| rotating(model, 4);
    expect(partial(with(true, false, None)), "Glm4MoeForCausalLM", None);
    expect(partial(with(false, true, None)), "Glm4MoeForCausalLM", None);
    expect(partial(with(false, false, Some(4))), "Glm4MoeForCausalLM", Some("no sliding window"));
    let of_glm = |model| in_pairs(ModelConfig { family: Family::Glm, ..partial(model) });
    expect(of_glm(with(true, false, None)), "GlmForCausalLM", None);
    expect(of_glm(with(true, false, Some(4))), "GlmForCausalLM", Some("no sliding window"));
    let phi3 = |model: ModelConfig| ModelConfig { family: Family::Phi3, ..model };
    expect(phi3(with(false, false, Some(4))), "Phi3ForCausalLM", None);
    expect(phi3(partial(plain.clone())), "Phi3ForCausalLM", None);
    expect(phi3(with(true, false, None)), "Phi3ForCausalLM", Some("no biases of q, k and v alone"));
    let of_pairs = |family, model| in_pairs(ModelConfig { family, ..model });
    expect(of_pairs(Family::Ernie45, plain.clone()), "Ernie4_5ForCausalLM", None);
    expect(of_pairs(Family::Helium, with(true, false, None)), "HeliumForCausalLM", None);
    expect(
        of_pairs(Family::Helium, with(false, false, Some(4))),
        "HeliumForCausalLM",
        Some("no sliding window"),
    );
    let some = |model: ModelConfig| {
        model.with_each_layer(|number, layer| layer.sliding_window = (number > 0).then_some(4))
    };
    let unrotated = |model: ModelConfig| model.with_each_layer(|number, layer| layer.rotates = number != 1);
    let capped = ModelConfig { score_cap: Some(50.0), logit_cap: Some(30.0), ..plain.clone() };
    let lacks = "no soft cap of attention scores, no soft cap of logits";
    expect(capped, "LlamaForCausalLM", Some(lacks));
    expect(some(plain.clone()), "MinistralForCausalLM", None);
    expect(some(with(true, false, None)), "Qwen2ForCausalLM", None);
    expect(some(phi3(plain.clone())), "Phi3ForCausalLM", Some("no sliding window of some layers alone"));
    expect(unrotated(some(plain.clone())), "SmolLM3ForCausalLM", None);
    expect(unrotated(with(true, false, None)), "SmolLM3ForCausalLM", Some("no biases of q, k and v alone"));
    expect(unrotated(with(false, true, None)), "Qwen3ForCausalLM", Some("no layers without rotation"));
    let own_theta = some(plain.clone()).with_layers(|layer| {
        layer.rope_theta = if layer.sliding_window.is_some() { 50.0 } else { layer.rope_theta };
    });
    expect(own_theta, "MinistralForCausalLM", Some("no rotation of their own in layers with a window"));
    let of_mlp = ModelConfig { gate_up_bias: true, down_bias: true, ..plain.clone() };
    expect(some(of_mlp.clone()), "CwmForCausalLM", None);
    expect(unrotated(of_mlp), "SmolLM3ForCausalLM", None);
    let granite =
        |model| ModelConfig { factors: Factors { residual: Some(0.5), ..Factors::default() }, ..model };
    expect(granite(plain.clone()), "GraniteForCausalLM", None);
    expect(granite(with(true, false, None)), "GraniteForCausalLM", Some("no biases of q, k and v alone"));
    expect(granite(with(false, true, Some(4))), "GraniteForCausalLM", Some("no sliding window, no QK-norm"));
    let of_phi3 = ModelConfig { family: Family::Phi3, ..granite(plain.clone()) };
    expect(of_phi3, "Phi3ForCausalLM", Some("no factors of activations"));
    let gemma = |model: ModelConfig| ModelConfig {
        zero_centered_norms: true,
        activation: Activation::Gated(Gate::Gelu(Gelu::Tanh)),
        factors: Factors { embedding: Some(4.0), ..Factors::default() },
        ..model
    };
    expect(gemma(plain.clone()), "GemmaForCausalLM", None);
    expect(gemma(with(false, true, None)), "GemmaForCausalLM", Some("no QK-norm"));
    let root = "no other factors than the root of hidden_size, of the embedding";
    let other = ModelConfig { factors: Factors::default(), ..gemma(plain.clone()) };
    expect(other, "GemmaForCausalLM", Some(root));
    let both = |model: ModelConfig| {
        let factors = Factors { scores: Some(0.125), ..gemma(plain.clone()).factors };
        let norm_placement = NormPlacement::Both;
        ModelConfig { norm_placement, factors, logit_cap: Some(30.0), ..gemma(some(model)) }
    };
    expect(ModelConfig { score_cap: Some(50.0), ..both(plain.clone()) }, "Gemma2ForCausalLM", None);
    let own_theta = both(with(false, true, None)).with_layers(|layer| {
        layer.rope_theta = if layer.sliding_window.is_some() { 50.0 } else { layer.rope_theta };
    });
    expect(own_theta.clone(), "Gemma3ForCausalLM", None);
    let kinds = hugging_face_config(&own_theta)["rope_parameters"].clone();
    assert_eq!(
        (&kinds["sliding_attention"]["rope_theta"], &kinds["full_attention"]["rope_theta"]),
        (&json!(50.0), &json!(10000.0))
    );
    let gemma4 = |values: Values| {
        let factors = Factors { scores: Some(1.0), ..both(plain.clone()).factors };
        let model = both(with(false, true, None));
        let model = ModelConfig { zero_centered_norms: false, has_layer_scalars: true, factors, ..model };
        model.with_each_layer(|number, layer| {
            (layer.values, layer.sliding_window) = (values, (number < 2).then_some(4));
        })
    };
    expect(gemma4(Values::Normalised), "Gemma4ForCausalLM", None);
    let lacks = "no layers without a factor, or a norm of values";
    expect(gemma4(Values::Plain), "Gemma4ForCausalLM", Some(lacks));
    let capped = ModelConfig { score_cap: Some(50.0), ..own_theta };
    expect(capped, "Gemma3ForCausalLM", Some("no soft cap of attention scores"));
    let odd = ModelConfig {
        factors: Factors { scores: Some(0.3), ..both(plain.clone()).factors },
        ..both(plain.clone())
    };
    let lacks = "no factor of the scores but one over the root of a whole number";
    expect(odd, "Gemma2ForCausalLM", Some(lacks));
    let heads = LinearAttention { heads: 4, key_heads: 2, key_dim: 8, value_dim: 12, conv_width: 4 };
    let qwen = |model: ModelConfig| {
        let gated = ModelConfig { attention_gate: true, zero_centered_norms: true, ..model };
        gated.with_each_layer(|number, layer| {
            if number == 0 {
                layer.mixer = Mixer::Linear(heads);
            }
        })
    };
    expect(qwen(with(false, true, None)), "Qwen3_5ForCausalLM", None);
    let types = hugging_face_config(&qwen(with(false, true, None)))["layer_types"].clone();
    assert_eq!((&types[0], &types[1]), (&json!("linear_attention"), &json!("full_attention")));
    expect(qwen(plain.clone()), "Qwen3_5ForCausalLM", Some("no attention without QK-norm"));
    let ungated = ModelConfig { attention_gate: false, ..qwen(with(false, true, None)) };
    expect(ungated, "Qwen3_5ForCausalLM", Some("no attention with such an output"));
    let by_gelu =
        ModelConfig { activation: gemma(plain.clone()).activation, ..qwen(with(false, true, None)) };
    expect(by_gelu, "Qwen3_5ForCausalLM", Some("no activation but SiLU beside linear attention"));
    let lfm2 = |model: ModelConfig| {
        let model = ModelConfig { family: Family::Lfm2, ..model };
        model.with_each_layer(|number, layer| {
            if number == 0 {
                layer.mixer = Mixer::Convolution { width: 3 };
            }
        })
    };
    expect(lfm2(with(false, true, None)), "Lfm2ForCausalLM", None);
    let config = hugging_face_config(&lfm2(with(false, true, None)));
    assert_eq!((&config["layer_types"][0], &config["conv_L_cache"]), (&json!("conv"), &json!(3)));
    expect(lfm2(plain.clone()), "Lfm2ForCausalLM", Some("no attention without QK-norm"));
    let olmo = |model: ModelConfig| ModelConfig {
        norm_placement: NormPlacement::After,
        qk_norm: true,
        qk_norm_kind: QkNorm::AllHeads,
        ..model
    };
    expect(olmo(plain.clone()), "Olmo2ForCausalLM", None);
    expect(olmo(some(plain.clone())), "Olmo3ForCausalLM", None);
    expect(olmo(with(false, false, Some(4))), "Olmo3ForCausalLM", None);
    // Files hold interleaved heads as halves.
    expect(in_pairs(plain.clone()), "LlamaForCausalLM", None);
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
    let of_qwen3 = ModelConfig { qk_norm: true, ..biased([true, true, false, false]) };
    expect(of_qwen3, "Qwen3ForCausalLM", None);
    let output = "no bias of attention's output projection alone";
    expect(biased([false, true, false, false]), "LlamaForCausalLM", Some(output));
    let ernie = |biases| of_pairs(Family::Ernie45, biased(biases));
    expect(ernie([true; 4]), "Ernie4_5ForCausalLM", None);
    expect(ernie([true, false, false, false]), "Ernie4_5ForCausalLM", Some("no biases of q, k and v alone"));
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
    let model = ModelConfig { family: Family::Glm, qkv_bias: true, ..rotating(llama(2, 8), 4) };
    let config = hugging_face_config(&model);
    assert_eq!((&config["pad_token_id"], &config["attention_bias"]), (&json!(null), &json!(true)));
}

/// Bloom and GPTBigCode: `transformers` was run on them, its losses are ours. It has no Baichuan and no PanGu-α.
#[test]
fn types_with_names_of_their_own_say_what_computes_them() {
    let sizes = Sizes {
        vocab_size: 16,
        hidden_size: 16,
        num_layers: 2,
        num_heads: 4,
        intermediate_size: 64,
        seq_length: 8,
    };
    let expect = |model: &ModelConfig, class: &str, note: Option<&str>| {
        let config = hugging_face_config(model);
        assert_eq!(config["architectures"], json!([class]));
        assert_eq!(config.get("gristmill_note").and_then(|note| note.as_str()), note, "{class}");
    };
    let gpt2 = ModelConfig::gpt2(sizes);
    let bloom = ModelConfig {
        family: Family::Bloom,
        positions: Positions::Alibi,
        embedding_norm: true,
        ..gpt2.clone()
    };
    expect(&bloom, "BloomForCausalLM", None);
    let odd = ModelConfig { activation: Activation::Gelu(Gelu::Fast), ..bloom };
    let odd = odd.with_layers(|layer| layer.intermediate_size = 60);
    let lacks = "BloomForCausalLM is the nearest architecture, but it has no GELU but the tanh form, no feed-forward network of \
                 this width";
    expect(&odd, "BloomForCausalLM", Some(lacks));
    let big_code = ModelConfig { family: Family::BigCode, ..gpt2.clone() };
    let big_code = big_code.with_layers(|layer| layer.num_kv_heads = 1);
    expect(&big_code, "GPTBigCodeForCausalLM", None);
    assert_eq!(hugging_face_config(&big_code)["multi_query"], json!(true));
    let elsewhere = |class| format!("transformers has no {class}, whose code is published with its weights");
    let pangu = ModelConfig { family: Family::Pangu, ..gpt2 }.with_query_table();
    expect(&pangu, "GPTPanguForCausalLM", Some(&elsewhere("GPTPanguForCausalLM")));
    let baichuan =
        ModelConfig { family: Family::Baichuan, positions: Positions::Alibi, ..ModelConfig::llama(sizes) };
    expect(&baichuan, "BaichuanForCausalLM", Some(&elsewhere("BaichuanForCausalLM")));
    let second = ModelConfig { head_epsilon: Some(1e-5), ..baichuan };
    let lacks = " and has no epsilon under the root of the length of the head's rows";
    expect(&second, "BaichuanForCausalLM", Some(&(elsewhere("BaichuanForCausalLM") + lacks)));
}

#[test]
fn a_dense_glm_has_no_layer_of_experts() {
    let config = hugging_face_config(&ModelConfig { qk_norm: true, ..rotating(llama(2, 8), 4) });
    assert_eq!(
        (&config["first_k_dense_replace"], &config["num_nextn_predict_layers"]),
        (&json!(3), &json!(0))
    );
    assert_eq!((&config["use_qk_norm"], &config["partial_rotary_factor"]), (&json!(true), &json!(0.5)));
}

#[test]
fn a_window_of_qwen_is_in_every_layer() {
    let config = hugging_face_config(&ModelConfig { qkv_bias: true, ..windowed(llama(2, 8), Some(4)) });
    assert_eq!(config["layer_types"], json!(["sliding_attention", "sliding_attention", "sliding_attention"]));
    assert_eq!(config["max_window_layers"], json!(0));
    assert!(hugging_face_config(&llama(2, 8)).get("layer_types").is_none());
}

/// A window that hides nothing in training does so in longer texts, which the exported model may read.
#[test]
fn a_window_wider_than_the_sequences_is_exported() {
    let wide = |window| {
        ModelConfig { max_positions: 32, ..llama(2, 8) }.with_layers(|layer| layer.wide_window = Some(window))
    };
    let class = |model: &ModelConfig| hugging_face_config(model)["architectures"][0].clone();
    let config = hugging_face_config(&wide(8));
    assert_eq!((&config["sliding_window"], &config["max_position_embeddings"]), (&json!(8), &json!(32)));
    assert_eq!(class(&wide(8)), "MistralForCausalLM");
    assert_eq!(class(&ModelConfig { qk_norm: true, ..wide(8) }), "Qwen3ForCausalLM");
    // No text that the model is made for is longer.
    assert_eq!(class(&wide(32)), "LlamaForCausalLM");
    let partial = |model| note(&rotating(model, 4));
    assert!(partial(wide(8)).is_some_and(|note| note.ends_with("no sliding window")));
    assert_eq!(partial(wide(32)), None);
}

#[test]
fn what_transformers_does_not_compute_is_noted() {
    let sizes = Sizes {
        vocab_size: 16,
        hidden_size: 8,
        num_layers: 1,
        num_heads: 2,
        intermediate_size: 32,
        seq_length: 8,
    };
    let gpt2 = windowed(ModelConfig::gpt2(sizes), Some(4));
    let lacks =
        |class: &str, what: &str| Some(format!("{class} is the nearest architecture, but it has no {what}"));
    assert_eq!(note(&gpt2), lacks("GPT2LMHeadModel", "sliding window"));
    assert_eq!(hugging_face_config(&gpt2)["gristmill_note"], json!(note(&gpt2)));
    let rope_scaling = RopeScaling::DynamicNtk { original: 4.0, length: 8.0 };
    let stretched = llama(2, 8).with_layers(|layer| layer.rope_scaling = rope_scaling);
    assert_eq!(note(&stretched), lacks("LlamaForCausalLM", "dynamic NTK scaling by powers of two"));
}

#[test]
fn the_rotating_share_rounds_down_to_the_rotating_dimensions() {
    for head_dim in (4..=256).step_by(4) {
        for rotary_dim in (2..=head_dim).step_by(2) {
            let share = rotary_factor(&rotating(llama(1, head_dim), rotary_dim).layer);
            assert_eq!((head_dim as f64 * share) as usize, rotary_dim, "of {head_dim}");
        }
    }
}

/// `transformers` 5.23 was run on shapes of both kinds: see tests/transformers.
#[test]
fn latent_attention_is_of_deepseek() {
    let latent = LatentAttention { q_rank: Some(8), kv_rank: 12, nope_dim: 8, rope_dim: 4, value_dim: 16 };
    let base = ModelConfig { norm_eps: 1e-6, ..latent.within(llama(2, 8)) };
    let expect = |model: &ModelConfig, class: &str, lacks: &[&str]| {
        assert_eq!(hugging_face_config(model)["architectures"], json!([class]));
        assert_eq!(architecture::lacks(nearest(model), model), lacks);
    };
    expect(&base, "DeepseekV3ForCausalLM", &[]);
    expect(&windowed(base.clone(), Some(3)), "DeepseekV3ForCausalLM", &["sliding window"]);
    let eps = "epsilon other than 1e-6 in the norms of latent vectors";
    expect(&ModelConfig { norm_eps: 1e-5, ..base.clone() }, "DeepseekV3ForCausalLM", &[eps]);
    let config = hugging_face_config(&base);
    assert_eq!(
        ["q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "head_dim"]
            .map(|key| config[key].as_u64()),
        [8, 12, 8, 4, 16, 4].map(Some)
    );
    assert_eq!((&config["rope_interleave"], &config["first_k_dense_replace"]), (&json!(true), &json!(3)));
    let direct = LatentAttention { q_rank: None, ..latent }.within(base);
    assert_eq!(hugging_face_config(&direct)["q_lora_rank"], serde_json::Value::Null);
    let halves = direct.with_layers(|layer| layer.rotary_interleaved = false);
    expect(&halves, "MiniCPM3ForCausalLM", &[]);
    let factors = Factors {
        embedding: Some(3.0),
        residual: Some(0.5),
        logits_divisor: Some(4.0),
        ..Factors::default()
    };
    let halves = ModelConfig { norm_eps: 3e-2, latent_norm_eps: Some(1e-6), factors, ..halves };
    expect(&halves, "MiniCPM3ForCausalLM", &[]);
    let config = hugging_face_config(&halves);
    let (depth, base) = (0.5 * (halves.num_layers as f64).sqrt(), halves.hidden_size as f64 / 4.0);
    assert_eq!(
        ["scale_emb", "scale_depth", "dim_model_base"].map(|key| config[key].as_f64()),
        [3.0, depth, base].map(Some)
    );
}
