//! Runs on several ranks against the run of one, which accumulates the micro-batches of all.
//!
//! They overflow and skip spikes together, choose each expert as often, and round an expert by the same bits.

use crate::latent::{RANKS, dense as latent};
use crate::runs::{Setup, Trained, Weights, is_long};
use gristmill::device::Gpu;
use gristmill::report::expert_load::MixtureReport;
use std::collections::BTreeMap;

/// Relative errors that are allowed.
#[derive(Clone, Copy, PartialEq)]
pub struct Bounds {
    pub loss: f64,
    pub norm: f64,
    pub weights: f64,
    /// Steps, from the first, in which each expert is chosen as often as on one rank. Where weights that round the
    /// other way make a router choose otherwise, those before the first update that moves them: that of step 1 has a
    /// rate of 0.
    pub equal_loads: u64,
}

/// Sums of f32 in another order, and what ten steps of AdamW make of that.
pub const DATA_PARALLEL: Bounds = Bounds { loss: 1e-6, norm: 1e-5, weights: 1e-6, equal_loads: STEPS };

/// A gradient that nearly cancels is divided by its own size: of a distance of 1e-6, 99.9 % are one element of a rare
/// token's embedding, which sums in another order move by a hundredth of the learning rate.
const SHARDED_EXPERTS: Bounds = Bounds { weights: 1e-5, ..DATA_PARALLEL };

/// Sums over the rows of an expert are of other lengths, too.
pub const IN_F32: Bounds = Bounds { loss: 1e-5, norm: 1e-5, weights: 1e-5, equal_loads: STEPS };

/// A gradient that differs in its last bit may round the other way.
pub const IN_BF16: Bounds = Bounds { loss: 1e-3, norm: 2e-3, weights: 2e-3, equal_loads: 2 };

/// The same in float16, whose ulp is an eighth.
pub const IN_F16: Bounds = Bounds { loss: 2.5e-4, norm: 1e-3, weights: 1e-3, equal_loads: 2 };

/// A weight that rounds the other way is up to 2^-7 of itself away, and may make a router choose another expert.
pub const ROUNDED_EXPERTS: Bounds = Bounds { loss: 1e-3, norm: 1e-2, weights: 1.0 / 128.0, equal_loads: 2 };

/// Micro-batches of each rank in a step: without accumulation, and with it.
const ACCUMULATED: [usize; 2] = [1, 2];
pub const STEPS: u64 = 10;

/// What ranks share, by the keys that say so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sharing {
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

pub const RECOMPUTED: &[&str] = &["--recompute_config.recompute=True"];
pub const BF16: &[&str] = &["--model.model_config.compute_dtype=bfloat16"];
pub const ROUNDED: &[&str] =
    &["--model.model_config.compute_dtype=bfloat16", "--optimizer.stochastic_rounding=True"];

/// What is shared beside the experts.
const ZERO: &[Sharing] = &[Sharing::Data, Sharing::Optimizer, Sharing::Gradients];

pub fn dense() -> Setup {
    small(Setup::new("dense", "n_kv_heads: 2"))
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

/// With micro-batches of one window.
pub fn small(setup: Setup) -> Setup {
    setup.with(&["--runner_config.batch_size=1"])
}

fn accumulating(setup: Setup, steps: usize) -> Setup {
    setup.with(&[&format!("--runner_config.gradient_accumulation_steps={steps}")])
}

/// How ranks share a run.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub size: usize,
    /// Each matrix is divided among so many of them.
    pub model: usize,
    /// Which share the tokens between these products.
    pub shares_tokens: bool,
    /// And the vocabulary.
    pub shares_vocabulary: bool,
    /// Experts are spread over so many of them.
    pub expert: usize,
    pub sharing: Sharing,
    /// Micro-batches of each in a step.
    pub accumulated: usize,
}

impl Case {
    /// Two ranks that share the data.
    pub const PAIR: Self = Self {
        size: 2,
        model: 1,
        shares_tokens: false,
        shares_vocabulary: false,
        expert: 1,
        sharing: Sharing::Data,
        accumulated: 1,
    };

