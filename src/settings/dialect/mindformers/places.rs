//! Keys that MindFormers reads in several sections: each is moved to the section in which it is read here.

use super::mixture::MixtureForms;
use crate::settings::engine::{Section, Source, join};
use crate::settings::sections::moe::Moe;

/// The section to move from, the section to move to, and the keys.
const MOVED: [(&str, &str, &[&str]); 3] = [
    ("", WRAPPER, SHARED),
    ("monitor_config", WRAPPER, SHARED),
    ("parallel", "parallel.parallel_optimizer_config", &["optimizer_weight_shard_size"]),
];

const WRAPPER: &str = "runner_wrapper";

/// Keys of `runner_wrapper` that may also be written at the top level and in `monitor_config`.
const SHARED: &[&str] =
    &["calculate_per_token_loss", "use_skip_data_by_global_norm", "global_norm_spike_threshold"];

/// Moves every key that may be written elsewhere to the section in which it is read.
pub(super) fn gather(source: &mut Source) {
    clip_without_wrapper(source);
    let mixture = [Moe::ID, MixtureForms::ID].into_iter().filter_map(|id| source.table(id));
    let of_mixture: Vec<&str> = mixture.flat_map(|table| &table.rows).map(|row| row.key).collect();
    for (from, to, keys) in MOVED.into_iter().chain([("model.model_config", "moe_config", &of_mixture[..])]) {
        keys.iter().for_each(|key| move_key(source, &join(from, key), &join(to, key)));
    }
    unwrap_data_sets(source);
}

/// Clips gradients if the file has no `runner_wrapper`, as MindFormers does.
fn clip_without_wrapper(source: &mut Source) {
    if source.entries(WRAPPER).is_empty() {
        source.note("runner_wrapper is absent: gradients are clipped at norm 1.0, as in MindFormers");
        source.document.put(&join(WRAPPER, "use_clip_grad"), true.into(), WRAPPER);
    }
}

/// Takes a data set's section out of MindFormers' class around the data set, which may hold it. If both are written
/// they must be equal, unless a flag changes the section.
fn unwrap_data_sets(source: &mut Source) {
    for section in ["train_dataset", "eval_dataset"] {
        let of_task = format!("{section}_task.dataset_config");
        match (source.node(section), source.node(&of_task)) {
            (None, _) => source.document.move_value(&of_task, section),
            (Some(own), Some(other)) if own != other && !source.document.is_overridden(section) => {
                let message = format!("differs from `{section}`; write it once and refer to it by an anchor");
                source.fault(&of_task, message);
            }
            _ => {}
        }
    }
}

/// Moves one key. If it is written at both places, the values must be equal.
fn move_key(source: &mut Source, from: &str, to: &str) {
    let Some(node) = source.node(from) else {
        source.document.take(from);
        return;
    };
    match source.node(to) {
        Some(other) if other != node => {
            let message =
                format!("differs from `{}`, {other}; keep one of them", source.document.written(to));
            source.fault_of(to, from, message);
            source.document.take(from);
        }
        Some(_) => drop(source.document.take(from)),
        None => source.document.move_value(from, to),
    }
}
