//! Recomputation changes the memory of a run, and no bit of what it computes.
//!
//! That is states, gradients, weights and what experts did: nothing is decided or counted twice. Each operator
//! saves memory, and all of them at least 70 % of the activations of 12 layers at T = 1024.

use crate::latent::{RANKS, dense};
use crate::runs::{Setup, Trained, in_turn, is_long};
use gristmill::kernels::Tier;
use gristmill::model::config::Operator;
use gristmill::record::{MemoryPlan, Recording};
use gristmill::settings::{Override, RunConfig};
use gristmill::train::recordings::{Recordings, assumed_capabilities};
use std::path::Path;

/// Share of the activation peak that the recomputation of every layer must save, in a model of 12 layers at T = 1024.
const SAVED: f64 = 0.70;

const STEPS: u64 = 3;

const DROPOUT: &str = "attention_dropout: 0.1, hidden_dropout: 0.2, emb_dropout_prob: 0.1";

/// Gates whose gradient reads the logits of the router.
const SPARSE_MIXER: &str = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, sparsemixer_jitter_eps: 0.3";
/// Capacities that drop choices, of which some experts have more; balance losses; a bias that moves; a shared expert.
const CAPACITIES: &str = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 0.8, routing_policy: TopkRouterV1, \
                          aux_loss_types: [expert], aux_loss_factors: [0.1], z_loss_factor: 0.01, shared_expert_num: 1, \
                          use_shared_expert_gating: True, enable_cold_hot_expert: True, hot_expert_num: 1, \
                          cold_token_percent: 0.5, update_step: 1";
/// The same without what GPT-2's layers do not have.
const WITHOUT_SHARED: &str = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 0.8, aux_loss_types: [expert], \
                              aux_loss_factors: [0.1], z_loss_factor: 0.01, enable_cold_hot_expert: True, \
                              hot_expert_num: 1, cold_token_percent: 0.5, update_step: 1";
const DROPLESS: &str = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, use_gating_sigmoid: True, \
                        balance_via_topk_bias: True, topk_bias_update_rate: 0.01";

/// Every layer, and the first of them.
const LAYERS: [&str; 2] = ["--recompute_config.recompute=True", "--recompute_config.recompute=[1]"];

/// All operators of both layers; the activation, and the norms of one layer, by MindFormers' names; all but attention,
/// in a layer beside one that is recomputed as a whole.
const OPERATORS: [&str; 3] = [
    "--recompute_config.select_recompute=[attention_norm, attention, ffn_norm, feed_forward]",
    "--recompute_config={select_recompute: True, select_comm_recompute: {'.*\\.norm': [1]}}",
    "--recompute_config={recompute: True, select_recompute_exclude: {'.*\\.flash_attention': [1]}}",
];

/// Trains the model of `setup` with one form of recomputation, or every one with `GRISTMILL_LONG`, and compares
/// states, reports, weights and gradients.
fn changes_no_bit(number: usize, setup: impl Fn() -> Setup) {
    let kept = setup().train(STEPS);
    for recompute in in_turn(number, &[&LAYERS[..], &OPERATORS].concat()) {
        let setup = setup().with(&[recompute]);
        assert!(!setup.plan().model.recomputed.is_empty());
        assert_same(setup.name, recompute, &setup.train(STEPS), &kept);
    }
}

fn assert_same(name: &str, recompute: &str, recomputed: &Trained, kept: &Trained) {
    assert_eq!(recomputed.states, kept.states, "{name}: {recompute} changes the state of a step");
    assert_eq!(recomputed.reports, kept.reports, "{name}: {recompute} changes what the experts did");
    let differ = |one: &Trained, other: &Trained| {
        let gradients =
            one.gradients.iter().find(|(name, values)| other.gradients.get(*name) != Some(values));
        let weights = one.weights.iter().find(|(name, values)| other.weights.get(*name) != Some(values));
        gradients.or(weights).map(|(name, _)| name.clone())
    };
    assert_eq!(differ(recomputed, kept), None, "{name}: {recompute} changes a gradient or a weight");
    assert!(recomputed == kept, "{name}: {recompute} changes something");
}

