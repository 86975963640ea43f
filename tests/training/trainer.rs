//! The trainer on dense models against an f64 run of it: every optimizer, parameter group and frozen parameter.

use crate::against_reference::{ALLOWED, follows_the_reference};
use crate::runs::{Setup, reference_shape};
use gristmill::data::Batch;
use gristmill::kernels::Tier;
use gristmill::settings::OptimizerType;
use reference::rope_scaling::Scaling;

/// Ten steps of a 2-layer model, with accumulation, clipping, weight decay and warm-up, and into a second epoch.
fn follows(setup: &Setup) {
    follows_the_reference(setup, 10);
}

#[test]
fn llama_shape_follows_the_reference() {
    follows(&Setup::new("llama", ""));
}

/// The kernels that a GPU runs.
#[test]
fn the_portable_tier_follows_the_reference() {
    let model = "n_kv_heads: 2, sliding_window: 7, use_qk_norm: True, qkv_has_bias: True";
    let setup = Setup::new("portable", model).with(&["--context.tier=portable"]);
    assert_eq!(setup.gpu().capabilities().tier, Tier::Portable);
    follows_the_reference(&setup, 4);
}

#[test]
fn a_sliding_window_follows_the_reference() {
    follows(&Setup::new("window", "n_kv_heads: 2, sliding_window: 7"));
}

/// On each tier, with GPUs' kernels for fewer steps.
#[test]
fn layers_that_differ_follow_the_reference() {
    follows(&Setup::of_layers("layers", "use_qk_norm: True, rotary_interleaved: True"));
    let three = "sliding_window: 7, layer_types: [sliding_attention, full_attention, sliding_attention], \
                 no_rope_layers: [1, 1, 0], sliding_theta: 30, rope_scaling: {rope_type: llama3, factor: 4, \
                 original_max_position_embeddings: 16, low_freq_factor: 0.05, high_freq_factor: 1}";
    let three_layers = ["--model.model_config.num_layers=3"];
    follows_the_reference(&Setup::new("three rotations", three).with(&three_layers), 4);
    let portable = Setup::of_layers("layers on portable", "").with(&["--context.tier=portable"]);
    follows_the_reference(&portable, 4);
}

/// Heads that are wider and fewer in layers without a window, whose values are their keys, beside others with a norm of
/// values, as in Gemma 4: whole, and with adapters.
#[test]
fn layers_with_other_heads_follow_the_reference() {
    let model = "n_kv_heads: 2, use_qk_norm: True, use_v_norm: True, norm_placement: both, layer_scalars: True, \
                 sliding_window: 7, layer_types: [sliding_attention, full_attention], sliding_theta: 30, \
                 global_head_dim: 20, num_global_key_value_heads: 1, attention_multiplier: 1.0, \
                 rope_scaling: {rope_type: proportional, partial_rotary_factor: 0.3}";
    let shared = format!("{model}, attention_k_eq_v: True");
    follows(&Setup::new("other heads", &shared));
    let adapters = "pet_config: {pet_type: lora, random_base: True, lora_dropout: 0.0, lora_rank: 3, target_modules: '.*'}";
    let adapters = format!("{shared}, {adapters}");
    follows_the_reference(&Setup::new("adapters of other heads", &adapters), 4);
    let portable = Setup::new("other heads on portable", model).with(&["--context.tier=portable"]);
    follows_the_reference(&portable, 4);
}

/// The gates of attention's output: with normalised queries and keys, without, and with adapters.
#[test]
fn gates_of_attention_follow_the_reference() {
    let gates = "n_kv_heads: 2, attention_output_gate: True";
    follows(&Setup::new("gates", &format!("{gates}, use_qk_norm: True, rotary_percent: 0.5")));
    follows_the_reference(&Setup::new("gates alone", &format!("{gates}, qkv_has_bias: True")), 4);
    let adapters = "pet_config: {pet_type: lora, random_base: True, lora_dropout: 0.0, lora_rank: 3, target_modules: '.*'}";
    let portable = ["--context.tier=portable"];
    let adapters = Setup::new("adapters of gates", &format!("{gates}, {adapters}")).with(&portable);
    follows_the_reference(&adapters, 4);
}