    /// Every one on 2 and 4 ranks, with and without accumulation.
    fn every(experts: &[usize], sharings: &[Sharing]) -> Vec<Self> {
        let mut cases = Vec::new();
        for (size, accumulated) in
            [2, 4].into_iter().flat_map(|size| ACCUMULATED.map(|accumulated| (size, accumulated)))
        {
            for (&expert, &sharing) in
                experts.iter().flat_map(|expert| sharings.iter().map(move |sharing| (expert, sharing)))
            {
                // A pair of ranks does not hold experts that are spread over four.
                if expert <= size && (expert < 4 || sharing != Sharing::OptimizerInPairs) {
                    cases.push(Self { size, expert, sharing, accumulated, ..Self::PAIR });
                }
            }
        }
        cases
    }

    /// Every one with `GRISTMILL_LONG`, else those of [`mixed`].
    fn all(experts: &[usize], sharings: &[Sharing]) -> Vec<Self> {
        if is_long() { Self::every(experts, sharings) } else { mixed(experts, sharings) }
    }

    /// Micro-batches of a step on all ranks together.
    pub fn micro_batches(&self) -> usize {
        self.size / self.model * self.accumulated
    }

    /// Trains so many steps.
    pub fn train(&self, setup: Setup, gpu: &Gpu, steps: u64) -> Vec<Trained> {
        let degree = |key: &str, degree: usize| format!("--parallel_config.{key}={degree}");
        let mut degrees = vec![
            "--use_parallel=True".to_string(),
            degree("data_parallel", self.size / self.model),
            degree("expert_parallel", self.expert),
            degree("model_parallel", self.model),
        ];
        if self.shares_tokens {
            degrees.push("--parallel_config.use_seq_parallel=True".into());
        }
        if self.shares_vocabulary {
            degrees.push("--parallel_config.vocab_emb_dp=False".into());
        }
        let degrees: Vec<&str> = degrees.iter().map(String::as_str).collect();
        let setup = accumulating(setup, self.accumulated).with(&degrees);
        setup.with(self.sharing.keys()).train_on_one_device(gpu, self.size, steps)
    }

    /// How many ranks may hold an element of a tensor: those that layers read there, or those that update it.
    fn copies(&self, tensor: &str) -> Vec<usize> {
        let data = self.size / self.model;
        let read = if tensor.contains(".experts.") { data / self.expert } else { data };
        let of_data = match self.sharing {
            Sharing::Data => vec![read],
            Sharing::Optimizer | Sharing::Gradients | Sharing::Weights => vec![read, 1],
            Sharing::OptimizerInPairs => vec![read, data / 2],
        };
        // What is not divided is on every rank, and heads that are fewer than these on several.
        let copies = (1..=self.model).filter(|copies| self.model.is_multiple_of(*copies));
        copies.flat_map(|copies| of_data.iter().map(move |of_data| copies * of_data)).collect()
    }
}

/// The same on one rank, which accumulates the micro-batches of all.
pub(super) fn on_one(setup: Setup, gpu: &Gpu, micro_batches: usize, steps: u64) -> Trained {
    accumulating(setup, micro_batches).train_on_one_device(gpu, 1, steps).remove(0)
}

/// Compares what all ranks have with the run of one, and who holds it.
fn compare(name: &str, case: &Case, ranks: &[Trained], one: &Trained, bounds: Bounds) {
    compare_results(name, ranks, one, bounds);
    assert_held(name, case, ranks, &one.weights);
}

