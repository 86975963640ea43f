//! A run on several ranks: what each of them does by the file, and what is answered where the file and the ranks do not
//! fit.
//!
//! What is not built for ranks is planned for and not trained. A plan for several ranks has the decisions of the
//! one-rank plan that accumulates as much, and reads back as itself.

use super::{BASE, resolve};
use gristmill::error::Result;
use gristmill::ranks::RankLayout;
use gristmill::settings::{Override, RunConfig, RunPlan, Sharded, Sharding};
use std::path::Path;

pub(super) const PARALLEL: &str = "--use_parallel=True";
const STAGES: &str = "--parallel_config.micro_batch_num=4000000000";

fn started(text: &str, flags: &[&str], rank: usize, size: usize) -> Result<RunConfig> {
    let overrides = Override::parse_all(flags.to_vec())?;
    RunConfig::parse_on_rank(text, Path::new("x.yaml"), &overrides, rank, size)
}

/// The plan and the notices of rank `rank` of `size`, with the base and `flags`.
#[track_caller]
pub(super) fn plan_on(flags: &[&str], rank: usize, size: usize) -> (RunPlan, Vec<String>) {
    let flags = [&[PARALLEL], flags].concat();
    let config = started(BASE, &flags, rank, size).unwrap_or_else(|error| panic!("{error}"));
    (config.plan, without_clipping(config.notices))
}

/// The notices but that the base has no `runner_wrapper`.
fn without_clipping(notices: Vec<String>) -> Vec<String> {
    notices.into_iter().filter(|notice| !notice.starts_with("runner_wrapper")).collect()
}

/// What is answered to `size` ranks.
pub(super) fn answer(flags: &[&str], size: usize) -> String {
    let config = started(BASE, flags, 0, size);
    let accepted = |config: RunConfig| format!("accepted {:?}", without_clipping(config.notices));
    config.map_or_else(|error| error.to_string(), accepted)
}

