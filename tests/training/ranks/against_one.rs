//! Runs on several ranks against the run of one, which accumulates the micro-batches of all.

use crate::runs::{Setup, Trained, Weights};

/// Relative errors that are allowed.
#[derive(Clone, Copy)]
struct Bounds {
    loss: f64,
    norm: f64,
    weights: f64,
}

/// Sums of f32 in another order, and what ten steps of AdamW make of that.
const DATA_PARALLEL: Bounds = Bounds { loss: 1e-6, norm: 1e-5, weights: 1e-5 };

/// Sums over the rows of an expert are of other lengths, too.
const IN_F32: Bounds = Bounds { loss: 1e-5, norm: 1e-5, weights: 1e-5 };

/// A gradient that differs in its last bit may round the other way.
const IN_BF16: Bounds = Bounds { loss: 1e-3, norm: 2e-3, weights: 2e-3 };

/// Micro-batches of a step, on all ranks together.
const MICRO_BATCHES: usize = 8;
const STEPS: u64 = 10;

/// What ranks share, by the keys that say so.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sharing {
    /// The data alone.
    Data,
    /// Moments and master weights, too.
    Optimizer,
    /// And gradients.
    Gradients,
    /// And weights.
    Weights,
    /// Moments and master weights among two of them each.
    OptimizerInPairs,
}

impl Sharing {
    const ALL: [Self; 5] =
        [Self::Data, Self::Optimizer, Self::Gradients, Self::Weights, Self::OptimizerInPairs];

    fn keys(self) -> &'static [&'static str] {
        const OPTIMIZER: &str = "--parallel.enable_parallel_optimizer=True";
        const GRADIENTS: &str = "--parallel.parallel_optimizer_config.gradient_accumulation_shard=True";
        match self {
            Self::Data => &[],
            Self::Optimizer => &[OPTIMIZER],
            Self::Gradients => &[OPTIMIZER, GRADIENTS],
            Self::Weights => {
                &[OPTIMIZER, GRADIENTS, "--recompute_config.parallel_optimizer_comm_recompute=True"]
            }
            Self::OptimizerInPairs => {
                &[OPTIMIZER, "--parallel.parallel_optimizer_config.optimizer_weight_shard_size=2"]
            }
        }
    }
}

const RECOMPUTED: &[&str] = &["--recompute_config.recompute=True"];

fn dense() -> Setup {
    small(Setup::new("dense", "n_kv_heads: 2"))
}

/// Dropless, with a bias of the choice and a shared expert.
fn dropless() -> Setup {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, shared_expert_num: 1, \
                   use_shared_expert_gating: True, balance_via_topk_bias: True, topk_bias_update_rate: 0.01";
    small(Setup::experts("dropless", routing, ""))
}

/// With capacities that drop choices, and balance losses.
fn capacity() -> Setup {
    let routing = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.0, aux_loss_types: [expert], \
                   aux_loss_factors: [0.01]";
    small(Setup::experts("capacity", routing, ""))
}

/// With micro-batches of one window.
fn small(setup: Setup) -> Setup {
    setup.with(&["--runner_config.batch_size=1"])
}

fn accumulating(setup: Setup, steps: usize) -> Setup {
    setup.with(&[&format!("--runner_config.gradient_accumulation_steps={steps}")])
}

/// Trains on `size` ranks that share as told, with experts over `expert` of them.
fn on_ranks(
    setup: fn() -> Setup,
    keys: &[&str],
    size: usize,
    expert: usize,
    sharing: Sharing,
) -> Vec<Trained> {
    let degrees = [
        "--use_parallel=True".to_string(),
        format!("--parallel_config.data_parallel={size}"),
        format!("--parallel_config.expert_parallel={expert}"),
    ];
    let setup =
        accumulating(setup(), MICRO_BATCHES / size).with(keys).with(&degrees.each_ref().map(String::as_str));
    setup.with(sharing.keys()).train_on_ranks(size, STEPS)
}

fn on_one(setup: fn() -> Setup, keys: &[&str]) -> Trained {
    accumulating(setup(), MICRO_BATCHES).with(keys).train(STEPS)
}