/// Compares states, loads and weights of all ranks with those of one.
pub(super) fn compare_results(name: &str, ranks: &[Trained], one: &Trained, bounds: Bounds) {
    // The norm of an overflow is infinite, or no number.
    let relative = |got: f32, want: f32| match want.is_finite() {
        true => (f64::from(got) - f64::from(want)).abs() / f64::from(want),
        false => f64::from(u8::from(got.is_finite())),
    };
    let decisions = |trained: &Trained| -> Vec<_> {
        let states = trained.states.iter();
        states.map(|state| (state.is_overflow, state.halt, state.global_step, state.loss_scale)).collect()
    };
    let bits = |trained: &Trained| format!("{:?}", trained.states);
    let mut worst = Bounds { loss: 0.0, norm: 0.0, weights: 0.0, equal_loads: 0 };
    for (rank, got) in ranks.iter().enumerate() {
        assert_eq!(decisions(got), decisions(one), "{name}: rank {rank} decides otherwise");
        for (got, want) in got.states.iter().zip(&one.states) {
            worst.loss = worst.loss.max(relative(got.loss, want.loss));
            worst.norm = worst.norm.max(relative(got.grad_norm, want.grad_norm));
        }
        worst.weights = worst.weights.max(distance_of_held(&got.weights, &one.weights));
        assert_loads(name, &got.reports, &one.reports, bounds.equal_loads as usize);
        let lengths = |trained: &Trained| trained.local_norms.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(got), lengths(one), "{name}: rank {rank} has other norms");
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
        assert_eq!(bits(got), bits(&ranks[0]), "{name}: rank {rank} has other states than rank 0");
        assert_eq!(got.reports, ranks[0].reports, "{name}: rank {rank} has other loads than rank 0");
    }
    let Bounds { loss, norm, weights, .. } = worst;
    println!("{name}: losses {loss:.1e}, norms {norm:.1e}, weights {weights:.1e} apart");
    assert!(loss <= bounds.loss && norm <= bounds.norm && weights <= bounds.weights, "{name}: too far apart");
}

/// Panics unless as many tokens chose each expert as on one rank, in the first `equal` steps, and as many choices were
/// dropped.
fn assert_loads(name: &str, got: &[MixtureReport], want: &[MixtureReport], equal: usize) {
    assert_eq!(got.len(), want.len(), "{name}: loads of other steps");
    for (step, (got, want)) in got.iter().zip(want).enumerate() {
        let choices = |report: &MixtureReport| -> Vec<_> {
            report.layers.iter().map(|layer| (layer.layer, layer.choices)).collect()
        };
        assert_eq!(choices(got), choices(want), "{name}: choices of other tokens in step {step}");
        assert!(
            !got.layers.is_empty() && got.layers.iter().all(|layer| layer.choices > 0),
            "{name}: no choices"
        );
        let loads = |report: &MixtureReport| -> Vec<_> {
            report.layers.iter().map(|layer| (layer.chosen.clone(), layer.dropped)).collect()
        };
        assert!(step >= equal || loads(got) == loads(want), "{name}: other loads in step {step}");
    }
}

