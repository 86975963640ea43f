//! A tiny run of several ranks, for deaths at any moment.

use super::{FolderRun, Setup, is_long};
use gristmill::random::Philox;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// How many ranks it has.
pub const MORTAL_RANKS: usize = 3;

/// Interrupts a run of `mortal` by deaths, and checks that it leaves what one leaves that goes on undisturbed by
/// `live_on`. `die` lives once in a run, with the number of its life and random bits drawn from `seed`, and says how it
/// died: `None` if the run was complete before. Then the next run begins.
pub fn live_through_deaths<K: Copy + Ord + Debug>(
    mortal: impl Fn() -> FolderRun,
    seed: u64,
    live_on: impl Fn(&FolderRun),
    mut die: impl FnMut(&FolderRun, u64, [u32; 4]) -> Option<K>,
) {
    let most_deaths = if is_long() { 30 } else { 5 };
    let undisturbed = mortal();
    live_on(&undisturbed);
    let (random, want) = (Philox::new(seed, 0), undisturbed.left());
    let (mut run, mut runs, mut lives, mut deaths) = (mortal(), 1, 0, BTreeMap::<K, u64>::new());
    while deaths.values().sum::<u64>() < most_deaths {
        assert!(lives < 5 * most_deaths, "the run outlives its deaths");
        let death = die(&run, lives, random.block(lives));
        lives += 1;
        if let Some(death) = death {
            *deaths.entry(death).or_default() += 1;
        } else {
            run.left().assert_equals("interrupted by deaths", &want);
            (run, runs) = (mortal(), runs + 1);
        }
    }
    live_on(&run);
    run.left().assert_equals("interrupted by deaths", &want);
    println!("{runs} runs lasted through {deaths:?}");
}

/// A run of [`MORTAL_RANKS`] that saves after every second step, up to step `stop_step`, and goes on where it was. The
/// ranks share a batch and the optimizer.
pub fn mortal(stop_step: u64) -> FolderRun {
    let data = format!("--parallel_config.data_parallel={MORTAL_RANKS}");
    run(stop_step, &[&data, "--parallel.enable_parallel_optimizer=True"])
}

/// The same on the stages of a pipeline.
pub fn mortal_stages(stop_step: u64) -> FolderRun {
    let stages =
        format!("--parallel_config={{pipeline_stage: {MORTAL_RANKS}, micro_batch_num: {MORTAL_RANKS}}}");
    let layers = format!("--model.model_config.num_layers={MORTAL_RANKS}");
    run(stop_step, &[&stages, &layers, "--model.model_config.tie_word_embeddings=True"])
}

/// The same with a part of each matrix on each rank.
pub fn mortal_matrices(stop_step: u64) -> FolderRun {
    let matrices = format!("--parallel_config.model_parallel={MORTAL_RANKS}");
    let sizes = "--model.model_config={type: LlamaConfig, vocab_size: 256, hidden_size: 36, num_layers: 1, num_heads: 3, \
                 seq_length: 8, intermediate_size: 36}";
    run(stop_step, &[&matrices, sizes])
}

/// The same with two of six experts and copies of two hot ones on each rank. Hot experts change between checkpoints.
pub fn mortal_hot_experts(stop_step: u64) -> FolderRun {
    let experts =
        format!("--parallel_config={{data_parallel: {MORTAL_RANKS}, expert_parallel: {MORTAL_RANKS}}}");
    let hot = "--moe_config={expert_num: 6, num_experts_chosen: 2, capacity_factor: 1.0, moe_intermediate_size: 9, \
               enable_cold_hot_expert: True, hot_expert_num: 2, cold_token_percent: 0.5, update_step: 3}";
    run(stop_step, &[&experts, hot, "--parallel.enable_parallel_optimizer=True"])
}

fn run(stop_step: u64, spread: &[&str]) -> FolderRun {
    let keys = [
        "--model.model_config={type: LlamaConfig, vocab_size: 256, hidden_size: 24, num_layers: 1, num_heads: 2, seq_length: 8, \
         intermediate_size: 16}",
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 2, keep_checkpoint_max: 2}]",
        "--gradient_accumulation_steps=1",
        "--use_parallel=True",
        &format!("--stop_step={stop_step}"),
        "--resume_training=auto",
    ];
    FolderRun::new(Setup::new("mortal", "").with(&keys).with(spread))
}
