//! Pipelines of stages against the run of one rank that accumulates the same micro-batches.
//!
//! Sums over micro-batches have another order, since a stage takes its backward halves in turns with forward ones; and what both
//! ends of a pipeline hold is summed there first.

use super::against_one::{Bounds, DATA_PARALLEL, IN_BF16, IN_F16, IN_F32, compare_results, on_one};
use crate::latent::{RANKS, V3, deepseek};
use crate::runs::{Setup, Trained, is_long, on_ranks};
use gristmill::device::Gpu;
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use pollster::block_on;

const STEPS: u64 = 10;

/// How a run is spread.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    stages: usize,
    /// Chunks of each stage.
    interleaves: usize,
    /// Pipelines that share the batch.
    data: usize,
    /// Ranks of a stage that share each matrix.
    model: usize,
    /// Micro-batches of each in a step.
    micro_batches: usize,
    /// Further keys that say what ranks share.
    keys: &'static [&'static str],
}

const PAIR: Spread = Spread { stages: 2, interleaves: 1, data: 1, model: 1, micro_batches: 4, keys: &[] };
const FOUR: Spread = Spread { stages: 4, ..PAIR };
const INTERLEAVED: Spread = Spread { interleaves: 2, ..PAIR };
const PAIRS: Spread = Spread { data: 2, micro_batches: 2, ..PAIR };

const OPTIMIZER: &str = "--parallel.enable_parallel_optimizer=True";
const GRADIENTS: &str = "--parallel.parallel_optimizer_config.gradient_accumulation_shard=True";
const WEIGHTS: &str = "--recompute_config.parallel_optimizer_comm_recompute=True";

impl Spread {
    fn ranks(&self) -> usize {
        self.stages * self.data * self.model
    }

    fn setup(&self, setup: Setup) -> Setup {
        let degrees = [
            "--use_parallel=True".to_string(),
            format!("--parallel_config.pipeline_stage={}", self.stages),
            format!("--parallel_config.data_parallel={}", self.data),
            format!("--parallel_config.model_parallel={}", self.model),
            format!("--parallel_config.micro_batch_num={}", self.micro_batches),
            format!("--parallel_config.pp_interleave_num={}", self.interleaves),
            format!("--parallel.pipeline_config.pipeline_interleave={}", self.interleaves > 1),
        ];
        setup.with(&degrees.each_ref().map(String::as_str)).with(self.keys)
    }

    fn train(&self, setup: Setup, gpu: &Gpu, steps: u64) -> Vec<Trained> {
        self.setup(setup).train_on_one_device(gpu, self.ranks(), steps)
    }
}

fn small(setup: Setup, layers: usize) -> Setup {
    let layers = format!("--model.model_config.num_layers={layers}");
    setup.with(&["--runner_config.batch_size=1", &layers])
}

fn llama() -> Setup {
    small(Setup::new("llama", "n_kv_heads: 2"), 4)
}

/// With positions and a tied head.
fn gpt2() -> Setup {
    small(Setup::gpt2("gpt2", ""), 2).with(&[SGD])
}

/// The gradient of a key's bias is zero but for rounding, of which AdamW makes full steps.
const SGD: &str = "--optimizer={type: SGD, momentum: 0.9}";

fn mixture() -> Setup {
    let routing = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.0, aux_loss_types: [expert], \
                   aux_loss_factors: [0.01], shared_expert_num: 1, balance_via_topk_bias: True, \
                   topk_bias_update_rate: 0.01";
    small(Setup::experts("mixture", routing, ""), 4)
}

/// Latent attention, experts in groups, and a block that predicts ahead, which reads the embedding on the last stage.
fn deepseek_v3() -> Setup {
    small(deepseek("deepseek", "DeepseekV3Config", &format!("{RANKS}, {V3}")), 3)
}

/// On each spread as on one rank: states and loads on all ranks, and the weights that each holds. Returns those of one.
fn equals_one(setup: fn() -> Setup, keys: &[&str], spreads: &[Spread], bounds: Bounds) -> Vec<Trained> {
    let gpu = setup().with(keys).gpu();
    let mut ones = Vec::new();
    for spread in spreads {
        let one = on_one(setup().with(keys), &gpu, spread.data * spread.micro_batches, STEPS);
        let ranks = spread.train(setup().with(keys), &gpu, STEPS);
        let name = format!("{} {keys:?}, {spread:?}", setup().name);
        compare_results(&name, &ranks, &one, bounds);
        assert_held(&name, spread, &ranks, &one);
        ones.push(one);
    }
    ones
}

