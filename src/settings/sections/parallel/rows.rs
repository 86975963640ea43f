//! The keys of `parallel_config` and of `parallel`.

use super::{CONTEXT, OPTIMIZER, PATH, PIPELINE};
use crate::settings::engine::*;

rows! {
    /// `parallel_config`: the number of ranks over which each part of a run is spread. The product of
    /// `data_parallel`, `model_parallel`, `pipeline_stage` and `context_parallel` is the number of ranks that are
    /// started (`mpirun -n 8 gristmill train ...`, or `--ranks 8`); the experts are spread over some of these.
    /// Degrees count with `use_parallel: True` and a `parallel.parallel_mode` of 1 or 2, and elsewhere each is taken
    /// as 1. `as_single` does the work of all on one rank.
    pub struct Parallel in PATH {
        /// Data-parallel ranks, which share the batch. They take the micro-batches of a step in turn, so that a step
        /// learns from the same micro-batches as one rank that accumulates `gradient_accumulation_steps` times this
        /// number.
        data_parallel: u64 = Host.default(1).within(COUNT),
        /// Tensor-parallel ranks, which share each matrix: the heads of attention, and the inner columns of the
        /// feed-forward network and of every expert. The degree must divide these numbers; if there are fewer key-value
        /// heads than ranks, they are repeated. Every rank has all of the routers, the norms, the projections that make
        /// latent vectors and, unless `vocab_emb_dp` is `False`, the embedding and the head.
        model_parallel: u64 = Host.default(1).within(COUNT),
        /// Pipeline stages, which share the layers. Each stage holds consecutive layers, as `model_config.offset`
        /// distributes them.
        pipeline_stage: u64 = Host.default(1).within(COUNT),
        /// Ranks that share a sequence. Not built, so it must be 1.
        context_parallel: u64 = Host.default(1).within(COUNT),
        /// How many neighbours among the ranks that share the batch share the experts too: each has `expert_num`
        /// divided by this, and gets the tokens that chose them from the others. It divides `expert_num` and
        /// `data_parallel`. No effect on a dense model.
        expert_parallel: u64 = Host.default(1).within(COUNT),
        /// Micro-batches of a step where there are several pipeline stages, at least as many as stages, and with
        /// interleaves a multiple of them; otherwise without effect.
        micro_batch_num: u64 = Host.default(1).within(COUNT),
        /// Chunks of layers in each pipeline stage, which are not neighbours, if
        /// `parallel.pipeline_config.pipeline_interleave` is on; otherwise taken as 1. The counts of layers in
        /// `recompute_config` depend on it and on `pipeline_stage`.
        pp_interleave_num: u64 = Host.default(1).within(COUNT),
        /// Whether the ranks that share matrices share the tokens between the products that they divide: norms,
        /// dropout and what is kept of the residual stream. They divide `batch_size` x `seq_length`. No effect
        /// without `model_parallel` above 1.
        use_seq_parallel: bool = Host.default(false),
        /// Whether each tensor-parallel rank has the whole embedding and head. `False`: each has a part of the
        /// vocabulary, whose size `model_parallel` must divide, and of each row of logits the ranks exchange the
        /// largest, the sum and the logit of the target. No effect unless `model_parallel` is above 1.
        vocab_emb_dp: bool = Host.default(true),
    }
}

rows! {
    /// `parallel`: whether `parallel_config` applies, and how ranks share the optimizer.
    pub struct ParallelContext in CONTEXT {
        /// 0 data parallel: all ranks that are started share the batch, and `parallel_config` does not count. 1
        /// semi-automatic, 2 automatic: as `parallel_config` says. 3 hybrid and STAND_ALONE: one rank. The name of a
        /// mode is accepted, too.
        parallel_mode: ParallelMode = Host.default(ParallelMode::SemiAuto).example("2"),
        /// Whether data-parallel ranks share the optimizer (ZeRO-1): each keeps the moments and master weights of its
        /// part, updates that part, and gathers the weights of the other parts. Results change only by the order of
        /// sums.
        enable_parallel_optimizer: bool = Host.default(false),
    }
    sections "pipeline_config parallel_optimizer_config"
}

