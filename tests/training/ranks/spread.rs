//! Runs in a folder of their own, on one rank or spread over several.

use crate::runs::{FolderRun, on_ranks};
use gristmill::error::Result;
use gristmill::train::run::{Summary, run_on_ranks};
use pollster::block_on;
use std::path::Path;
use std::sync::Arc;

/// The micro-batches of a step, on all ranks together.
const MICRO_BATCHES: usize = 4;

/// How a run is spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub ranks: usize,
    /// Each matrix is divided among so many of them.
    pub model: usize,
    pub expert: usize,
    /// Stages of a pipeline, over which the ranks are spread; the others share the batch.
    pub stages: usize,
    /// Flags on what each rank holds a part of.
    pub sharding: &'static [&'static str],
}

impl Spread {
    pub const ONE: Self = Self { ranks: 1, model: 1, expert: 1, stages: 1, sharding: &[] };

    /// Ranks that share the optimizer (ZeRO-1).
    pub const fn sharded(ranks: usize) -> Self {
        Self { ranks, sharding: &["--parallel.enable_parallel_optimizer=True"], ..Self::ONE }
    }

    /// Ranks of which pairs share matrices, tokens and the vocabulary.
    pub const fn divided(ranks: usize) -> Self {
        let sharding = &["--parallel_config.use_seq_parallel=True", "--parallel_config.vocab_emb_dp=False"];
        Self { ranks, model: 2, sharding, ..Self::ONE }
    }

    /// A pipeline of so many stages.
    pub const fn stages(stages: usize) -> Self {
        Self { ranks: stages, stages, ..Self::ONE }
    }

    /// The command line behind the configuration.
    pub fn arguments(self, run: &FolderRun, stop_step: u64) -> Vec<String> {
        let Self { ranks, model, expert, stages, sharding } = self;
        let mut arguments = run.arguments(stop_step);
        let data = ranks / stages / model;
        let of_rank = MICRO_BATCHES / data;
        arguments.push(format!("--gradient_accumulation_steps={of_rank}"));
        if ranks > 1 {
            let degrees = format!(
                "--parallel_config={{data_parallel: {data}, model_parallel: {model}, expert_parallel: {expert}, \
                 pipeline_stage: {stages}, micro_batch_num: {of_rank}}}"
            );
            arguments.extend(["--use_parallel=True".to_string(), degrees]);
            arguments.extend(sharding.iter().map(ToString::to_string));
        }
        arguments
    }

    /// Trains to `stop_step`: from the start, or from the newest checkpoint.
    #[track_caller]
    pub fn train(self, run: &FolderRun, stop_step: u64) {
        let config = run.setup.write(run.home.path());
        let arguments = vec![self.arguments(run, stop_step); self.ranks];
        for result in run_each(&config, &arguments) {
            let summary = result.unwrap_or_else(|e| panic!("{self:?}: {e}"));
            assert_eq!((summary.steps, summary.is_interrupted), (stop_step, false));
        }
    }
}

/// Runs `config` on as many ranks as there are lists of arguments.
pub fn run_each(config: &Path, arguments: &[Vec<String>]) -> Vec<Result<Summary>> {
    on_ranks(arguments.len(), |ranks| {
        let of_rank = &arguments[ranks.rank()];
        block_on(run_on_ranks(config, of_rank, Arc::default(), ranks))
    })
}