/// Panics unless every tensor is on one stage, but for an embedding that both ends read.
fn assert_held(name: &str, spread: &Spread, ranks: &[Trained], one: &Trained) {
    for tensor in one.weights.keys() {
        let holds = |rank: &usize| ranks[*rank].weights.contains_key(tensor);
        let holders: Vec<usize> = (0..ranks.len()).filter(holds).collect();
        let mut stages: Vec<usize> = holders.iter().map(|rank| rank / (spread.data * spread.model)).collect();
        stages.dedup();
        // Experts may be spread over the ranks of a stage.
        let is_whole =
            holders.len() == stages.len() * spread.data * spread.model || tensor.contains(".experts.");
        assert!(is_whole, "{name}: {tensor} is on ranks {holders:?}");
        let is_shared = tensor.contains("embed_tokens") || tensor.contains("wte");
        assert!(
            stages.len() == 1 || (is_shared && stages.len() == 2),
            "{name}: {tensor} is on stages {stages:?}"
        );
    }
}

#[test]
fn two_stages_train_as_one_rank() {
    equals_one(llama, &[], &[PAIR], DATA_PARALLEL);
}

#[test]
fn ends_that_share_an_embedding_train_as_one_rank() {
    equals_one(gpt2, &[], &[PAIR], DATA_PARALLEL);
    let sharded = Spread { keys: &[OPTIMIZER], ..PAIRS };
    equals_one(gpt2, &["--model.model_config.hidden_dropout=0.1"], &[sharded], DATA_PARALLEL);
    equals_one(deepseek_v3, &[], &[PAIR], IN_F32);
}

#[test]
fn any_stages_train_as_one_rank() {
    let offset = "--model.model_config.offset=[1, 0, 0, 1]";
    equals_one(|| small(Setup::new("six", ""), 6), &[offset], &[FOUR], DATA_PARALLEL);
    equals_one(llama, &["--model.model_config.offset=[[-1, 0], [0, 1]]"], &[INTERLEAVED], DATA_PARALLEL);
    equals_one(mixture, &[], &[PAIR, FOUR, INTERLEAVED], IN_F32);
    equals_one(llama, &[], &[Spread { micro_batches: 7, ..PAIR }], DATA_PARALLEL);
}

#[test]
fn pipelines_share_a_batch_as_ranks_do() {
    let sharings: &[&'static [&'static str]] =
        &[&[], &[OPTIMIZER], &[OPTIMIZER, GRADIENTS], &[OPTIMIZER, GRADIENTS, WEIGHTS]];
    let taken = if is_long() { sharings } else { &sharings[2..] };
    for keys in taken {
        equals_one(llama, &[], &[Spread { keys, ..PAIRS }], DATA_PARALLEL);
    }
    for keys in [&[][..], &[OPTIMIZER, GRADIENTS]] {
        equals_one(llama, &[], &[Spread { interleaves: 2, keys, ..PAIRS }], DATA_PARALLEL);
    }
    let spread = Spread { keys: &["--parallel_config.expert_parallel=2"], ..PAIRS };
    equals_one(mixture, &[], &[spread], IN_F32);
}

const TOKENS: &str = "--parallel_config.use_seq_parallel=True";
const VOCABULARY: &str = "--parallel_config.vocab_emb_dp=False";

/// Stages whose ranks share matrices, on up to eight ranks.
#[test]
fn ranks_of_a_stage_divide_matrices() {
    let both = Spread { model: 2, ..PAIR };
    let tokens = Spread { keys: &[TOKENS], ..both };
    let dropout = "--model.model_config.hidden_dropout=0.1";
    equals_one(llama, &[dropout, "--recompute_config.recompute=True"], &[both, tokens], IN_F32);
    equals_one(gpt2, &[], &[Spread { keys: &[TOKENS, VOCABULARY], ..both }], IN_F32);
    let wide = || mixture().with(&["--moe_config.moe_intermediate_size=40"]);
    let experts = &["--parallel_config.expert_parallel=2", OPTIMIZER];
    equals_one(wide, &[], &[Spread { model: 2, keys: experts, ..PAIRS }], IN_F32);
    let all = &[TOKENS, VOCABULARY, OPTIMIZER, GRADIENTS];
    equals_one(llama, &[dropout], &[Spread { model: 2, keys: all, ..PAIRS }], IN_F32);
    equals_one(llama, &[], &[Spread { model: 2, ..INTERLEAVED }], IN_F32);
}

