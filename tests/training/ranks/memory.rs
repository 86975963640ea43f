//! What a rank keeps of what ranks share.

use crate::runs::Setup;
use gristmill::kernels::Tier;
use gristmill::model::arena::{Arena, Holds};
use gristmill::model::parameters::Role;
use gristmill::train::recordings::{Recordings, assumed_capabilities};

const ON_FOUR: [&str; 2] = ["--use_parallel=True", "--parallel_config.data_parallel=4"];

fn recordings(setup: &Setup, rank: usize, size: usize) -> Recordings {
    let plan = setup.plan_on_rank(rank, size);
    Recordings::new(&plan, assumed_capabilities(Tier::Portable), 10).unwrap_or_else(|e| panic!("{e}"))
}

fn bytes(recordings: &Recordings, arena: &Arena) -> u64 {
    let buffers = recordings.persistents.buffers();
    arena.buffers().map(|id| buffers[id.0 as usize].1).sum()
}

/// The bytes of moments and f32 weights, and those of gradients.
fn of_optimizer(recordings: &Recordings) -> (u64, u64) {
    let arenas = &recordings.arenas;
    let state = [&arenas.weights, &arenas.first_moments, &arenas.second_moments];
    (state.into_iter().map(|arena| bytes(recordings, arena)).sum(), bytes(recordings, &arenas.gradients))
}

/// Among four ranks, with the padding of shards and with norms that are read in f32.
#[test]
fn a_rank_keeps_a_fourth_of_what_is_sharded() {
    let bf16 = ["--model.model_config.compute_dtype=bfloat16"];
    let setup = || Setup::new("sharded", "").with(&bf16);
    let (state, gradients) = of_optimizer(&recordings(&setup(), 0, 1));
    let sharded = setup().with(&ON_FOUR).with(&["--parallel.enable_parallel_optimizer=True"]);
    for rank in 0..4 {
        let (own, all_gradients) = of_optimizer(&recordings(&sharded, rank, 4));
        println!("ZeRO-1, rank {rank}: {own} of {state} bytes");
        assert!(own as f64 <= 0.3 * state as f64, "rank {rank} keeps {own} of {state} bytes");
        assert_eq!(all_gradients, gradients);
    }
    let sharded = sharded.with(&["--parallel.parallel_optimizer_config.gradient_accumulation_shard=True"]);
    for rank in 0..4 {
        let (_, own) = of_optimizer(&recordings(&sharded, rank, 4));
        assert!(
            own as f64 <= 0.3 * gradients as f64,
            "rank {rank} keeps {own} of {gradients} bytes of gradients"
        );
    }
}

#[test]
fn a_rank_keeps_a_fourth_of_the_experts() {
    let setup = || Setup::experts("spread", "expert_num: 8, num_experts_chosen: 2, use_gmm: True", "");
    let of_experts = |recordings: &Recordings| {
        let stacks = recordings.layout.parameters.iter();
        let stacks = stacks.filter(|(spec, _)| matches!(spec.role, Role::ExpertStack { .. }));
        let parts = stacks.flat_map(|(spec, parts)| parts.iter().map(move |part| (spec, part)));
        parts.map(|(spec, part)| Holds::part(&recordings.arenas.weights, spec, part).bytes()).sum::<u64>()
    };
    let whole = of_experts(&recordings(&setup(), 0, 1));
    let spread = setup().with(&ON_FOUR).with(&["--parallel_config.expert_parallel=4"]);
    for rank in 0..4 {
        let own = of_experts(&recordings(&spread, rank, 4));
        assert!(own as f64 <= 0.26 * whole as f64, "rank {rank} keeps {own} of {whole} bytes of experts");
    }
}
