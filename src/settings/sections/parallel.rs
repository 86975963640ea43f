//! `parallel_config` and `parallel`: how a run is spread over ranks.
//!
//! The degrees of `parallel_config` count with `use_parallel: True` and `parallel_mode` 1 or 2. On a rank,
//! `RunConfig::load_on_rank` compares them with how many were started; `outline`, for `plan`, takes the layout from the
//! file alone. A plan for several ranks writes these sections into `config.yaml`, a plan for one does not.

mod degrees;
mod rows;
mod sharding;
mod stages;

pub(in crate::settings) use degrees::culprit;

pub use rows::{OptimizerShards, Parallel, ParallelContext, ParallelMode, PipelineConfig};
pub use sharding::{Sharded, Sharding};
pub use stages::Offset;
#[cfg(test)]
pub(crate) use stages::distribute;
pub(crate) use stages::{check_interleaves, counted_stages, is_shape_sound, stages};

use super::moe::Moe;
use super::run::Run;
use crate::model::stages::Stages;
use crate::ranks::RankLayout;
use crate::settings::engine::*;

/// The sections of a run on several ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parallelism {
    /// `parallel_config`.
    pub degrees: Parallel,
    /// `parallel`.
    pub context: ParallelContext,
    /// `parallel.parallel_optimizer_config`.
    pub optimizer: OptimizerShards,
    /// `parallel.pipeline_config`.
    pub pipeline: PipelineConfig,
}

/// How a run was started, or is planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    /// This rank.
    pub rank: usize,
    /// How many ranks there are.
    pub size: usize,
    /// Whether the ranks are only planned for. A `data_parallel` that is not written then fills them.
    pub is_planned: bool,
}

impl Started {
    /// One rank.
    pub const ALONE: Self = Self::on(0, 1);

    /// Rank number `rank` of `size`.
    pub const fn on(rank: usize, size: usize) -> Self {
        Self { rank, size, is_planned: false }
    }

    /// The first of `size` ranks that are planned for.
    pub const fn planned(size: usize) -> Self {
        Self { rank: 0, size, is_planned: true }
    }
}

/// How a file asks a run to be spread over devices, and how it is spread.
#[derive(Clone, Debug)]
pub(crate) struct Distribution {
    /// The sections as they were written.
    pub asked: Parallelism,
    /// Whether `parallel_config` is applied.
    pub counts: bool,
    /// How the run is spread. One rank if the file or `as_single` says so, or after a fault.
    pub layout: RankLayout,
    /// The layers that each stage of a pipeline holds.
    pub stages: Stages,
}

/// The dotted path of the degrees.
pub(crate) const PATH: &str = "parallel_config";
const CONTEXT: &str = "parallel";
const OPTIMIZER: &str = "parallel.parallel_optimizer_config";
const PIPELINE: &str = "parallel.pipeline_config";

/// The sections and their tables.
pub(crate) fn tables() -> [(TableId, Table); 4] {
    [
        Parallel::documented(),
        ParallelContext::documented(),
        OptimizerShards::documented(),
        PipelineConfig::documented(),
    ]
}

/// Reads the sections and decides how the run is spread over the ranks that were `started`. If their number is open, as
/// for a plan, the run is spread over the ranks that the file asks for.
pub(crate) fn read(source: &Source, run: &Run, started: Option<Started>) -> Distribution {
    let degrees = Reader::open(source, PATH, &[Parallel::ID]);
    let mut asked = Parallelism {
        degrees: Parallel::read(&degrees),
        context: ParallelContext::read_at(source, CONTEXT),
        optimizer: OptimizerShards::read_at(source, OPTIMIZER),
        pipeline: PipelineConfig::read_at(source, PIPELINE),
    };
    let uses_parallel = run.use_parallel == Some(true);
    let counts =
        uses_parallel && matches!(asked.context.parallel_mode, ParallelMode::SemiAuto | ParallelMode::Auto);
    if let Some(Started { size, is_planned: true, .. }) = started
        && !degrees.has("data_parallel")
    {
        asked.degrees.fill(size);
    }
    let layout = degrees::layout(source, run, &asked, started).unwrap_or_else(RankLayout::one);
    let has_stages = counts && asked.degrees.pipeline_stage > 1;
    if asked.degrees.micro_batch_num > 1 && !has_stages {
        let message = "no effect without pipeline stages, as in MindFormers; \
                       `runner_config.gradient_accumulation_steps` accumulates";
        degrees.note("micro_batch_num", message);
    }
    if layout.pipeline > 1 {
        check_schedule(source, &asked);
    }
    if layout.model == 1 {
        degrees.ignore(&["use_seq_parallel"]);
        if !asked.degrees.vocab_emb_dp {
            degrees.note("vocab_emb_dp", "no effect without `model_parallel`");
        }
    }
    Distribution { asked, counts, layout, stages: Stages::one(0) }
}