/// Dropout, recomputation by stages, rounding, a loss scale, adapters, what else decides a step.
#[test]
fn variants_on_stages_train_as_on_one() {
    let dropout = "--model.model_config.hidden_dropout=0.1";
    let recomputed = Spread { keys: &["--recompute_config.recompute=[1, 2]"], ..PAIR };
    equals_one(llama, &[dropout], &[recomputed], DATA_PARALLEL);
    let rounded = ["--model.model_config.compute_dtype=bfloat16", "--optimizer.stochastic_rounding=True"];
    equals_one(llama, &rounded, &[INTERLEAVED], IN_BF16);
    let wrapper = "--runner_wrapper={scale_sense: {type: AdaptiveLossScaleUpdateCell}, use_clip_grad: True, max_grad_norm: 1.0}";
    equals_one(mixture, &[wrapper, "--recompute_config.recompute=True"], &[PAIR], IN_F32);
    let adapters = "--model.model_config.pet_config={pet_type: lora, random_base: True, lora_rank: 4, lora_alpha: 8, target_modules: '.*wq|.*wv'}";
    equals_one(llama, &[adapters], &[PAIR], DATA_PARALLEL);
    equals_one(llama, &["--runner_wrapper.calculate_per_token_loss=True"], &[PAIR], DATA_PARALLEL);
}

/// An overflow of one stage's gradients is that of all.
#[test]
fn stages_overflow_together_in_float16() {
    let scale = "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 33554432, scale_window: 2}";
    let keys = ["--model.model_config.compute_dtype=float16", scale];
    let ones = equals_one(llama, &keys, &[PAIR], IN_F16);
    let overflows: u32 = ones[0].states.iter().map(|state| state.is_overflow).sum();
    assert!((1..STEPS as u32).contains(&overflows), "{overflows} of {STEPS} steps overflow");
}

/// Bit for bit, whatever the threads of the ranks do first.
#[test]
fn runs_on_stages_repeat() {
    let dropout = &["--model.model_config.hidden_dropout=0.1"];
    for spread in [FOUR, INTERLEAVED, Spread { keys: &[OPTIMIZER, GRADIENTS], ..PAIRS }] {
        let run = || {
            let setup = llama().with(dropout);
            let gpu = setup.gpu();
            spread.train(setup, &gpu, STEPS)
        };
        let [first, second] = [run(), run()];
        for (rank, (first, second)) in first.iter().zip(&second).enumerate() {
            let bits = |trained: &Trained| format!("{:?} {:?}", trained.states, trained.weights);
            assert!(bits(first) == bits(second), "rank {rank} of {spread:?} does not repeat");
        }
    }
}

/// Loss and accuracy, on every rank those of one, and no step is the worse for it.
#[test]
fn an_evaluation_goes_through_all_stages() {
    let evaluates = ["--do_eval", "--train_dataset.eval_fraction=0.3", "--metric={type: Accuracy}"];
    let evaluated = |setup: Setup, gpu: &Gpu, size: usize| {
        let of_rank = |ranks: gristmill::ranks::Ranks| {
            let plan = if size == 1 { setup.plan() } else { setup.plan_on_rank(ranks.rank(), size) };
            let data = plan.load_data().expect("data");
            let eval = data.eval.as_ref().expect("evaluation data");
            let length = RunLength::new(&plan, data.train.steps_per_epoch());
            let mut trainer = block_on(Trainer::on_rank(gpu, &plan, &length, ranks)).expect("a trainer");
            let steps = plan.settings.runner.gradient_accumulation_steps as u64;
            for step in 1..=3 {
                block_on(trainer.step(step, &data.train, (step - 1) * steps)).expect("a step");
                let batches = eval.micro_steps_per_epoch().div_ceil(plan.layout.data as u64);
                block_on(trainer.evaluate(step, eval, batches, |_| Ok(()))).expect("an evaluation");
                block_on(trainer.wait()).expect("the device");
                trainer.finished_steps().expect("states");
            }
            let all = trainer.finished_evaluations().expect("evaluations");
            all.iter().map(|one| (one.loss, one.accuracy.expect("an accuracy"))).collect::<Vec<_>>()
        };
        on_ranks(size, of_rank)
    };
    let divided = Spread { model: 2, keys: &[TOKENS, VOCABULARY], ..PAIR };
    for spread in [PAIR, INTERLEAVED, PAIRS, divided] {
        let setup = || llama().with(&evaluates);
        let gpu = setup().gpu();
        let accumulation =
            format!("--runner_config.gradient_accumulation_steps={}", spread.data * spread.micro_batches);
        let one = evaluated(setup().with(&[&accumulation]), &gpu, 1).remove(0);
        for (rank, got) in evaluated(spread.setup(setup()), &gpu, spread.ranks()).into_iter().enumerate() {
            assert_eq!(got.len(), one.len());
            for (got, want) in got.iter().zip(&one) {
                let apart = f64::from((got.0 - want.0).abs() / want.0);
                assert!(
                    apart <= 1e-6 && (got.1 - want.1).abs() <= 1e-3,
                    "rank {rank} of {spread:?}: {got:?}, not {want:?}"
                );
            }
        }
    }
}
