//! The types of models: what a file of each becomes, which classes go together, and what stays out.

use super::families::{model, with_model};
use super::{assert_reads_back, message, resolve};
use gristmill::model::config::{Activation, Family, Gate, Gelu, ModelConfig, Norm, Positions, Score};
use gristmill::model::count::parameters;
use gristmill::settings::{Override, RunConfig};
use std::path::Path;

const SIZES: &str = "vocab_size: 512, hidden_size: 64, num_layers: 2, num_heads: 4, seq_length: 32";

fn with_arch(class: &str, arch: &str) -> String {
    with_model(&format!("type: {class}, {SIZES}, ffn_hidden_size: 96"))
        .replace("lr_schedule", &format!("  arch: {{type: {arch}}}\nlr_schedule"))
}

fn of(keys: &str) -> ModelConfig {
    model(&with_model(keys)).0
}

fn biases(model: &ModelConfig) -> [bool; 4] {
    [model.qkv_bias, model.output_bias, model.gate_up_bias, model.down_bias]
}

#[test]
fn chatglm_with_its_own_names() {
    let keys = "type: ChatGLM2Config, num_layers: 2, padded_vocab_size: 512, hidden_size: 64, ffn_hidden_size: 96, \
                num_attention_heads: 4, seq_length: 32, layernorm_epsilon: 1e-6, hidden_dropout: 0.1";
    let plain = of(keys);
    assert_eq!((plain.vocab_size, plain.num_heads, plain.layer.num_kv_heads), (512, 4, 2));
    assert_eq!((plain.layer.head_dim, plain.layer.rotary_dim, plain.layer.rotary_interleaved), (16, 8, true));
    assert_eq!((plain.layer.rope_theta, plain.norm_eps, plain.layer.intermediate_size), (10_000.0, 1e-6, 96));
    assert_eq!(biases(&plain), [true, false, false, false]);
    // MindFormers drops elements of the embedding with the same probability.
    assert_eq!((plain.hidden_dropout, plain.embedding_dropout), (0.1, 0.1));
    let other =
        "kv_channels: 8, multi_query_group_num: 1, rope_ratio: 500, rotary_percent: 0.5, add_qkv_bias: False";
    let other = of(&format!("{keys}, {other}"));
    assert_eq!((other.layer.head_dim, other.layer.rotary_dim, other.layer.num_kv_heads), (8, 4, 1));
    assert_eq!((other.layer.rope_theta, biases(&other)), (5e6, [false; 4]));
    let all =
        of(&format!("{keys}, add_bias_linear: True, add_qkv_bias: False, multi_query_attention: False"));
    assert_eq!((biases(&all), all.layer.num_kv_heads), ([true; 4], 4));
    let missing = message(&with_model(&keys.replace("ffn_hidden_size: 96, ", "")), &[]);
    assert!(missing.contains("`intermediate_size` is missing"), "{missing}");
}

#[test]
fn the_biases_of_each_type() {
    let of = |kind: &str, more: &str| of(&format!("type: {kind}, {SIZES}, intermediate_size: 96, {more}"));
    let cases = [
        ("LlamaConfig", "", [false; 4]),
        ("LlamaConfig", "add_bias_linear: True", [true; 4]),
        ("LlamaConfig", "has_bias: True, qkv_has_bias: False", [false, true, false, false]),
        ("LlamaConfig", "out_proj_has_bias: True", [false, true, false, false]),
        ("GPT2Config", "", [true; 4]),
        ("QwenConfig", "", [true, false, false, false]),
        ("QwenConfig", "qkv_has_bias: False", [false; 4]),
        ("InternLMConfig", "", [true, true, false, false]),
        ("InternLMConfig", "has_bias: False", [false; 4]),
        ("InternLM2Config", "", [false; 4]),
        ("InternLM2Config", "has_bias: True", [true, true, false, false]),
        ("TelechatConfig", "", [false, true, false, true]),
        ("TelechatConfig", "add_bias_linear: False", [false; 4]),
        ("TelechatConfig", "add_mlp_fc2_bias_linear: False", [false, true, false, false]),
    ];
    for (kind, more, expected) in cases {
        assert_eq!(biases(&of(kind, more)), expected, "{kind} {more}");
    }
}

#[test]
fn telechat_with_its_own_names() {
    let keys = format!(
        "type: TelechatConfig, {SIZES}, ffn_dim_multiplier: 96, hidden_dropout_prob: 0.1, attention_dropout_prob: 0.2, \
         embed_dropout_prob: 0.3, sigma: 0.0048, mean: 0.0, res_dtype: float32"
    );
    let (model, notices) = model(&with_model(&keys));
    assert_eq!((model.layer.intermediate_size, model.init_std), (96, 0.0048));
    assert_eq!((model.hidden_dropout, model.attention_dropout, model.embedding_dropout), (0.1, 0.2, 0.3));
    let said = [
        "model.model_config.res_dtype: the residual stream is stored as `compute_dtype` says",
        "model.model_config.ffn_dim_multiplier: 96 is the width of the feed-forward layer itself",
    ];
    assert_eq!(notices, said);
}

