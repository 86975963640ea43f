//! A run that was stopped and resumed equals, bit for bit, the run that was never stopped.

use crate::runs::{STEPS, Setup, evaluated, resumable, uninterrupted};

#[test]
fn twenty_steps_and_twenty_more_are_forty() {
    let want = uninterrupted();
    uninterrupted().assert_equals("a second run", &want);
    // Stops coincide with evaluations, because the last step of a run is always evaluated.
    resumable(1000, &[]).train(20).train(STEPS).left().assert_equals("20 and 20", &want);
    let often = resumable(4, &[]);
    often
        .train(5)
        .train(10)
        .train(20)
        .train(STEPS)
        .train(STEPS)
        .left()
        .assert_equals("5, 10, 20 and 40 steps", &want);
}

/// With moments that some parameters lack, and groups with their own rates.
#[test]
fn muon_groups_and_frozen_parameters_resume_exactly() {
    let overrides = [
        "--optimizer={type: Muon}",
        "--grouped_lr_schedule={default: {type: linear, learning_rate: 3.e-3}, \
         grouped: [{params: ['layers.1'], type: cosine, learning_rate: 1.e-3}]}",
        "--model.model_config.freeze=['layers.0.feed_forward']",
    ];
    let want = resumable(1000, &overrides).train(10).left();
    resumable(1000, &overrides).train(5).train(10).left().assert_equals("5 and 5 with Muon", &want);
}

/// Masks depend on the step's number, not on what was drawn before.
#[test]
fn a_run_with_dropout_resumes_exactly() {
    let dropout = [
        "--model.model_config.attention_dropout=0.1",
        "--model.model_config.hidden_dropout=0.1",
        "--model.model_config.emb_dropout_prob=0.1",
    ];
    let want = resumable(STEPS, &dropout).train(STEPS).left();
    assert!(want.metrics[0].loss != uninterrupted().metrics[0].loss, "dropout does not change the loss");
    resumable(1000, &dropout).train(5).train(STEPS).left().assert_equals("with dropout, 5 and 35", &want);
}

/// What layers read is rounded again from the master weights.
#[test]
fn a_run_in_16_bits_resumes_exactly() {
    let compute = ["--model.model_config.compute_dtype=bfloat16"];
    let want = resumable(1000, &compute).train(10).left();
    resumable(1000, &compute).train(5).train(10).left().assert_equals("5 and 5 in bfloat16", &want);
}

/// A checkpoint stores most of GPT-2's matrices transposed: saving and loading must give the same ones back.
#[test]
fn a_gpt2_shape_resumes_exactly_and_is_saved_as_one() {
    let model = "--model.model_config={type: GPT2Config, vocab_size: 256, n_embd: 48, n_layer: 2, n_head: 4, \
                 seq_length: 24, n_positions: 30}";
    let new = || evaluated(Setup::new("resumed", "").with(&[model]), 1000, &[]);
    let want = new().train(10).left();
    new().train(5).train(10).left().assert_equals("gpt2, 5 and 5", &want);
    let json = |file: &str| -> serde_json::Value {
        serde_json::from_slice(&want.checkpoint[file]).expect("a file of JSON")
    };
    let config = json("config.json");
    assert_eq!(config["architectures"][0], "GPT2LMHeadModel");
    assert_eq!((&config["n_positions"], &config["n_inner"]), (&30.into(), &192.into()));
    let model =
        safetensors::SafeTensors::deserialize(&want.checkpoint["model.safetensors"]).expect("tensors");
    for (name, shape) in [
        ("wte.weight", &[256, 48][..]),
        ("wpe.weight", &[30, 48]),
        ("h.1.attn.c_attn.weight", &[48, 144]),
        ("h.1.attn.c_attn.bias", &[144]),
        ("h.1.mlp.c_proj.weight", &[192, 48]),
        ("ln_f.bias", &[48]),
    ] {
        let tensor = model.tensor(&format!("transformer.{name}")).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(tensor.shape(), shape, "{name}");
    }
}

/// A constant rate does not know how long the run is.
#[test]
fn a_run_whose_rates_do_not_depend_on_its_length_can_be_made_longer() {
    let constant = "--lr_schedule={type: ConstantWarmUpLR, learning_rate: 3.e-3, warmup_steps: 3}";
    let want = resumable(1000, &[constant, "--epochs=4"]).train(15).left();
    let mut run = resumable(1000, &[constant, "--epochs=2"]);
    run.train(10);
    run.setup.overrides.push("--epochs=4".into());
    run.train(15).left().assert_equals("two epochs and another one", &want);
}