/// The plan of the base with `flags`, which needs no ranks.
#[track_caller]
fn outline(flags: &[&str]) -> RunConfig {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.yaml");
    std::fs::write(&path, BASE).unwrap();
    let flags = [&[PARALLEL], flags].concat();
    RunConfig::outline(&path, &Override::parse_all(flags).unwrap(), None)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn experts() -> String {
    "--moe_config={expert_num: 8, num_experts_chosen: 2}".to_string()
}

#[test]
fn ranks_do_the_steps_of_one_that_accumulates() {
    let spread = [
        "--parallel_config.data_parallel=4",
        "--gradient_accumulation_steps=3",
        "--micro_batch_interleave_num=2",
    ];
    let (single, _) = resolve(BASE, &[&[PARALLEL, "--as-single"], &spread[..]].concat()).unwrap();
    assert_eq!((single.layout, single.settings.parallel.as_ref()), (RankLayout::one(), None));
    for rank in 0..4 {
        let (plan, notices) = plan_on(&spread, rank, 4);
        assert_eq!(plan.layout, RankLayout { rank, data: 4, ..RankLayout::one() });
        assert_eq!(
            (plan.settings.runner.gradient_accumulation_steps, plan.micro_batches_per_step()),
            (6, 24)
        );
        assert_eq!((plan.tokens_per_step, plan.sharding), (single.tokens_per_step, Sharding::NONE));
        assert_eq!(plan.decisions(), single.decisions(), "a run may continue on any number of ranks");
        let batches = plan.batch_spec();
        assert_eq!((batches.micro_batches, batches.rank, batches.world), (24, rank, 4));
        let windows = "runner_config.gradient_accumulation_steps: 6 keeps the 24 windows of a step on each rank \
                       (runner_config.gradient_accumulation_steps 3 x micro_batch_interleave_num 2)";
        assert!(notices.contains(&windows.to_string()), "{notices:?}");
    }
}

#[test]
fn micro_batches_without_stages_are_noticed() {
    let notice = "parallel_config.micro_batch_num: no effect without pipeline stages, as in MindFormers; \
                  `runner_config.gradient_accumulation_steps` accumulates";
    let of = |flags: &[&str]| {
        let (plan, notices) = resolve(BASE, flags).unwrap();
        (plan.settings.runner.gradient_accumulation_steps, notices.iter().any(|one| one == notice))
    };
    let degrees = "--parallel_config={micro_batch_num: 4}";
    let stages = "--parallel_config={micro_batch_num: 4, pipeline_stage: 2}";
    let (spread, single) = ("--use_parallel=True", "--as-single");
    assert_eq!(of(&[degrees]), (1, true));
    assert_eq!(of(&[degrees, spread, single]), (1, true));
    assert_eq!(of(&[stages, single]), (1, true), "without use_parallel degrees do not count");
    assert_eq!(of(&[stages, spread, single]), (4, false));
    assert_eq!(of(&["--parallel_config={micro_batch_num: 1}"]), (1, false));
}

#[test]
fn a_plan_of_several_ranks_reads_back_as_itself_on_them() {
    let of_optimizer = [
        "--parallel_config.data_parallel=4",
        "--parallel.enable_parallel_optimizer=True",
        "--parallel.parallel_optimizer_config.optimizer_level=level2",
        "--parallel.optimizer_weight_shard_size=2",
        "--gradient_accumulation_steps=3",
    ];
    let experts = experts();
    let of_experts = [
        "--parallel_config={data_parallel: 4, expert_parallel: 2}",
        &experts,
        "--micro_batch_interleave_num=2",
    ];
    let of_weights =
        [&of_optimizer[..], &["--parallel.parallel_optimizer_config.optimizer_level=level3"]].concat();
    for flags in [&of_optimizer[..], &of_weights, &of_experts, &["--parallel.parallel_mode=0"]] {
        for rank in [0, 3] {
            let (plan, _) = plan_on(flags, rank, 4);
            let text = plan.to_yaml();
            let again = started(&text, &[], rank, 4).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!((again.plan, again.notices), (plan, Vec::new()), "{text}");
        }
    }
    // A run of one rank says nothing of ranks.
    let text = super::plan(BASE).to_yaml();
    assert!(
        !text.lines().any(|line| line.starts_with("parallel") || line.starts_with("use_parallel")),
        "{text}"
    );
}

#[test]
fn the_degrees_are_those_of_the_ranks_that_were_started() {
    let of_four = "--parallel_config.data_parallel=4";
    let start = "start 4 (`mpirun -n 4 gristmill train ...` or `--ranks 4`), change the degrees, or start one with \
                 `--as-single`, which does the work of all";
    let asks = "--parallel_config.data_parallel: asks for";
    let cases = [
        (vec![PARALLEL, of_four], 1, format!("{asks} 4 ranks (data_parallel 4), and 1 was started; {start}")),
        (vec![PARALLEL, of_four], 2, format!("{asks} 4 ranks (data_parallel 4), and 2 were started; {start}")),
        (
            // The experts are spread over the same ranks, and ask for none.
            vec![PARALLEL, of_four, "--parallel_config.expert_parallel=2"],
            2,
            format!("{asks} 4 ranks (data_parallel 4), and 2 were started; {start}"),
        ),
        (
            vec![PARALLEL],
            2,
            "--use_parallel: asks for 1 rank, and 2 were started; write `data_parallel: 2`, for example, or start one"
                .to_string(),
        ),
        (
            vec![],
            2,
            "x.yaml:1: use_parallel: 2 ranks were started, and the file is for one; write `use_parallel: True` and \
             `parallel_config: {data_parallel: 2}`, for example, or start one"
                .to_string(),
        ),
        (
            vec!["--use_parallel=False", of_four],
            4,
            "--use_parallel: 4 ranks were started, and the file is for one; write `use_parallel: True` and \
             `parallel_config: {data_parallel: 4}`, for example, or start one"
                .to_string(),
        ),
        (
            vec![PARALLEL, of_four, "--as-single"],
            4,
            "--as-single: 4 ranks were started, and `as_single` does the work of all on one; remove it, or start one".to_string(),
        ),
        (
            vec![PARALLEL, "--parallel.parallel_mode=3"],
            4,
            "--parallel.parallel_mode: 4 ranks were started, and this mode is for one; write `parallel_mode: 1` and the degrees of \
             `parallel_config`, or start one"
                .to_string(),
        ),
        (
            vec![PARALLEL, "--parallel_config.data_parallel=4294967296"],
            4,
            "--parallel_config.data_parallel: asks for 4294967296 ranks, of which 1048576 are the most; lower the \
             degrees"
                .to_string(),
        ),
        (
            vec![PARALLEL, "--parallel_config.data_parallel=1048576", "--gradient_accumulation_steps=4096"],
            1 << 20,
            "--parallel_config.data_parallel: makes more micro-batches a step than can be accumulated; lower the \
             degrees"
                .to_string(),
        ),
        (
            vec![PARALLEL, "--parallel_config={pipeline_stage: 2}", "--parallel_config.data_parallel=2", STAGES],
            4,
            "--parallel_config.micro_batch_num: makes more micro-batches a step than can be accumulated; lower the degrees"
                .to_string(),
        ),
    ];
    for (flags, size, expected) in cases {
        assert_eq!(answer(&flags, size), expected, "{flags:?} on {size}");
    }
    // A line of the file, where no flag is to blame.
    let text = format!("{BASE}use_parallel: True\nparallel_config: {{data_parallel: 8}}\n");
    let error = started(&text, &[], 0, 1).map(|config| config.notices).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("x.yaml:{}: parallel_config: asks for 8 ranks", text.lines().count())),
        "{error}"
    );
}

