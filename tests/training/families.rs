//! Bloom, Baichuan, WizardCoder and PanGu-α, each by a file in MindFormers' dialect that is shrunk by overrides only,
//! against an f64 run of the whole trainer.
//!
//! Their parts run on each tier and in 16 bits.

use crate::against_reference::follows_the_reference;
use crate::runs::{Setup, compared_steps, in_turn};

/// Factors of embedded tokens, of what layers add, of scores and of logits, as Granite has them.
pub const FACTORS: &str =
    "embedding_multiplier: 3.0, residual_multiplier: 0.6, attention_multiplier: 0.3, logits_scaling: 2.0";

/// The first steps of `tests/data/{file}` on a small text. `keys` shrink the model further and switch dropout off, whose
/// masks the reference does not draw.
fn follows(name: &'static str, file: &'static str, keys: &[&str]) {
    let sizes = [
        "model.model_config.vocab_size=256",
        "model.model_config.num_layers=2",
        "model.model_config.num_heads=4",
        "model.model_config.initializer_range=0.1",
    ];
    follows_the_reference(&Setup::shrunk(name, file, &[&sizes, keys].concat()), compared_steps());
}

#[test]
fn bloom_follows_the_reference() {
    let dropouts =
        ["model.model_config.hidden_dropout_rate=0", "model.model_config.attention_dropout_rate=0"];
    follows("bloom", "dialect/bloom.yaml", &dropouts);
}

#[test]
fn baichuan_follows_the_reference() {
    for (name, arch) in [
        ("baichuan2 13b", "model.arch.type=Baichuan13BV2ForCausalLM"),
        ("baichuan 13b", "model.arch.type=Baichuan13BForCausalLM"),
        ("baichuan2 7b", "model.arch.type=Baichuan7BV2ForCausalLM"),
    ] {
        follows(name, "dialect/baichuan2_13b.yaml", &[arch, "model.model_config.multiple_of=16"]);
    }
}

#[test]
fn wizardcoder_follows_the_reference() {
    let keys = ["dropout_prob=0", "hidden_dropout_prob=0", "attention_probs_dropout_prob=0", "n_position=31"];
    let keys = keys.map(|key| format!("model.model_config.{key}"));
    follows("wizardcoder", "dialect/wizardcoder.yaml", &keys.each_ref().map(String::as_str));
}

#[test]
fn opt_follows_the_reference() {
    follows_the_reference(&Setup::typed("OPTConfig", "opt", "max_position_embedding: 31"), compared_steps());
}

/// Norms of sums, none before the head, and projections from a narrower embedding and to it; whole, and with adapters of
/// layers on the kernels of GPUs.
#[test]
fn opt_350m_follows_the_reference() {
    let narrow = "norm_placement: after_sum, word_embed_proj_dim: 20";
    follows_the_reference(&Setup::typed("OPTConfig", "opt 350m", narrow), compared_steps());
    let adapters = "pet_config: {pet_type: lora, random_base: True, lora_dropout: 0.0, lora_rank: 3, \
                    target_modules: 'q_proj|v_proj|out_proj|fc1|fc2'}";
    let adapters = Setup::typed("OPTConfig", "adapters of opt 350m", &format!("{narrow}, {adapters}"));
    follows_the_reference(&adapters.with(&["--context.tier=portable"]), 3);
    for compute in in_turn(1, &["float16", "bfloat16"]) {
        let compute = format!("--model.model_config.compute_dtype={compute}");
        let setup = Setup::typed("OPTConfig", "opt 350m in 16 bits", narrow);
        follows_the_reference(&setup.with(&[&compute, "--runner_wrapper.scale_sense=1024"]), 3);
    }
}

#[test]
fn pangu_alpha_follows_the_reference() {
    let keys = [
        "embedding_dropout_prob=0",
        "hidden_dropout_rate=0",
        "attention_dropout_rate=0",
        "ffn_hidden_size=96",
    ];
    let keys = keys.map(|key| format!("model.model_config.{key}"));
    follows("pangu-alpha", "dialect/pangualpha.yaml", &keys.each_ref().map(String::as_str));
}

