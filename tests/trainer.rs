//! The whole trainer against an f64 run of it, and against itself.

mod runs;

use gristmill::data::Batch;
use gristmill::model::config::ModelConfig;
use gristmill::model::parameters::{Gpt, Spec};
use gristmill::reference;
use gristmill::reference::adamw::Correction;
use gristmill::reference::rope_scaling::Scaling;
use gristmill::settings::{MuonConfig, OptimizerKind};
use gristmill::train::length::RunLength;
use runs::{Setup, Weights, relative_distance, weights_of};

/// Losses and final weights of the device's run must follow the f64 run this closely.
const ALLOWED: f64 = 1e-5;

/// Ten steps of a 2-layer model, with accumulation, clipping, decay groups and warm-up, in f32 on the device and in f64
/// on the host, from the same initial weights and the same text.
fn follows_the_reference(setup: &Setup) {
    let steps = 10;
    let trained = setup.train(steps);
    let plan = setup.plan();
    let shape = runs::reference_shape(&plan.model);
    let mut reference = reference::trainer::Trainer::new(shape, setup.initial_weights());
    let sorted = plan.grouping().apply(Gpt::describe(&plan.model)).expect("groups");
    let pieces = || sorted.iter().flat_map(|spec| spec.pieces.iter().map(move |piece| (&piece.name, spec)));
    let groups: Vec<(String, usize)> = pieces().map(|(name, spec)| (name.clone(), spec.group)).collect();
    reference.frozen = pieces().filter(|(_, spec)| !spec.trains).map(|(name, _)| name.clone()).collect();
    if let OptimizerKind::Muon(muon) = plan.optimizer.kind {
        let MuonConfig { momentum, nesterov, ns_steps: steps, matched_adamw_rms: rms } = muon;
        reference.muon = Some(reference::trainer::MuonSettings { momentum, nesterov, steps, rms });
    }
    let decay = |spec: &Spec| if spec.decays { plan.weight_decay(spec.group) } else { 0.0 };
    reference.weight_decays = pieces().map(|(name, spec)| (name.clone(), decay(spec))).collect();
    let settings = reference::trainer::AdamWSettings {
        beta1: plan.optimizer.beta1,
        beta2: plan.optimizer.beta2,
        eps: plan.optimizer.eps,
        weight_decay: plan.optimizer.weight_decay,
        correction: match plan.optimizer.kind {
            OptimizerKind::AdamW | OptimizerKind::Muon(_) => Correction::Published,
            OptimizerKind::Fp32StateAdamWeightDecay => Correction::Absent,
            OptimizerKind::AdamWeightDecayX => Correction::WithEps,
        },
    };
    let data = plan.load_data().expect("the text is there");
    let length = RunLength::new(&plan, data.train.steps_per_epoch());
    for step in 0..steps {
        let first = step * plan.settings.runner.gradient_accumulation_steps as u64;
        let batches: Vec<(Vec<u32>, Vec<u32>)> = (first
            ..first + plan.settings.runner.gradient_accumulation_steps as u64)
            .map(|i| data.train.batch(i).expect("a batch"))
            .map(|batch| (batch.tokens, batch.targets))
            .collect();
        let lr = length.schedule.lr_at(step);
        let rate = |group: usize| group.checked_sub(1).map(|i| length.group_schedules[i].lr_at(step));
        reference.rates =
            groups.iter().filter_map(|(name, group)| Some((name.clone(), rate(*group)?))).collect();
        let want = reference.train_step(
            &batches,
            plan.model.seq_length,
            lr,
            &settings,
            plan.settings.wrapper.clip(),
        );
        let got = &trained.states[step as usize];
        let error = (got.loss as f64 - want.loss).abs() / want.loss;
        let norm_error = (got.grad_norm as f64 - want.grad_norm).abs() / want.grad_norm;
        println!(
            "{} step {}: loss {:.6}, off by {:.1} % of what is allowed; norm {:.4}, by {:.1} %",
            setup.name,
            step + 1,
            got.loss,
            100.0 * error / ALLOWED,
            got.grad_norm,
            100.0 * norm_error / ALLOWED
        );
        assert!(error <= ALLOWED, "{} step {step}: loss {} and {}", setup.name, got.loss, want.loss);
    }
    let (mut got, mut want) = (trained.weights, weights_of(&reference.weights));
    if plan.model.learns_positions() {
        let mut gradients = trained.gradients;
        let whole = norm(&gradients);
        let of_keys = norm(&take_key_biases(&plan.model, &mut gradients)) / whole;
        assert!(of_keys <= ALLOWED, "{}: the keys' biases have {of_keys:.2e} of the gradient", setup.name);
        take_key_biases(&plan.model, &mut got);
        take_key_biases(&plan.model, &mut want);
    }
    let distance = relative_distance(&got, &want);
    println!("{}: final weights off by {:.1} % of what is allowed", setup.name, 100.0 * distance / ALLOWED);
    assert!(distance <= ALLOWED, "{}: the final weights differ by {distance:.2e} in norm", setup.name);
}