/// Compares what all ranks have with the run of one.
fn compare(name: &str, ranks: &[Trained], one: &Trained, bounds: Bounds) {
    let relative = |got: f32, want: f32| (f64::from(got) - f64::from(want)).abs() / f64::from(want);
    let mut worst = Bounds { loss: 0.0, norm: 0.0, weights: 0.0 };
    for (rank, got) in ranks.iter().enumerate() {
        for (got, want) in got.states.iter().zip(&one.states) {
            worst.loss = worst.loss.max(relative(got.loss, want.loss));
            worst.norm = worst.norm.max(relative(got.grad_norm, want.grad_norm));
        }
        worst.weights = worst.weights.max(distance_of_held(&got.weights, &one.weights));
        assert_eq!(got.local_norms.len(), one.local_norms.len(), "{name}: rank {rank} has other norms");
        for (got, want) in got.local_norms.iter().flatten().zip(one.local_norms.iter().flatten()) {
            let difference = f64::from((got - want).abs());
            assert!(
                difference <= 1e-4 * f64::from(*want) + 1e-12,
                "{name}: rank {rank} has a norm of {got}, not {want}"
            );
        }
        assert!(
            got.states.iter().all(|state| state.loss.is_finite()),
            "{name}: rank {rank} has a loss that is not finite"
        );
        assert_eq!(got.states, ranks[0].states, "{name}: rank {rank} has other states than rank 0");
        assert_eq!(got.reports, ranks[0].reports, "{name}: rank {rank} has other loads than rank 0");
    }
    let Bounds { loss, norm, weights } = worst;
    println!("{name}: losses {loss:.1e}, norms {norm:.1e}, weights {weights:.1e} apart");
    assert!(loss <= bounds.loss && norm <= bounds.norm && weights <= bounds.weights, "{name}: too far apart");
}

/// ‖a − b‖ / ‖b‖ over what a rank holds: some experts, and of sharded tensors some elements.
fn distance_of_held(got: &Weights, want: &Weights) -> f64 {
    let pairs = || {
        let tensors = got.iter().map(|(name, got)| got.iter().zip(&want[name]));
        tensors.flatten().filter(|(got, _)| !got.is_nan())
    };
    let difference: f64 = pairs().map(|(got, want)| (got - want) * (got - want)).sum();
    let norm: f64 = pairs().map(|(_, want)| want * want).sum();
    assert!(norm > 0.0, "a rank holds something");
    (difference / norm).sqrt()
}

/// On 2 and 4 ranks, as the run of one with `keys`.
fn equals_one(setup: fn() -> Setup, keys: &[&str], experts: &[usize], sharings: &[Sharing], bounds: Bounds) {
    let one = on_one(setup, keys);
    for (size, &expert) in
        [2, 4].into_iter().flat_map(|size| experts.iter().map(move |expert| (size, expert)))
    {
        // A pair of ranks does not hold experts that are spread over four.
        let is_possible =
            |sharing: &&Sharing| expert <= size && (expert < 4 || **sharing != Sharing::OptimizerInPairs);
        for &sharing in sharings.iter().filter(is_possible) {
            let ranks = on_ranks(setup, keys, size, expert, sharing);
            let name = setup().name;
            compare(
                &format!("{name} {keys:?} on {size}, experts over {expert}, {sharing:?}"),
                &ranks,
                &one,
                bounds,
            );
        }
    }
}

#[test]
fn dense_models_train_as_on_one_rank() {
    equals_one(dense, &[], &[1], &Sharing::ALL, DATA_PARALLEL);
}

#[test]
fn recomputed_dense_models_train_as_on_one_rank() {
    equals_one(
        dense,
        RECOMPUTED,
        &[1],
        &[Sharing::Data, Sharing::Gradients, Sharing::Weights],
        DATA_PARALLEL,
    );
}

#[test]
fn experts_on_every_rank_train_as_on_one_rank() {
    equals_one(capacity, &[], &[1], &[Sharing::Data, Sharing::Gradients], DATA_PARALLEL);
}

