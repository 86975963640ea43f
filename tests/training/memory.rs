//! The memory of a run according to its recordings; needs no adapter.
//!
//! The pool grows linearly with the context; activations in 16 bits take at most 0.55 of those in f32.

use crate::runs::Setup;
use gristmill::error::Error;
use gristmill::kernels::{Capabilities, Tier};
use gristmill::model::parameters::{Role, Spec};
use gristmill::perf::forecast::RankForecast;
use gristmill::record::{BufferId, MemoryPlan};
use gristmill::settings::{Bytes, RunPlan};
use gristmill::train::recordings::{Recordings, assumed_capabilities};

/// Growth allowed to the pool when the window doubles. A (T, T) matrix anywhere would make it grow by a factor of 4.
const ALLOWED_GROWTH: f64 = 2.1;

const MIB: u64 = 1 << 20;

/// Narrow and shallow, so that a (T, T) matrix would dominate: at T = 2048 it takes 16 MiB per head.
fn plan_with_window(window: u32) -> RunPlan {
    let window = format!("--model.model_config.seq_length={window}");
    Setup::new("window", "").with(&["--batch_size=1", "--gradient_accumulation_steps=1", &window]).plan()
}

fn record(plan: &RunPlan, capabilities: Capabilities) -> Result<Recordings, Error> {
    Recordings::new(plan, capabilities, 10)
}

#[test]
fn the_pool_grows_no_faster_than_the_window() {
    for tier in Tier::EVERYWHERE {
        let pool = [512, 1024, 2048].map(|window| {
            let recordings = record(&plan_with_window(window), assumed_capabilities(tier));
            MemoryPlan::new(&recordings.expect("a plan").all()).bytes()
        });
        let growth = [1, 2].map(|i| pool[i] as f64 / pool[i - 1] as f64);
        println!("{}: pool {pool:?} bytes at T = 512, 1024, 2048: x {growth:.3?}", tier.name());
        assert!(
            growth.iter().all(|g| *g <= ALLOWED_GROWTH),
            "{}: grows by factors of {growth:?}",
            tier.name()
        );
        assert!(growth.iter().all(|g| *g > 1.0), "{}: the pool does not depend on the window", tier.name());
    }
}

/// Statistics of norms and attention stay f32, and so do the logits of a chunk.
#[test]
fn activations_in_16_bits_take_little_more_than_half() {
    for tier in Tier::EVERYWHERE {
        let [whole, half] = ["float32", "float16"].map(|compute| {
            let compute = format!("--model.model_config.compute_dtype={compute}");
            let deep =
                ["--model.model_config.num_layers=12", "--model.model_config.seq_length=1024", &compute];
            let plan = Setup::new("deep", "").with(&deep).plan();
            assert_eq!((plan.model.num_layers, plan.model.seq_length), (12, 1024));
            let recordings = record(&plan, assumed_capabilities(tier));
            MemoryPlan::new(&recordings.expect("a plan").all()).bytes()
        });
        let share = half as f64 / whole as f64;
        println!("{}: {half} of {whole} bytes, {share:.3}", tier.name());
        assert!(share <= 0.55, "{}: activations in float16 take {share:.3} of those in float32", tier.name());
    }
}

/// Muon's matrices have one moment, frozen parameters neither gradients nor moments.
#[test]
fn moments_are_kept_for_what_uses_them() {
    let persistent = |overrides: &[&str]| {
        let plan = Setup::new("arenas", "").with(overrides).plan();
        let recordings = record(&plan, Capabilities::software()).expect("a plan");
        let bytes = |name: &str| -> u64 {
            let of_name = |(label, _): &&(String, u64)| label.starts_with(name);
            recordings.persistents.buffers().iter().filter(of_name).map(|(_, bytes)| bytes).sum()
        };
        ["weights", "gradients", "first moments", "second moments"].map(bytes)
    };
    // The matrices of two layers, 32 wide: wqkv, wo, gate and up, down. Every size is a multiple of 128 elements.
    let matrices = 4 * 2 * (3 * 32 * 32 + 32 * 32 + 2 * 64 * 32 + 32 * 64);
    let plain = persistent(&[]);
    assert_eq!(plain, [plain[0]; 4]);
    let [w, g, m, v] = persistent(&["--optimizer={type: Muon}"]);
    assert_eq!([w, g, m, v], [plain[0], plain[0], plain[0], plain[0] - matrices]);
    let frozen = persistent(&["--model.model_config.freeze=['layers.*(attention.w|feed_forward)']"]);
    let rest = plain[0] - matrices;
    assert_eq!(frozen, [plain[0], rest, rest, rest]);
}

