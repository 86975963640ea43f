//! Every kind of model on every layout of ranks, and of two models each layout in each variation.

use super::against_one::{BF16, RECOMPUTED, ROUNDED, SGD, small};
use super::spread::{OPTIMIZER, Spread, TOKENS, WEIGHTS, ZERO_1, ZERO_2};
use super::trial::{
    IN_F32, Model, OVERFLOWS, Ones, PARTS_IN_BF16, PLAIN, ROUNDED_PARTS, Variation, compare_results,
    train_as_one,
};
use crate::latent::{RANKS, V3, deepseek};
use crate::runs::{Setup, is_long};
use std::collections::BTreeSet;

pub const TENSOR: Spread = Spread { model: 2, ..Spread::ONE };
pub const SEQUENCE: Spread = Spread { keys: &[TOKENS], ..TENSOR };
pub const STAGES: Spread = Spread::stages(2);

/// On which every model trains.
pub const NARROW: [Spread; 3] = [SEQUENCE, TENSOR, STAGES];

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

const CENTRED: &str = "--model.model_config.layernorm_zero_centered_gamma=True";

const DROPOUT: &[&str] = &[
    "--model.model_config.hidden_dropout=0.1",
    "--model.model_config.attention_dropout=0.1",
    "--model.model_config.emb_dropout_prob=0.1",
];

const ADAPTERS: &str = "--model.model_config.pet_config={pet_type: lora, random_base: True, lora_rank: 4, lora_alpha: 8, \
                        lora_dropout: 0.1, target_modules: '.*wq|.*wv|.*wo|.*mlp[.]gate_proj|.*mlp[.]down_proj'}";

pub const EXPERT_ADAPTERS: &str = "--model.model_config.pet_config={pet_type: lora, random_base: True, lora_rank: 3, \
                                   target_modules: '.*wq', target_parameters: experts}";

const IN_HALVES: Variation<'_> = Variation { name: "bf16", keys: BF16, bounds: PARTS_IN_BF16, ..PLAIN };

const DROPPED: Variation<'_> = Variation { name: "dropout", keys: DROPOUT, ..PLAIN };

const FROM_SLICES: Variation<'_> = Variation {
    name: "recomputed from slices",
    keys: DROPOUT,
    of_ranks: |spread| of_matrices(spread, &["recompute=True", "recompute_slice_activation=True"]),
    ..PLAIN
};