#[test]
fn dense_models_compute_the_same() {
    let llama = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True";
    changes_no_bit(0, || Setup::new("llama", llama));
    changes_no_bit(1, || Setup::new("portable", llama).with(&["--context.tier=portable"]));
    changes_no_bit(2, || Setup::new("llama with dropout", DROPOUT));
    changes_no_bit(3, || Setup::gpt2("gpt2", DROPOUT));
    changes_no_bit(4, || Setup::typed("BloomConfig", "bloom", DROPOUT));
    changes_no_bit(0, || Setup::typed("Baichuan2_13BConfig", "baichuan2", DROPOUT));
    changes_no_bit(1, || dense("latent", &format!("{RANKS}, {DROPOUT}")));
    changes_no_bit(3, || Setup::typed("PanguAlphaConfig", "pangu-alpha", DROPOUT));
    changes_no_bit(4, || Setup::of_layers("layers", DROPOUT));
    // Keys and values outlive the layer that makes them.
    changes_no_bit(0, || Setup::of_shared_keys("shared keys", DROPOUT));
    changes_no_bit(2, || Setup::of_shared_keys("shared keys", DROPOUT));
    changes_no_bit(0, || Setup::of_layer_inputs("layer inputs", DROPOUT));
    let after = "norm_placement: after, layernorm_zero_centered_gamma: True";
    changes_no_bit(0, || Setup::new("norms after", after));
    let kinds = ["all_heads", "rotated_heads"];
    let [all, rotated] = kinds.map(|kind| format!("use_qk_norm: True, qk_norm_kind: {kind}, n_kv_heads: 2"));
    changes_no_bit(2, || Setup::new("norms of all heads", &format!("{all}, clip_qkv: 0.75")));
    changes_no_bit(2, || Setup::new("norms of rotated heads", &rotated));
    changes_no_bit(2, || Setup::new("norms on both sides", &format!("norm_placement: both, {DROPOUT}")));
    let ungated = "normalization: LayerNorm, gated_linear_unit: False, hidden_act: relu, use_qk_norm: True, \
                   qk_norm_kind: layer_norm";
    changes_no_bit(4, || {
        Setup::new("two norms", &format!("parallel_residual: two_norms, {ungated}, {DROPOUT}"))
    });
    changes_no_bit(2, || Setup::of_linear_attention("linear attention", DROPOUT));
    changes_no_bit(2, || Setup::of_convolutions("convolutions", DROPOUT));
    let curved = "gated_linear_unit: False, hidden_act: xielu";
    changes_no_bit(2, || {
        let keys = format!("parallel_residual: one_norm, norm_has_weight: False, {curved}, {DROPOUT}");
        Setup::new("one norm", &keys)
    });
}

#[test]
fn activations_in_16_bits_are_rounded_the_same() {
    // Stochastic rounding draws by place.
    let rounded = ["--context.tier=portable", "--optimizer.stochastic_rounding=True"];
    changes_no_bit(2, || Setup::new("bfloat16", "compute_dtype: bfloat16").with(&rounded));
    let model = format!("{DROPOUT}, compute_dtype: bfloat16");
    changes_no_bit(3, || Setup::experts("bfloat16 with experts", CAPACITIES, &model));
    let scaled = "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 1024}";
    changes_no_bit(4, || Setup::new("float16", "compute_dtype: float16").with(&[scaled]));
}

#[test]
fn mixtures_choose_count_and_drop_the_same() {
    let model = format!("{DROPOUT}, mtp_depth: 1, mtp_loss_factor: 0.3");
    changes_no_bit(0, || Setup::experts("capacities", CAPACITIES, &model));
    assert!(Setup::experts("capacities", CAPACITIES, &model).train(1).dropped() > 0, "nothing was dropped");
    changes_no_bit(1, || Setup::experts("dropless", DROPLESS, ""));
    changes_no_bit(2, || Setup::experts("sparse mixer", SPARSE_MIXER, ""));
    changes_no_bit(4, || Setup::gpt_oss("gpt-oss", ""));
    if is_long() {
        changes_no_bit(1, || Setup::mimo("mimo", "attention_dropout: 0.1, hidden_dropout: 0.2"));
    }
    changes_no_bit(0, || Setup::beside_dense("beside", ""));
    changes_no_bit(2, || Setup::experts_of("GPT2Config", "experts of gpt2", WITHOUT_SHARED, DROPOUT));
    let half = "compute_dtype: bfloat16";
    changes_no_bit(3, || {
        Setup::experts_of("PanguAlphaConfig", "experts of pangu-alpha", WITHOUT_SHARED, half)
    });
}

