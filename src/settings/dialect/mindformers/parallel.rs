//! MindSpore's word for what ranks share.

use crate::settings::engine::*;

rows! {
    /// `parallel.parallel_optimizer_config`: another form of its keys.
    pub struct ShardForms in "parallel.parallel_optimizer_config" forms {
        /// MindSpore's word for all of it: `level2` is `gradient_accumulation_shard: True`, `level3` is
        /// `recompute_config.parallel_optimizer_comm_recompute: True`, `level1` neither.
        optimizer_level: Option<OptimizerLevel> = Host.optional(),
    }
}

words! {
    /// `optimizer_level`.
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
