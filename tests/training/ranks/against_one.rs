//! Ranks that share a batch, and what they share beside it, against the run of one.
//!
//! They overflow and skip spikes together, choose each expert as often, and round an expert by the same bits.

use super::spread::{DATA, IN_PAIRS, Keys, Spread, WEIGHTS, ZERO_1, ZERO_2};
use super::trial::{
    Bounds, DATA_PARALLEL, IN_BF16, IN_F32, Model, OVERFLOWS, PLAIN, ROUNDED_EXPERTS, SHARDED_EXPERTS,
    Variation, on_one, train_as_one,
};
use crate::latent::{RANKS, dense as latent};
use crate::runs::{Setup, in_turn, is_long};

const PAIR: Spread = Spread { data: 2, ..Spread::ONE };
const FOUR: Spread = Spread { data: 4, ..Spread::ONE };

const ALL: [Keys; 5] = [DATA, ZERO_1, ZERO_2, WEIGHTS, IN_PAIRS];

pub const RECOMPUTED: &[&str] = &["--recompute_config.recompute=True"];
pub const BF16: &[&str] = &["--model.model_config.compute_dtype=bfloat16"];
pub const ROUNDED: &[&str] =
    &["--model.model_config.compute_dtype=bfloat16", "--optimizer.stochastic_rounding=True"];

/// The gradient of a key's bias is zero but for rounding, of which AdamW makes full steps.
pub const SGD: &str = "--optimizer={type: SGD, momentum: 0.9}";

/// The kernels that a GPU runs.
const PORTABLE: &str = "--context.tier=portable";

pub fn dense() -> Setup {
    small(Setup::new("dense", "n_kv_heads: 2"))
}

/// Whose layers differ in window and rotation.
pub fn layers() -> Setup {
    small(Setup::of_layers("layers", ""))
}

/// Dropless, with a bias of the choice and a shared expert.
pub fn dropless() -> Setup {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, shared_expert_num: 1, \
                   use_shared_expert_gating: True, balance_via_topk_bias: True, topk_bias_update_rate: 0.01";
    small(Setup::experts("dropless", routing, ""))
}

/// With capacities that drop choices, and balance losses.
pub fn capacity() -> Setup {
    let routing = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.0, aux_loss_types: [expert], \
                   aux_loss_factors: [0.01]";
    small(Setup::experts("capacity", routing, ""))
}

/// With sinks, and router and experts that have biases.
pub fn gpt_oss() -> Setup {
    small(Setup::gpt_oss("gpt-oss", "")).with(&["--moe_config.moe_intermediate_size=40"])
}

/// With sinks and more keys in one layer, whose experts have a bias of the choice, and values of another width.
pub fn mimo() -> Setup {
    small(Setup::mimo("mimo", "")).with(&["--moe_config.moe_intermediate_size=40"])
}

/// With experts beside dense networks.
pub fn beside_dense() -> Setup {
    small(Setup::beside_dense("beside", ""))
}

/// A rotation by the length of texts, which windows exceed, and clipped projections.
pub const BY_LENGTH: [&str; 2] = [
    "--model.model_config.clip_qkv=0.75",
    "--model.model_config.rope_scaling={rope_type: longrope, original_max_position_embeddings: 8, \
     short_factor: [1, 1, 1, 1], long_factor: [2, 3, 4, 5]}",
];

/// With micro-batches of one window.
pub fn small(setup: Setup) -> Setup {
    setup.with(&["--runner_config.batch_size=1"])
}

/// Those that share each of these: two ranks with accumulation and four without.
fn both(experts: &[usize], shared: &[Keys]) -> Vec<Spread> {
    let of = |expert: usize, keys: Keys| {
        let sizes = [2, 4].into_iter().filter(move |data| *data >= expert);
        sizes.map(move |data| Spread { data, expert, keys, ..Spread::ONE })
    };
    let all = experts.iter().flat_map(|expert| shared.iter().flat_map(move |keys| of(*expert, keys)));
    // A pair of ranks does not hold experts that are spread over four.
    all.filter(|spread| spread.expert < 4 || spread.keys != IN_PAIRS).collect()
}

/// Two of them or four in turns, and both with `GRISTMILL_LONG`.
fn in_turns(experts: &[usize], shared: &[Keys]) -> Vec<Spread> {
    let is_taken = |spread: &Spread| {
        let number = shared.iter().position(|keys| *keys == spread.keys).expect("one of these");
        let size = if number.is_multiple_of(2) { 2 } else { 4 };
        is_long() || spread.data == size.max(spread.expert)
    };
    both(experts, shared).into_iter().filter(is_taken).collect()
}

/// On ranks as the run of one.
fn equals_one(model: Model, keys: &[&str], spreads: &[Spread], bounds: Bounds) {
    train_as_one(model, spreads, &Variation { keys, bounds, ..PLAIN });
}

/// Two ranks.
fn pairs(expert: usize, shared: &[Keys]) -> Vec<Spread> {
    shared.iter().map(|keys| Spread { expert, keys, ..PAIR }).collect()
}