/// The flag that recomputes one operator of both layers, for every operator that the layers of `setup` have.
fn one_by_one(setup: &impl Fn() -> Setup) -> Vec<(Operator, String)> {
    let flags =
        Operator::all().map(|one| (one, format!("--recompute_config.operators={{{}: [0, 1]}}", one.path())));
    let is_there = |flag: &str| {
        let setup = setup().with(&[flag]);
        let overrides = Override::parse_all(&setup.overrides).expect("overrides");
        RunConfig::parse(&setup.yaml(), Path::new("test.yaml"), &overrides).is_ok()
    };
    flags.filter(|(_, flag)| is_there(flag)).collect()
}

fn each_operator_changes_no_bit(count: usize, setup: impl Fn() -> Setup) {
    let kept = setup().train(STEPS);
    let operators = one_by_one(&setup);
    assert_eq!(operators.len(), count, "{operators:?}");
    for (_, recompute) in operators {
        let setup = setup().with(&[&recompute]);
        assert_same(setup.name, &recompute, &setup.train(STEPS), &kept);
    }
}

#[test]
fn each_operator_of_dense_models_computes_the_same() {
    each_operator_changes_no_bit(8, || Setup::new("llama", &format!("{DROPOUT}, use_qk_norm: True")));
    each_operator_changes_no_bit(7, || Setup::gpt2("gpt2", DROPOUT));
    each_operator_changes_no_bit(7, || Setup::typed("PanguAlphaConfig", "pangu-alpha", DROPOUT));
    each_operator_changes_no_bit(10, || dense("latent", &format!("{RANKS}, {DROPOUT}")));
}

#[test]
#[ignore = "long; `mixtures_choose_count_and_drop_the_same`"]
fn each_operator_of_a_mixture_computes_the_same() {
    each_operator_changes_no_bit(14, || Setup::experts("capacities", CAPACITIES, DROPOUT));
    each_operator_changes_no_bit(15, || Setup::beside_dense("beside", ""));
    each_operator_changes_no_bit(10, || {
        Setup::experts_of("GPT2Config", "experts of gpt2", WITHOUT_SHARED, DROPOUT)
    });
}

/// An operator is where the settings say it is, under its path, and what it drops is launched again and nothing else.
/// GELU is a launch of its own only where either it or its argument is recomputed, not both.
#[test]
fn operators_are_launched_under_their_paths() {
    let setups: [fn() -> Setup; 9] = [
        || {
            let layers = ["--model.model_config.layer_types=[conv]"];
            Setup::of_convolutions("convolutions", "").with(&layers)
        },
        || {
            let linear = ["--model.model_config.layer_types=[linear_attention]"];
            Setup::of_linear_attention("linear attention", "").with(&linear)
        },
        || Setup::new("gates", "attention_output_gate: True"),
        || Setup::new("llama", "use_qk_norm: True"),
        || dense("latent", RANKS),
        || Setup::gpt2("gpt2", DROPOUT),
        || Setup::experts("capacities", CAPACITIES, "compute_dtype: bfloat16"),
        || Setup::experts("dropless", DROPLESS, ""),
        || Setup::beside_dense("beside", ""),
    ];
    for setup in setups {
        let there = one_by_one(&setup);
        let kept = recordings(&setup()).micro_step().clone();
        let below = |path: &str| path.strip_prefix("layers.1.").map(str::to_string);
        for operator in Operator::all() {
            let flag = there.iter().find(|(other, _)| *other == operator).map(|(_, flag)| flag);
            let recording = flag.map(|flag| recordings(&setup().with(&[flag])).micro_step().clone());
            let dispatches = recording.as_ref().map_or(&kept.dispatches, |recording| &recording.dispatches);
            let mut paths = dispatches.iter().filter_map(|dispatch| below(&dispatch.path));
            let name = setup().name;
            assert_eq!(
                paths.any(|path| operator.covers(&path)),
                flag.is_some(),
                "{name}: {}",
                operator.path()
            );
        }
        let has_gelu = there.iter().any(|(operator, _)| *operator == Operator::Gelu);
        for (operator, flag) in there {
            let micro_step = recordings(&setup().with(&[&flag])).micro_step().clone();
            let again = launched_again(&micro_step);
            let extra = micro_step.dispatches.len() - kept.dispatches.len();
            let is_apart = has_gelu && matches!(operator, Operator::GateUp | Operator::Gelu);
            let extra = extra - usize::from(is_apart) * again.len();
            assert!(!again.is_empty() && again.len() == extra, "{flag}: {again:?}");
            for path in again.iter().filter_map(|path| below(path)) {
                let is_own = operator.covers(&path);
                // Rotation in place belongs to what it rotates.
                let rotates = matches!(operator, Operator::Qkv | Operator::QkNorm);
                assert!(is_own || rotates && path == "attention.rope", "{flag} launches {path} again");
            }
        }
    }
}