/// Panics unless as many ranks as should hold each element of a tensor do; for the others it is NaN, or an expert of
/// other ranks.
fn assert_held(name: &str, case: &Case, ranks: &[Trained], one: &Weights) {
    for (tensor, values) in one {
        assert!(values.iter().all(|value| value.is_finite()), "{name}: {tensor} of one rank is not finite");
        let parts: Vec<&Vec<f64>> = ranks.iter().filter_map(|rank| rank.weights.get(tensor)).collect();
        let holders = |index: usize| parts.iter().filter(|part| !part[index].is_nan()).count();
        let first = holders(0);
        assert!(case.copies(tensor).contains(&first), "{name}: {first} ranks hold {tensor}");
        // Of fused tensors keys and values may be on more ranks than queries.
        let is_held = |index: usize| match case.model {
            1 => holders(index) == first,
            _ => case.copies(tensor).contains(&holders(index)),
        };
        assert!(
            (1..values.len()).all(is_held),
            "{name}: of {tensor} some elements are held by other than {first} ranks"
        );
    }
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

/// On ranks as the run of one. Returns those of one.
pub fn equals_one(setup: fn() -> Setup, keys: &[&str], cases: &[Case], bounds: Bounds) -> Vec<Trained> {
    let gpu = setup().with(keys).gpu();
    let mut ones: BTreeMap<usize, Trained> = BTreeMap::new();
    for case in cases {
        let micro_batches = case.micro_batches();
        let one = ones
            .entry(micro_batches)
            .or_insert_with(|| on_one(setup().with(keys), &gpu, micro_batches, STEPS));
        let ranks = case.train(setup().with(keys), &gpu, STEPS);
        compare(&format!("{} {keys:?}, {case:?}", setup().name), case, &ranks, one, bounds);
    }
    ones.into_values().collect()
}

/// Two ranks that share in these ways.
fn pairs(expert: usize, sharings: &[Sharing]) -> Vec<Case> {
    sharings.iter().map(|&sharing| Case { expert, sharing, ..Case::PAIR }).collect()
}

/// Those with accumulation; without `GRISTMILL_LONG` on as few ranks as hold the experts.
fn accumulated(experts: &[usize], sharings: &[Sharing]) -> Vec<Case> {
    let is_taken = |case: &Case| case.accumulated > 1 && (is_long() || case.size == case.expert.max(2));
    Case::every(experts, sharings).into_iter().filter(is_taken).collect()
}

/// Two ranks with accumulation and four without, for variants of models that other tests train in every combination.
fn mixed(experts: &[usize], sharings: &[Sharing]) -> Vec<Case> {
    let is_taken = |case: &Case| (case.size == 2) == (case.accumulated > 1);
    Case::every(experts, sharings).into_iter().filter(is_taken).collect()
}

#[test]
fn dense_models_train_as_on_one_rank() {
    equals_one(dense, &[], &Case::all(&[1], &Sharing::ALL), DATA_PARALLEL);
}

#[test]
fn recomputed_dense_models_train_as_on_one_rank() {
    equals_one(dense, RECOMPUTED, &mixed(&[1], &Sharing::ALL), DATA_PARALLEL);
}

#[test]
fn experts_on_every_rank_train_as_on_one_rank() {
    for (keys, cases) in [(&[][..], Case::all as fn(&[usize], &[Sharing]) -> Vec<Case>), (RECOMPUTED, mixed)]
    {
        equals_one(dropless, keys, &cases(&[1], &[Sharing::Data]), DATA_PARALLEL);
        equals_one(dropless, keys, &cases(&[1], &ZERO[1..]), SHARDED_EXPERTS);
    }
    equals_one(capacity, &[], &mixed(&[1], &[Sharing::Data, Sharing::Gradients]), DATA_PARALLEL);
}

#[test]
fn spread_experts_train_as_on_one_rank() {
    equals_one(dropless, &[], &Case::all(&[2, 4], &Sharing::ALL), IN_F32);
}

#[test]
fn recomputed_spread_experts_train_as_on_one_rank() {
    equals_one(dropless, RECOMPUTED, &mixed(&[2, 4], ZERO), IN_F32);
}

#[test]
fn spread_experts_of_a_capacity_train_as_on_one_rank() {
    equals_one(capacity, &[], &Case::all(&[2, 4], &[Sharing::Data, Sharing::Optimizer]), IN_F32);
    equals_one(capacity, RECOMPUTED, &mixed(&[2], &[Sharing::Data, Sharing::Weights]), IN_F32);
}

/// In bf16 each rank has a part of the master weights, and the losses drift apart by roundings.
#[test]
fn models_in_bf16_train_as_on_one_rank() {
    let sharings = [Sharing::Data, Sharing::Optimizer, Sharing::Gradients, Sharing::Weights];
    equals_one(dense, BF16, &mixed(&[1], &sharings), IN_BF16);
    let recomputed = [BF16, RECOMPUTED].concat();
    equals_one(dense, &recomputed, &mixed(&[1], &[Sharing::Data, Sharing::Gradients]), IN_BF16);
    equals_one(dropless, BF16, &mixed(&[2], &[Sharing::Data, Sharing::Gradients]), IN_BF16);
}

/// Weights in bf16 alone, which each rank rounds by the bits of the whole model.
#[test]
fn stochastically_rounded_models_train_as_on_one_rank() {
    let sharings = &[Sharing::Data, Sharing::Optimizer, Sharing::Weights];
    equals_one(dense, ROUNDED, &mixed(&[1], sharings), IN_BF16);
    equals_one(dropless, ROUNDED, &mixed(&[2], sharings), ROUNDED_EXPERTS);
    equals_one(dropless, ROUNDED, &accumulated(&[4], &[Sharing::Data, Sharing::Optimizer]), ROUNDED_EXPERTS);
}

/// The same bits round an expert wherever it is: after three steps, of which two change weights, nearly all of its
/// weights are equal. Other bits would round about a third of them the other way.
#[test]
fn spread_experts_are_rounded_as_on_one_rank() {
    let setup = || dropless().with(ROUNDED);
    let gpu = setup().gpu();
    let one = on_one(setup(), &gpu, 4, 3);
    for sharing in [Sharing::Data, Sharing::Optimizer] {
        let ranks = Case { size: 4, expert: 4, sharing, ..Case::PAIR }.train(setup(), &gpu, 3);
        for (rank, got) in ranks.iter().enumerate() {
            let experts = one.weights.iter().filter(|(tensor, _)| tensor.contains(".experts."));
            let pairs =
                experts.flat_map(|(tensor, want)| got.weights.get(tensor).into_iter().flatten().zip(want));
            let held: Vec<bool> =
                pairs.filter(|(got, _)| !got.is_nan()).map(|(got, want)| got == want).collect();
            let others = held.iter().filter(|is_equal| !**is_equal).count();
            println!("{sharing:?}, rank {rank}: {others} of {} weights of experts differ", held.len());
            assert!(100 * others <= held.len() && !held.is_empty(), "rank {rank} rounds by other bits");
        }
    }
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
        let case = Case { size: 4, expert, sharing, accumulated: 2, ..Case::PAIR };
        let run = || {
            let setup = setup().with(dropout);
            let gpu = setup.gpu();
            case.train(setup, &gpu, STEPS)
        };
        let [first, second] = [run(), run()];
        for (rank, (first, second)) in first.iter().zip(&second).enumerate() {
            let bits = |trained: &Trained| format!("{:?} {:?}", trained.states, trained.weights);
            assert!(bits(first) == bits(second), "rank {rank} of {sharing:?} does not repeat");
        }
    }
}

