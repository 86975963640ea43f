//! Every kind of model on every layout of ranks, against the run of one rank that accumulates the same micro-batches.
//!
//! A table: its rows are models, its columns layouts, and of two models each layout is trained in each variation too. A
//! trial compares what every rank reports and holds with one rank's, the memory that was forecast with wgpu's count of
//! bytes, and the bytes that were planned with those that the transport counts; with `GRISTMILL_LONG` it trains twice,
//! which must be equal bit for bit.

use super::against_one::{
    BF16, Bounds, IN_BF16, IN_F16, IN_F32, ROUNDED as ROUNDED_WEIGHTS, SGD, STEPS, compare_results, on_one,
    small,
};
use super::spread::{MICRO_BATCHES, OPTIMIZER, Spread, TOKENS};
use crate::latent::{RANKS, V3, deepseek};
use crate::runs::{Setup, Trained, is_long, on_counting_ranks};
use gristmill::device::Gpu;
use gristmill::perf::forecast::{Forecast, Traffic, traffic};
use pollster::block_on;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::Ordering;

pub const TENSOR: Spread = Spread { model: 2, ..Spread::ONE };
pub const SEQUENCE: Spread = Spread { keys: &[TOKENS], ..TENSOR };
pub const STAGES: Spread = Spread::stages(2);

/// On which every model trains.
pub const NARROW: [Spread; 3] = [TENSOR, SEQUENCE, STAGES];

/// The last stage has no layer.
const UNEVEN: Spread = Spread { keys: &["--model.model_config.offset=[1, 0, 0, -1]"], ..Spread::stages(4) };

/// On which models of four layers train as well, whose experts, if they have some, are spread in the last one.
pub const WIDE: [Spread; 8] = [
    Spread::divided(4),
    UNEVEN,
    Spread { interleaves: 2, ..STAGES },
    Spread { data: 2, ..TENSOR },
    Spread { data: 2, ..STAGES },
    Spread { stages: 2, ..SEQUENCE },
    Spread { data: 2, stages: 2, ..Spread::divided(2) },
    Spread { data: 2, expert: 2, ..TENSOR },
];

const FOUR_LAYERS: &str = "--model.model_config.num_layers=4";

pub fn llama() -> Setup {
    small(Setup::new("llama", "n_kv_heads: 2")).with(&[FOUR_LAYERS])
}

/// With biases, positions and a tied head.
pub fn gpt2() -> Setup {
    small(Setup::gpt2("gpt2", "")).with(&[SGD])
}

/// With ALiBi.
fn bloom() -> Setup {
    small(Setup::typed("BloomConfig", "bloom", "")).with(&[SGD])
}

/// With interleaved rotation.
fn glm() -> Setup {
    small(Setup::typed("ChatGLM2Config", "glm", "")).with(&[SGD])
}

/// Latent attention, experts in groups, and a block that predicts ahead, which reads the embedding on the last stage.
fn deepseek_v3() -> Setup {
    let width = "--model.model_config.moe_intermediate_size=40";
    let layers = "--model.model_config.num_layers=3";
    small(deepseek("deepseek", "DeepseekV3Config", &format!("{RANKS}, {V3}"))).with(&[width, layers])
}

/// Experts of a width that four ranks divide, whose capacities drop choices; a shared one, a balance loss and biases
/// that move.
pub fn mixture() -> Setup {
    let routing = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.0, aux_loss_types: [expert], \
                   aux_loss_factors: [0.01], shared_expert_num: 1, balance_via_topk_bias: True, \
                   topk_bias_update_rate: 0.01";
    let width = "--moe_config.moe_intermediate_size=48";
    small(Setup::experts("mixture", routing, "")).with(&[width, FOUR_LAYERS])
}

/// Experts with biases, whose capacities drop choices.
fn experts_of_gpt2() -> Setup {
    let routing = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.0, aux_loss_types: [expert], \
                   aux_loss_factors: [0.01]";
    let width = "--moe_config.moe_intermediate_size=48";
    small(Setup::experts_of("GPT2Config", "experts of gpt2", routing, "")).with(&[SGD, width, FOUR_LAYERS])
}

/// The same in the layers of PanGu-α, but for the last.
fn experts_of_pangu() -> Setup {
    let routing = "expert_num: 4, capacity_factor: 1.0";
    let width = "--moe_config.moe_intermediate_size=48";
    small(Setup::experts_of("PanguAlphaConfig", "experts of pangu", routing, "")).with(&[
        SGD,
        width,
        FOUR_LAYERS,
    ])
}

