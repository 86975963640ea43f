//! A run on random tokens: what a step costs does not depend on them.

use gristmill::data::{Batches, TokenStream};
use gristmill::random::Philox;
use gristmill::settings::{Override, RunConfig, RunPlan};
use gristmill::train::length::RunLength;
use std::path::Path;
use std::sync::Arc;

/// Plan, data and length of a run.
pub struct RandomRun {
    pub plan: RunPlan,
    pub data: Batches,
    pub length: RunLength,
}

impl RandomRun {
    /// `steps` steps of `plan`.
    pub fn new(plan: RunPlan, steps: usize) -> Self {
        let random = Philox::new(1, 1);
        let tokens = (plan.tokens_per_step * (steps + 2) + 1) as u64;
        // Tokens are bytes even of larger vocabularies.
        let vocabulary = plan.model.vocab_size.min(256) as f64;
        let bytes: Vec<u8> = (0..tokens).map(|i| (random.uniform(i) * vocabulary) as u8).collect();
        let stream = Arc::new(TokenStream::from_bytes(bytes));
        let data = Batches::new(stream, 0..tokens, plan.batch_spec(), None).expect("data");
        let length = RunLength::new(&plan, data.steps_per_epoch());
        Self { plan, data, length }
    }

    /// `steps` steps of a Llama `[V, D, L, H, F, T, B]`: vocabulary, width, layers, heads, feed-forward width, context,
    /// batch, whose layers store `compute`.
    pub fn of_shape([v, d, l, h, f, t, b]: [usize; 7], compute: &str, steps: usize) -> Self {
        let yaml = format!(
            "
model:
  model_config: {{ vocab_size: {v}, hidden_size: {d}, num_layers: {l}, num_heads: {h}, intermediate_size: {f},
                  seq_length: {t}, compute_dtype: {compute} }}
runner_config: {{ batch_size: {b} }}
runner_wrapper: {{ use_clip_grad: True, max_grad_norm: 1.0, scale_sense: 1.0 }}
lr_schedule: {{ type: ConstantWarmUpLR, learning_rate: 1.0e-3 }}
train_dataset: {{ data_loader: {{ type: CargoRegistryDataLoader }} }}
"
        );
        let none: [&str; 0] = [];
        let overrides = Override::parse_all(none).expect("no overrides");
        let config =
            RunConfig::parse(&yaml, Path::new("bench.yaml"), &overrides).unwrap_or_else(|e| panic!("{e}"));
        Self::new(config.plan, steps)
    }
}