#[test]
fn dense_models_train_as_on_one_rank() {
    equals_one(dense, &[], &both(&[1], &ALL), DATA_PARALLEL);
    equals_one(dense, RECOMPUTED, &in_turns(&[1], &ALL), DATA_PARALLEL);
}

#[test]
fn experts_on_every_rank_train_as_on_one_rank() {
    equals_one(dropless, &[], &both(&[1], &[DATA]), DATA_PARALLEL);
    equals_one(dropless, RECOMPUTED, &in_turns(&[1], &[DATA]), DATA_PARALLEL);
    equals_one(dropless, &[], &both(&[1], &[ZERO_1, ZERO_2]), SHARDED_EXPERTS);
    equals_one(dropless, RECOMPUTED, &in_turns(&[1], &[ZERO_1, ZERO_2]), SHARDED_EXPERTS);
    equals_one(capacity, &[], &in_turns(&[1], &[DATA, ZERO_2]), DATA_PARALLEL);
}

#[test]
fn spread_experts_train_as_on_one_rank() {
    equals_one(dropless, &[], &in_turns(&[2, 4], &ALL), IN_F32);
    equals_one(dropless, RECOMPUTED, &in_turns(&[2, 4], &[DATA, ZERO_1, ZERO_2]), IN_F32);
    equals_one(gpt_oss, &[], &pairs(2, &[ZERO_2]), IN_F32);
    equals_one(beside_dense, &[], &pairs(2, &[ZERO_1]), IN_F32);
}

#[test]
fn spread_experts_of_a_capacity_train_as_on_one_rank() {
    equals_one(capacity, &[], &both(&[2, 4], &[DATA, ZERO_1]), IN_F32);
    equals_one(capacity, RECOMPUTED, &in_turns(&[2], &[DATA, WEIGHTS]), IN_F32);
}

/// In bf16 each rank has a part of the master weights, and the losses drift apart by roundings.
#[test]
fn models_in_bf16_train_as_on_one_rank() {
    equals_one(dense, BF16, &in_turns(&[1], &ALL[..4]), IN_BF16);
    let recomputed = [BF16, RECOMPUTED].concat();
    equals_one(dense, &recomputed, &in_turns(&[1], &[DATA, ZERO_2]), IN_BF16);
    equals_one(dropless, BF16, &in_turns(&[2], &[DATA, ZERO_2]), IN_BF16);
}

/// Weights in bf16 alone, which each rank rounds by the bits of the whole model.
#[test]
fn stochastically_rounded_models_train_as_on_one_rank() {
    equals_one(dense, ROUNDED, &in_turns(&[1], &[DATA, ZERO_1, WEIGHTS]), IN_BF16);
    equals_one(dropless, ROUNDED, &in_turns(&[2], &[DATA, ZERO_1, WEIGHTS]), ROUNDED_EXPERTS);
    equals_one(dropless, ROUNDED, &in_turns(&[4], &[DATA, ZERO_1]), ROUNDED_EXPERTS);
}

/// The same bits round an expert wherever it is: after three steps, of which two change weights, nearly all of its
/// weights are equal. Other bits would round about a third of them the other way.
#[test]
fn spread_experts_are_rounded_as_on_one_rank() {
    let setup = || dropless().with(ROUNDED);
    let gpu = setup().gpu();
    let one = on_one(setup(), &gpu, 4, 3);
    for keys in [DATA, ZERO_1] {
        let spread = Spread { expert: 4, keys, ..FOUR };
        let ranks = spread.setup(setup(), 4).train_on_one_device(&gpu, 4, 3);
        for (rank, got) in ranks.iter().enumerate() {
            let experts = one.weights.iter().filter(|(tensor, _)| tensor.contains(".experts."));
            let pairs =
                experts.flat_map(|(tensor, want)| got.weights.get(tensor).into_iter().flatten().zip(want));
            let held: Vec<bool> =
                pairs.filter(|(got, _)| !got.is_nan()).map(|(got, want)| got == want).collect();
            let others = held.iter().filter(|is_equal| !**is_equal).count();
            println!("{keys:?}, rank {rank}: {others} of {} weights of experts differ", held.len());
            assert!(100 * others <= held.len() && !held.is_empty(), "rank {rank} rounds by other bits");
        }
    }
}

/// Masks are numbered by micro-batch, so ranks draw those of one.
#[test]
fn dropout_on_ranks_is_that_of_one() {
    equals_one(dense, &["--model.model_config.hidden_dropout=0.1"], &both(&[1], &[DATA]), DATA_PARALLEL);
}

/// Matrices are updated whole, each by one rank.
#[test]
fn muon_on_ranks_is_that_of_one() {
    let muon = &["--optimizer={type: Muon, weight_decay: 0.1}"];
    equals_one(dense, muon, &in_turns(&[1], &[ZERO_1, ZERO_2, WEIGHTS]), DATA_PARALLEL);
    equals_one(dropless, muon, &in_turns(&[2], &[DATA, ZERO_1]), IN_F32);
}

