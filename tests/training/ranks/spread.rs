//! How a run is spread over ranks, and runs in a folder of their own that are.

use crate::runs::{FolderRun, Setup, on_ranks, run_on_rank};
use gristmill::error::Result;
use gristmill::train::run::Summary;
use pollster::block_on;
use std::path::Path;

/// The micro-batches of a step, on all ranks together.
pub const MICRO_BATCHES: usize = 4;

pub const OPTIMIZER: &str = "--parallel.enable_parallel_optimizer=True";
pub const GRADIENTS: &str = "--parallel.parallel_optimizer_config.gradient_accumulation_shard=True";

/// What ranks of a batch share beside it: nothing, moments and master weights (ZeRO-1), gradients too (ZeRO-2), and
/// weights, or moments and master weights among two of them each.
pub const DATA: Keys = &[];
pub const ZERO_1: Keys = &[OPTIMIZER];
pub const ZERO_2: Keys = &[OPTIMIZER, GRADIENTS];
pub const WEIGHTS: Keys =
    &[OPTIMIZER, GRADIENTS, "--recompute_config.parallel_optimizer_comm_recompute=True"];
pub const IN_PAIRS: Keys = &[OPTIMIZER, PAIRS];
const PAIRS: &str = "--parallel.parallel_optimizer_config.optimizer_weight_shard_size=2";

pub const TOKENS: &str = "--parallel_config.use_seq_parallel=True";
pub const VOCABULARY: &str = "--parallel_config.vocab_emb_dp=False";

/// Flags of a layout.
pub type Keys = &'static [&'static str];

/// How a run is spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Ranks that share the batch.
    pub data: usize,
    /// Each matrix is divided among so many.
    pub model: usize,
    /// Experts are spread over so many of those that share the batch.
    pub expert: usize,
    /// Stages of a pipeline.
    pub stages: usize,
    /// Chunks of each stage.
    pub interleaves: usize,
    /// Further flags, on what each rank holds a part of.
    pub keys: Keys,
}

impl Spread {
    pub const ONE: Self = Self { data: 1, model: 1, expert: 1, stages: 1, interleaves: 1, keys: &[] };

    /// Ranks that share the optimizer (ZeRO-1).
    pub const fn sharded(data: usize) -> Self {
        Self { data, keys: &[OPTIMIZER], ..Self::ONE }
    }

    /// Ranks that share matrices, tokens and the vocabulary.
    pub const fn divided(model: usize) -> Self {
        Self { model, keys: &[TOKENS, VOCABULARY], ..Self::ONE }
    }

    /// A pipeline of so many stages.
    pub const fn stages(stages: usize) -> Self {
        Self { stages, ..Self::ONE }
    }

    pub fn ranks(&self) -> usize {
        self.data * self.model * self.stages
    }

    /// How many ranks may hold an element of a tensor where these are the flags: those that layers read there, or those
    /// that update it. What is not divided is on every rank that shares matrices, and heads that are fewer than these
    /// on several; both ends of a pipeline may have the embedding.
    pub fn copies(&self, keys: &[&str], tensor: &str) -> Vec<usize> {
        let mut of_data =
            vec![if tensor.contains(".experts.") { self.data / self.expert } else { self.data }];
        if keys.contains(&OPTIMIZER) {
            of_data.push(if keys.contains(&PAIRS) { self.data / 2 } else { 1 });
        }
        let of_model = (1..=self.model).filter(|copies| self.model.is_multiple_of(*copies));
        let of_both = of_model.flat_map(|copies| of_data.iter().map(move |of_data| copies * of_data));
        of_both.flat_map(|copies| (1..=self.stages.min(2)).map(move |ends| ends * copies)).collect()
    }

    /// The flags of a run whose steps have so many micro-batches, on all ranks together.
    pub fn flags(&self, micro_batches: usize) -> Vec<String> {
        let Self { data, model, expert, stages, interleaves, keys } = self;
        let of_rank = micro_batches / data;
        let mut flags = vec![format!("--runner_config.gradient_accumulation_steps={of_rank}")];
        if self.ranks() > 1 {
            flags.push("--use_parallel=True".into());
            flags.push(format!(
                "--parallel_config={{data_parallel: {data}, model_parallel: {model}, expert_parallel: {expert}, \
                 pipeline_stage: {stages}, micro_batch_num: {of_rank}, pp_interleave_num: {interleaves}}}"
            ));
            flags.push(format!("--parallel.pipeline_config.pipeline_interleave={}", *interleaves > 1));
            flags.extend(keys.iter().map(ToString::to_string));
        }
        flags
    }

    /// `setup`, spread like this.
    pub fn setup(&self, setup: Setup, micro_batches: usize) -> Setup {
        setup.with(&self.flags(micro_batches).iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The command line behind the configuration.
    pub fn arguments(self, run: &FolderRun, stop_step: u64) -> Vec<String> {
        [run.arguments(stop_step), self.flags(MICRO_BATCHES)].concat()
    }

    /// Trains to `stop_step`: from the start, or from the newest checkpoint. Returns what the first rank reports.
    #[track_caller]
    pub fn train(self, run: &FolderRun, stop_step: u64) -> Summary {
        let config = run.setup.write(run.home.path());
        let arguments = vec![self.arguments(run, stop_step); self.ranks()];
        let results = run_each(&config, &arguments).into_iter();
        let summaries: Vec<Summary> =
            results.map(|result| result.unwrap_or_else(|e| panic!("{self:?}: {e}"))).collect();
        for summary in &summaries {
            assert_eq!((summary.steps, summary.is_interrupted), (stop_step, false));
        }
        summaries.into_iter().next().expect("a rank")
    }
}

/// Runs `config` on as many ranks as there are lists of arguments.
pub fn run_each(config: &Path, arguments: &[Vec<String>]) -> Vec<Result<Summary>> {
    on_ranks(arguments.len(), |ranks| {
        let of_rank = &arguments[ranks.rank()];
        block_on(run_on_rank(config, of_rank, ranks))
    })
}
