//! The log lines before the first step: adapter, model, memory, and what MFU and losses are compared with.

use super::peak::Peak;
use super::trainer::Trainer;
use crate::data::Batches;
use crate::model::count;
use crate::store::hugging_face;

/// Logs what the run trains, where, and how much memory that takes, and that MFU is a share of `peak`.
pub(super) fn announce(trainer: &Trainer<'_>, tokens_per_step: usize, peak: Peak) {
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    let model = &trainer.recordings.model;
    tracing::info!("adapter: {}, {}", trainer.gpu.report(), trainer.gpu.capabilities());
    tracing::info!(
        "model: {} parameters, {:.3} GFLOP per token to train; {tokens_per_step} tokens per step",
        count::parameters(model),
        count::training_flops_per_token(model) / 1e9,
    );
    if model.mixture.is_some() {
        tracing::info!(
            "experts: {} of these parameters are active per token",
            count::active_parameters(model)
        );
    }
    if let Some(note) = hugging_face::note(model) {
        tracing::warn!("other programs will not compute the same from checkpoints: {note}");
    }
    let frozen = frozen_parameters(trainer);
    if frozen > 0 {
        tracing::info!("frozen: {frozen} of these parameters do not train");
    }
    tracing::info!(
        "memory: {:.1} MiB for weights, gradients, moments and tables, {:.1} MiB for activations",
        mib(trainer.persistent_bytes()),
        mib(trainer.pool_bytes())
    );
    tracing::info!("MFU is the share of {peak}");
}

/// Logs the loss that a model without context could reach on the first `batches` micro-batches of `data`.
pub(super) fn announce_entropy(data: &Batches, batches: u64) {
    let nats = data.unigram_entropy(batches);
    tracing::info!(
        "the evaluation tokens have a unigram entropy of {nats:.3} nats: no model that ignores context does better"
    );
}

fn frozen_parameters(trainer: &Trainer<'_>) -> usize {
    let parameters = trainer.recordings.layout.parameters.iter();
    parameters.filter(|(spec, _)| !spec.trains).map(|(spec, _)| spec.count()).sum()
}
