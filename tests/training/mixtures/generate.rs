//! Text from a trained mixture: with cached keys and values, dropless dispatch and the selection biases of the
//! checkpoint, it is the reference's.

use crate::generate::{PROMPTS, Reference, writes_as_alone_and_as_the_reference};
use crate::runs::{
    FolderRun, Setup, in_turn, is_long, newest_checkpoint, read_tensors, trained_model, write_tensors,
};
use gristmill::kernels::Tier;

/// Every kind of routing and dispatch; two have capacities in training, and what the last one has the first has, too.
fn shapes() -> Vec<Setup> {
    let biased = "expert_num: 6, num_experts_chosen: 3, n_group: 3, topk_group: 2, topk_method: noaux_tc, \
                  use_gmm: True, use_gating_sigmoid: True, routed_scaling_factor: 2.5, balance_via_topk_bias: True, \
                  topk_bias_update_rate: 0.05, shared_expert_num: 1, use_shared_expert_gating: True, \
                  first_k_dense_replace: 1";
    let slots = "expert_num: 4, num_experts_chosen: 2, norm_topk_prob: True, routing_policy: TopkRouterV1, \
                 capacity_factor: 0.8";
    let hot = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.2, enable_cold_hot_expert: True, \
               hot_expert_num: 2, cold_token_percent: 0.5, update_step: 100, sparsemixer_jitter_eps: 0.3";
    vec![
        Setup::experts("biased", biased, "use_qk_norm: True, n_kv_heads: 2").wide().with(&["--batch_size=3"]),
        Setup::experts("slots", slots, "mtp_depth: 1, mtp_loss_factor: 0.3"),
        Setup::experts("hot", hot, "sliding_window: 7"),
        Setup::experts("dropless", "expert_num: 4, num_experts_chosen: 2, use_gmm: True", ""),
    ]
}

/// Reverses and enlarges the selection biases: the trained ones move few choices and no likeliest token.
fn reverse_biases(trained: &FolderRun) {
    let (_, checkpoint) = newest_checkpoint(&trained.folder()).expect("a checkpoint");
    let path = checkpoint.join("model.safetensors");
    let mut tensors = read_tensors(&path);
    for (_, bias) in tensors.iter_mut().filter(|(name, _)| name.ends_with("e_score_correction_bias")) {
        bias.words = bias.floats().iter().map(|bias| (-20.0 * bias) as f32).map(f32::to_bits).collect();
    }
    write_tensors(&path, &tensors);
}

/// In a batch the experts get tokens of several texts; alone, most experts get none. The last shape writes with
/// `GRISTMILL_LONG`.
#[test]
fn cached_tokens_are_those_of_the_reference() {
    for (number, setup) in shapes().into_iter().enumerate().take(if is_long() { 4 } else { 3 }) {
        let trained = trained_model(setup);
        reverse_biases(&trained);
        writes_as_alone_and_as_the_reference(&trained, in_turn(number, &Tier::EVERYWHERE));
        let biased = Reference::new(&trained);
        let has_bias = biased.memories.values().any(|memory| memory.bias.iter().any(|bias| *bias != 0.0));
        assert_eq!(has_bias, trained.setup.name == "biased", "{}", trained.setup.name);
        if has_bias {
            let (prompt, window) = (&trained.encode(&PROMPTS)[0], trained.setup.plan().model.seq_length);
            let want = biased.write(prompt, window);
            let unbiased = Reference { memories: biased.shape.memories(), ..biased };
            assert!(unbiased.write(prompt, window) != want, "the biases do not change the text");
        }
    }
}
