//! Text from a trained mixture: with keys and values kept, no token dropped and biases read back, it is the reference's.

mod mixtures;
mod runs;

use gristmill::device::{Gpu, GpuOptions};
use gristmill::generate::{Sampling, Settings};
use gristmill::kernels::Tier;
use gristmill::model::selection_bias;
use gristmill::reference::gpt::Shape;
use gristmill::reference::mixture::{Capacity, Mixture};
use gristmill::reference::objective::{Batch, Memories, outcome_and_gradients};
use gristmill::train::trained::{TrainedModel, TrainedRun};
use mixtures::experts;
use pollster::block_on;
use runs::{Setup, Weights};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// More than two windows of 24: the caches are filled again on the way.
const TOKENS: usize = 60;

const PROMPTS: [&str; 3] = ["the mill", "a", "stones that grind slowly grind fine, says the miller"];

/// A target that the loss leaves out.
const IGNORE: u32 = u32::MAX;

/// All that choice and dispatch can be, the last two with slots in training.
fn shapes() -> Vec<Setup> {
    let biased = "expert_num: 6, num_experts_chosen: 3, n_group: 3, topk_group: 2, topk_method: noaux_tc, \
                  use_gmm: True, use_gating_sigmoid: True, routed_scaling_factor: 2.5, balance_via_topk_bias: True, \
                  topk_bias_update_rate: 0.05, shared_expert_num: 1, use_shared_expert_gating: True, \
                  first_k_dense_replace: 1";
    let slots = "expert_num: 4, num_experts_chosen: 2, norm_topk_prob: True, routing_policy: TopkRouterV1, \
                 capacity_factor: 0.8";
    let hot = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.2, enable_cold_hot_expert: True, \
               hot_expert_num: 2, cold_token_percent: 0.5, update_step: 100";
    vec![
        experts("dropless", "expert_num: 4, num_experts_chosen: 2, use_gmm: True", ""),
        experts("biased", biased, "use_qk_norm: True, n_kv_heads: 2"),
        experts("slots", slots, "mtp_depth: 1, mtp_loss_factor: 0.3"),
        experts("hot", hot, "sliding_window: 7"),
    ]
}

/// Trains 30 steps and returns the run's folder.
fn train(setup: &Setup, home: &Path) -> TrainedRun {
    let output_dir = format!("--output_dir={}", home.display());
    let keys = [
        &output_dir,
        "--stop_step=30",
        "--lr_schedule.learning_rate=1.e-2",
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 15}]",
    ];
    let overrides: Vec<String> = setup.overrides.iter().cloned().chain(keys.map(String::from)).collect();
    block_on(gristmill::train::run(&setup.write(home), &overrides, Arc::default()))
        .unwrap_or_else(|e| panic!("{e}"));
    TrainedRun::open(&home.join(setup.name), &[]).unwrap_or_else(|e| panic!("{e}"))
}

/// Makes the experts that were avoided the chosen ones: trained biases move few choices, and no likeliest token.
fn turn_biases(run: &TrainedRun) {
    let path = run.checkpoint.join("model.safetensors");
    let mut tensors = mixtures::read(&path);
    for (_, bias) in tensors.iter_mut().filter(|(name, _)| name.ends_with("e_score_correction_bias")) {
        bias.words = bias.floats().iter().map(|bias| (-20.0 * bias) as f32).map(f32::to_bits).collect();
    }
    mixtures::write(&path, &tensors);
}

/// The f64 model of a checkpoint: nothing is dropped, nothing is kept from token to token.
struct Reference {
    shape: Shape,
    weights: Weights,
    memories: Memories,
}

impl Reference {
    fn new(setup: &Setup, run: &TrainedRun) -> Self {
        let mut shape = runs::reference_shape(&setup.plan().model);
        let trained = shape.mixture.expect("a mixture");
        shape.mixture = Some(Mixture { capacity: None::<Capacity>, ..trained });
        // What predicts further ahead has no part in the next token.
        shape.multi_token = None;
        let tensors = mixtures::read(&run.checkpoint.join("model.safetensors"));
        let mut memories = shape.memories();
        for (layer, memory) in &mut memories {
            if let Some(bias) = tensors.get(&selection_bias(*layer)) {
                memory.bias = bias.floats();
            }
        }
        let values = |name: String| (name.clone(), tensors[&name].floats());
        let weights = shape.parameters().into_iter().map(|(name, _)| values(name)).collect();
        Self { shape, weights, memories }
    }