/// What else a run may be.
#[derive(Clone, Copy)]
pub struct Variation {
    pub name: &'static str,
    /// Of one rank as well.
    pub keys: &'static [&'static str],
    /// Of ranks alone: none where these ask for nothing.
    pub of_ranks: fn(&Spread) -> Option<Vec<String>>,
    /// Micro-batches of a step, on all ranks together.
    pub micro_batches: usize,
    pub bounds: Bounds,
}

/// Gradients are clipped, and of several micro-batches, in all of them.
pub const PLAIN: Variation = Variation {
    name: "plain",
    keys: &[],
    of_ranks: |_| Some(vec![]),
    micro_batches: MICRO_BATCHES,
    bounds: IN_F32,
};

const DROPOUT: &[&str] = &[
    "--model.model_config.hidden_dropout=0.1",
    "--model.model_config.attention_dropout=0.1",
    "--model.model_config.emb_dropout_prob=0.1",
];

const OVERFLOWS: [&str; 2] = [
    "--model.model_config.compute_dtype=float16",
    "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 33554432, scale_window: 2}",
];

const ADAPTERS: &str = "--model.model_config.pet_config={pet_type: lora, random_base: True, lora_rank: 4, lora_alpha: 8, \
                        lora_dropout: 0.1, target_modules: '.*wq|.*wv|.*wo|.*mlp[.]gate_proj|.*mlp[.]down_proj'}";

/// Losses are means of many tokens; parts of a sum are rounded before they are added.
const PARTS_IN_BF16: Bounds = Bounds { loss: 5e-4, norm: 5e-3, ..IN_BF16 };

const ROUNDED: Variation = Variation { name: "bf16", keys: BF16, bounds: PARTS_IN_BF16, ..PLAIN };

/// Weights in bfloat16 alone: one that rounds the other way is up to 2^-7 of itself away.
const STOCHASTIC: Variation = Variation {
    name: "rounded stochastically",
    keys: ROUNDED_WEIGHTS,
    bounds: Bounds { weights: 1.0 / 128.0, ..PARTS_IN_BF16 },
    ..PLAIN
};

const VARIATIONS: [Variation; 13] = [
    PLAIN,
    Variation { name: "dropout", keys: DROPOUT, ..PLAIN },
    Variation {
        name: "ZeRO-1",
        of_ranks: |spread| (spread.data > 1).then(|| vec![OPTIMIZER.to_string()]),
        ..PLAIN
    },
    Variation { name: "overflow", keys: &OVERFLOWS, bounds: IN_F16, ..PLAIN },
    ROUNDED,
    STOCHASTIC,
    Variation { name: "adapters", keys: &[ADAPTERS], ..PLAIN },
    Variation {
        name: "recomputed by stages",
        keys: DROPOUT,
        of_ranks: |spread| of_stages(spread, &["recompute=LISTS"]),
        ..PLAIN
    },
    Variation {
        name: "operators recomputed by stages",
        of_ranks: |spread| {
            of_stages(spread, &["select_recompute={feed_forward.mul: LISTS}", "select_comm_recompute=LISTS"])
        },
        ..PLAIN
    },
    Variation {
        name: "recomputed without exchanges",
        of_ranks: |spread| of_matrices(spread, &["recompute=True", "mp_comm_recompute=False"]),
        ..PLAIN
    },
    Variation {
        name: "recomputed from slices",
        keys: DROPOUT,
        of_ranks: |spread| of_matrices(spread, &["recompute=True", "recompute_slice_activation=True"]),
        ..PLAIN
    },
    Variation {
        name: "exchanges of operators repeated",
        of_ranks: |spread| of_matrices(spread, &["select_comm_recompute=True"]),
        ..PLAIN
    },
    Variation {
        name: "operators recomputed",
        keys: DROPOUT,
        of_ranks: |spread| {
            of_matrices(spread, &["select_recompute={feed_forward.mul: True, attention_norm: True}"])
        },
        ..PLAIN
    },
];

/// Keys of `recompute_config`, where ranks share matrices.
fn of_matrices(spread: &Spread, keys: &[&str]) -> Option<Vec<String>> {
    (spread.model > 1).then(|| keys.iter().map(|key| format!("--recompute_config.{key}")).collect())
}

/// Keys of `recompute_config` whose value are lists of layers, where there are stages.
fn of_stages(spread: &Spread, keys: &[&str]) -> Option<Vec<String>> {
    let lists = lists(spread);
    let flag = |key: &&str| format!("--recompute_config.{}", key.replace("LISTS", &lists));
    (spread.stages > 1).then(|| keys.iter().map(flag).collect())
}