#[test]
fn all_ranks_share_the_batch_in_the_mode_of_data() {
    let mode = "--parallel.parallel_mode=0";
    let (plan, notices) = plan_on(&[mode, "--parallel_config.model_parallel=2"], 1, 3);
    assert_eq!(plan.layout, RankLayout { rank: 1, data: 3, ..RankLayout::one() });
    let note =
        "parallel_config asks for model_parallel 2; in this parallel_mode the 3 ranks share the batch alone";
    assert!(notices.contains(&note.to_string()), "{notices:?}");
    let (_, notices) = plan_on(&[mode, "--parallel_config.data_parallel=3"], 1, 3);
    assert!(!notices.iter().any(|notice| notice.contains("parallel")), "{notices:?}");
    assert_eq!(plan_on(&[mode], 0, 1).0.layout, RankLayout::one());
}

#[test]
fn experts_are_spread_evenly_over_ranks_that_share_the_batch() {
    let experts = experts();
    let spread = |degrees: &str| {
        let degrees = format!("--parallel_config={{{degrees}}}");
        answer(&[PARALLEL, &degrees, &experts], 8)
    };
    let (plan, _) = plan_on(&["--parallel_config={data_parallel: 8, expert_parallel: 4}", &experts], 6, 8);
    assert_eq!(plan.layout, RankLayout { rank: 6, data: 8, expert: 4, ..RankLayout::one() });
    assert_eq!((plan.layout.expert_part(), plan.layout.expert_group().ranks), (2, vec![4, 5, 6, 7]));
    assert_eq!(
        spread("data_parallel: 8, expert_parallel: 3"),
        "--parallel_config: expert_parallel: 3 does not divide data_parallel 8; write an `expert_parallel` that does"
    );
    let many = ["--parallel_config={data_parallel: 16, expert_parallel: 16}", &experts];
    assert_eq!(
        answer(&[&[PARALLEL], &many[..]].concat(), 16),
        "--parallel_config: expert_parallel: 16 ranks cannot share 8 experts evenly; write an `expert_parallel` that divides their number"
    );
    // Somebody's tokens must have somewhere to go.
    let all_hot = "--moe_config={expert_num: 8, num_experts_chosen: 2, enable_cold_hot_expert: True, hot_expert_num: 8}";
    assert_eq!(
        answer(&[PARALLEL, "--parallel_config={data_parallel: 8, expert_parallel: 4}", all_hot], 8),
        "--parallel_config: expert_parallel: all 8 experts are hot, so each of 4 ranks would have a copy of all of them; \
         lower `hot_expert_num`, or write `expert_parallel: 1`"
    );
    // A dense model has none to spread.
    let (plan, notices) = plan_on(&["--parallel_config={data_parallel: 8, expert_parallel: 4}"], 6, 8);
    assert_eq!(plan.layout, RankLayout { rank: 6, data: 8, ..RankLayout::one() });
    assert!(
        notices
            .contains(&"parallel_config.expert_parallel: no effect, as the model has no experts".to_string())
    );
}

