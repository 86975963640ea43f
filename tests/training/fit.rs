//! What `gristmill plan --fit` finds really fits, and takes no more work than it must; needs no adapter.
//!
//! It keeps the tokens of a step and is the least work of all candidates.

use crate::runs::Setup;
use gristmill::kernels::Capabilities;
use gristmill::perf::fit::Fit;
use gristmill::perf::forecast::Forecast;
use gristmill::settings::{BaseType, RunPlan};
use gristmill::train::recordings::Recordings;

const ADAPTER: Capabilities = Capabilities::portable();

fn peak(plan: &RunPlan) -> u64 {
    let recordings = Recordings::new(plan, ADAPTER, 10).unwrap_or_else(|error| panic!("{error}"));
    Forecast::new(&recordings).peak_bytes()
}

fn fit(plan: &RunPlan, memory: u64) -> Fit {
    Fit::find(plan, ADAPTER, 10, memory).unwrap_or_else(|error| panic!("{error}"))
}

/// 6 layers, and steps of 12 windows of 256 tokens.
fn deep() -> Setup {
    Setup::new("deep", "").with(&[
        "--model.model_config.num_layers=6",
        "--model.model_config.seq_length=256",
        "--batch_size=4",
        "--gradient_accumulation_steps=3",
    ])
}

#[test]
fn what_is_found_fits_and_keeps_the_tokens_of_a_step() {
    let plan = deep().plan();
    let smallest = fit(&plan, 1).candidates.iter().filter_map(|one| one.bytes).min().expect("a measurement");
    let largest = peak(&plan) * 4;
    let mut seen = Vec::new();
    for percent in 0..=100 {
        let memory = smallest + (largest - smallest) * percent / 100;
        let best = fit(&plan, memory).best.unwrap_or_else(|| panic!("{memory} bytes hold the smallest run"));
        let fitted = best.applied_to(&plan);
        assert_eq!(best.bytes, Some(peak(&fitted)), "the bytes of a candidate are those of its plan");
        assert!(peak(&fitted) <= memory);
        assert_eq!(fitted.tokens_per_step, plan.tokens_per_step);
        assert_eq!(best.batch_size * best.gradient_accumulation_steps, 12);
        seen.push((best.batch_size, best.recomputation.layers.len()));
    }
    println!("{seen:?}");
    assert_eq!(seen.first(), Some(&(1, 6)), "the smallest run recomputes every layer");
    assert_eq!(seen.last(), Some(&(12, 0)), "with memory for it, a step is one micro-batch");
    assert!(seen.iter().any(|(_, layers)| (1..6).contains(layers)), "some layers: {seen:?}");
}

/// One byte less than a run takes, and another is found or none.
#[test]
fn memory_is_used_to_the_last_byte() {
    let plan = deep().plan();
    let exact = peak(&plan);
    let batch_size =
        |memory| fit(&plan, memory).best.map(|best| (best.batch_size, best.recomputation.layers));
    assert_eq!(batch_size(exact), Some((4, Vec::new())));
    assert_ne!(batch_size(exact - 1), Some((4, Vec::new())));
}

#[test]
fn what_fits_in_no_way_is_one_line_with_what_is_left_to_do() {
    let refusal = |overrides: &[&str]| {
        let plan = deep().with(overrides).plan();
        let found = fit(&plan, 1 << 20);
        assert_eq!(found.best, None);
        found.refusal(&plan, 1 << 20).to_string()
    };
    let line = refusal(&[]);
    println!("{line}");
    assert_eq!(line.lines().count(), 1);
    for text in [
        "nothing fits 1.0 MiB: a micro-batch of one window with every layer recomputed takes ",
        "write `model.model_config.compute_dtype: bfloat16`",
        "an `optimizer.type` that keeps fewer moments",
        "lower num_layers, hidden_size or seq_length",
    ] {
        assert!(line.contains(text), "`{text}` is not in: {line}");
    }
    let line = refusal(&["--model.model_config.compute_dtype=float16", "--optimizer={type: SGD}"]);
    assert!(!line.contains("bfloat16") && !line.contains("optimizer.type"), "{line}");
}

/// Quantised weights change the numbers, so they are proposed where nothing else helps, and where they do.
#[test]
fn a_quantised_base_is_the_last_proposal() {
    let adapters = "compute_dtype: bfloat16, hidden_size: 256, intermediate_size: 1024, \
                    pet_config: {pet_type: lora, target_modules: .*wq}";
    let plan = Setup::new("base", adapters).with(&["--load_checkpoint=anywhere"]).plan();
    let with = |budget| {
        let found = fit(&plan, budget);
        (found.refusal(&plan, budget).to_string(), found)
    };
    let (line, found) = with(1 << 16);
    assert!(!line.contains("base_dtype"), "{line}");
    let [(BaseType::Int8, of_int8), (BaseType::Nf4, of_nf4)] = found.quantised[..] else {
        panic!("{:?}", found.quantised)
    };
    assert!(of_nf4 < of_int8);
    let (line, _) = with(of_nf4);
    assert!(line.contains("(`base_dtype: nf4` under pet_config takes "), "{line}");
    assert!(!line.contains("int8"), "{line}");
    assert_eq!(fit(&plan, 1 << 30).quantised, []);
}

/// A dense layer and layers of experts differ in what their recomputation saves and takes.
#[test]
fn layers_of_a_mixture_are_recomputed_in_the_order_of_what_that_saves() {
    let plan = Setup::experts(
        "mixture",
        "expert_num: 8, num_experts_chosen: 4, use_gmm: True, first_k_dense_replace: 2",
        "mtp_depth: 1",
    )
    .with(&[
        "--model.model_config.num_layers=5",
        "--model.model_config.seq_length=256",
        "--batch_size=1",
        "--gradient_accumulation_steps=1",
    ])
    .plan();
    let recomputed = |layers: &[usize]| {
        let mut plan = plan.clone();
        plan.model.recomputed.layers = layers.to_vec();
        peak(&plan)
    };
    let kept = recomputed(&[]);
    let saved = [&[0, 1][..], &[2, 3]].map(|layers| kept - recomputed(layers));
    println!("dense layers save {}, layers of experts {} of {kept} bytes", saved[0], saved[1]);
    // The fewest layers that make room for a byte, of those that save most per operation: the block of multi-token
    // prediction, whose activations are gone when others are at their peak, and one layer more.
    let best = fit(&plan, kept - 1).best.expect("a run");
    let first = best.recomputation.layers.clone();
    println!("{first:?}, {:.1} % more work", 100.0 * best.recomputation.work);
    assert!((1..=2).contains(&first.len()), "{first:?}");
    assert!(first.iter().all(|layer| *layer >= 2), "layers of experts save more per operation: {first:?}");
    assert!(best.recomputation.work > 0.0);
    let all =
        fit(&plan, 1).candidates.into_iter().map(|one| one.recomputation).max_by_key(|one| one.layers.len());
    let all = all.expect("a candidate");
    assert_eq!(all.layers, [0, 1, 2, 3, 4, 5], "the block of multi-token prediction is a layer too");
    assert!((0.1..0.34).contains(&all.work), "at most a third of the step is forward: {}", all.work);
}