/// The first layer of each chunk but the last one.
fn lists(spread: &Spread) -> String {
    let of_interleave = |interleave: usize| {
        let is_last = |stage: usize| interleave + 1 == spread.interleaves && stage + 1 == spread.stages;
        (0..spread.stages).map(|stage| usize::from(!is_last(stage))).collect()
    };
    let lists: Vec<Vec<usize>> = (0..spread.interleaves).map(of_interleave).collect();
    match &lists[..] {
        [of_stages] => format!("{of_stages:?}"),
        _ => format!("{lists:?}"),
    }
}

/// What a rank leaves, and what was planned and counted of it.
pub struct Measured {
    pub trained: Trained,
    /// What it sends in a step.
    pub planned: Vec<Traffic>,
    /// The bytes that it has sent after its first step.
    pub sent: u64,
    /// Bytes of the device that it takes.
    pub forecast: u64,
}

impl Measured {
    /// The bytes that it sends in a step.
    pub fn planned_bytes(&self) -> u64 {
        self.planned.iter().map(|kind| kind.bytes).sum()
    }
}

/// Trains so many steps on ranks that share a device. Returns what each leaves, and the bytes of buffers that all take.
pub fn measure(setup: &Setup, gpu: &Gpu, size: usize, steps: u64) -> (Vec<Measured>, u64) {
    let before = gpu.counters().buffer_bytes;
    let all_done = Barrier::new(size);
    let of_rank = |ranks: gristmill::ranks::Ranks, sent: &std::sync::atomic::AtomicU64| {
        let plan = setup.plan_on_rank(ranks.rank(), size);
        let ([mut first, mut last, mut forecast, mut taken], mut planned) = ([0; 4], Vec::new());
        let trained = setup.train_watched(gpu, &plan, None, steps, ranks, |trainer, step| {
            match step {
                // The first step also makes the copies of the initial weights.
                1 => first = sent.load(Ordering::SeqCst),
                _ if step == steps => {
                    block_on(trainer.wait()).expect("the device");
                    last = sent.load(Ordering::SeqCst);
                    let accumulation = plan.settings.runner.gradient_accumulation_steps as u64;
                    planned = traffic(trainer.recordings(), accumulation);
                    forecast = Forecast::new(trainer.recordings()).bytes();
                    all_done.wait();
                    taken = (gpu.counters().buffer_bytes - before) as u64;
                    all_done.wait();
                }
                _ => {}
            }
        });
        (Measured { trained, planned, sent: last - first, forecast }, taken)
    };
    let (ranks, taken): (Vec<Measured>, Vec<u64>) = on_counting_ranks(size, of_rank).into_iter().unzip();
    (ranks, taken[0])
}

/// One rank's runs, by model and keys.
#[derive(Default)]
struct Ones {
    trained: BTreeMap<String, Trained>,
}

impl Ones {
    /// Trains `model` on `spread` as it varies, and compares. Nothing where the variation asks nothing of the layout.
    fn compare(&mut self, model: fn() -> Setup, spread: &Spread, variation: &Variation) {
        let Some(of_ranks) = (variation.of_ranks)(spread) else { return };
        let setup = || model().with(variation.keys);
        let of_ranks: Vec<&str> = of_ranks.iter().map(String::as_str).collect();
        let key = format!("{} {:?} {}", setup().name, variation.keys, variation.micro_batches);
        let gpu = &setup().gpu();
        let one =
            self.trained.entry(key).or_insert_with(|| on_one(setup(), gpu, variation.micro_batches, STEPS));
        if variation.name == "overflow" {
            let overflows: u32 = one.states.iter().map(|state| state.is_overflow).sum();
            assert!((1..STEPS as u32).contains(&overflows), "{overflows} of {STEPS} steps overflow");
        }
        let name = format!("{}, {}, {spread:?}", setup().name, variation.name);
        let spread_setup = || spread.setup(setup(), variation.micro_batches).with(&of_ranks);
        let (ranks, taken) = measure(&spread_setup(), gpu, spread.ranks(), STEPS);
        for (rank, measured) in ranks.iter().enumerate() {
            let planned = measured.planned_bytes() * (STEPS - 1);
            assert_eq!(planned, measured.sent, "{name}: rank {rank} sends other bytes than planned");
        }
        let forecast: u64 = ranks.iter().map(|rank| rank.forecast).sum();
        assert_eq!(forecast, taken, "{name}: ranks take other memory than forecast");
        let trained: Vec<Trained> = ranks.into_iter().map(|rank| rank.trained).collect();
        compare_results(&name, &trained, one, variation.bounds);
        for (tensor, values) in &one.weights {
            let parts: Vec<&Vec<f64>> = trained.iter().filter_map(|rank| rank.weights.get(tensor)).collect();
            let is_held = |index: usize| parts.iter().any(|part| !part[index].is_nan());
            assert!((0..values.len()).all(is_held), "{name}: no rank holds all of {tensor}");
        }
        if is_long() {
            let again = spread_setup().train_on_one_device(gpu, spread.ranks(), STEPS);
            for (rank, (first, second)) in trained.iter().zip(&again).enumerate() {
                let bits = |trained: &Trained| format!("{:?} {:?}", trained.states, trained.weights);
                assert!(bits(first) == bits(second), "{name}: rank {rank} does not repeat");
            }
        }
    }
}