/// Every word for the exchange of routed tokens is one exchange here, which one rank does not have.
#[test]
fn routed_tokens_go_by_all_to_all() {
    let key = "moe_config.moe_token_dispatcher_type";
    let experts = experts();
    for word in ["alltoall", "alltoall_deredundency", "alltoall_zero_redundancy", "allgather", "flex"] {
        let dispatcher = format!("--{key}={word}");
        let spread = ["--parallel_config={data_parallel: 4, expert_parallel: 2}", &experts, &dispatcher];
        let (plan, notices) = plan_on(&spread, 1, 4);
        let note = format!("{key}: `{word}` is computed as `alltoall`, with the same results");
        assert_eq!(notices.contains(&note), word != "alltoall", "{notices:?}");
        assert_eq!(plan, plan_on(&spread[..2], 1, 4).0, "{word}");
        let (_, alone) = resolve(BASE, &[&experts, &dispatcher]).unwrap();
        assert!(alone.contains(&format!("without meaning here and ignored: {key}")), "{alone:?}");
    }
    let other =
        answer(&[PARALLEL, "--parallel_config.data_parallel=4", &experts, &format!("--{key}=ring")], 4);
    assert!(other.starts_with(&format!("--{key}: expected alltoall, alltoall_deredundency, ")), "{other}");
    // What balances devices is left out, so that a step does not depend on how many there are.
    let losses = "--moe_config.aux_loss_types=[device]";
    let spread = ["--parallel_config={data_parallel: 4, expert_parallel: 2}", &experts, losses];
    let (plan, notices) = plan_on(&[&spread[..], &["--moe_config.aux_loss_factors=[0.1]"]].concat(), 1, 4);
    let left_out = "moe_config.aux_loss_types: `device` balances devices, and is left out: what a step computes does not depend on \
                    their number";
    assert!(notices.contains(&left_out.to_string()), "{notices:?}");
    assert_eq!(plan.model.mixture.map(|mixture| mixture.losses), Some(Default::default()));
}

#[test]
fn what_is_shared_out_follows_from_the_keys_of_the_optimizer() {
    let optimizer = Sharding { what: Sharded::Optimizer, ranks: 8, gathers_again: false };
    let gradients = Sharding { what: Sharded::Gradients, ..optimizer };
    let again = Sharding { gathers_again: true, ..optimizer };
    let context = |keys: &str| format!("--parallel={{enable_parallel_optimizer: True, {keys}}}");
    let shards = |keys: &str| context(&format!("parallel_optimizer_config: {{{keys}}}"));
    let recompute = "--recompute_config.parallel_optimizer_comm_recompute=True";
    for (flags, expected) in [
        (vec![], Sharding::NONE),
        (vec![context("parallel_mode: 1")], optimizer),
        (vec![context("parallel_mode: 0")], optimizer),
        (vec![shards("gradient_accumulation_shard: True, parallel_optimizer_threshold: 64")], gradients),
        (vec![shards("optimizer_level: level1")], optimizer),
        (vec![shards("optimizer_level: level2, gradient_accumulation_shard: True")], gradients),
        (vec![shards("optimizer_level: level3")], again),
        (vec![shards("optimizer_weight_shard_size: 0"), recompute.to_string()], again),
        (vec![context("optimizer_weight_shard_size: 8")], optimizer),
        (vec![context("optimizer_weight_shard_size: 4")], Sharding { ranks: 4, ..optimizer }),
        (vec![shards("optimizer_weight_shard_size: 2")], Sharding { ranks: 2, ..optimizer }),
        (vec![recompute.to_string()], Sharding::NONE),
    ] {
        let flags: Vec<&str> = ["--parallel_config.data_parallel=8"]
            .into_iter()
            .chain(flags.iter().map(String::as_str))
            .collect();
        assert_eq!(plan_on(&flags, 3, 8).0.sharding, expected, "{flags:?}");
        // One rank has nothing to share.
        assert_eq!(
            resolve(BASE, &[&["--as-single", PARALLEL], &flags[..]].concat()).unwrap().0.sharding,
            Sharding::NONE
        );
    }
}