/// Masks are numbered by micro-batch, so ranks draw those of one.
#[test]
fn dropout_on_ranks_is_that_of_one() {
    let dropout = &["--model.model_config.hidden_dropout=0.1"];
    equals_one(dense, dropout, &Case::all(&[1], &[Sharing::Data]), DATA_PARALLEL);
}

/// Matrices are updated whole, each by one rank.
#[test]
fn muon_on_ranks_is_that_of_one() {
    let muon = &["--optimizer={type: Muon, weight_decay: 0.1}"];
    let sharings = &[Sharing::Optimizer, Sharing::Gradients, Sharing::Weights];
    equals_one(dense, muon, &mixed(&[1], sharings), DATA_PARALLEL);
    equals_one(dropless, muon, &mixed(&[2], &[Sharing::Data, Sharing::Optimizer]), IN_F32);
}

/// Whatever else a step does: a loss scale that adapts, norms of parameters, losses per token, frozen parameters,
/// adapters, blocks that predict further.
#[test]
fn variants_on_ranks_train_as_on_one() {
    let sharded = accumulated(&[1], &[Sharing::Optimizer, Sharing::Weights]);
    let wrapper = "--runner_wrapper={scale_sense: {type: AdaptiveLossScaleUpdateCell}, local_norm: True, \
                   use_clip_grad: True, max_grad_norm: 1.0}";
    equals_one(dense, &[wrapper], &accumulated(&[1], &Sharing::ALL), DATA_PARALLEL);
    equals_one(dropless, &[wrapper], &accumulated(&[2], &[Sharing::Data, Sharing::OptimizerInPairs]), IN_F32);
    equals_one(dense, &["--runner_wrapper.calculate_per_token_loss=True"], &sharded, DATA_PARALLEL);
    equals_one(dense, &["--model.model_config.freeze=[embed_tokens, layers.0]"], &sharded, DATA_PARALLEL);
    let adapters = "--model.model_config.pet_config={pet_type: lora, random_base: True, lora_rank: 4, lora_alpha: 8, target_modules: '.*wq|.*wv'}";
    equals_one(dense, &[adapters], &sharded, DATA_PARALLEL);
    let further = ["--model.model_config.mtp_depth=1", "--model.model_config.mtp_loss_factor=0.3"];
    equals_one(dropless, &further, &accumulated(&[2], &[Sharing::Optimizer, Sharing::Weights]), IN_F32);
}