#[test]
fn spread_experts_train_as_on_one_rank() {
    equals_one(dropless, &[], &[2, 4], &Sharing::ALL, IN_F32);
    equals_one(capacity, &[], &[2, 4], &[Sharing::Data, Sharing::Optimizer], IN_F32);
}

#[test]
fn recomputed_spread_experts_train_as_on_one_rank() {
    equals_one(dropless, RECOMPUTED, &[2, 4], &[Sharing::Data, Sharing::Gradients], IN_F32);
}

/// In bf16 each rank has a part of the master weights, and the losses drift apart by roundings.
#[test]
fn models_in_bf16_train_as_on_one_rank() {
    let bf16 = &["--model.model_config.compute_dtype=bfloat16"];
    equals_one(dense, bf16, &[1], &[Sharing::Data, Sharing::Optimizer, Sharing::Weights], IN_BF16);
    equals_one(dropless, bf16, &[2], &[Sharing::Gradients], IN_BF16);
}

/// Bit for bit, whatever the threads of the ranks do first.
#[test]
fn runs_on_ranks_repeat() {
    let dropout = &["--model.model_config.hidden_dropout=0.1"];
    for (setup, expert, sharing) in [
        (dense as fn() -> Setup, 1, Sharing::Data),
        (dense, 1, Sharing::Gradients),
        (dropless, 2, Sharing::OptimizerInPairs),
        (capacity, 4, Sharing::Weights),
    ] {
        let [first, second] = [0; 2].map(|_| on_ranks(setup, dropout, 4, expert, sharing));
        for (rank, (first, second)) in first.iter().zip(&second).enumerate() {
            let bits = |trained: &Trained| format!("{:?} {:?}", trained.states, trained.weights);
            assert!(bits(first) == bits(second), "rank {rank} of {sharing:?} does not repeat");
        }
    }
}

/// Masks are numbered by micro-batch, so ranks draw those of one.
#[test]
fn dropout_on_ranks_is_that_of_one() {
    equals_one(dense, &["--model.model_config.hidden_dropout=0.1"], &[1], &[Sharing::Data], DATA_PARALLEL);
}

/// Matrices are updated whole, each by one rank.
#[test]
fn muon_on_ranks_is_that_of_one() {
    let muon = &["--optimizer={type: Muon, weight_decay: 0.1}"];
    equals_one(dense, muon, &[1], &[Sharing::Optimizer, Sharing::Gradients, Sharing::Weights], IN_F32);
    equals_one(dropless, muon, &[2], &[Sharing::Data, Sharing::Optimizer], IN_F32);
}

/// Whatever else a step does: weights in bfloat16 alone, a loss scale that adapts, blocks that predict further, norms of parameters,
/// frozen ones, adapters, losses per token.
#[test]
fn variants_on_ranks_train_as_on_one() {
    let sharded = &[Sharing::Optimizer, Sharing::Weights];
    let rounded = ["--model.model_config.compute_dtype=bfloat16", "--optimizer.stochastic_rounding=True"];
    equals_one(dense, &rounded, &[1], sharded, IN_BF16);
    let wrapper = "--runner_wrapper={scale_sense: {type: AdaptiveLossScaleUpdateCell}, local_norm: True, \
                   use_clip_grad: True, max_grad_norm: 1.0}";
    equals_one(dense, &[wrapper], &[1], &Sharing::ALL, DATA_PARALLEL);
    equals_one(dropless, &[wrapper], &[2], &[Sharing::Data, Sharing::OptimizerInPairs], IN_F32);
    equals_one(dense, &["--runner_wrapper.calculate_per_token_loss=True"], &[1], sharded, DATA_PARALLEL);
    equals_one(
        dense,
        &["--model.model_config.freeze=[embed_tokens, layers.0]"],
        &[1],
        sharded,
        DATA_PARALLEL,
    );
    let adapters = "--model.model_config.pet_config={pet_type: lora, lora_rank: 4, lora_alpha: 8, target_modules: '.*wq|.*wv'}";
    equals_one(dense, &[adapters], &[1], sharded, DATA_PARALLEL);
    let further = ["--model.model_config.mtp_depth=1", "--model.model_config.mtp_loss_factor=0.3"];
    equals_one(dropless, &further, &[2], sharded, IN_F32);
}