/// Checks that the micro-batches of a step keep the stages busy.
fn check_schedule(source: &Source, asked: &Parallelism) {
    let Parallel { pipeline_stage: stages, micro_batch_num: micro_batches, .. } = asked.degrees;
    if let Some(scheduler) = asked.pipeline.pipeline_scheduler.unbuilt() {
        let message = format!("`{scheduler}` is not built; write `1f1b`");
        source.unsupported(&format!("{PIPELINE}.pipeline_scheduler"), message);
    }
    let key = format!("{PATH}.micro_batch_num");
    if !source.is_sound(&key) {
        return;
    }
    if micro_batches < stages {
        const ACCUMULATION: &str = "runner_config.gradient_accumulation_steps";
        let accumulated = source.value::<u64>(ACCUMULATION).filter(|steps| *steps > 1);
        let remedy = accumulated.map_or("raise it".to_string(), |steps| {
            format!("write the micro-batches of a step here, as the {steps} of `{ACCUMULATION}` do not count beside \
                     stages")
        });
        source.fault(
            &key,
            format!("`{micro_batches}` is below the {stages} pipeline stages, which would wait; {remedy}"),
        );
    } else if asked.pipeline.pipeline_interleave && !micro_batches.is_multiple_of(stages) {
        let message = format!(
            "`{micro_batches}` is no multiple of the {stages} pipeline stages, through whose chunks micro-batches \
             go in groups of as many; write one, or `parallel.pipeline_config.pipeline_interleave: False`"
        );
        source.fault(&key, message);
    }
}

impl Distribution {
    /// Checks that the experts of `moe` can be spread as asked; a dense model has none.
    pub fn fit_experts(&mut self, moe: Option<&Moe>, source: &Source) {
        degrees::fit_experts(&mut self.layout, moe, source);
    }

    /// The tensors that the ranks divide; `comm_recompute` says whether weights are gathered twice.
    pub fn sharding(&self, comm_recompute: bool, source: &Source) -> Sharding {
        sharding::sharding(&self.asked, &self.layout, comm_recompute, source)
    }

    /// The sections of a run on several ranks that accumulates `steps` micro-batches on each, with only the settings
    /// that count; `None` for one rank.
    pub fn sections(&self, steps: usize, sharding: &Sharding) -> Option<Parallelism> {
        let RankLayout { data, expert, model, pipeline, .. } = self.layout;
        let [data, expert, model, pipeline] = [data, expert, model, pipeline].map(|degree| degree as u64);
        let (asked, has_stages) = (&self.asked, pipeline > 1);
        let degrees = Parallel {
            data_parallel: data,
            model_parallel: model,
            pipeline_stage: pipeline,
            context_parallel: 1,
            expert_parallel: expert,
            micro_batch_num: if has_stages { steps as u64 } else { 1 },
            pp_interleave_num: self.stages.interleaves() as u64,
            use_seq_parallel: asked.degrees.use_seq_parallel && model > 1,
            vocab_emb_dp: asked.degrees.vocab_emb_dp || model == 1,
        };
        let pipeline = PipelineConfig {
            pipeline_interleave: self.stages.interleaves() > 1,
            ..PipelineConfig::default()
        };
        let (enable_parallel_optimizer, optimizer) = sharding.settings();
        let context = ParallelContext { parallel_mode: ParallelMode::SemiAuto, enable_parallel_optimizer };
        (self.layout.world() > 1).then_some(Parallelism { degrees, context, optimizer, pipeline })
    }
}

impl Parallelism {
    /// The sections with their places.
    pub(crate) fn placed(&self) -> [Placed; 4] {
        let Self { degrees, context, optimizer, pipeline } = self;
        [
            degrees.placed(PATH),
            context.placed(CONTEXT),
            optimizer.placed(OPTIMIZER),
            pipeline.placed(PIPELINE),
        ]
    }
}