/// The gradient of a key's bias is zero but for rounding, of which AdamW makes full steps.
pub const SGD: &str = "--optimizer={type: SGD, momentum: 0.9}";

/// The kernels that a GPU runs.
const PORTABLE: &str = "--context.tier=portable";

/// A model, keys, and what ranks share.
type Row<'a> = (fn() -> Setup, &'a [&'a str], Sharing);

/// What else a model may be, in one way of sharing each; in all of them, and on the kernels of GPUs, with
/// `GRISTMILL_LONG`.
#[test]
fn kinds_of_models_on_ranks_train_as_on_one() {
    let groups = "--grouped_lr_schedule={default: {type: CosineWithWarmUpLR, learning_rate: 3.e-3, warmup_steps: 3}, \
                  grouped: [{params: [norm], type: constant_with_warmup, learning_rate: 5.e-3, weight_decay: 0.5}]}";
    let rows: [Row<'_>; 5] = [
        (|| small(Setup::new("tied", "tie_word_embeddings: True")), &[], Sharing::Weights),
        (|| small(Setup::gpt2("gpt2", "")), &[SGD], Sharing::Gradients),
        (|| small(Setup::typed("BloomConfig", "bloom", "")), &[SGD], Sharing::Optimizer),
        (|| small(latent("latent", RANKS)), &[], Sharing::Weights),
        (dense, &[groups], Sharing::Gradients),
    ];
    for (setup, keys, sharing) in rows {
        let sharings = if is_long() { Sharing::ALL.to_vec() } else { vec![sharing] };
        equals_one(setup, keys, &pairs(1, &sharings), DATA_PARALLEL);
        if is_long() {
            equals_one(setup, &[keys, &[PORTABLE]].concat(), &pairs(1, &sharings), DATA_PARALLEL);
        }
    }
}

#[test]
fn portable_kernels_on_ranks_train_as_on_one() {
    let sharings: &[Sharing] =
        if is_long() { &Sharing::ALL } else { &[Sharing::Optimizer, Sharing::Gradients, Sharing::Weights] };
    equals_one(dense, &[PORTABLE], &pairs(1, sharings), DATA_PARALLEL);
    equals_one(dropless, &[PORTABLE], &pairs(2, &[Sharing::Data, Sharing::Optimizer]), IN_F32);
    if is_long() {
        equals_one(capacity, &[PORTABLE], &pairs(2, sharings), IN_F32);
        equals_one(dropless, &[PORTABLE, BF16[0]], &pairs(2, sharings), IN_BF16);
    }
}

/// An overflow of one rank's gradients is that of all: none updates, and the scale falls on all.
#[test]
fn ranks_overflow_together_in_float16() {
    let scale = "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 33554432, scale_window: 2}";
    let keys = ["--model.model_config.compute_dtype=float16", scale];
    for tier in [&[][..], &[PORTABLE]] {
        let keys = [&keys, tier].concat();
        let ones = equals_one(dense, &keys, &pairs(1, &[Sharing::Data, Sharing::Weights]), IN_F16);
        let overflows: u32 = ones[0].states.iter().map(|state| state.is_overflow).sum();
        assert!((1..STEPS as u32).contains(&overflows), "{overflows} of {STEPS} steps overflow");
    }
}

/// A norm is that of all ranks, so all skip the step in which it spikes.
#[test]
fn ranks_skip_a_spike_together() {
    let gpu = dense().gpu();
    let mut norms: Vec<f32> =
        on_one(dense(), &gpu, 2, STEPS).states.iter().map(|state| state.grad_norm).collect();
    norms.sort_by(f32::total_cmp);
    let threshold = format!("--runner_wrapper.global_norm_spike_threshold={}", (norms[7] + norms[8]) / 2.0);
    let keys = ["--use_skip_data_by_global_norm=True", &threshold];
    let ones = equals_one(dense, &keys, &pairs(1, &[Sharing::Data, Sharing::Gradients]), DATA_PARALLEL);
    let skipped = ones[0].states.iter().filter(|state| state.halt != 0).count();
    assert!(skipped > 0 && skipped < STEPS as usize, "{skipped} steps are skipped");
}
