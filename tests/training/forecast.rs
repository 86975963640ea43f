//! The memory that a plan forecasts is the memory that training takes.

use crate::runs::{Setup, new_trainer};
use gristmill::train::forecast::Forecast;
use pollster::block_on;

/// Relative error allowed to the forecast.
const ALLOWED: f64 = 0.05;

fn assert_forecast(name: &str, setup: &Setup) {
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    let before = gpu.counters().buffer_bytes;
    let mut trainer = new_trainer(&gpu, &plan, &length);
    // wgpu uploads the initial weights through staging buffers, which it drops once the copies have run.
    block_on(trainer.step(1, &data.train, 0)).expect("a step");
    block_on(trainer.wait()).expect("the device");
    let taken = (gpu.counters().buffer_bytes - before) as f64;
    let forecast = Forecast::new(trainer.recordings()).bytes();
    let error = (forecast as f64 - taken).abs() / taken;
    println!("{name}: forecast {forecast}, taken {taken}, {:.2} % off", 100.0 * error);
    assert!(error <= ALLOWED, "{name}: forecast {forecast}, taken {taken}");
}

#[test]
fn the_forecast_is_the_memory_taken() {
    let shapes: [(&str, &[&str]); 7] = [
        ("default", &[]),
        ("wide", &["--model.model_config.hidden_size=256", "--model.model_config.intermediate_size=700"]),
        ("deep", &["--model.model_config.num_layers=7", "--batch_size=5"]),
        (
            "long window",
            &["--model.model_config.seq_length=512", "--batch_size=1", "--model.model_config.n_kv_heads=2"],
        ),
        (
            "many words",
            &["--model.model_config.vocab_size=5000", "--model.model_config.tie_word_embeddings=True"],
        ),
        ("dropout and Muon", &["--optimizer={type: Muon}", "--model.model_config.hidden_dropout=0.1"]),
        (
            "GPT-2 with a sample",
            &[
                "--model.model_config={type: GPT2Config, vocab_size: 256, n_embd: 48, n_layer: 2, n_head: 4, seq_length: 24}",
                "--sample={prompt: a, tokens: 3}",
            ],
        ),
    ];
    for (name, overrides) in shapes {
        assert_forecast(name, &Setup::new("memory", "").with(overrides));
    }
}

#[test]
fn the_forecast_of_a_mixture_is_the_memory_taken() {
    let grouped = Setup::experts(
        "grouped",
        "expert_num: 6, num_experts_chosen: 2, use_gmm: True, balance_via_topk_bias: True, \
         topk_bias_update_rate: 0.01, aux_loss_types: [expert], aux_loss_factors: [0.01], shared_expert_num: 1",
        "mtp_depth: 1, mtp_loss_factor: 0.3",
    );
    let hot = Setup::experts(
        "hot",
        "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.2, enable_cold_hot_expert: True, \
         hot_expert_num: 2, cold_token_percent: 0.5, update_step: 100, routing_policy: TopkRouterV1",
        "",
    );
    let wide = ["--model.model_config.hidden_size=128", "--batch_size=5"];
    for setup in [grouped, hot.with(&wide)] {
        assert_forecast(setup.name, &setup);
    }
}
