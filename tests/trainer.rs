//! The whole trainer against an f64 run of it, and against itself.

mod runs;

use gristmill::model::config::ModelConfig;
use gristmill::reference;
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
    let settings = reference::trainer::AdamWSettings {
        beta1: plan.optimizer.beta1,
        beta2: plan.optimizer.beta2,
        eps: plan.optimizer.eps,
        weight_decay: plan.optimizer.weight_decay,
    };
    let data = plan.load_data().expect("the text is there");
    let length = plan.with_data(data.train.steps_per_epoch());
    for step in 0..steps {
        let first = step * plan.gradient_accumulation_steps as u64;
        let batches: Vec<(Vec<u32>, Vec<u32>)> = (first..first + plan.gradient_accumulation_steps as u64)
            .map(|i| data.train.batch(i).expect("a batch"))
            .map(|batch| (batch.tokens, batch.targets))
            .collect();
        let lr = length.schedule.lr_at(step);
        let want = reference.train_step(&batches, plan.model.seq_length, lr, &settings, plan.clip);
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
fn tied_biased_normalised_grouped_shape_follows_the_reference() {
    let model = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True, \
                 rotary_interleaved: True, partial_rotary_factor: 0.5, intermediate_size: 37";
    follows_the_reference(&Setup::new("qwen", model));
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