/// Whatever else a step does: a loss scale that adapts, norms of parameters, losses per token, frozen parameters,
/// adapters, blocks that predict further.
#[test]
fn variants_on_ranks_train_as_on_one() {
    let sharded = pairs(1, &[ZERO_1, WEIGHTS]);
    let wrapper = "--runner_wrapper={scale_sense: {type: AdaptiveLossScaleUpdateCell}, local_norm: True, \
                   use_clip_grad: True, max_grad_norm: 1.0}";
    equals_one(dense, &[wrapper], &pairs(1, &ALL), DATA_PARALLEL);
    equals_one(dropless, &[wrapper], &pairs(2, &[DATA, IN_PAIRS]), IN_F32);
    equals_one(dense, &["--runner_wrapper.calculate_per_token_loss=True"], &sharded, DATA_PARALLEL);
    equals_one(dense, &["--model.model_config.freeze=[embed_tokens, layers.0]"], &sharded, DATA_PARALLEL);
    let adapters = "--model.model_config.pet_config={pet_type: lora, random_base: True, lora_rank: 4, lora_alpha: 8, target_modules: '.*wq|.*wv'}";
    equals_one(dense, &[adapters], &sharded, DATA_PARALLEL);
    let further = ["--model.model_config.mtp_depth=1", "--model.model_config.mtp_loss_factor=0.3"];
    equals_one(dropless, &further, &pairs(2, &[ZERO_1, WEIGHTS]), IN_F32);
}

/// What else a model may be, in one way of sharing each; in all of them, and on the kernels of GPUs, with
/// `GRISTMILL_LONG`.
#[test]
fn kinds_of_models_on_ranks_train_as_on_one() {
    let groups = "--grouped_lr_schedule={default: {type: CosineWithWarmUpLR, learning_rate: 3.e-3, warmup_steps: 3}, \
                  grouped: [{params: [norm], type: constant_with_warmup, learning_rate: 5.e-3, weight_decay: 0.5}]}";
    let rows: [(Model, &[&str], Keys); 6] = [
        (|| small(Setup::new("tied", "tie_word_embeddings: True")), &BY_LENGTH, WEIGHTS),
        (|| small(Setup::gpt2("gpt2", "")), &[SGD], ZERO_2),
        (|| small(Setup::typed("BloomConfig", "bloom", "")), &[SGD], ZERO_1),
        (|| small(latent("latent", RANKS)), &[], WEIGHTS),
        (dense, &[groups], ZERO_2),
        (layers, &[], WEIGHTS),
    ];
    for (model, keys, shared) in rows {
        if is_long() {
            equals_one(model, keys, &pairs(1, &ALL), DATA_PARALLEL);
            equals_one(model, &[keys, &[PORTABLE]].concat(), &pairs(1, &ALL), DATA_PARALLEL);
        } else {
            equals_one(model, keys, &pairs(1, &[shared]), DATA_PARALLEL);
        }
    }
}

#[test]
#[ignore = "long; `kernels_of_gpus` has ranks that share matrices"]
fn portable_kernels_on_ranks_train_as_on_one() {
    equals_one(dense, &[PORTABLE], &pairs(1, in_turn(3, &ALL)), DATA_PARALLEL);
    equals_one(dropless, &[PORTABLE], &pairs(2, &[DATA, ZERO_1]), IN_F32);
    if is_long() {
        equals_one(capacity, &[PORTABLE], &pairs(2, &ALL), IN_F32);
        equals_one(dropless, &[PORTABLE, BF16[0]], &pairs(2, &ALL), IN_BF16);
    }
}

/// An overflow of one rank's gradients is that of all: none updates, and the scale falls on all.
#[test]
fn ranks_overflow_together_in_float16() {
    train_as_one(dense, &pairs(1, &[DATA, WEIGHTS]), &OVERFLOWS);
    let portable = [OVERFLOWS.keys, &[PORTABLE]].concat();
    train_as_one(dense, &pairs(1, &[DATA, WEIGHTS]), &Variation { keys: &portable, ..OVERFLOWS });
}

/// A norm is that of all ranks, so all skip the step in which it spikes.
#[test]
fn ranks_skip_a_spike_together() {
    let one = on_one(dense(), &dense().gpu(), 2, 10);
    let mut norms: Vec<f32> = one.states.iter().map(|state| state.grad_norm).collect();
    norms.sort_by(f32::total_cmp);
    let threshold = format!("--runner_wrapper.global_norm_spike_threshold={}", (norms[7] + norms[8]) / 2.0);
    let skips = Variation {
        keys: &["--use_skip_data_by_global_norm=True", &threshold],
        micro_batches: 2,
        steps: [10; 2],
        bounds: DATA_PARALLEL,
        judge: |one| {
            let skipped = one.states.iter().filter(|state| state.halt != 0).count();
            assert!((1..one.states.len()).contains(&skipped), "{skipped} steps are skipped");
        },
        ..PLAIN
    };
    train_as_one(dense, &pairs(1, &[DATA, ZERO_2]), &skips);
}