#[test]
fn a_cap_that_is_too_small_names_the_five_largest_consumers() {
    let forecast =
        |plan: &RunPlan| RankForecast::new(plan, Capabilities::software(), 10, None).expect("a forecast");
    let capped = |cap: &str| {
        let cap = format!("--context.max_device_memory={cap}");
        forecast(&Setup::new("capped", "").with(&[&cap, "--batch_size=3"]).plan())
    };
    let line = capped("1MB").over_cap.expect("1 MB is too little").to_string();
    println!("{line}");
    assert_eq!(line.lines().count(), 1);
    assert!(line.contains("over context.max_device_memory of 1.0 MiB"), "{line}");
    assert!(
        line.ends_with(
            "lower runner_config.batch_size, write `recompute_config.recompute: True`, write \
             `model.model_config.compute_dtype: bfloat16`, or raise the cap"
        ),
        "{line}"
    );
    let consumers = line.split("consumers: ").nth(1).and_then(|rest| rest.split(';').next()).expect("a list");
    let sizes: Vec<f64> = consumers
        .split(", ")
        .map(|consumer| consumer.trim_end_matches(" MiB").rsplit(' ').next().expect("a size"))
        .map(|size| size.parse().expect("a size in MiB"))
        .collect();
    assert_eq!(sizes.len(), 5, "{consumers}");
    assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes[4] > 0.0, "{consumers}");

    // The cap is exact: the forecast passes, one byte less does not.
    let mut plan = Setup::new("capped", "").with(&["--batch_size=3"]).plan();
    let needed = capped("64MB").forecast.peak_bytes();
    plan.settings.context.max_device_memory = Some(Bytes(needed));
    assert!(forecast(&plan).over_cap.is_none());
    plan.settings.context.max_device_memory = Some(Bytes(needed - 1));
    assert!(forecast(&plan).over_cap.is_some());
}

#[test]
fn tensors_over_the_binding_limit_are_split_at_whole_rows() {
    let limit = MIB;
    // (8192, 64) is 2 MiB, so embedding and head take at least two parts each.
    let wide = ["--model.model_config.vocab_size=8192", "--model.model_config.hidden_size=64"];
    for tied in ["False", "True"] {
        let tied = format!("--model.model_config.tie_word_embeddings={tied}");
        let plan = Setup::new("wide", "").with(&wide).with(&[&tied]).plan();
        let recordings = record(&plan, Capabilities::software().with_binding_bytes(limit)).expect("a plan");
        let is_wide = |spec: &Spec| matches!(spec.role, Role::Embedding | Role::Head);
        for (spec, parts) in recordings.layout.parameters.iter().filter(|(spec, _)| is_wide(spec)) {
            let rows: Vec<usize> = parts.iter().map(|part| part.rows).collect();
            println!("{}: {} rows in parts of {:?}", spec.path, spec.rows, rows);
            assert!(parts.len() >= 2, "{} is not split", spec.path);
            let mut next = 0;
            for part in parts {
                assert_eq!(part.first_row, next, "{} has a gap or an overlap", spec.path);
                next += part.rows;
            }
            assert_eq!(next, spec.rows, "{}: rows are missing", spec.path);
        }
        for recording in recordings.all() {
            for dispatch in &recording.dispatches {
                for binding in &dispatch.bindings {
                    let (path, variable, bytes) = (&dispatch.path, binding.variable, binding.bytes);
                    assert!(bytes <= limit, "{path}: `{variable}` covers {bytes} bytes");
                    let whole = match binding.buffer {
                        BufferId::Persistent(id) => recordings.persistents.buffers()[id.0 as usize].1,
                        BufferId::Transient(id) => recording.transient(id).bytes,
                    };
                    assert!(binding.offset + bytes <= whole, "{path}: `{variable}` passes its buffer's end");
                }
            }
        }
    }
}