const VARIATIONS: [Variation<'_>; 13] = [
    PLAIN,
    DROPPED,
    Variation {
        name: "ZeRO-1",
        of_ranks: |spread| (spread.data > 1).then(|| vec![OPTIMIZER.into()]),
        ..PLAIN
    },
    OVERFLOWS,
    IN_HALVES,
    Variation { name: "rounded stochastically", keys: ROUNDED, bounds: ROUNDED_PARTS, ..PLAIN },
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
    FROM_SLICES,
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

/// Where parts of sums are rounded before they are added, routers choose otherwise, and tokens take other experts.
fn chooses_otherwise(model: &Setup, spread: &Spread, variation: &Variation<'_>) -> bool {
    model.plan().model.mixture.is_some() && spread.model > 1 && variation.bounds != IN_F32
}

/// With `GRISTMILL_LONG` in bfloat16, too, and `llama` and `mixture`, which are in the table below.
#[test]
fn every_model_trains_as_on_one_rank() {
    let models: [Model; 6] = [gpt2, bloom, glm, deepseek_v3, llama, mixture];
    for model in models.into_iter().take(if is_long() { 6 } else { 4 }) {
        train_as_one(model, &NARROW, &PLAIN);
        if is_long() {
            let chosen = |spread: &Spread| !chooses_otherwise(&model(), spread, &IN_HALVES);
            train_as_one(model, &NARROW.into_iter().filter(chosen).collect::<Vec<_>>(), &IN_HALVES);
        }
    }
}

/// Norms after sublayers stand behind the sums over ranks, and without norms before them ranks share the stream itself.
#[test]
fn norms_after_sublayers_train_as_on_one_rank() {
    let after: Model = || llama().with(&["--model.model_config.norm_placement=after"]);
    let both: Model = || llama().with(&["--model.model_config.norm_placement=both", CENTRED]);
    train_as_one(after, &NARROW, &PLAIN);
    train_as_one(after, &[SEQUENCE], &FROM_SLICES);
    train_as_one(both, &[SEQUENCE, STAGES], &DROPPED);
    let experts: Model = || mixture().with(&["--model.model_config.norm_placement=after"]);
    train_as_one(experts, &[SEQUENCE, Spread { data: 2, expert: 2, ..TENSOR }], &PLAIN);
}

#[test]
fn experts_with_biases_train_as_on_one_rank() {
    let zero = Spread { data: 4, expert: 2, keys: ZERO_1, ..Spread::ONE };
    let both = Spread { data: 2, expert: 2, ..TENSOR };
    train_as_one(experts_of_gpt2, &[SEQUENCE, zero, both, STAGES], &PLAIN);
    let pair = Spread { data: 2, expert: 2, ..Spread::ONE };
    train_as_one(experts_of_pangu, &[pair, SEQUENCE], &PLAIN);
    let recomputed = Variation { keys: RECOMPUTED, ..PLAIN };
    train_as_one(experts_of_gpt2, &[both], &recomputed);
}

/// Each rank has the factors of its experts; of ranks that share matrices each has A of gate and up, and B of down.
#[test]
fn adapters_of_experts_train_as_on_one_rank() {
    let adapted = Variation { keys: &[EXPERT_ADAPTERS], ..PLAIN };
    let spread = |keys| Spread { data: 4, expert: 2, keys, ..Spread::ONE };
    let both = Spread { data: 2, expert: 2, ..TENSOR };
    let spreads = [both, spread(ZERO_1), SEQUENCE, STAGES, spread(ZERO_2), spread(WEIGHTS)];
    train_as_one(mixture, &spreads[..if is_long() { 6 } else { 2 }], &adapted);
}

/// All of them with `GRISTMILL_LONG`, else few: with each layout and each variation, of one of both models.
#[test]
fn every_layout_trains_in_every_variation() {
    let (mut layouts, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (number, model) in [llama as Model, mixture].into_iter().enumerate() {
        let mut ones = Ones::default();
        let has_experts = model().plan().model.mixture.is_some();
        let spreads = NARROW.iter().chain(&WIDE).filter(|spread| has_experts || spread.expert == 1);
        for (row, spread) in spreads.enumerate() {
            let is_taken = |column: usize| is_long() || column == (3 * row + 10 * number + 2) % 20;
            for (_, variation) in VARIATIONS.iter().enumerate().filter(|(column, _)| is_taken(*column)) {
                if !chooses_otherwise(&model(), spread, variation) && ones.compare(model, spread, variation) {
                    layouts.insert(format!("{spread:?}"));
                    names.insert(variation.name);
                }
            }
        }
    }
    assert_eq!(
        (layouts.len(), names.len()),
        (NARROW.len() + WIDE.len(), VARIATIONS.len()),
        "{layouts:?}, {names:?}"
    );
}

/// Eight ranks: data, matrices, tokens, stages and experts by two each, with operators that are recomputed.
#[test]
fn a_file_trains_on_its_own_degrees_as_on_one_rank() {
    let file = |keys: &[&str]| {
        let sizes = ["model.model_config.vocab_size=256", "model.model_config.initializer_range=0.1"];
        Setup::shrunk_on_ranks("deepseek v3 by file", "dialect/deepseek3.yaml", &[&sizes[..], keys].concat())
    };
    let (one, steps) = (file(&["as-single"]), PLAIN.steps());
    let gpu = one.gpu();
    let one = one.train_on_one_device(&gpu, 1, steps).remove(0);
    compare_results("a file", &file(&[]).train_on_one_device(&gpu, 8, steps), &one, IN_F32);
}
