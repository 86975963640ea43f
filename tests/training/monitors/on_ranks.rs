//! The numbers of `monitor_config` on several ranks, against those of one that accumulates as much.

use super::{ALLOWED, EVERYTHING};
use crate::latent::{RANKS, V3, deepseek};
use crate::runs::{Setup, every_third};
use gristmill::report::metrics::{MonitorValue, Numbers};

/// How a run is spread.
#[derive(Clone, Copy)]
struct Spread {
    ranks: usize,
    /// Micro-batches of each rank in a step, of four windows on all.
    accumulated: usize,
    degrees: &'static str,
    /// Two of the degrees: of data, and of matrices.
    data: usize,
    model: usize,
    keys: &'static [&'static str],
}

const MATRICES: Spread =
    Spread { ranks: 2, accumulated: 4, degrees: "model_parallel: 2", data: 1, model: 2, keys: &[] };
const ALL: Spread =
    Spread { degrees: "model_parallel: 2, use_seq_parallel: True, vocab_emb_dp: False", ..MATRICES };
const STAGES: Spread = Spread { degrees: "pipeline_stage: 2, micro_batch_num: 4", model: 1, ..MATRICES };
const CHUNKS: Spread = Spread {
    degrees: "pipeline_stage: 2, micro_batch_num: 4, pp_interleave_num: 2",
    keys: &["--parallel.pipeline_config.pipeline_interleave=True"],
    ..STAGES
};
const DATA: Spread = Spread { degrees: "data_parallel: 2", data: 2, model: 1, accumulated: 2, ..MATRICES };
const SHARDED: &[&str] = &[
    "--parallel.enable_parallel_optimizer=True",
    "--parallel.parallel_optimizer_config.gradient_accumulation_shard=True",
];
const GATHERED: &[&str] =
    &[SHARDED[0], SHARDED[1], "--recompute_config.parallel_optimizer_comm_recompute=True"];

/// All that several ranks watch.
const WATCHED: &[&str] = &[EVERYTHING, "--runner_wrapper.local_norm=True", "--runner_config.batch_size=1"];

/// Each number of two steps is on every rank that of one rank, on [`every_third`] of `spreads`.
fn watches_as_one(setup: fn() -> Setup, keys: &[&str], spreads: &[Spread], allowed: f64) {
    let setup = || setup().with(WATCHED).with(keys);
    let gpu = setup().gpu();
    let one = setup().with(&["--gradient_accumulation_steps=4"]).train_on_one_device(&gpu, 1, 2).remove(0);
    for Spread { ranks, accumulated, degrees, data, model, keys: further } in every_third(spreads) {
        let name = format!("{} {keys:?}, {degrees} {further:?}", setup().name);
        let degrees = format!("--parallel_config={{{degrees}}}");
        let accumulation = format!("--gradient_accumulation_steps={accumulated}");
        let mut flags = vec!["--use_parallel=True", &degrees];
        if !degrees.contains("micro_batch_num") {
            flags.push(&accumulation);
        }
        let run = setup().with(&flags).with(further);
        for (rank, got) in run.train_on_one_device(&gpu, *ranks, 2).into_iter().enumerate() {
            let name = format!("{name}, rank {rank}");
            let data_rank = rank / model % data;
            for (got, want) in got.watched.iter().zip(&one.watched) {
                assert_eq!(tags(got), tags(want), "{name}");
                for (got, of_one) in got.iter().zip(want) {
                    let expected = expected(of_one, want, data_rank, *data);
                    compare(&format!("{name}: {}", got.tag), &numbers(got), &expected, allowed);
                }
            }
            assert_eq!((got.watched.len(), got.local_norms.len()), (2, 2));
            for (got, want) in got.local_norms.iter().flatten().zip(one.local_norms.iter().flatten()) {
                assert!((got - want).abs() <= 2.0 * allowed as f32 * want, "{name}: {got} and not {want}");
            }
        }
    }
}

fn tags(values: &[MonitorValue]) -> Vec<&str> {
    values.iter().map(|value| value.tag.as_str()).collect()
}

fn numbers(value: &MonitorValue) -> Vec<f32> {
    match &value.numbers {
        Numbers::One(number) => vec![*number],
        Numbers::Lines(numbers) | Numbers::List(numbers) => numbers.clone(),
    }
}

