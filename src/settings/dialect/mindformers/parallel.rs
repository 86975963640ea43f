//! MindSpore's word for what ranks share, and what MindFormers does otherwise in its parallel modes.

use crate::settings::engine::*;
use crate::settings::sections::parallel::{Distribution, ParallelMode};

rows! {
    /// `parallel.parallel_optimizer_config`: another form of its keys.
    pub struct ShardForms in "parallel.parallel_optimizer_config" forms {
        /// MindSpore's word for the tensors that ranks share: `level2` sets `gradient_accumulation_shard: True`,
        /// `level3` sets `recompute_config.parallel_optimizer_comm_recompute: True`, and `level1` sets neither.
        optimizer_level: Option<OptimizerLevel> = Host.optional(),
    }
}

words! {
    /// `optimizer_level`.
    pub enum OptimizerLevel {
        /// The ranks share the optimizer.
        #[default]
        Optimizer = "level1",
        /// The ranks share the gradients, too.
        Gradients = "level2",
        /// Weights are gathered twice.
        Twice = "level3",
    }
}

/// Writes the level as the key that is read.
pub(super) fn translate(source: &mut Source) {
    const SECTION: &str = "parallel.parallel_optimizer_config";
    let (level, gradients) = (join(SECTION, "optimizer_level"), join(SECTION, "gradient_accumulation_shard"));
    let shares_gradients = source.value(&gradients) == Some(true);
    let written = ShardForms::read(&Reader::unchecked(source, SECTION)).optimizer_level;
    let is_on = source.value("parallel.enable_parallel_optimizer") == Some(true);
    match written {
        Some(_) if !is_on => source.ignore(&level),
        Some(OptimizerLevel::Gradients) => source.document.put(&gradients, true.into(), &level),
        Some(_) if shares_gradients => {
            source.fault(&gradients, "`True` beside another `optimizer_level` than level2; keep one of them");
        }
        Some(OptimizerLevel::Twice) => {
            let again = "recompute_config.parallel_optimizer_comm_recompute";
            source.document.put(again, true.into(), &level);
        }
        Some(OptimizerLevel::Optimizer) | None => {}
    }
}

/// Notes where a run that is spread by `distribution` is not the one of MindFormers. There the data-parallel mode
/// takes as many devices as are started, and only a run in semi-automatic parallel mode accumulates. Each of its files
/// says `use_parallel`; a file without it is not from there.
pub(in crate::settings) fn note_differences(source: &Source, distribution: &Distribution) {
    const KEY: &str = "runner_config.gradient_accumulation_steps";
    let Some(uses_parallel) = source.value::<bool>("use_parallel") else { return };
    let is_data_mode = uses_parallel && distribution.asked.context.parallel_mode == ParallelMode::Data;
    if is_data_mode && distribution.layout.world() == 1 && source.value("as_single") != Some(true) {
        let text =
            "MindFormers shares the data among as many devices as are started; here one takes all of it";
        source.note(format!("parallel.parallel_mode: {text}"));
    }
    let steps = source.value::<u64>(KEY).unwrap_or(1);
    if steps > 1 && !distribution.counts {
        source.note(format!(
            "{}: `{steps}` counts here, and a step is as many times as large as in MindFormers, which takes 1 \
             outside of semi-automatic parallel mode (`use_parallel: True`, `parallel_mode: 1`)",
            source.document.written(KEY)
        ));
    }
}
