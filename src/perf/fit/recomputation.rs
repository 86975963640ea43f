//! The possible amounts of recomputation, the cheapest first.

use crate::model::config::ModelConfig;
use crate::model::count;
use crate::record::Recording;
use crate::train::recordings::Recordings;

/// The layers that a run computes again in its backward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recomputation {
    /// The layers that are computed again, in ascending order.
    pub layers: Vec<usize>,
    /// The work that this takes, as a share of the step's floating-point operations.
    pub work: f64,
}

/// From no layer to every layer, one layer more at a time: first those whose recomputation saves the most bytes per
/// operation, and of equal ones the lower. The last layers are the first to run backward, while all others are still
/// kept, so recomputing them saves least.
pub(super) fn recomputations(kept: &Recordings) -> Vec<Recomputation> {
    let model = &kept.model;
    let flops = count::layer_flops_per_token(model);
    let saved = kept_bytes(kept.chunks(), flops.len());
    let mut order: Vec<usize> = (0..flops.len()).collect();
    // By kind, since equal layers that are neighbours differ slightly, which would shuffle them.
    let rate = |layer: usize| {
        let alike = (0..flops.len()).filter(|other| kind(model, *other) == kind(model, layer));
        let (bytes, work) =
            alike.fold((0, 0.0), |(bytes, work), one| (bytes + saved[one], work + flops[one]));
        bytes as f64 / work
    };
    order.sort_by(|one, other| rate(*other).total_cmp(&rate(*one)).then(one.cmp(other)));
    let step = count::training_flops_per_token(model);
    let first = |count: usize| {
        let mut layers = order[..count].to_vec();
        layers.sort_unstable();
        let again = layers.iter().fold(0.0, |sum, layer| sum + flops[*layer]);
        Recomputation { layers, work: again / step }
    };
    (0..=order.len()).map(first).collect()
}

/// Whether a layer is a mixture, and whether it is a block of multi-token prediction.
fn kind(model: &ModelConfig, layer: usize) -> (bool, bool) {
    (model.mixture_of(layer).is_some(), layer >= model.num_layers)
}

/// For each of `layers` layers, the bytes that live from its forward to its backward pass.
pub(crate) fn kept_bytes<'a>(micro_step: impl Iterator<Item = &'a Recording>, layers: usize) -> Vec<u64> {
    let mut kept = vec![0; layers];
    for chunk in micro_step {
        let turn = chunk.dispatches.iter().position(|dispatch| dispatch.path.contains("backward"));
        let turn = turn.unwrap_or(chunk.dispatches.len());
        for transient in chunk.transients.iter().filter(|t| t.first < turn && turn <= t.last) {
            let layer = transient.label.strip_prefix("layers.").and_then(|rest| rest.split('.').next());
            if let Some(bytes) = layer.and_then(|layer| kept.get_mut(layer.parse::<usize>().ok()?)) {
                *bytes += transient.bytes;
            }
        }
    }
    kept
}