/// Sinks, windows in one layer, biases of router and experts, clamped gates, and all experts in one tensor.
#[test]
fn gpt_oss_follows_the_reference() {
    let yarn = "rope_scaling: {rope_type: yarn, factor: 4, original_max_position_embeddings: 8, beta_fast: 1, \
                beta_slow: 0.1, truncate: False}";
    follows_the_reference(&Setup::gpt_oss("gpt-oss", yarn), compared_steps());
    follows_the_reference(&Setup::gpt_oss("gpt-oss", "").with(&["--context.tier=portable"]), 4);
    for compute in ["float16", "bfloat16"] {
        let compute = format!("--model.model_config.compute_dtype={compute}");
        let setup = Setup::gpt_oss("gpt-oss", "").with(&[&compute, "--runner_wrapper.scale_sense=1024"]);
        follows_the_reference(&setup, 3);
    }
}

/// Sinks and more keys in layers with a window alone, values of another width and their factor; with adapters on the
/// kernels of GPUs.
#[test]
fn mimo_follows_the_reference() {
    follows_the_reference(&Setup::mimo("mimo", ""), compared_steps());
    let adapters = "pet_config: {pet_type: lora, random_base: True, lora_dropout: 0.0, lora_rank: 3, \
                    target_modules: 'q_proj|k_proj|v_proj|o_proj'}";
    let portable = ["--context.tier=portable"];
    follows_the_reference(&Setup::mimo("adapters of mimo", adapters).with(&portable), 3);
    for compute in in_turn(0, &["float16", "bfloat16"]) {
        let compute = format!("--model.model_config.compute_dtype={compute}");
        let setup = Setup::mimo("mimo", "").with(&[&compute, "--runner_wrapper.scale_sense=1024"]);
        follows_the_reference(&setup, 3);
    }
}

/// GeGLU by tanh, in a model like Gemma, and by the error function, in experts beside a shared one.
#[test]
fn gates_of_gelu_follow_the_reference() {
    let gemma = "hidden_act: gelu_new, layernorm_zero_centered_gamma: True, embedding_multiplier: 6.93, \
                 tie_word_embeddings: True, n_kv_heads: 1";
    let gemma = || Setup::new("gemma", gemma);
    follows_the_reference(&gemma(), compared_steps());
    follows_the_reference(&gemma().with(&["--context.tier=portable"]), 4);
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, shared_expert_num: 1";
    follows_the_reference(&Setup::experts("gelu of experts", routing, "hidden_act: gelu_exact"), 4);
    let kinds =
        ["float16", "bfloat16"].map(|compute| format!("--model.model_config.compute_dtype={compute}"));
    for compute in kinds {
        follows_the_reference(&gemma().with(&[&compute, "--runner_wrapper.scale_sense=1024"]), 4);
    }
}

/// With a tied head and biases of all layers; adapters of what is added; experts beside a shared one, and tokens further
/// ahead.
#[test]
fn factors_follow_the_reference() {
    let tied = format!(
        "{FACTORS}, tie_word_embeddings: True, qkv_has_bias: True, attn_proj_has_bias: True, \
         add_mlp_fc1_bias_linear: True, add_mlp_fc2_bias_linear: True"
    );
    let adapted = format!(
        "{FACTORS}, pet_config: {{pet_type: lora, random_base: True, lora_rank: 3, lora_dropout: 0.0, \
         target_modules: '.*wq|.*wo|.*w2'}}"
    );
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, shared_expert_num: 1";
    let ahead = format!("{FACTORS}, mtp_depth: 1");
    // In 16 bits, of fewer rows biases of keys are little but rounding.
    let tied = || Setup::new("factors", &tied).with(&["--batch_size=3"]);
    follows_the_reference(&tied(), compared_steps());
    follows_the_reference(&tied().with(&["--context.tier=portable"]), 4);
    follows_the_reference(&Setup::new("factors of adapters", &adapted), 4);
    follows_the_reference(&Setup::experts("factors of experts", routing, &ahead), 4);
    for compute in ["float16", "bfloat16"] {
        let compute = format!("--model.model_config.compute_dtype={compute}");
        follows_the_reference(&tied().with(&[&compute, "--runner_wrapper.scale_sense=1024"]), 4);
    }
}

/// The example of adaptive loss scaling in MindFormers' documents: PanGu-α under MindSpore's Momentum at a fixed rate,
/// not clipped.
#[test]
fn the_example_of_adaptive_scaling_follows_the_reference() {
    let setup = Setup::typed("PanguAlphaConfig", "example", "").with(&[
        "--optimizer={type: Momentum, learning_rate: 0.1, momentum: 0.9}",
        "--lr_schedule={type: ConstantWarmUpLR, learning_rate: 0.1, warmup_steps: 0}",
        "--runner_wrapper={scale_sense: {type: AdaptiveLossScaleUpdateCell, loss_scale_value: 1, scale_factor: 2, \
         scale_window: 20, max_scale_window: 1000, min_scale_window: 20}}",
    ]);
    follows_the_reference(&setup, 10);
    let trained = setup.train(45);
    let scales: Vec<f32> = trained.states.iter().map(|state| state.loss_scale).collect();
    assert_eq!((scales[19], scales[20], scales[44]), (1.0, 2.0, 4.0), "{scales:?}");
    let losses: Vec<f32> = trained.states.iter().map(|state| state.loss).collect();
    assert!(losses[44] < losses[0] - 0.5, "{losses:?}");
}