#[test]
fn classes_of_architectures_go_with_their_configurations() {
    for (class, arch) in [
        ("LlamaConfig", "LlamaForCausalLMWithLora"),
        ("GPT2Config", "GPT2WithLora"),
        ("ChatGLM2Config", "ChatGLM2WithLora"),
        ("QwenConfig", "QwenForCausalLM"),
        ("InternLMConfig", "InternLMForCausalLM"),
        ("InternLM2Config", "InternLM2ForCausalLM"),
        ("TelechatConfig", "TelechatForCausalLM"),
        ("DeepseekV3Config", "DeepseekV3ForCausalLM"),
        ("DeepseekV2Config", "DeepseekV2ForCausalLM"),
    ] {
        let (plan, _) = resolve(&with_arch(class, arch), &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plan.settings.model.kind.word(), class);
    }
    // The class of the model alone names the type too.
    let (plan, _) = resolve(&with_arch("None", "GPT2LMHeadModel"), &[]).unwrap();
    assert_eq!(plan.model.family, Family::Gpt2);
    let crossed = message(&with_arch("QwenConfig", "TelechatForCausalLM"), &[]);
    assert!(
        crossed.ends_with("model.arch.type: is not the model of `QwenConfig`; change one of the two"),
        "{crossed}"
    );
    let unknown = message(&with_arch("QwenConfig", "Other"), &[]);
    assert!(
        unknown.ends_with("model.arch.type: `Other` is not built; write `type: QwenForCausalLM`"),
        "{unknown}"
    );
}

/// The targets of an architecture are those of a file that names none.
#[test]
fn targets_of_an_architecture_stand_in_for_none_and_for_nothing_else() {
    let file = with_arch("LlamaConfig", "LlamaForCausalLMWithLora");
    let adapts = |targets: &str| {
        let pet = format!(
            "--model.model_config.pet_config={{pet_type: lora, lora_rank: 4, random_base: True{targets}}}"
        );
        let plan = resolve(&file, &[&pet]).unwrap_or_else(|error| panic!("{error}")).0;
        plan.settings.model.pet_config.expect("adapters").target_modules
    };
    for none in ["", ", target_modules: null", ", target_modules: []"] {
        assert_eq!(adapts(none).join("|"), ".*wq|.*wv", "{none}");
    }
    for (wrong, found) in [("False", "found `False`"), ("{a: 0}", "found a section")] {
        let pet = format!("--model.model_config.pet_config={{pet_type: lora, target_modules: {wrong}}}");
        let line = message(&file, &[&pet]);
        assert!(
            line.contains("target_modules: expected a value or a list of values") && line.ends_with(found),
            "{line}"
        );
    }
}

/// One sentence for each class that stays out, whatever keys it has, and none about these keys.
#[test]
fn what_stays_out_is_one_precise_line() {
    for (class, why) in [
        ("GLMConfig", "attends to its prompt in both directions"),
        ("WhisperConfig", "reads audio"),
        ("VisualGLMConfig", "its text follows images"),
        ("LlavaNextConfig", "its text follows images"),
    ] {
        let text = with_model(&format!("type: {class}, image_size: 4"))
            .replace("lr_schedule", "  arch: {type: Other}\nlr_schedule");
        let line = message(&text, &[]);
        let start = format!("x.yaml:2: model.model_config.type: `{class}` is not built: ");
        assert!(line.starts_with(&start) && line.contains(why) && !line.contains('\n'), "{line}");
    }
    for (arch, why) in [
        ("LlamaRewardModel", "scores whole answers"),
        ("ChatGLM4DPO", "preference pairs need a second"),
        ("ChatGLM2WithPtuning2", "prefixes of keys and values"),
        ("GPT2ForSequenceClassification", "predicts the next token"),
    ] {
        let line = message(&with_arch("LlamaConfig", arch), &[]);
        let start = format!("x.yaml:3: model.arch.type: `{arch}` is not built: ");
        assert!(line.starts_with(&start) && line.contains(why) && !line.contains('\n'), "{line}");
    }
}