/// Trains `model` on each of `spreads` as on one rank.
pub fn train_as_one(model: fn() -> Setup, spreads: &[Spread], variation: &Variation) {
    let mut ones = Ones::default();
    spreads.iter().for_each(|spread| ones.compare(model, spread, variation));
}

/// Where parts of sums are rounded before they are added, routers choose otherwise, and tokens take other experts.
fn chooses_otherwise(model: &Setup, spread: &Spread, variation: &Variation) -> bool {
    model.plan().model.mixture.is_some() && spread.model > 1 && variation.bounds != IN_F32
}

/// In bfloat16 too with `GRISTMILL_LONG`.
#[test]
fn every_model_trains_as_on_one_rank() {
    for model in [llama, gpt2, bloom, glm, deepseek_v3, mixture] {
        train_as_one(model, &NARROW, &PLAIN);
        if is_long() {
            let chosen = |spread: &Spread| !chooses_otherwise(&model(), spread, &ROUNDED);
            train_as_one(model, &NARROW.into_iter().filter(chosen).collect::<Vec<_>>(), &ROUNDED);
        }
    }
}

#[test]
fn experts_with_biases_train_as_on_one_rank() {
    let pair = Spread { data: 2, expert: 2, ..Spread::ONE };
    let zero = Spread { data: 4, expert: 2, keys: &[OPTIMIZER], ..Spread::ONE };
    let both = Spread { data: 2, expert: 2, ..TENSOR };
    train_as_one(experts_of_gpt2, &[pair, zero, TENSOR, SEQUENCE, STAGES, both], &PLAIN);
    train_as_one(experts_of_pangu, &[pair, SEQUENCE], &PLAIN);
    let recomputed = Variation { keys: &["--recompute_config.recompute=True"], ..PLAIN };
    train_as_one(experts_of_gpt2, &[both], &recomputed);
}

/// All of them with `GRISTMILL_LONG`, else an eighth, with each layout and each variation.
#[test]
fn every_layout_trains_in_every_variation() {
    for (number, model) in [llama as fn() -> Setup, mixture].into_iter().enumerate() {
        let mut ones = Ones::default();
        let has_experts = model().plan().model.mixture.is_some();
        let layouts = NARROW.iter().chain(&WIDE).filter(|spread| has_experts || spread.expert == 1);
        for (row, spread) in layouts.enumerate() {
            let is_taken = |column: usize| is_long() || (row + column + 4 * number).is_multiple_of(8);
            for (_, variation) in VARIATIONS.iter().enumerate().filter(|(column, _)| is_taken(*column)) {
                if !chooses_otherwise(&model(), spread, variation) {
                    ones.compare(model, spread, variation);
                }
            }
        }
    }
}

/// Eight ranks: data, matrices, tokens, stages and experts by two each, with operators that are recomputed.
#[test]
fn a_file_trains_on_its_own_degrees_as_on_one_rank() {
    let file = |keys: &[&str]| {
        let sizes = ["model.model_config.vocab_size=256", "model.model_config.initializer_range=0.1"];
        Setup::shrunk_on_ranks("deepseek v3 by file", "dialect/deepseek3.yaml", &[&sizes[..], keys].concat())
    };
    let one = file(&["as-single"]);
    let gpu = one.gpu();
    let one = one.train_on_one_device(&gpu, 1, STEPS).remove(0);
    compare_results("a file", &file(&[]).train_on_one_device(&gpu, 8, STEPS), &one, IN_F32);
}