/// The paths of what is launched a second time.
fn launched_again(recording: &Recording) -> Vec<&str> {
    let paths = recording.dispatches.iter().map(|dispatch| dispatch.path.as_str());
    paths.filter_map(|path| path.strip_suffix(".recomputed")).collect()
}

#[test]
fn multi_token_prediction_computes_the_same() {
    changes_no_bit(4, || Setup::new("ahead", "mtp_depth: 2, mtp_loss_factor: 0.3"));
}

/// A mask that is drawn a third time, and products with A that are recomputed without the products that they are added
/// to.
#[test]
fn adapters_compute_the_same() {
    let adapters = |dropout: &str| {
        format!(
            "pet_config: {{pet_type: lora, random_base: True, lora_rank: 3, lora_dropout: {dropout}, target_modules: .*}}"
        )
    };
    changes_no_bit(0, || Setup::new("adapters", &adapters("0.3")));
    changes_no_bit(1, || {
        Setup::gpt2("gpt2 with adapters", &format!("{DROPOUT}, {}", adapters("0.0, use_dora: True")))
    });
    let of_experts =
        "pet_config: {pet_type: lora, random_base: True, lora_rank: 3, target_parameters: experts}";
    changes_no_bit(2, || Setup::experts("adapters of experts", CAPACITIES, of_experts));
    let setup = Setup::new("adapters", &adapters("0.3")).with(&[LAYERS[0]]);
    let again = recordings(&setup).micro_step().clone();
    let again = launched_again(&again);
    let of_output = |path: &str| again.iter().filter(|launch| launch.starts_with(path)).count();
    assert!(of_output("layers.1.feed_forward.w_down.lora_a") > 0, "{again:?}");
    assert_eq!(of_output("layers.1.feed_forward.w_down"), of_output("layers.1.feed_forward.w_down.lora_a"));
}

/// Frozen layers below the recomputed ones, and recomputed layers that are frozen.
#[test]
fn frozen_layers_compute_the_same() {
    changes_no_bit(2, || Setup::new("frozen", "freeze: ['embed', 'layers\\.0\\.']"));
    let frozen = ["--model.model_config.freeze=['embed', 'layers\\.0\\.']"];
    let micro_step = |recompute: &str| {
        recordings(&Setup::new("frozen", "").with(&frozen).with(&[recompute])).micro_step().clone()
    };
    // Nothing in layer 0 has a gradient, so it is not run again.
    let [every, first] = LAYERS.map(micro_step);
    assert!(launched_again(&every).iter().any(|path| path.starts_with("layers.1.attention")));
    assert_eq!(launched_again(&first), [""; 0]);
}

fn recordings(setup: &Setup) -> Recordings {
    recordings_of(setup, Tier::Software)
}

fn recordings_of(setup: &Setup, tier: Tier) -> Recordings {
    Recordings::new(&setup.plan(), assumed_capabilities(tier), 10).unwrap_or_else(|error| panic!("{error}"))
}

/// A block that is run again in the backward pass neither advances a counter nor tallies; no other recording changes.
#[test]
fn only_the_micro_step_changes_and_counts_once() {
    let setup = || {
        let model = format!("{DROPOUT}, mtp_depth: 1");
        Setup::experts("counted", CAPACITIES, &model).with(&["--sample.prompt=a", "--sample.tokens=1"])
    };
    let (kept, recomputed) = (recordings(&setup()), recordings(&setup().with(&[LAYERS[0]])));
    let count = |recording: &Recording, holds: &dyn Fn(&str) -> bool| {
        recording.dispatches.iter().filter(|dispatch| holds(&dispatch.path)).count()
    };
    let is_tally = |path: &str| path.contains(".tally");
    let is_counter = |path: &str| path.starts_with("dropout");
    let is_attention = |path: &str| path.contains(".flash_attention") && !path.ends_with(".backward");
    let decides = |path: &str| path.split('.').any(|step| ["route", "place", "work_list"].contains(&step));
    let counts =
        |recordings: &Recordings, holds: &dyn Fn(&str) -> bool| count(recordings.micro_step(), holds);
    assert_eq!(counts(&kept, &is_tally), 3);
    assert_eq!(counts(&recomputed, &is_tally), 3, "a recomputed layer tallies again");
    assert_eq!([&kept, &recomputed].map(|one| counts(one, &is_counter)), [1, 1]);
    assert!(counts(&kept, &decides) > 0);
    assert_eq!(counts(&recomputed, &decides), counts(&kept, &decides), "a router decides again");
    assert_eq!(
        counts(&recomputed, &is_attention),
        2 * counts(&kept, &is_attention),
        "every layer is run again"
    );
    // The last product of a layer makes its result, which is kept.
    let again = launched_again(recomputed.micro_step());
    assert!(
        again.iter().all(|path| !path.contains(".shared.gated") && !path.contains(".combine")),
        "{again:?}"
    );
    for (kept, recomputed) in kept.all().into_iter().zip(recomputed.all()).skip(1) {
        assert_eq!(kept.listing(), recomputed.listing(), "{} depends on recomputation", kept.name);
    }
}

