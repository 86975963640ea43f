//! Whole runs on the kernels that GPUs run, which software adapters run slowly: a few steps of each kind of model and
//! step, against the f64 trainer where it has them, else against the kernels of software adapters.

use crate::against_reference::follows_the_reference;
use crate::latent::{RANKS, V3, deepseek};
use crate::runs::{FolderRun, Setup, Trained, evaluated, is_long, open_gpu_of, relative_distance};
use gristmill::kernels::Tier;
use gristmill::train::TrainingRun;
use pollster::block_on;

const PORTABLE: &str = "--context.tier=portable";

/// A mixture in which every choice has a row, with a selection bias that moves and a gated shared expert.
const DROPLESS: &str = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, shared_expert_num: 1, use_shared_expert_gating: True, \
                        balance_via_topk_bias: True, topk_bias_update_rate: 0.01";
/// One that drops choices, under balance losses.
const CAPACITY: &str = "expert_num: 4, num_experts_chosen: 2, routing_policy: TopkRouterV2, capacity_factor: 1.1, \
                        aux_loss_types: [expert], aux_loss_factors: [0.1]";

/// float16, under a scale that overflows in its first steps and rises until it does again.
const OVERFLOWS: &str = "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 33554432, scale_window: 2}";

const ROUNDED: [&str; 2] =
    ["--model.model_config.compute_dtype=bfloat16", "--optimizer.stochastic_rounding=True"];

/// What runs are compared with.
enum Judge {
    /// The f64 trainer.
    Reference,
    /// The kernels of software adapters: losses and final weights within these relative distances.
    Software { loss: f64, weights: f64 },
}

/// A run, and whether it trains without `GRISTMILL_LONG`, too: the others have each of their parts in one that does.
struct Row {
    setup: fn() -> Setup,
    steps: u64,
    judge: Judge,
    is_short: bool,
}

/// Sums in another order.
const IN_F32: Judge = Judge::Software { loss: 1e-5, weights: 1e-5 };
/// Values in 16 bits that round the other way, and weights that do: 2^-7 of each.
const IN_16_BITS: Judge = Judge::Software { loss: 2e-3, weights: 1.0 / 128.0 };

const ROWS: [Row; 10] = [
    Row { setup: tied, steps: 4, judge: Judge::Reference, is_short: true },
    Row { setup: gpt2, steps: 4, judge: Judge::Reference, is_short: false },
    Row { setup: groups, steps: 4, judge: Judge::Reference, is_short: false },
    Row { setup: dropless, steps: 3, judge: Judge::Reference, is_short: true },
    Row { setup: capacity, steps: 3, judge: Judge::Reference, is_short: false },
    Row { setup: latent, steps: 3, judge: Judge::Reference, is_short: false },
    Row { setup: segmented, steps: 3, judge: IN_F32, is_short: true },
    Row { setup: overflowing, steps: 8, judge: IN_16_BITS, is_short: true },
    Row { setup: rounded, steps: 4, judge: IN_16_BITS, is_short: true },
    Row { setup: recomputed, steps: 3, judge: IN_F32, is_short: false },
];

fn tied() -> Setup {
    Setup::new(
        "tied",
        "tie_word_embeddings: True, n_kv_heads: 2, qkv_has_bias: True, partial_rotary_factor: 0.5",
    )
}

fn gpt2() -> Setup {
    Setup::gpt2("gpt2", "")
}

fn groups() -> Setup {
    let groups = "--grouped_lr_schedule={default: {type: CosineWithWarmUpLR, learning_rate: 3.e-3, warmup_steps: 3}, \
                  grouped: [{params: ['embedding.*', 'output_layer.weight'], type: polynomial, learning_rate: 1.e-3, \
                  weight_decay: 0.3}]}";
    Setup::new("groups", "").with(&[groups])
}

fn dropless() -> Setup {
    Setup::experts("dropless", DROPLESS, "use_qk_norm: True")
}

fn capacity() -> Setup {
    Setup::experts("capacity", CAPACITY, "mtp_depth: 1, mtp_loss_factor: 0.3")
}

fn latent() -> Setup {
    deepseek("latent", "DeepseekV3Config", &format!("{RANKS}, {V3}"))
}