/// Linear attention before a layer of softmax: with a convolution of another width, with adapters, on each tier; and
/// under Muon.
#[test]
fn linear_attention_follows_the_reference() {
    follows(&Setup::of_linear_attention("linear attention", "").wide());
    let portable = ["--context.tier=portable"];
    let narrow =
        Setup::of_linear_attention("narrow convolution", "linear_conv_kernel_dim: 2").wide().with(&portable);
    follows_the_reference(&narrow, 4);
    let adapters = "pet_config: {pet_type: lora, random_base: True, lora_dropout: 0.0, lora_rank: 3, target_modules: '.*'}";
    // Queries and keys of length 1 have gradients as small as the usual eps, of which AdamW makes full steps.
    let eps = ["--optimizer={type: AdamW, betas: [0.9, 0.95], eps: 1.e-4, weight_decay: 0.1}"];
    let adapters = Setup::of_linear_attention("adapters of linear attention", adapters).wide().with(&eps);
    follows_the_reference(&adapters, 4);
    let muon = ["--optimizer={type: Muon, weight_decay: 0.1}"];
    follows_the_reference(
        &Setup::of_linear_attention("linear attention under Muon", "").wide().with(&muon),
        4,
    );
    for compute in ["float16", "bfloat16"] {
        let compute = format!("--model.model_config.compute_dtype={compute}");
        let halves = ["--runner_wrapper.scale_sense=1024", &compute];
        follows_the_reference(
            &Setup::of_linear_attention("linear attention in 16 bits", "").wide().with(&halves),
            4,
        );
    }
}

/// A gated convolution before a layer of attention: on each tier and in 16 bits, with adapters, of another width; and
/// under Muon.
#[test]
fn gated_convolutions_follow_the_reference() {
    follows(&Setup::of_convolutions("convolutions", ""));
    let portable = ["--context.tier=portable"];
    follows_the_reference(&Setup::of_convolutions("wide convolutions", "conv_L_cache: 5").with(&portable), 4);
    let adapters = "pet_config: {pet_type: lora, random_base: True, lora_dropout: 0.0, lora_rank: 3, target_modules: '.*'}";
    follows_the_reference(&Setup::of_convolutions("adapters of convolutions", adapters), 4);
    let muon = ["--optimizer={type: Muon, weight_decay: 0.1}"];
    follows_the_reference(&Setup::of_convolutions("convolutions under Muon", "").with(&muon), 4);
    for compute in ["float16", "bfloat16"] {
        let compute = format!("--model.model_config.compute_dtype={compute}");
        let halves = ["--runner_wrapper.scale_sense=1024", &compute];
        follows_the_reference(&Setup::of_convolutions("convolutions in 16 bits", "").with(&halves), 4);
    }
}

/// Layers that read the keys and values of earlier ones, whose gradient is the sum over them: whole, with adapters, and
/// on GPUs' kernels.
#[test]
fn layers_that_share_keys_follow_the_reference() {
    follows(&Setup::of_shared_keys("shared keys", "norm_placement: both, layer_scalars: True"));
    let adapters = "pet_config: {pet_type: lora, random_base: True, lora_dropout: 0.0, lora_rank: 3, target_modules: '.*'}";
    follows_the_reference(&Setup::of_shared_keys("adapters of shared keys", adapters), 3);
    let portable = Setup::of_shared_keys("shared keys on portable", "").with(&["--context.tier=portable"]);
    follows_the_reference(&portable, 3);
    // Heads without norms, whose rows the first product makes.
    let plain = "n_kv_heads: 2, num_kv_shared_layers: 1, qkv_has_bias: True";
    follows_the_reference(&Setup::new("plain shared keys", plain), 3);
}

/// Embeddings of each layer, of tokens and of what is embedded: whole, with adapters, and on GPUs' kernels.
#[test]
fn layers_with_inputs_follow_the_reference() {
    follows(&Setup::of_layer_inputs("layer inputs", "layer_scalars: True, tie_word_embeddings: True"));
    let adapters = "pet_config: {pet_type: lora, random_base: True, lora_dropout: 0.0, lora_rank: 3, target_modules: '.*'}";
    follows_the_reference(&Setup::of_layer_inputs("adapters of layer inputs", adapters), 3);
    let portable = Setup::of_layer_inputs("layer inputs on portable", "").with(&["--context.tier=portable"]);
    follows_the_reference(&portable, 3);
}