#[test]
fn keys_of_the_optimizer_that_do_not_fit_are_said() {
    let on = |flags: &[&str]| answer(&[&[PARALLEL, "--parallel_config.data_parallel=8"], flags].concat(), 8);
    let enabled = "--parallel.enable_parallel_optimizer=True";
    let size = "--parallel.parallel_optimizer_config.optimizer_weight_shard_size";
    assert_eq!(on(&[enabled, &format!("{size}=4")]), "accepted []");
    let spread = ["--moe_config.expert_num=8", "--parallel_config.expert_parallel=4"];
    assert_eq!(on(&[&spread[..], &[enabled, &format!("{size}=4")]].concat()), "accepted []");
    assert_eq!(
        on(&[&spread[..], &[enabled, &format!("{size}=2")]].concat()),
        format!(
            "{size}: `2` ranks hold no copy of experts that are spread over 4; write a multiple, or -1, which is all ranks"
        )
    );
    assert_eq!(
        on(&[enabled, &format!("{size}=4"), "--parallel.optimizer_weight_shard_size=2"]),
        "--parallel.optimizer_weight_shard_size: differs from `parallel.parallel_optimizer_config.optimizer_weight_shard_size`, `4`; \
         keep one of them"
    );
    assert_eq!(
        on(&[enabled, &format!("{size}=3")]),
        "accepted [\"parallel.parallel_optimizer_config.optimizer_weight_shard_size: `3` cannot group 8 ranks, so all of them share one \
         copy\"]"
    );
    let gradients = "--parallel.parallel_optimizer_config.gradient_accumulation_shard=True";
    assert_eq!(
        on(&[gradients]),
        "accepted [\"parallel.parallel_optimizer_config.gradient_accumulation_shard: no effect without \
         `parallel.enable_parallel_optimizer: True`\"]"
    );
    assert_eq!(
        on(&[enabled, gradients, "--parallel.parallel_optimizer_config.optimizer_level=level3"]),
        "--parallel.parallel_optimizer_config.gradient_accumulation_shard: `True` beside another `optimizer_level` than level2; keep \
         one of them"
    );
    assert_eq!(
        on(&["--recompute_config={parallel_optimizer_comm_recompute: True, mp_comm_recompute: False}"]),
        "accepted [\"recompute_config.parallel_optimizer_comm_recompute: no effect without `parallel.enable_parallel_optimizer: \
         True`\", \"recompute_config.mp_comm_recompute: no effect without `model_parallel`\"]"
    );
}

/// Data, matrices, tokens, layers and experts.
#[test]
fn a_run_is_spread_in_every_way() {
    let degrees = "--parallel_config={data_parallel: 4, model_parallel: 2, pipeline_stage: 2, expert_parallel: 2, micro_batch_num: 8, \
                   use_seq_parallel: True}";
    let experts = experts();
    let config = outline(&[degrees, &experts, "--gradient_accumulation_steps=3"]);
    let plan = &config.plan;
    let layout =
        RankLayout { data: 4, expert: 2, model: 2, shares_tokens: true, pipeline: 2, ..RankLayout::one() };
    assert_eq!((plan.layout, plan.layout.world()), (layout, 16));
    assert_eq!((plan.settings.runner.gradient_accumulation_steps, plan.micro_batches_per_step()), (8, 32));
    assert_eq!(plan.tokens_per_step, 32 * 4 * 32);
    assert!(plan.settings.parallel.as_ref().is_some_and(|parallel| parallel.degrees.use_seq_parallel));
    assert!(config.unsupported.is_empty() && config.data_faults.is_empty());
    let accepted = answer(&[PARALLEL, degrees, &experts], 16);
    assert!(accepted.starts_with("accepted "), "{accepted}");
    // Sequence parallelism is about matrices that ranks share, and nothing without these.
    let (_, notices) = plan_on(&["--parallel_config={data_parallel: 2, use_seq_parallel: True}"], 0, 2);
    assert_eq!(notices, ["without meaning here and ignored: parallel_config.use_seq_parallel"]);
    // The experts are spread over data_parallel alone, and context parallelism is not planned for.
    let beyond = answer(
        &[PARALLEL, "--parallel_config={data_parallel: 2, model_parallel: 4, expert_parallel: 8}", &experts],
        8,
    );
    assert!(
        beyond.lines().any(|line| line.ends_with(
            "8 does not divide data_parallel 2 (MindFormers: times model_parallel); write an `expert_parallel` that does"
        )),
        "{beyond}"
    );
    assert_eq!(
        answer(&[PARALLEL, "--parallel_config={data_parallel: 2, context_parallel: 4}"], 8),
        "--parallel_config: context_parallel: `4` is not built: a sequence stays on one rank; write `context_parallel: 1`, and \
         `recompute_config.recompute: True` where memory is short"
    );
}