rows! {
    /// `parallel.parallel_optimizer_config`: what else ranks share with `enable_parallel_optimizer: True`, and how many
    /// ranks share it.
    pub struct OptimizerShards in OPTIMIZER {
        /// Whether each rank also keeps only its part of the accumulated gradients (ZeRO-2): gradients are summed over
        /// the ranks after each micro-batch instead of once a step.
        gradient_accumulation_shard: bool = Host.default(false),
        /// How many neighbours among the ranks that share the batch share one copy: a divisor of `data_parallel` and
        /// a multiple of `expert_parallel`; -1 or 0: all of them. One that is no divisor has no effect.
        /// Also read in `parallel`.
        optimizer_weight_shard_size: i64 = Host.default(-1).within(FROM_MINUS_ONE),
    }
}

rows! {
    /// `parallel.pipeline_config`: how the stages of a pipeline take turns.
    pub struct PipelineConfig in PIPELINE {
        /// Whether `pp_interleave_num` applies.
        pipeline_interleave: bool = Host.default(false),
        /// Order in which a stage computes. `1f1b`, one forward and one backward pass in turn, keeps the activations of
        /// the fewest micro-batches and is the only scheduler that is built.
        pipeline_scheduler: Scheduler = Host.default(Scheduler(0)).example("gpipe"),
    }
}

/// `parallel.pipeline_config.pipeline_scheduler`: its index among the schedulers of MindSpore. Only the first is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduler(usize);

const SCHEDULERS: [&str; 6] = ["1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v"];

impl Scheduler {
    /// The scheduler's name, unless it is built.
    pub(super) fn unbuilt(self) -> Option<&'static str> {
        (self.0 > 0).then_some(SCHEDULERS[self.0])
    }
}

impl Setting for Scheduler {
    fn kind() -> ValueKind {
        ValueKind::Form("1f1b, or another scheduler of MindSpore's where there are no stages")
    }

    fn from_node(node: &Node) -> Option<Self> {
        let written = node.word()?;
        SCHEDULERS.iter().position(|scheduler| *scheduler == written).map(Self)
    }

    fn to_node(&self) -> Option<Node> {
        Some(Node::from(SCHEDULERS[self.0]))
    }
}

const FROM_MINUS_ONE: Range = Range::new("-1 or a whole number from 0", |n| n >= -1.0, -2.0);

/// `parallel.parallel_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ParallelMode {
    /// Every device has the whole model.
    Data,
    /// A run is spread as `parallel_config` says.
    #[default]
    SemiAuto,
    /// A run is spread as `parallel_config` says, and a search decides what is left open.
    Auto,
    /// A run is spread as the program says.
    Hybrid,
    /// One device.
    StandAlone,
}

/// The modes, each with its number, if it has one, and its word.
const MODES: [(ParallelMode, &str, &str); 6] = [
    (ParallelMode::Data, "0", "DATA_PARALLEL"),
    (ParallelMode::SemiAuto, "1", "SEMI_AUTO_PARALLEL"),
    (ParallelMode::Auto, "2", "AUTO_PARALLEL"),
    (ParallelMode::Hybrid, "3", "HYBRID_PARALLEL"),
    (ParallelMode::StandAlone, "", "STAND_ALONE"),
    (ParallelMode::StandAlone, "", "MANUAL_PARALLEL"),
];

impl Setting for ParallelMode {
    fn kind() -> ValueKind {
        ValueKind::Form("0, 1, 2, 3 or a word such as SEMI_AUTO_PARALLEL")
    }

    fn from_node(node: &Node) -> Option<Self> {
        let written = match node {
            Node::Int(number) => number.to_string(),
            node => node.word()?.to_ascii_uppercase(),
        };
        let known = |(_, number, word): &&(Self, &str, &str)| written == *number || written == *word;
        MODES.iter().find(known).filter(|_| !written.is_empty()).map(|(mode, ..)| *mode)
    }

    fn to_node(&self) -> Option<Node> {
        MODES.iter().find(|(mode, ..)| mode == self).map(|(.., word)| Node::from(*word))
    }
}