/// Windows of 24 tokens under frequencies made for 8 and for 16 tokens: some pairs are kept, some interpolated, some
/// blended; or all are those of longer texts.
#[test]
fn scaled_rotations_follow_the_reference() {
    let yarn = "rope_scaling: {rope_type: yarn, factor: 4, original_max_position_embeddings: 8, beta_fast: 1, beta_slow: 0.01}";
    let llama3 = "rope_scaling: {rope_type: llama3, factor: 4, original_max_position_embeddings: 16, \
                  low_freq_factor: 0.05, high_freq_factor: 1}";
    follows(&Setup::of_growing_queries("growing queries", ""));
    let dynamic = "rope_scaling: {rope_type: dynamic, factor: 8, original_max_position_embeddings: 2}";
    let lists = "rotary_percent: 0.5, rope_scaling: {rope_type: longrope, original_max_position_embeddings: 16, \
                 short_factor: [1, 1], long_factor: [2, 4], attention_factor: 1.25}";
    let scaled = [("yarn", yarn), ("llama3", llama3), ("dynamic", dynamic), ("longrope", lists)];
    for setup in scaled.map(|(name, keys)| Setup::new(name, keys)) {
        follows(&setup);
        let (plan, data, _) = setup.data();
        let batch = data.train.batch(0).expect("a batch");
        let loss = |scaling: Scaling| {
            let mut shape = reference_shape(&plan.model);
            shape.rope.scaling = scaling;
            let (weights, length) = (setup.initial_weights(), plan.model.seq_length);
            let Batch { tokens, targets, positions, .. } = &batch;
            reference::gpt::loss(&shape, &weights, tokens, targets, positions, length, u32::MAX).0
        };
        let (scaled, plain) = (loss(reference_shape(&plan.model).rope.scaling), loss(Scaling::None));
        let difference = (scaled - plain).abs() / plain;
        assert!(
            difference > 10.0 * ALLOWED,
            "{}: scaling changes the loss by only {difference:.1e}",
            setup.name
        );
    }
}

/// Caps that change the loss, with a window and with low-rank adapters.
#[test]
fn soft_caps_follow_the_reference() {
    for model in ["sliding_window: 7, tie_word_embeddings: True", "mtp_depth: 1"] {
        follows(&Setup::of_soft_caps("soft caps", model));
    }
}

#[test]
fn tied_biased_normalised_grouped_shape_follows_the_reference() {
    let model = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True, \
                 rotary_interleaved: True, partial_rotary_factor: 0.5, intermediate_size: 37";
    follows(&Setup::new("qwen", model));
}

#[test]
fn uncorrected_moments_follow_the_reference() {
    // An eps so large that the first updates are more than the signs of the gradients.
    let optimizer = "--optimizer={type: FP32StateAdamWeightDecay, beta1: 0.9, beta2: 0.95, eps: 1.e-3, weight_decay: 0.1}";
    follows(&Setup::new("uncorrected", "").with(&[optimizer]));
}

#[test]
fn corrected_eps_follows_the_reference() {
    let optimizer =
        "--optimizer={type: AdamWeightDecayX, beta1: 0.9, beta2: 0.95, eps: 1.e-3, weight_decay: 0.1}";
    follows(&Setup::new("eps", "").with(&[optimizer]));
}

/// Three groups with their own schedules and decays, some matrices exempt from decay, the matrices of one layer frozen.
#[test]
fn groups_and_frozen_parameters_follow_the_reference() {
    let groups = "--grouped_lr_schedule={default: {type: CosineWithWarmUpLR, learning_rate: 3.e-3, warmup_steps: 3}, \
                  grouped: [{params: ['embedding.*', 'output_layer.weight'], type: polynomial, learning_rate: 1.e-3, \
                  weight_decay: 0.5}, {params: [norm], type: constant_with_warmup, learning_rate: 5.e-3}]}";
    let overrides = [
        groups,
        "--no_decay_params=[w_down]",
        "--model.model_config.freeze=['layers.0.(attention.w|feed_forward)', k_norm]",
        "--model.model_config.freeze_exclude=['layers.0.attention.wo']",
    ];
    follows(&Setup::new("groups", "use_qk_norm: True").with(&overrides));
}

