//! The tensors that data-parallel ranks divide among them.

use super::rows::OptimizerShards;
use super::{CONTEXT, OPTIMIZER, Parallelism};
use crate::ranks::RankLayout;
pub use crate::ranks::sharding::{Sharded, Sharding};
use crate::settings::engine::*;

impl Sharding {
    /// The values of the keys that ask for this sharding.
    pub(super) fn settings(&self) -> (bool, OptimizerShards) {
        let optimizer = OptimizerShards {
            gradient_accumulation_shard: self.what == Sharded::Gradients,
            // At most the number of ranks, which fits.
            optimizer_weight_shard_size: if self.ranks > 1 { self.ranks as i64 } else { -1 },
        };
        (self.what != Sharded::None, optimizer)
    }
}

const SIZE_KEY: &str = "optimizer_weight_shard_size";
const GRADIENTS_KEY: &str = "gradient_accumulation_shard";

/// The tensors that a run of `layout` divides, as `asked` says. `comm_recompute` is `parallel_optimizer_comm_recompute`
/// of `recompute_config`.
pub(super) fn sharding(
    asked: &Parallelism,
    layout: &RankLayout,
    comm_recompute: bool,
    source: &Source,
) -> Sharding {
    let is_on = asked.context.enable_parallel_optimizer;
    if layout.data == 1 || !is_on {
        note_idle(asked, layout.data, source);
        return Sharding::NONE;
    }
    let shares_gradients = asked.optimizer.gradient_accumulation_shard;
    Sharding {
        what: if shares_gradients { Sharded::Gradients } else { Sharded::Optimizer },
        ranks: ranks(asked.optimizer.optimizer_weight_shard_size, layout, source),
        gathers_again: comm_recompute,
    }
}

/// Number of data-parallel ranks of `layout` that hold one copy together.
fn ranks(written: i64, layout: &RankLayout, source: &Source) -> usize {
    let RankLayout { data, expert, .. } = *layout;
    let path = &format!("{OPTIMIZER}.{SIZE_KEY}");
    match usize::try_from(written) {
        Err(_) | Ok(0) => data,
        Ok(size) if size == data => data,
        Ok(size) if size > 1 && data.is_multiple_of(size) && size.is_multiple_of(expert) => size,
        Ok(size) if size > 1 && data.is_multiple_of(size) => {
            let text = format!(
                "`{size}` ranks hold no copy of experts that are spread over {expert}; write a multiple, or -1, \
                 which is all ranks"
            );
            if source.is_sound(path) {
                source.fault(path, text);
            }
            data
        }
        // As in MindSpore, which accepts neither groups of one rank nor groups that leave ranks over.
        Ok(size) => {
            let path = source.document.written(path);
            source.note(format!("{path}: `{size}` cannot group {data} ranks, so all of them share one copy"));
            data
        }
    }
}

/// Notes keys that have no effect because nothing is divided.
fn note_idle(asked: &Parallelism, data: usize, source: &Source) {
    let shards = &asked.optimizer;
    let is_written = [
        (CONTEXT, "enable_parallel_optimizer", asked.context.enable_parallel_optimizer),
        (OPTIMIZER, GRADIENTS_KEY, shards.gradient_accumulation_shard),
        (OPTIMIZER, SIZE_KEY, shards.optimizer_weight_shard_size > 0),
    ];
    for (section, key, _) in is_written.into_iter().filter(|(.., is_written)| *is_written) {
        let path = format!("{section}.{key}");
        match data {
            1 => source.ignore(&path),
            _ => source.note(format!(
                "{}: no effect without `{CONTEXT}.enable_parallel_optimizer: True`",
                source.document.written(&path)
            )),
        }
    }
}