/// Options of ChatGLM that no published model uses.
#[test]
fn options_of_chatglm_are_answered_one_by_one() {
    let of = |more: &str| {
        message(&with_model(&format!("type: ChatGLM2Config, {SIZES}, ffn_hidden_size: 96, {more}")), &[])
    };
    for (key, value, passes) in [
        ("apply_residual_connection_post_layernorm", "True", "False"),
        ("post_self_attn_layernorm", "True", "False"),
        ("rmsnorm", "False", "True"),
        ("post_layer_norm", "False", "True"),
        ("apply_query_key_layer_scaling", "False", "True"),
        ("pre_seq_len", "128", "None"),
        ("prefix_projection", "True", "False"),
        ("quantization_bit", "8", "0"),
        ("use_rearrange_rope", "True", "False"),
        ("interleaved_qkv", "True", "False"),
        ("mask_generate", "inmap", "None"),
    ] {
        let refused = of(&format!("{key}: {value}"));
        assert!(refused.contains(&format!("{key}: not built yet (found `{value}`)")), "{refused}");
        assert_eq!(of(&format!("{key}: {passes}")), "accepted");
    }
}

/// The plan of a file in MindFormers' dialect.
fn of_file(name: &str, flags: &[&str]) -> ModelConfig {
    let path = Path::new("tests/data/dialect").join(name);
    let data = "--train_dataset.data_loader={type: TextDataLoader, dataset_files: tests/data/mill.txt}";
    let flags = [&["--as-single", data, "--recompute_config.recompute=False"], flags].concat();
    let config = RunConfig::outline(&path, &Override::parse_all(flags).unwrap(), None);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    assert_reads_back(&config.plan);
    config.plan.model
}

#[test]
fn bloom_has_alibi_and_a_norm_of_the_embedding() {
    let bloom = of_file("bloom.yaml", &[]);
    assert_eq!(
        (bloom.family, bloom.positions, bloom.embedding_norm),
        (Family::Bloom, Positions::Alibi, true)
    );
    assert_eq!((bloom.norm, bloom.activation), (Norm::LayerNorm, Activation::Gelu(Gelu::Tanh)));
    assert_eq!((bloom.num_heads, bloom.layer.intermediate_size, bloom.tie_word_embeddings), (16, 4096, true));
    assert_eq!(parameters(&bloom), 559_214_592);
    assert_eq!((bloom.hidden_dropout, bloom.attention_dropout, bloom.embedding_dropout), (0.1, 0.1, 0.0));
    assert_eq!(biases(&bloom), [true; 4]);
    // The file of the largest one gives the width by another name.
    let file = "--model.model_config={type: BloomConfig, seq_length: 64, vocab_size: 512, embedding_size: 64, num_layers: 2, \
                num_heads: 4, hidden_act: fast_gelu}";
    let wide = of_file("bloom.yaml", &[file]);
    assert_eq!((wide.hidden_size, wide.activation), (64, Activation::Gelu(Gelu::Fast)));
}

/// Three classes of LlamaConfig, and a plain Llama for comparison.
#[test]
fn baichuan_is_what_its_class_says() {
    for (arch, family, positions, head) in [
        ("Baichuan13BV2ForCausalLM", Family::Baichuan, Positions::Alibi, Some(1e-5)),
        ("Baichuan13BForCausalLM", Family::Baichuan, Positions::Alibi, None),
        ("Baichuan7BV2ForCausalLM", Family::Baichuan, Positions::Rotary, Some(1e-5)),
        ("LlamaForCausalLM", Family::Llama, Positions::Rotary, None),
    ] {
        let model = of_file("baichuan2_13b.yaml", &[&format!("--model.arch.type={arch}")]);
        assert_eq!((model.family, model.positions, model.head_epsilon), (family, positions, head), "{arch}");
        assert_eq!((model.activation, model.norm_eps), (Activation::Gated(Gate::Silu), 1e-6));
        assert_eq!((biases(&model), model.tie_word_embeddings), ([false; 4], false));
    }
}

#[test]
fn wizardcoder_has_one_key_and_value_head() {
    let model = of_file("wizardcoder.yaml", &[]);
    assert_eq!((model.family, model.num_heads, model.layer.num_kv_heads), (Family::BigCode, 48, 1));
    assert_eq!((model.positions, model.max_positions, model.seq_length), (Positions::Learned, 8192, 2048));
    assert_eq!((model.embedding_dropout, model.hidden_dropout, model.attention_dropout), (0.1, 0.2, 0.3));
}

#[test]
fn the_last_layer_of_pangu_alpha_is_its_query_layer() {
    for arch in ["PanguAlphaHeadModel", "CodeGeexHeadModel"] {
        let model = of_file("pangualpha.yaml", &[&format!("--model.arch.type={arch}")]);
        assert_eq!(
            (model.family, model.layer(31).has_query_table, model.num_layers),
            (Family::Pangu, true, 32)
        );
        assert_eq!((model.activation, model.layer.intermediate_size), (Activation::Gelu(Gelu::Fast), 10_240));
        assert_eq!((model.positions, biases(&model)), (Positions::Learned, [true; 4]));
    }
}

