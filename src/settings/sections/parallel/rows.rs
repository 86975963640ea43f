//! The keys of `parallel_config` and of `parallel`.

use super::mode::ParallelMode;
use crate::settings::engine::*;

rows! {
    /// `parallel_config`: over how many ranks what is spread. The product of `data_parallel`, `model_parallel`, `pipeline_stage` and
    /// `context_parallel` is the number of ranks that are started (`mpirun -n 8 gristmill train ...`, or `--ranks 8`); the experts
    /// are spread over some of these. As in MindFormers, degrees count with `use_parallel: True` and a `parallel.parallel_mode` of
    /// 1 or 2, and elsewhere each is taken as 1. `as_single` does the work of all on one rank.
    pub struct Parallel {
        /// Ranks that share the batch: of a step's micro-batches each takes one in turn, so that a step learns from as many as one
        /// rank that accumulates `gradient_accumulation_steps` times this number, and from the same.
        data_parallel: u64 = Host.default(1).within(COUNT),
        /// Ranks that share a matrix. Above 1 it is planned for and not trained yet.
        model_parallel: u64 = Host.default(1).within(COUNT),
        /// Ranks that share the layers. Above 1 it is planned for and not trained yet.
        pipeline_stage: u64 = Host.default(1).within(COUNT),
        /// Ranks that share a sequence: not built, so 1.
        context_parallel: u64 = Host.default(1).within(COUNT),
        /// How many neighbours among the ranks that share the batch share the experts too: each has `expert_num` divided by this,
        /// and gets the tokens that chose them from the others. It divides `expert_num` and `data_parallel` (in MindFormers
        /// `data_parallel` times `model_parallel`). No effect on a dense model.
        expert_parallel: u64 = Host.default(1).within(COUNT),
        /// Micro-batches of a step where there are several pipeline stages; otherwise without effect, as in MindFormers.
        micro_batch_num: u64 = Host.default(1).within(COUNT),
        /// Runs of layers that a stage has. Counts of layers in `recompute_config` follow it and `pipeline_stage` where
        /// `parallel.pipeline_config.pipeline_interleave` is on; otherwise taken as 1.
        pp_interleave_num: u64 = Host.default(1).within(COUNT),
        /// Whether the ranks that share matrices share the tokens between two matrices. With a `model_parallel` above 1 it is planned
        /// for and not trained yet; otherwise without effect, as in MindFormers.
        use_seq_parallel: bool = Host.default(false),
    }
    others [
        ignored(
            "optimizer_shard",
            "without effect in MindFormers too; `parallel.enable_parallel_optimizer` shares out the optimizer",
        ),
        ignored(
            "gradient_aggregation_group",
            "how many gradients MindFormers exchanges at once; here they are exchanged in buckets of one size",
        ),
        ignored("vocab_emb_dp fine_grain_interleave", "about matrices that ranks share, which is not built"),
        ignored("context_parallel_algo ulysses_degree_in_cp", "about sequences that ranks share, which is not built"),
        ignored("seq_split_num", "about pipelines, which are not built"),
        ignored("mem_coeff", "about MindFormers' search for degrees"),
    ]
}

rows! {
    /// `parallel`: whether `parallel_config` counts, and how ranks share the optimizer.
    pub struct ParallelContext {
        /// 0 data parallel: all ranks that are started share the batch, and `parallel_config` does not count. 1 semi-automatic, 2
        /// automatic: as `parallel_config` says. 3 hybrid and STAND_ALONE: one rank. Or MindFormers' word for it.
        parallel_mode: ParallelMode = Host.default(ParallelMode::SemiAuto).example("2"),
        /// Whether the ranks that share the batch share the optimizer too (ZeRO-1): each keeps the moments and master weights of its
        /// part, updates that part, and gathers the others' weights. No result changes but by the order of sums.
        enable_parallel_optimizer: bool = Host.default(false),
    }
    others [
        sections("pipeline_config parallel_optimizer_config"),
        ignored(
            "parallel_optimizer_threshold",
            "MindFormers keeps parameters below so many KiB whole; here small ones are shared out too",
        ),
        ignored(
            "gradients_mean loss_repeated_mean",
            "the gradients of a step are those of the mean over its micro-batches, on any number of ranks",
        ),
        ignored("gradient_fp32_sync force_fp32_communication", "gradients are exchanged and summed in float32, always"),
        ignored("enable_alltoall", "routed tokens are exchanged by all-to-all, always"),
        ignored(
            "full_batch dataset_strategy",
            "how MindFormers hands out the data; here each rank reads the micro-batches that it takes",
        ),
        ignored(
            "comm_fusion all_reduce_fusion_config communi_parallel_mode",
            "how MindFormers groups what it exchanges; here gradients are exchanged in buckets of one size",
        ),
        ignored("parameter_broadcast", "every rank makes the same initial weights from the seed, or reads the same files"),
        ignored(
            "search_mode auto_parallel_search_mode auto_pipeline auto_parallel_new_interface",
            "about MindFormers' search for degrees; here they are those of `parallel_config`",
        ),
        ignored(
            "strategy_ckpt_config strategy_ckpt_save_file strategy_ckpt_load_file group_ckpt_save_file",
            "about files that describe MindFormers' checkpoints; those here are read by any number of ranks",
        ),
        ignored("device_num global_rank", "the launcher says how many ranks there are, and which this is"),
        ignored("grad_accumulation_step", "`runner_config.gradient_accumulation_steps` says it, as in MindFormers"),
        ignored("pipeline_stages", "`parallel_config.pipeline_stage` says it, as in MindFormers"),
        ignored("pipeline_result_broadcast pipeline_segments", "about pipelines, which are not built"),
    ]
}

rows! {
    /// `parallel.parallel_optimizer_config`: what else is shared out with `enable_parallel_optimizer: True`, and among how many.
    pub struct OptimizerShards {
        /// Whether each rank also keeps the accumulated gradients of its part alone (ZeRO-2): they are summed over the ranks after
        /// each micro-batch instead of once a step.
        gradient_accumulation_shard: bool = Host.default(false),
        /// How many neighbours among the ranks that share the batch share one copy: a divisor of `data_parallel` and a multiple of
        /// `expert_parallel`; -1 or 0: all of them. One that is no divisor has no effect, as in MindFormers. Also read in
        /// `parallel`.
        optimizer_weight_shard_size: i64 = Host.default(-1).within(FROM_MINUS_ONE),
        /// MindSpore's word for all of it: `level2` is `gradient_accumulation_shard: True`, `level3` is
        /// `recompute_config.parallel_optimizer_comm_recompute: True`, `level1` neither.
        optimizer_level: Option<OptimizerLevel> = Host.optional(),
    }
    others [
        ignored(
            "parallel_optimizer_threshold",
            "MindFormers keeps parameters below so many KiB whole; here small ones are shared out too",
        ),
    ]
}

rows! {
    /// `parallel.pipeline_config`: how the stages of a pipeline take turns.
    pub struct PipelineConfig {
        /// Whether `pp_interleave_num` counts.
        pipeline_interleave: bool = Host.default(false),
    }
    others [ignored("pipeline_scheduler", "about pipelines, which are not built")]
}

words! {
    /// `parallel.parallel_optimizer_config.optimizer_level`.
    pub enum OptimizerLevel {
        /// The optimizer is shared out.
        #[default]
        Optimizer = "level1",
        /// The gradients too.
        Gradients = "level2",
        /// Weights are gathered twice.
        Twice = "level3",
    }
}

const FROM_MINUS_ONE: Range = Range::new("-1 or a whole number from 0", |n| n >= -1.0, -2.0);
