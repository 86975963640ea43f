//! `parallel_config` and `parallel`: how the original spreads a run over devices.

use super::run::Run;
use crate::settings::engine::*;

rows! {
    /// `parallel_config`: how the original spreads a run over devices. A run here has one. Degrees above 1 count only in the
    /// original's automatic modes (`use_parallel: True` and a `parallel.parallel_mode` of 1 or 2), where they need `as_single`;
    /// elsewhere the original too takes each as 1.
    pub struct Parallel {
        /// Devices that share the batch.
        data_parallel: u64 = Host.default(1).within(COUNT).also("data_parallel_size"),
        /// Devices that share a matrix.
        model_parallel: u64 = Host.default(1).within(COUNT).also("tensor_model_parallel_size"),
        /// Devices that share the layers.
        pipeline_stage: u64 = Host.default(1).within(COUNT).also("pipeline_model_parallel_size"),
        /// Devices that share a sequence.
        context_parallel: u64 = Host.default(1).within(COUNT).also("context_parallel_size"),
        /// How many of the devices share the experts.
        expert_parallel: u64 = Host.default(1).within(COUNT).also("expert_model_parallel_size"),
        /// Micro-batches of a step where there are several pipeline stages; otherwise without effect, as in the original.
        micro_batch_num: u64 = Host.default(1).within(COUNT),
        /// Runs of layers that a stage of the original has; taken as 1. Counts of layers in `recompute_config` follow it and
        /// `pipeline_stage` where `parallel.pipeline_config.pipeline_interleave` is on.
        pp_interleave_num: u64 = Host.default(1).within(COUNT).also("virtual_pipeline_model_parallel_size"),
    }
    others [ignored(
        "seq_split_num use_seq_parallel|sequence_parallel optimizer_shard gradient_aggregation_group vocab_emb_dp \
            context_parallel_algo ulysses_degree_in_cp mem_coeff fine_grain_interleave",
        "about several devices",
    )]
}

rows! {
    /// `parallel`: the original's switches of distribution, which matter for whether `parallel_config` counts.
    pub struct ParallelContext {
        /// 0 data parallel, 1 semi-automatic, 2 automatic or 3 hybrid, or the original's word for it. In the modes 0 and 3 the
        /// original takes all of `parallel_config` as 1.
        parallel_mode: ParallelMode = Host.default(ParallelMode::SemiAuto).example("2"),
    }
    others [
        sections("pipeline_config"),
        ignored(
            "gradients_mean gradient_fp32_sync loss_repeated_mean enable_alltoall full_batch dataset_strategy search_mode \
                auto_parallel_search_mode enable_parallel_optimizer parallel_optimizer_config parallel_optimizer_threshold \
                strategy_ckpt_config strategy_ckpt_save_file strategy_ckpt_load_file device_num global_rank comm_fusion \
                all_reduce_fusion_config auto_pipeline pipeline_stages communi_parallel_mode optimizer_weight_shard_size \
                auto_parallel_new_interface group_ckpt_save_file parameter_broadcast pipeline_result_broadcast \
                pipeline_segments grad_accumulation_step force_fp32_communication",
            "about several devices",
        ),
    ]
}

rows! {
    /// `parallel.pipeline_config`: how the stages of the original's pipeline take turns.
    pub struct PipelineConfig {
        /// Whether `pp_interleave_num` counts.
        pipeline_interleave: bool = Host.default(false),
    }
    others [ignored("pipeline_scheduler", "about several devices")]
}

/// `parallel.parallel_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ParallelMode {
    /// Every device has the whole model.
    Data,
    /// As `parallel_config` says.
    #[default]
    SemiAuto,
    /// The same, and the rest is searched for.
    Auto,
    /// As the program says.
    Hybrid,
    /// One device.
    StandAlone,
}

/// The original's number, if it has one, and words.
const MODES: [(ParallelMode, &str, &str); 6] = [
    (ParallelMode::Data, "0", "DATA_PARALLEL"),
    (ParallelMode::SemiAuto, "1", "SEMI_AUTO_PARALLEL"),
    (ParallelMode::Auto, "2", "AUTO_PARALLEL"),
    (ParallelMode::Hybrid, "3", "HYBRID_PARALLEL"),
    (ParallelMode::StandAlone, "", "STAND_ALONE"),
    (ParallelMode::StandAlone, "", "MANUAL_PARALLEL"),
];

impl Setting for ParallelMode {
    fn kind() -> Kind {
        Kind::Form("0, 1, 2, 3 or a word such as SEMI_AUTO_PARALLEL")
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

/// What the original would distribute, and how.
#[derive(Clone, Debug)]
pub(crate) struct Distribution {
    /// `parallel_config`.
    pub degrees: Parallel,
    /// Whether the original would heed it.
    pub counts: bool,
    /// Whether `pp_interleave_num` counts.
    pub is_interleaved: bool,
}

/// The dotted path of the degrees.
pub(crate) const PATH: &str = "parallel_config";

/// Reads the sections and says what becomes of them. What needs several devices is a fault unless one is to do their work.
pub(crate) fn read(source: &Source<'_>, run: &Run) -> Distribution {
    let degrees = Parallel::read_at(source, PATH);
    let mode = ParallelContext::read_at(source, "parallel").parallel_mode;
    let is_interleaved = PipelineConfig::read_at(source, "parallel.pipeline_config").pipeline_interleave;
    let use_parallel = run.use_parallel == Some(true);
    let counts = use_parallel && matches!(mode, ParallelMode::SemiAuto | ParallelMode::Auto);
    if use_parallel && mode == ParallelMode::Data {
        let text =
            "the original shares the data among as many devices as are started; here one takes all of it";
        source.note(format!("parallel.parallel_mode: {text}"));
    }
    let (asked, devices) = (degrees.above_one(), degrees.devices());
    if counts && devices > 1 && !run.as_single {
        let asked = asked.join(", ");
        let remedy = "add `--as-single` to do their work on it";
        source.fault(PATH, format!("asks for {devices} devices ({asked}), and a run here has one; {remedy}"));
    } else if !asked.is_empty() {
        source
            .note(format!("parallel_config asks for {}; this run is one rank and takes 1", asked.join(", ")));
    }
    Distribution { degrees, counts, is_interleaved }
}

impl Parallel {
    /// Devices that the degrees ask for; experts are spread over those of the others.
    fn devices(&self) -> u64 {
        let degrees = [self.data_parallel, self.model_parallel, self.pipeline_stage, self.context_parallel];
        degrees.into_iter().fold(1, u64::saturating_mul)
    }

    /// The degrees above 1, as "data_parallel 8".
    fn above_one(&self) -> Vec<String> {
        let degrees = self.entries().into_iter().filter(|entry| entry.key != "micro_batch_num");
        let above_one = degrees.filter_map(|Entry { key, written, .. }| match written {
            Some(Node::Int(degree)) if degree != 1 => Some(format!("{key} {degree}")),
            _ => None,
        });
        above_one.collect()
    }
}