/// What DeepSeek's types are where a file is silent, and what their keys become.
#[test]
fn deepseek_with_its_own_names() {
    let keys = format!(
        "type: DeepseekV3Config, {SIZES}, intermediate_size: 96, n_routed_experts: 8, num_experts_per_tok: 2"
    );
    let plain = of(&keys);
    let latent = plain.latent.expect("latent attention");
    assert_eq!((latent.q_rank, latent.kv_rank), (None, 512));
    assert_eq!((latent.nope_dim, latent.rope_dim, latent.value_dim), (128, 64, 128));
    assert_eq!((plain.layer.head_dim, plain.layer.num_kv_heads, plain.layer.rotary_dim), (192, 4, 64));
    assert_eq!(
        (plain.layer.rotary_interleaved, plain.qk_norm, plain.norm_eps, plain.init_std),
        (true, false, 1e-6, 0.02)
    );
    assert_eq!(plain.multi_token, None);
    let mixture = plain.mixture.expect("experts");
    assert_eq!(
        (mixture.route.score, mixture.route.norm.is_some(), mixture.route.scaling),
        (Score::Sigmoid, true, 2.5)
    );
    assert_eq!((mixture.has_bias, mixture.bias_update_rate, mixture.shared.is_some()), (true, 1e-3, true));

    let widths = "q_lora_rank: 24, kv_lora_rank: 16, qk_head_dim: 20, qk_pos_emb_head_dim: 8, v_head_dim: 12";
    let own = of(&format!(
        "{keys}, {widths}, multi_latent_attention: True, qk_layernorm: True, num_nextn_predict_layers: 1"
    ));
    let latent = own.latent.expect("latent attention");
    assert_eq!((latent.q_rank, latent.kv_rank), (Some(24), 16));
    assert_eq!((latent.nope_dim, latent.rope_dim, latent.value_dim), (20, 8, 12));
    assert_eq!((own.layer.head_dim, own.multi_token.map(|ahead| ahead.depth)), (28, Some(1)));

    let v2 = of(&keys.replace("V3", "V2"));
    let mixture = v2.mixture.expect("experts");
    assert_eq!(
        (mixture.route.score, mixture.route.norm.is_some(), mixture.route.scaling),
        (Score::Softmax, false, 1.0)
    );
    assert!(!mixture.has_bias);
}

#[test]
fn what_latent_attention_cannot_be_is_one_line() {
    for (more, line) in [
        ("kv_lora_rank: 18", "kv_lora_rank: the kernels take multiples of 4, not 18"),
        ("q_lora_rank: 7", "q_lora_rank: the kernels take multiples of 4, not 7"),
        ("v_head_dim: 516", "v_head_dim: values are 516 wide; the kernels take up to 512"),
        (
            "qk_nope_head_dim: 456",
            "qk_nope_head_dim: makes heads 520 wide with qk_rope_head_dim = 64; the kernels take up to 512",
        ),
        (
            "head_dim: 16",
            "head_dim: 16 is not the width of a head, 128 + 64 (qk_nope_head_dim + qk_rope_head_dim); remove it",
        ),
        (
            "num_key_value_heads: 2",
            "num_key_value_heads: latent attention has a key and a value for each of 4 heads (num_heads), not 2; remove it",
        ),
        (
            "attention_bias: True",
            "attention_bias: not built yet with latent attention (found `True`); write `False`",
        ),
        (
            "qk_layernorm: False",
            "qk_layernorm: not built yet (found `False`): latent vectors are always normalised; write `True`",
        ),
        (
            "multi_latent_attention: False",
            "multi_latent_attention: DeepSeek's attention is latent; write `True`, or `type: LlamaConfig` for ordinary attention",
        ),
        (
            "partial_rotary_factor: 0.5",
            "partial_rotary_factor: has no meaning for latent attention: `qk_rope_head_dim` says what rotates; remove it",
        ),
    ] {
        let text = with_model(&format!("type: DeepseekV2Config, {SIZES}, {more}"));
        assert_eq!(message(&text, &[]), format!("x.yaml:2: model.model_config.{line}"));
    }
    let notices = model(&with_model(&format!("type: DeepseekV3Config, {SIZES}, rope_interleave: False"))).1;
    let said = "model.model_config.rope_interleave: latent attention rotates neighbours (2i, 2i+1), as in MindFormers";
    assert_eq!(notices, [said]);
    let halves = "latent_rotation: halves, rope_interleave: False, latent_norm_eps: 1.e-6";
    let (read, notices) = model(&with_model(&format!("type: DeepseekV3Config, {SIZES}, {halves}")));
    assert!(!read.layer.rotary_interleaved && read.latent_norm_eps.is_none() && notices.is_empty());
}