/// Whatever the degrees, the mode and the number of ranks: a plan for these ranks, or lines of which none is about
/// another.
#[test]
fn every_combination_is_a_plan_or_one_line_each() {
    let (mut plans, mut refusals) = (0, 0);
    let uses = ["", "use_parallel: False\n", "use_parallel: True\n", "use_parallel: True\nas_single: True\n"];
    let mut check = |text: &str, rank: usize, size: usize| match started(text, &[], rank, size) {
        Ok(RunConfig { plan, unsupported, .. }) => {
            plans += 1;
            let RankLayout { data, model, expert, .. } = plan.layout;
            assert_eq!(
                (plan.layout.world(), plan.layout.rank, data * model, unsupported.len()),
                (size, rank, size, 0),
                "{text}"
            );
            assert!(data.is_multiple_of(expert) && 4usize.is_multiple_of(expert), "{text}");
            assert_eq!(
                plan.tokens_per_step,
                data * plan.settings.runner.gradient_accumulation_steps * 4 * 32,
                "{text}"
            );
            let again =
                started(&plan.to_yaml(), &[], rank, size).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(again.plan, plan, "{text}");
        }
        Err(error) => {
            refusals += 1;
            let lines = error.to_string();
            assert!(
                lines.lines().count() <= 2 && lines.lines().all(|line| line.starts_with("x.yaml:")),
                "{lines}\n{text}"
            );
            assert!(
                lines.lines().all(|line| line.contains("; write ")
                    || line.contains("; start ")
                    || line.contains("; remove it")),
                "{lines}"
            );
        }
    };
    for (used, mode) in uses.into_iter().flat_map(|used| [0, 1, 3].map(|mode| (used, mode))) {
        for (data, expert, model) in [1, 2, 4].into_iter().flat_map(|data| {
            [1, 2, 3].into_iter().flat_map(move |expert| [1, 2].map(|model| (data, expert, model)))
        }) {
            let text = format!(
                "{BASE}{used}parallel: {{parallel_mode: {mode}, enable_parallel_optimizer: True}}\nparallel_config: \
                 {{data_parallel: {data}, expert_parallel: {expert}, model_parallel: {model}}}\nmoe_config: {{expert_num: 4, \
                 num_experts_chosen: 2}}\n"
            );
            [(0, 1), (1, 2), (3, 4)].into_iter().for_each(|(rank, size)| check(&text, rank, size));
        }
    }
    assert!(plans > 100 && refusals > 100, "{plans} plans, {refusals} refusals");
}

#[test]
fn a_plan_takes_the_degrees_from_the_file() {
    let config = outline(&["--parallel_config.data_parallel=8", "--parallel.enable_parallel_optimizer=True"]);
    assert_eq!(config.plan.layout, RankLayout { data: 8, ..RankLayout::one() });
    assert_eq!(config.plan.sharding, Sharding { what: Sharded::Optimizer, ranks: 8, gathers_again: false });
    assert!(config.unsupported.is_empty());
    // Part of the ranks that share one copy is planned for, too.
    let half = ["--parallel.enable_parallel_optimizer=True", "--parallel.optimizer_weight_shard_size=2"];
    let config = outline(&[&["--parallel_config.data_parallel=8"], &half[..]].concat());
    assert_eq!((config.plan.sharding.ranks, config.unsupported.len()), (2, 0));
}

#[test]
fn launches_are_timed_on_one_device() {
    let on = |size: usize| {
        answer(&[PARALLEL, &format!("--parallel_config.data_parallel={size}"), "--profile=2"], size)
    };
    assert_eq!(on(1), "accepted []");
    assert_eq!(
        on(2),
        "--profile: launches are timed on one device; leave it out, or profile with --as-single"
    );
}