/// Norms that multiply by 1 + w: of layers, of heads, and of multi-token prediction.
#[test]
fn zero_centred_norms_follow_the_reference() {
    follows_the_reference(&zero_centred("mtp_depth: 1"), compared_steps());
}

fn zero_centred(model: &str) -> Setup {
    let keys = "layernorm_zero_centered_gamma: True, use_qk_norm: True, n_kv_heads: 2";
    Setup::new("zero-centred", &format!("{keys}, {model}"))
}

/// Norms after sublayers, and on both sides of them: of dense layers, experts, and multi-token prediction.
#[test]
fn norms_after_sublayers_follow_the_reference() {
    let experts = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, shared_expert_num: 1";
    for setup in [
        Setup::new("norms after", "norm_placement: after, use_qk_norm: True, n_kv_heads: 2"),
        Setup::experts("experts with norms after", experts, "norm_placement: after, mtp_depth: 1"),
        on_both_sides("n_kv_heads: 2, residual_multiplier: 0.6"),
        Setup::typed("ChatGLM2Config", "glm4", "norm_placement: both, rotary_percent: 0.5"),
    ] {
        follows_the_reference(&setup, compared_steps());
    }
}

fn on_both_sides(model: &str) -> Setup {
    Setup::new("norms on both sides", &format!("norm_placement: both, {model}"))
}

/// LayerNorm with rotation, networks without gates, and attention and feed-forward network beside each other.
#[test]
fn other_norms_activations_and_residuals_follow_the_reference() {
    let experts = "expert_num: 4, num_experts_chosen: 2, use_gmm: True";
    for setup in [
        nemotron("n_kv_heads: 2, rotary_percent: 0.5"),
        gpt_neox("num_layers: 2"),
        command_r("tie_word_embeddings: True, logits_scaling: 4.0"),
        olmo("num_layers: 2, clip_qkv: 0.25"),
        apertus("num_layers: 2"),
        gpt_j("logits_scaling: 2.0"),
        Setup::experts("experts beside attention", experts, "parallel_residual: one_norm"),
        Setup::experts("experts without gates", experts, UNGATED_EXPERTS),
    ] {
        follows_the_reference(&setup, compared_steps());
    }
}

/// Experts without gates have the biases of dense layers.
const UNGATED_EXPERTS: &str = "gated_linear_unit: False, hidden_act: relu, add_mlp_fc1_bias_linear: True, \
                               add_mlp_fc2_bias_linear: True";

fn nemotron(model: &str) -> Setup {
    let keys = "normalization: LayerNorm, layernorm_zero_centered_gamma: True, gated_linear_unit: False, hidden_act: relu2";
    Setup::new("nemotron", &format!("{keys}, {model}"))
}

/// GPT-NeoX under the names of others.
fn gpt_neox(model: &str) -> Setup {
    let biases = "qkv_has_bias: True, attn_proj_has_bias: True, add_mlp_fc1_bias_linear: True, \
                  add_mlp_fc2_bias_linear: True";
    let norms = "normalization: LayerNorm, layernorm_zero_centered_gamma: True, parallel_residual: two_norms";
    let keys = format!("{norms}, gated_linear_unit: False, hidden_act: gelu_exact, {biases}");
    Setup::new("gpt-neox", &format!("{keys}, {model}"))
}

fn command_r(model: &str) -> Setup {
    let keys = "normalization: LayerNorm, norm_has_bias: False, parallel_residual: one_norm";
    Setup::new("command-r", &format!("{keys}, {model}"))
}

/// A bias of the head, beside neighbours that rotate and one norm of both branches; under the names of others.
fn gpt_j(model: &str) -> Setup {
    let norms = "normalization: LayerNorm, layernorm_zero_centered_gamma: True, parallel_residual: one_norm";
    let biases = "add_mlp_fc1_bias_linear: True, add_mlp_fc2_bias_linear: True, lm_head_has_bias: True";
    let keys = format!("{norms}, gated_linear_unit: False, hidden_act: gelu_new, {biases}");
    Setup::new("gpt-j", &format!("{keys}, rotary_interleaved: True, rotary_percent: 0.5, {model}"))
}