#[test]
fn tensors_that_cannot_be_split_are_named_in_the_error() {
    let cases: &[(&[&str], &[&str])] = &[
        // The first matrix over the limit is wqkv, (3 x 512, 512).
        (
            &["--model.model_config.hidden_size=512"],
            &[
                "layers.0.attention.wqkv (1536 x 512, 3 MiB) does not fit",
                "largest binding of 1 MiB; choose another adapter with context.device_name, or a narrower model",
            ],
        ),
        // A row of logits takes 80 kB, and a chunk has at least 16 rows.
        (
            &["--model.model_config.vocab_size=20000"],
            &[
                "a chunk of logits over 20000 tokens takes 2 MiB, over",
                "largest binding of 1 MiB; lower model.model_config.vocab_size",
            ],
        ),
        (
            &["--batch_size=100"],
            &[
                "an activation of 100 x 24 tokens x 144 takes 2 MiB, over",
                "largest binding of 1 MiB; lower runner_config.batch_size",
            ],
        ),
    ];
    for (change, expected) in cases {
        let plan = Setup::new("unsplittable", "").wide().with(change).plan();
        let refused = record(&plan, Capabilities::software().with_binding_bytes(MIB));
        let line = refused.err().expect("an error").to_string();
        println!("{line}");
        assert_eq!(line.lines().count(), 1);
        for text in *expected {
            assert!(line.contains(text), "`{text}` is not in: {line}");
        }
    }
}

/// Each of four ranks may send both choices of all its tokens to the experts of one: 4 x 2 x 24 rows a window.
#[test]
fn more_rows_than_the_experts_of_a_rank_can_receive_are_refused() {
    let ranks = ["--use_parallel=True", "--parallel_config={data_parallel: 4, expert_parallel: 4}"];
    let refused = |routing: &str, batch_size: &str| {
        let moe = format!(
            "--moe_config={{expert_num: 8, num_experts_chosen: 2, moe_intermediate_size: 4, {routing}}}"
        );
        let flags = [&*moe, &format!("--batch_size={batch_size}"), "--gradient_accumulation_steps=1"];
        let plan = Setup::new("many rows", "").wide().with(&flags).with(&ranks).plan_on_rank(1, 4);
        record(&plan, Capabilities::software().with_binding_bytes(MIB))
    };
    // The widest tensor is as wide as the model, 48.
    let line = refused("use_gmm: True", "29").err().expect("an error").to_string();
    println!("{line}");
    let expected = [
        "the rows that 4 ranks may send to the experts of one, 5568 x 48, take 2 MiB, over the adapter's largest binding of 1 MiB",
        "lower runner_config.batch_size and raise runner_config.gradient_accumulation_steps instead",
        "or lower model.model_config.seq_length or parallel_config.expert_parallel",
        "moe_config.capacity_factor",
    ];
    for text in expected {
        assert!(line.contains(text), "`{text}` is not in: {line}");
    }
    refused("use_gmm: True", "28").unwrap_or_else(|error| panic!("{error}"));
    // A quarter of the choices of each rank go to its experts then.
    refused("capacity_factor: 1.0", "29").unwrap_or_else(|error| panic!("{error}"));
}

/// A grid has at most 65,535 tiles of 16 rows along an axis, and each choice of each token is a row.
#[test]
fn more_rows_of_experts_than_a_grid_can_have_are_refused() {
    let moe = "--moe_config={expert_num: 8, num_experts_chosen: 8, use_gmm: True, moe_intermediate_size: 4}";
    let recorded = |batch_size: u32| {
        let batch_size = format!("--batch_size={batch_size}");
        let plan = Setup::new("too many rows", "")
            .with(&[moe, &batch_size, "--gradient_accumulation_steps=1"])
            .plan();
        record(&plan, Capabilities::software().with_binding_bytes(1 << 30))
    };
    // 24 tokens a window.
    let line = recorded(65_535 * 16 / 8 / 24 + 1).err().expect("an error").to_string();
    println!("{line}");
    assert!(line.contains("rows of 8 experts are more than a launch can have"), "{line}");
    assert!(line.contains("lower runner_config.batch_size"), "{line}");
    recorded(65_535 * 16 / 8 / 24 - 10).unwrap_or_else(|error| panic!("{error}"));
}