/// Heads, widths, tokens and vocabularies that do not divide, and an optimizer that needs matrices whole.
#[test]
fn what_ranks_cannot_divide_is_one_line() {
    let on = |ranks: usize, flags: &[&str]| {
        let degree = format!("--parallel_config.model_parallel={ranks}");
        answer(&[&[PARALLEL, &degree], flags].concat(), ranks)
    };
    assert!(on(2, &[]).starts_with("accepted "), "{}", on(2, &[]));
    for (ranks, flags, key, what) in [
        (
            3,
            &["--model.model_config.intermediate_size=264"][..],
            "model_parallel",
            "3 ranks cannot share 4 attention heads evenly",
        ),
        (
            2,
            &["--model.model_config.attention_output_gate=True"],
            "model_parallel",
            "2 ranks cannot share attention whose output has a gate",
        ),
        (
            2,
            &[
                "--model.model_config.use_qk_norm=True",
                "--model.model_config.qk_norm_kind=layer_norm_by_head",
            ],
            "model_parallel",
            "2 ranks cannot share LayerNorms of heads",
        ),
        (
            2,
            &[
                "--model.model_config.layer_types=[linear_attention, full_attention]",
                "--model.model_config.linear_num_value_heads=4",
                "--model.model_config.linear_num_key_heads=2",
                "--model.model_config.linear_key_head_dim=8",
                "--model.model_config.linear_value_head_dim=8",
            ],
            "model_parallel",
            "2 ranks cannot share linear attention",
        ),
        (
            2,
            &[
                "--model.model_config.type=Lfm2Config",
                "--model.model_config.layer_types=[conv, full_attention]",
            ],
            "model_parallel",
            "2 ranks cannot share gated convolutions",
        ),
        (
            2,
            &["--model.model_config.type=OPTConfig", "--model.model_config.word_embed_proj_dim=12"],
            "model_parallel",
            "2 ranks cannot share an embedding of another width",
        ),
        (
            4,
            &["--model.model_config.n_kv_heads=2", "--model.model_config.intermediate_size=40"],
            "model_parallel",
            "intermediate_size 40",
        ),
        (
            2,
            &["--parallel_config.vocab_emb_dp=False", "--model.model_config.vocab_size=257"],
            "vocab_emb_dp",
            "vocabulary of 257",
        ),
        (
            2,
            &["--model.model_config.hidden_size_per_layer_input=8"],
            "model_parallel",
            "embeddings of each layer (`hidden_size_per_layer_input`)",
        ),
        (
            2,
            &[
                "--model.model_config.norm_placement=both",
                "--moe_config={expert_num: 4, enable_moe_block: True}",
            ],
            "model_parallel",
            "a dense network beside experts (`enable_moe_block`)",
        ),
        (
            2,
            &[
                "--parallel_config.use_seq_parallel=True",
                "--model.model_config.seq_length=3",
                "--runner_config.batch_size=1",
            ],
            "use_seq_parallel",
            "3 tokens",
        ),
    ] {
        let line = on(ranks, flags);
        assert!(line.lines().count() == 1 && line.contains(key) && line.contains(what), "{line}");
        assert!(line.contains("; write ") || line.contains("; change "), "{line}");
    }
}

/// Layers that read the keys and values of another stage's, or the embedded tokens.
#[test]
fn stages_part_no_layer_from_what_it_reads() {
    let on = |keys: &str| {
        answer(&[PARALLEL, "--parallel_config={pipeline_stage: 2, micro_batch_num: 4}", keys], 2)
    };
    let accepted = on("--seed=1");
    assert!(accepted.starts_with("accepted "), "{accepted}");
    for (keys, what) in [
        (
            "--model.model_config.num_kv_shared_layers=1",
            "puts layer 1 on another stage than layer 0, whose keys and values it reads; write fewer stages, or an \
             `offset` that keeps them together",
        ),
        (
            "--model.model_config.hidden_size_per_layer_input=8",
            "stages cannot share embeddings of each layer (`hidden_size_per_layer_input`); write 1",
        ),
    ] {
        let line = on(keys);
        assert!(line.lines().count() == 1 && line.ends_with(what), "{line}");
    }
}