const TWELVE_LAYERS: [&str; 6] = [
    "--model.model_config.num_layers=12",
    "--model.model_config.hidden_size=512",
    "--model.model_config.num_heads=8",
    "--model.model_config.intermediate_size=1536",
    "--model.model_config.seq_length=1024",
    "--batch_size=2",
];

fn pool(setup: &Setup, tier: Tier) -> u64 {
    MemoryPlan::new(&recordings_of(setup, tier).all()).bytes()
}

/// 12 layers at T = 1024 keep at least 70 % less.
#[test]
fn the_activation_peak_falls() {
    for tier in Tier::EVERYWHERE {
        for setup in [|| Setup::new("llama", ""), || Setup::gpt2("gpt2", "")] {
            let pool = |recompute: &[&str]| pool(&setup().with(&TWELVE_LAYERS).with(recompute), tier);
            let (none, half, all) = (
                pool(&[]),
                pool(&["--recompute_config.recompute=[6]"]),
                pool(&["--recompute_config.recompute=True"]),
            );
            let saved = 1.0 - all as f64 / none as f64;
            println!("{} {}: {none}, {half}, {all} bytes, saved {saved:.3}", tier.name(), setup().name);
            assert!(saved >= SAVED, "{} {}: only {saved:.3} of the pool is saved", tier.name(), setup().name);
            assert!(all < half && half < none, "six of twelve layers save something");
        }
    }
}

/// Every operator of 12 dense layers saves at least half of its output in the layers but the last.
#[test]
fn the_activation_peak_falls_by_each_operator() {
    let setup = || Setup::new("llama", "").with(&TWELVE_LAYERS);
    let none = pool(&setup(), Tier::Portable);
    let layers: Vec<usize> = (0..12).collect();
    let (tokens, width, inner) = (2 * 1024, 512, 1536);
    for operator in Operator::all() {
        let columns = match operator {
            Operator::AttentionNorm | Operator::FeedForwardNorm => width,
            Operator::FlashAttention | Operator::Output => width,
            Operator::Qkv => 3 * width,
            Operator::GateUp => 2 * inner,
            Operator::SwiGlu => inner,
            _ => continue,
        };
        let flag = format!("--recompute_config.operators={{{}: {layers:?}}}", operator.path());
        let (less, output) = (pool(&setup().with(&[&flag]), Tier::Portable), 4 * tokens * columns);
        println!("{}: {none}, {less} bytes, {} saved", operator.path(), none - less.min(none));
        assert!(none >= less + 11 * output / 2, "{} saves too little: {none}, {less}", operator.path());
    }
}

/// By default the activation of feed-forward networks is selected: the smallest of our configurations keeps less, too.
#[test]
fn the_default_operators_save_memory_in_the_smallest_configuration() {
    let pool = |flags: &[&str]| {
        let config =
            RunConfig::load(Path::new("configs/tiny.yaml"), &Override::parse_all(flags.to_vec()).unwrap());
        let plan = config.unwrap_or_else(|error| panic!("{error}")).plan;
        let recordings = Recordings::new(&plan, assumed_capabilities(Tier::Software), 10).unwrap();
        MemoryPlan::new(&recordings.all()).bytes()
    };
    let (none, less) = (pool(&[]), pool(&["--recompute_config.select_recompute=True"]));
    println!("tiny.yaml: {none} bytes, {less} with the activations recomputed");
    assert!(less < none, "{none} bytes, {less} with the activations recomputed");
}