#[test]
fn every_optimizer_follows_the_reference() {
    let model = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, intermediate_size: 37";
    for section in OptimizerType::sections() {
        let optimizer = format!("--optimizer={{{section}, weight_decay: 0.1}}");
        println!("{section}");
        follows(&Setup::new("optimizer", model).with(&[&optimizer]));
    }
    let ahead = "--optimizer={type: Momentum, momentum: 0.8, use_nesterov: True, weight_decay: 0.1}";
    follows(&Setup::new("nesterov", model).with(&[ahead]));
}

/// Muon with everything that can vary: settings, groups, exemptions, frozen matrices.
#[test]
fn muon_in_groups_follows_the_reference() {
    let overrides = [
        "--optimizer={type: Muon, momentum: 0.8, nesterov: False, ns_steps: 4, matched_adamw_rms: 0.3, \
         adamw_betas: [0.9, 0.99], adamw_eps: 1.e-6, weight_decay: 0.2}",
        "--grouped_lr_schedule={default: {type: linear, learning_rate: 3.e-3}, grouped: [{params: ['layers.1', norm], \
         type: constant_with_warmup, learning_rate: 1.e-3, weight_decay: 0.5}]}",
        "--no_decay_params=[w_down]",
        "--model.model_config.freeze=['layers.0.attention.wo']",
    ];
    follows(&Setup::new("muon in groups", "").with(&overrides));
}

/// Frozen weights keep their bits, and the other gradients have the bits of a run without frozen parameters.
#[test]
fn freezing_leaves_the_other_gradients_alone() {
    let freeze = ["embedding", "layers.1.attention.w", "layers.0.ffn_norm", "q_norm", "^norm$"];
    let list =
        format!("--model.model_config.freeze=[{}]", freeze.map(|pattern| format!("'{pattern}'")).join(", "));
    let model = "use_qk_norm: True, qkv_has_bias: True";
    let (all, some) = (Setup::new("all", model), Setup::new("some", model).with(&[&list]));
    let (all, some, before) = (all.train(1), some.train(1), some.initial_weights());
    let is_frozen = |name: &str| {
        let layer_1 =
            ["q_proj", "k_proj", "v_proj", "o_proj"].map(|of| format!("layers.1.self_attn.{of}.weight"));
        layer_1.iter().any(|of| name.ends_with(of))
            || [
                "model.embed_tokens.weight",
                "model.layers.0.post_attention_layernorm.weight",
                "model.norm.weight",
            ]
            .contains(&name)
            || name.ends_with("q_norm.weight")
    };
    let trained: Vec<&String> = all.gradients.keys().filter(|name| !is_frozen(name)).collect();
    assert!(some.gradients.keys().eq(trained), "{:?}", some.gradients.keys());
    assert_eq!(all.gradients.len() - some.gradients.len(), 9);
    for (name, gradient) in &some.gradients {
        assert!(gradient == &all.gradients[name], "{name}: the gradient differs");
        assert!(gradient.iter().any(|g| *g != 0.0), "{name}: the gradient is zero");
    }
    let steps = Setup::new("two steps", model).with(&[&list]).train(2); // the first step has a learning rate of 0
    for (name, weight) in &steps.weights {
        assert_eq!(weight == &before[name], is_frozen(name), "{name}");
    }
}

/// Only the layer next to the loss trains; and everything except a tied embedding table.
#[test]
fn a_head_alone_and_all_but_a_tied_table_follow_the_reference() {
    let head = ["--model.model_config.freeze=['.*']", "--model.model_config.freeze_exclude=[head]"];
    follows(&Setup::new("head alone", "").with(&head));
    let table = "--model.model_config.freeze=[embedding]";
    follows(&Setup::new("no table", "tie_word_embeddings: True").with(&[table]));
}

#[test]
fn gpt2_shape_follows_the_reference() {
    follows(&Setup::gpt2("gpt2", ""));
}

/// More positions than the window, an odd feed-forward width, and an untied head.
#[test]
fn untied_exact_gpt2_shape_follows_the_reference() {
    let model = "max_position_embeddings: 31, hidden_act: gelu_exact, intermediate_size: 37, tie_word_embeddings: False";
    follows(&Setup::gpt2("gpt2 untied", model));
}