/// xIELU, whose numbers train.
fn apertus(model: &str) -> Setup {
    let keys = "gated_linear_unit: False, hidden_act: xielu, use_qk_norm: True, n_kv_heads: 2";
    Setup::new("apertus", &format!("{keys}, {model}"))
}

/// Norms without weights and biases.
fn olmo(model: &str) -> Setup {
    let keys = "normalization: LayerNorm, norm_has_bias: False, norm_has_weight: False, n_kv_heads: 2";
    Setup::new("olmo", &format!("{keys}, {model}"))
}

/// q and k normalised over all heads together, and head by head after the rotation.
#[test]
fn norms_of_queries_and_keys_follow_the_reference() {
    for setup in [
        of_all_heads("norm_placement: after, clip_qkv: 0.75"),
        of_rotated_heads("qkv_has_bias: True, rotary_percent: 0.5"),
        of_rotated_heads("rotary_interleaved: True, layernorm_zero_centered_gamma: True"),
        of_rotated_heads("norm_has_weight: False"),
        of_layer_norms("layer_norm", "qkv_has_bias: True, rotary_interleaved: True"),
        of_layer_norms("layer_norm_by_head", "rotary_percent: 0.5, layernorm_zero_centered_gamma: True"),
    ] {
        follows_the_reference(&setup, compared_steps());
    }
}

fn of_all_heads(model: &str) -> Setup {
    let keys = "use_qk_norm: True, qk_norm_kind: all_heads, n_kv_heads: 2";
    Setup::new("norms of all heads", &format!("{keys}, {model}"))
}

fn of_layer_norms(kind: &str, model: &str) -> Setup {
    let keys = format!("use_qk_norm: True, qk_norm_kind: {kind}, n_kv_heads: 2, normalization: LayerNorm");
    Setup::new("layer norms of heads", &format!("{keys}, {model}"))
}

fn of_rotated_heads(model: &str) -> Setup {
    let keys = "use_qk_norm: True, qk_norm_kind: rotated_heads, n_kv_heads: 2";
    Setup::new("norms of rotated heads", &format!("{keys}, {model}"))
}

/// The kernels that a GPU runs, and 16 bits; six heads, no power of two. One of these for each type of model, all with
/// `GRISTMILL_LONG`.
#[test]
fn each_part_follows_on_other_tiers_and_in_16_bits() {
    let bloom = || Setup::typed("BloomConfig", "bloom", "sliding_window: 7, num_heads: 6").wide();
    let baichuan = || Setup::typed("Baichuan2_13BConfig", "baichuan2", "n_kv_heads: 2");
    let pangu = || Setup::typed("PanguAlphaConfig", "pangu-alpha", "");
    let float16 = ["--model.model_config.compute_dtype=float16", "--runner_wrapper.scale_sense=1024"];
    let bfloat16 = ["--model.model_config.compute_dtype=bfloat16", "--runner_wrapper.scale_sense=1024"];
    let centred = || zero_centred("tie_word_embeddings: True");
    let both = || on_both_sides("layernorm_zero_centered_gamma: True");
    let all = || of_all_heads("norm_placement: after");
    let rotated = || of_rotated_heads("tie_word_embeddings: True");
    let ungated = || nemotron("rotary_percent: 0.5");
    let beside = || gpt_neox("tie_word_embeddings: True");
    let shared = || command_r("n_kv_heads: 2");
    // Not clipped: in 16 bits an element at the limit may be on either side of it.
    let weightless = || olmo("tie_word_embeddings: True");
    let biased = || gpt_j("tie_word_embeddings: True");
    let curved = || apertus("tie_word_embeddings: True");
    let of_heads = || of_layer_norms("layer_norm", "");
    let by_head = || of_layer_norms("layer_norm_by_head", "");
    let parts: [fn() -> Setup; 15] = [
        bloom, baichuan, pangu, centred, both, all, rotated, ungated, beside, shared, weightless, biased,
        curved, of_heads, by_head,
    ];
    let kinds: [(&[&str], u64); 3] = [(&["--context.tier=portable"], 4), (&float16, 6), (&bfloat16, 6)];
    for (number, setup) in parts.into_iter().enumerate() {
        for (keys, steps) in in_turn(number, &kinds) {
            follows_the_reference(&setup().with(keys), *steps);
        }
    }
}