    /// The token that is likeliest after `seen`. The loss of one target is −ln of its probability p, and the gradient of
    /// row v of the head (p − 1)·h for the target and p(v)·h for all others, so one call gives every probability.
    fn next(&self, seen: &[u32]) -> u32 {
        let (vocab, width) = (self.shape.vocab_size, self.shape.hidden_size);
        let target = 0;
        let mut targets = vec![IGNORE; seen.len()];
        *targets.last_mut().expect("a token") = target;
        let positions: Vec<u32> = (0..seen.len() as u32).collect();
        let batch = Batch {
            tokens: seen,
            targets: &targets,
            positions: &positions,
            sequence_length: seen.len(),
            ignore: IGNORE,
        };
        let (outcome, gradients) =
            outcome_and_gradients(&self.shape, &self.weights, &self.memories, &batch, 1.0);
        let p_target = (-outcome.loss()).exp();
        let norms = gradients["lm_head.weight"].chunks_exact(width);
        let norms: Vec<f64> = norms.map(|row| row.iter().map(|g| g * g).sum::<f64>().sqrt()).collect();
        assert_eq!(norms.len(), vocab);
        let h = norms[target as usize] / (1.0 - p_target);
        let likelihood = |token: usize| if token == target as usize { p_target } else { norms[token] / h };
        let total: f64 = (0..vocab).map(likelihood).sum();
        assert!((total - 1.0).abs() < 1e-9, "probabilities sum to {total}");
        (0..vocab).max_by(|&a, &b| likelihood(a).total_cmp(&likelihood(b))).expect("tokens") as u32
    }

    /// The likeliest continuation, a whole window for every token.
    fn write(&self, prompt: &[u32], window: usize) -> Vec<u32> {
        let mut text = prompt[prompt.len().saturating_sub(window)..].to_vec();
        let (prompt, mut start) = (text.len(), 0);
        for _ in 0..TOKENS {
            // One that outgrows the window goes on from the last half of it.
            if text.len() - start > window {
                start = text.len() - window.div_ceil(2);
            }
            text.push(self.next(&text[start..]));
        }
        text.split_off(prompt)
    }
}

#[test]
fn cached_tokens_are_those_of_the_reference() {
    for setup in shapes() {
        let home = tempfile::tempdir().expect("a folder");
        let run = train(&setup, home.path());
        turn_biases(&run);
        let reference = Reference::new(&setup, &run);
        let has_bias = reference.memories.values().any(|memory| memory.bias.iter().any(|bias| *bias != 0.0));
        assert_eq!(has_bias, setup.name == "biased", "{}", setup.name);
        let prompts = PROMPTS.map(|prompt| run.codec.encode(prompt).expect("tokens")).to_vec();
        let want: Vec<Vec<u32>> =
            prompts.iter().map(|prompt| reference.write(prompt, setup.plan().model.seq_length)).collect();
        if has_bias {
            let memories = reference.shape.memories();
            let unbiased = Reference { memories, ..reference };
            let text = unbiased.write(&prompts[0], setup.plan().model.seq_length);
            assert!(text != want[0], "biases have no effect on the text, so it proves nothing of them");
        }
        let settings = Settings { tokens: TOKENS, sampling: Sampling::GREEDY, seed: 0, stop: None };
        for tier in Tier::ALL {
            let options = GpuOptions { tier: Some(tier), ..GpuOptions::default() };
            let gpu = block_on(Gpu::request(&options)).unwrap_or_else(|e| panic!("{e}"));
            let write = |prompts: &[Vec<u32>]| {
                let model = block_on(TrainedModel::load(&gpu, &run, prompts.len() as u32));
                let model = model.unwrap_or_else(|e| panic!("{e}"));
                block_on(model.generate(prompts, &settings, |_, _| ControlFlow::Continue(())))
                    .unwrap_or_else(|e| panic!("{e}"))
            };
            // Together, tokens of three texts meet in the experts; alone, most experts have nothing to do.
            assert_eq!(write(&prompts), want, "{}, {}: together", setup.name, tier.name());
            assert_eq!(write(&prompts[..1]), want[..1], "{}, {}: alone", setup.name, tier.name());
        }
    }
}