/// Takes the biases of the keys out of `weights`. Where nothing rotates, such a bias adds the same to all scores of a
/// query, and softmax does not see it: its gradient is zero but for rounding, which AdamW makes steps of full length of.
/// No two computations agree on it, and no loss depends on it.
fn take_key_biases(model: &ModelConfig, weights: &mut Weights) -> Weights {
    let (first, width) = (model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim);
    let biases = weights.iter_mut().filter(|(name, _)| name.ends_with("attn.c_attn.bias"));
    let taken: Weights = biases
        .map(|(name, bias)| (name.clone(), bias.drain(first..first + width).collect::<Vec<f64>>()))
        .collect();
    assert_eq!(taken.len(), model.num_layers);
    taken
}

fn norm(weights: &Weights) -> f64 {
    weights.values().flatten().map(|v| v * v).sum::<f64>().sqrt()
}

#[test]
fn llama_shape_follows_the_reference() {
    follows_the_reference(&Setup::new("llama", ""));
}

#[test]
fn a_sliding_window_follows_the_reference() {
    follows_the_reference(&Setup::new("window", "n_kv_heads: 2, sliding_window: 7"));
}

/// Windows of 24 tokens on frequencies that were made for 8 and for 16: some pairs are kept, some blended, some slowed.
#[test]
fn scaled_rotations_follow_the_reference() {
    let yarn = "rope_scaling: {rope_type: yarn, factor: 4, original_max_position_embeddings: 8, beta_fast: 1, beta_slow: 0.01}";
    let llama3 = "rope_scaling: {rope_type: llama3, factor: 4, original_max_position_embeddings: 16, \
                  low_freq_factor: 0.05, high_freq_factor: 1}";
    for setup in [Setup::new("yarn", yarn), Setup::new("llama3", llama3)] {
        follows_the_reference(&setup);
        let (plan, data, _) = setup.data();
        let batch = data.train.batch(0).expect("a batch");
        let loss = |scaling: Scaling| {
            let mut shape = runs::reference_shape(&plan.model);
            shape.rope.scaling = scaling;
            let (weights, length) = (setup.initial_weights(), plan.model.seq_length);
            let Batch { tokens, targets, positions, .. } = &batch;
            reference::gpt::loss(&shape, &weights, tokens, targets, positions, length, u32::MAX).0
        };
        let (scaled, plain) = (loss(runs::reference_shape(&plan.model).rope.scaling), loss(Scaling::None));
        let difference = (scaled - plain).abs() / plain;
        assert!(difference > 10.0 * ALLOWED, "{}: {difference:.1e} is no difference", setup.name);
    }
}

#[test]
fn tied_biased_normalised_grouped_shape_follows_the_reference() {
    let model = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True, \
                 rotary_interleaved: True, partial_rotary_factor: 0.5, intermediate_size: 37";
    follows_the_reference(&Setup::new("qwen", model));
}

#[test]
fn uncorrected_moments_follow_the_reference() {
    // With an eps large enough that the first steps do not only show signs.
    let optimizer = "--optimizer={type: FP32StateAdamWeightDecay, beta1: 0.9, beta2: 0.95, eps: 1.e-3, weight_decay: 0.1}";
    follows_the_reference(&Setup::new("uncorrected", "").with(&[optimizer]));
}

#[test]
fn corrected_eps_follows_the_reference() {
    let optimizer =
        "--optimizer={type: AdamWeightDecayX, beta1: 0.9, beta2: 0.95, eps: 1.e-3, weight_decay: 0.1}";
    follows_the_reference(&Setup::new("eps", "").with(&[optimizer]));
}

/// Three groups with schedules and decays of their own, some matrices exempt from decay, one layer's products frozen.
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
    follows_the_reference(&Setup::new("groups", "use_qk_norm: True").with(&overrides));
}

#[test]
fn muon_follows_the_reference() {
    let model = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, intermediate_size: 37";
    let optimizer = "--optimizer={type: Muon, weight_decay: 0.1}";
    follows_the_reference(&Setup::new("muon", model).with(&[optimizer]));
}

/// Muon with all that can vary: settings, groups, exemptions, frozen matrices.
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
    follows_the_reference(&Setup::new("muon in groups", "").with(&overrides));
}

/// Frozen weights stay bit for bit, and the other gradients are those of a run in which nothing is frozen.
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
        assert!(gradient == &all.gradients[name], "{name} has another gradient");
        assert!(gradient.iter().any(|g| *g != 0.0), "{name} has no gradient");
    }
    let steps = Setup::new("two steps", model).with(&[&list]).train(2); // the first has the rate 0
    for (name, weight) in &steps.weights {
        assert_eq!(weight == &before[name], is_frozen(name), "{name}");
    }
}

/// What trains is as far from the loss, and as near to it, as can be.
#[test]
fn a_head_alone_and_all_but_a_tied_table_follow_the_reference() {
    let head = ["--model.model_config.freeze=['.*']", "--model.model_config.freeze_exclude=[head]"];
    follows_the_reference(&Setup::new("head alone", "").with(&head));
    let table = "--model.model_config.freeze=[embedding]";
    follows_the_reference(&Setup::new("no table", "tie_word_embeddings: True").with(&[table]));
}

#[test]
fn gpt2_shape_follows_the_reference() {
    follows_the_reference(&Setup::gpt2("gpt2", ""));
}

/// More positions than a window has, a feed-forward layer of odd width, and a head of its own.
#[test]
fn untied_exact_gpt2_shape_follows_the_reference() {
    let model =
        "max_position_embeddings: 31, hidden_act: gelu, intermediate_size: 37, tie_word_embeddings: False";
    follows_the_reference(&Setup::gpt2("gpt2 untied", model));
}