/// Tensors in several buffers, and logits in chunks.
fn segmented() -> Setup {
    let mut setup = Setup::new("segmented", "").with(&["--model.model_config.vocab_size=8192"]);
    setup.gpu_options.binding_bytes = Some(1 << 20);
    setup
}

fn overflowing() -> Setup {
    Setup::new("overflowing", "compute_dtype: float16").with(&[OVERFLOWS])
}

fn rounded() -> Setup {
    Setup::new("rounded", "").with(&ROUNDED).with(&["--recompute_config.recompute=True"])
}

fn recomputed() -> Setup {
    Setup::experts("recomputed", CAPACITY, "").with(&["--recompute_config.recompute=[1]"])
}

#[test]
fn runs_on_portable_kernels_follow() {
    for Row { setup, steps, judge, .. } in ROWS.iter().filter(|row| row.is_short || is_long()) {
        let portable = || setup().with(&[PORTABLE]);
        match judge {
            Judge::Reference => follows_the_reference(&portable(), *steps),
            Judge::Software { loss, weights } => {
                let (got, want) =
                    (portable().train(*steps), setup().with(&["--context.tier=software"]).train(*steps));
                agree(setup().name, &got, &want, *loss, *weights);
                if setup().overrides.contains(&OVERFLOWS.to_string()) {
                    assert_overflows(&got);
                }
            }
        }
    }
}

/// Panics unless both runs decide the same in each step and are as close as allowed.
fn agree(name: &str, got: &Trained, want: &Trained, loss: f64, weights: f64) {
    let decisions = |trained: &Trained| -> Vec<_> {
        let states = trained.states.iter();
        states.map(|state| (state.is_overflow, state.halt, state.global_step, state.loss_scale)).collect()
    };
    assert_eq!(decisions(got), decisions(want), "{name}");
    assert!(!got.states.is_empty(), "{name}: no step");
    for (step, (got, want)) in got.states.iter().zip(&want.states).enumerate() {
        let apart = f64::from((got.loss - want.loss) / want.loss).abs();
        assert!(apart <= loss, "{name}: losses of step {}: {} and {}", step + 1, got.loss, want.loss);
    }
    let apart = relative_distance(&got.weights, &want.weights);
    println!("{name}: weights {apart:.1e} apart");
    assert!(apart <= weights, "{name}: the final weights are {apart:.2e} apart");
}

/// Some steps overflow and others do not.
fn assert_overflows(trained: &Trained) {
    let overflowed: Vec<u32> = trained.states.iter().map(|state| state.is_overflow).collect();
    assert!(overflowed.contains(&1) && overflowed.contains(&0), "{overflowed:?}");
    let last = trained.states.last().expect("a step");
    assert!(last.global_step >= 2, "no update between overflows: {overflowed:?}");
}

/// In float32 with `GRISTMILL_LONG`; what a checkpoint has to hold, a run with rounded weights needs, too.
#[test]
#[ignore = "long; runs resume on the kernels of software adapters"]
fn runs_on_portable_kernels_resume_exactly() {
    let rounded = [PORTABLE, ROUNDED[0], ROUNDED[1], "--eval_step_interval=2"];
    for overrides in [&rounded[..]].into_iter().chain(is_long().then_some(&rounded[..1])) {
        let new = || evaluated(dropless(), 1000, overrides);
        let want = new().train(4).left();
        new().train(2).train(4).left().assert_equals(&format!("{overrides:?}"), &want);
    }
}

#[test]
fn an_open_device_of_another_tier_is_refused() {
    let run = FolderRun::new(Setup::new("other tier", "").with(&["--context.tier=portable"]));
    let config = run.setup.write(run.home.path());
    let mut gpu = open_gpu_of(Tier::Software);
    let ended = TrainingRun { gpu: Some(&mut gpu), ..TrainingRun::new(&config, &run.setup.overrides) };
    let line = block_on(ended.train()).expect_err("another tier").to_string();
    assert!(
        line.ends_with("was opened for tier software, but `context.tier` is portable; leave it out"),
        "{line}"
    );
    assert!(!run.folder().exists());
}
