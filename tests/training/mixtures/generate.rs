//! Text from a trained mixture: with cached keys and values, dropless dispatch and the selection biases of the
//! checkpoint, it is the reference's.

use crate::generate::uncached;
use crate::runs::{
    FolderRun, GREEDY, Setup, TensorFile, Weights, newest_checkpoint, open_gpu_of, read_tensors,
    reference_name, reference_shape, trained_model, write_tensors,
};
use gristmill::kernels::Tier;
use gristmill::model::config::Family;
use gristmill::model::selection_bias;
use reference::gpt::Shape;
use reference::mixture::{Capacity, Mixture};
use reference::objective::{Batch, Memories, outcome_and_gradients};
use std::path::PathBuf;

const PROMPTS: [&str; 3] = ["the mill", "a", "stones that grind slowly grind fine, says the miller"];

/// A target that the loss ignores.
const IGNORE: u32 = u32::MAX;

/// Every kind of routing and dispatch; the last two have capacities in training.
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
        Setup::experts("dropless", "expert_num: 4, num_experts_chosen: 2, use_gmm: True", ""),
        Setup::experts("biased", biased, "use_qk_norm: True, n_kv_heads: 2"),
        Setup::experts("slots", slots, "mtp_depth: 1, mtp_loss_factor: 0.3"),
        Setup::experts("hot", hot, "sliding_window: 7"),
    ]
}

/// The weights of the newest checkpoint.
fn weights_file(trained: &FolderRun) -> PathBuf {
    newest_checkpoint(&trained.folder()).expect("a checkpoint").1.join("model.safetensors")
}

/// Reverses and enlarges the selection biases: the trained ones move few choices and no likeliest token.
fn reverse_biases(trained: &FolderRun) {
    let path = weights_file(trained);
    let mut tensors = read_tensors(&path);
    for (_, bias) in tensors.iter_mut().filter(|(name, _)| name.ends_with("e_score_correction_bias")) {
        bias.words = bias.floats().iter().map(|bias| (-20.0 * bias) as f32).map(f32::to_bits).collect();
    }
    write_tensors(&path, &tensors);
}

/// The f64 model of a checkpoint, dropless and without a cache.
struct Reference {
    shape: Shape,
    weights: Weights,
    memories: Memories,
}

impl Reference {
    fn new(trained: &FolderRun) -> Self {
        let mut shape = reference_shape(&trained.setup.plan().model);
        let mixture = shape.mixture.expect("a mixture");
        shape.mixture = Some(Mixture { capacity: None::<Capacity>, ..mixture });
        // Multi-token prediction blocks do not affect the next token.
        shape.multi_token = None;
        let tensors = read_tensors(&weights_file(trained)).into_iter();
        let tensors: TensorFile = tensors.map(|(name, tensor)| (reference_name(&name), tensor)).collect();
        let mut memories = shape.memories();
        for (layer, memory) in &mut memories {
            if let Some(bias) = tensors.get(&selection_bias(Family::Llama, *layer)) {
                memory.bias = bias.floats();
            }
        }
        let values = |name: String| (name.clone(), tensors[&name].floats());
        let weights = shape.parameters().into_iter().map(|(name, _)| values(name)).collect();
        Self { shape, weights, memories }
    }

    /// The likeliest token after `seen`. The loss of a single target is −ln p(target), and the gradient of the head's
    /// row v is (p(v) − 1)·h for the target and p(v)·h for every other token, so one call gives every probability.
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
}

#[test]
fn cached_tokens_are_those_of_the_reference() {
    for setup in shapes() {
        let trained = trained_model(setup);
        reverse_biases(&trained);
        let name = trained.setup.name;
        let reference = Reference::new(&trained);
        let has_bias = reference.memories.values().any(|memory| memory.bias.iter().any(|bias| *bias != 0.0));
        assert_eq!(has_bias, name == "biased", "{name}");
        let (window, prompts) = (trained.setup.plan().model.seq_length, trained.encode(&PROMPTS));
        let write = |reference: &Reference, prompt: &[u32]| {
            uncached(prompt, window, GREEDY.tokens, |seen| reference.next(seen))
        };
        let want: Vec<Vec<u32>> = prompts.iter().map(|prompt| write(&reference, prompt)).collect();
        if has_bias {
            let unbiased = Reference { memories: reference.shape.memories(), ..reference };
            let text = write(&unbiased, &prompts[0]);
            assert!(text != want[0], "the biases do not change the text, so this test does not cover them");
        }
        for tier in Tier::EVERYWHERE {
            let gpu = open_gpu_of(tier);
            // In a batch the experts get tokens of three texts; alone, most experts get none.
            let together = trained.generate(&gpu, &PROMPTS, &GREEDY);
            assert_eq!(together, want, "{name}, {}: together", tier.name());
            let alone = trained.generate(&gpu, &PROMPTS[..1], &GREEDY);
            assert_eq!(alone, want[..1], "{name}, {}: alone", tier.name());
        }
    }
}