/// What rank `data_rank` of `data` should have in place of `value`, which is among the values of one rank: the same,
/// and losses of its own micro-batches.
fn expected(value: &MonitorValue, of_one: &[MonitorValue], data_rank: usize, data: usize) -> Vec<f32> {
    let prefixes = ["micro_local_", "local_"];
    let prefix = prefixes.into_iter().find(|prefix| value.tag.starts_with(prefix));
    let kind = prefix.and_then(|prefix| value.tag[prefix.len()..].strip_suffix("_loss"));
    let Some(kind) = kind else { return numbers(value) };
    let lines = of_one.iter().find(|other| other.tag == format!("micro_local_{kind}_loss"));
    let lines = numbers(lines.expect("the losses of micro-batches"));
    let own: Vec<f32> = lines.into_iter().skip(data_rank).step_by(data).collect();
    match value.numbers {
        Numbers::One(_) => vec![own.iter().sum::<f32>() / own.len() as f32],
        Numbers::Lines(_) | Numbers::List(_) => own,
    }
}

/// Panics if one of `got` is further than `allowed` of it from the same one of `want`.
fn compare(name: &str, got: &[f32], want: &[f32], allowed: f64) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (got, want) in got.iter().zip(want) {
        let error = f64::from((got - want).abs() / want.abs());
        assert!(error <= allowed, "{name}: {got} and not {want}, {error:.1e} apart");
    }
}

const LAYERS: &[&str] = &["--model.model_config.num_layers=4"];

/// Experts of a width that two ranks divide.
const WIDTH: &[&str] = &["--moe_config.moe_intermediate_size=40"];

fn dense() -> Setup {
    Setup::new("watched on ranks", "n_kv_heads: 2").with(LAYERS)
}

fn mixture() -> Setup {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, aux_loss_types: [expert], \
                   aux_loss_factors: [0.1]";
    Setup::experts("watched mixture on ranks", routing, "").with(LAYERS).with(WIDTH)
}

/// Norms, scores and losses, some of which one rank computes in another order.
const BOUND: f64 = 10.0 * ALLOWED;

/// The same of gradients that are rounded to bfloat16 on their way.
const IN_BF16: f64 = 2e-2;

#[test]
fn ranks_that_share_matrices_watch_as_one() {
    let four = Spread { ranks: 4, degrees: "model_parallel: 4", model: 4, ..MATRICES };
    let degrees = "model_parallel: 2, data_parallel: 2";
    let sharded = Spread { ranks: 4, degrees, model: 2, keys: SHARDED, ..DATA };
    watches_as_one(dense, &[], &[MATRICES, ALL, four, sharded], BOUND);
}

#[test]
#[ignore = "long; ranks that share weights, matrices or layers watch as one"]
fn ranks_that_share_experts_watch_as_one() {
    watches_as_one(mixture, &[], &[DATA, Spread { keys: SHARDED, ..DATA }], BOUND);
    let spread = Spread { degrees: "data_parallel: 2, expert_parallel: 2", ..DATA };
    let both = Spread {
        ranks: 4,
        degrees: "data_parallel: 2, expert_parallel: 2, model_parallel: 2",
        model: 2,
        ..DATA
    };
    let sharded = Spread { keys: SHARDED, ..spread };
    watches_as_one(mixture, &[], &[spread, sharded, both, Spread { keys: SHARDED, ..both }], BOUND);
}

#[test]
fn ranks_that_share_weights_watch_as_one() {
    let sharded = [SHARDED, GATHERED].map(|keys| Spread { keys, ..DATA });
    watches_as_one(dense, &[], &[DATA, sharded[0], sharded[1]], BOUND);
    let muon = "--optimizer={type: Muon, weight_decay: 0.1}";
    watches_as_one(dense, &[muon], &[sharded[0], MATRICES], BOUND);
    // Master weights are shared, too.
    let both = Spread { ranks: 4, degrees: "data_parallel: 2, model_parallel: 2", model: 2, ..sharded[0] };
    let halves = ["--model.model_config.compute_dtype=bfloat16"];
    watches_as_one(dense, &halves, &[sharded[0], both], IN_BF16);
}

#[test]
fn stages_watch_as_one() {
    watches_as_one(dense, &[], &[STAGES, CHUNKS], BOUND);
    let both = Spread {
        ranks: 4,
        degrees: "pipeline_stage: 2, micro_batch_num: 4, model_parallel: 2",
        model: 2,
        ..STAGES
    };
    let data = Spread {
        ranks: 4,
        degrees: "pipeline_stage: 2, micro_batch_num: 2, data_parallel: 2",
        data: 2,
        ..STAGES
    };
    watches_as_one(mixture, &[], &[both, STAGES, Spread { keys: SHARDED, ..data }], BOUND);
    let tied = || Setup::gpt2("watched ends", "").with(&["--optimizer={type: SGD, momentum: 0.9}"]);
    watches_as_one(tied, &[], &[STAGES], BOUND);
    let ahead = || deepseek("watched ahead", "DeepseekV3Config", &format!("{RANKS}, {V3}"));
    watches_as_one(ahead, &["--model.model_config.num_layers=3"], &[STAGES], BOUND);
}
