//! Refuses runs that do not fit the adapter, and names the key to change.

use crate::element::stride_of;
use crate::error::{Error, Result};
use crate::kernels::Capabilities;
use crate::model::config::{Activation, LayerConfig, LowRank, ModelConfig};
use crate::model::{widest_expert_tensor, widest_spread_tensor};
use crate::ops::linear_cross_entropy;
use crate::ops::spread::ExpertRanks;
use crate::ops::work_list::{MAX_COLUMNS, WorkList};
use crate::ranks::RankLayout;
use std::fmt::Display;

const SMALLER_BATCH: &str =
    "lower runner_config.batch_size and raise runner_config.gradient_accumulation_steps instead";

/// Largest number of chunks of logits in a micro-batch: each is recorded separately, in several launches.
const MAX_CHUNKS: u64 = 1 << 15;

/// The remedy for activations of `windows` windows that are too large: smaller micro-batches, if there is more than one
/// window.
pub(crate) fn smaller_batch(windows: usize) -> &'static str {
    if windows > 1 { SMALLER_BATCH } else { "lower model.model_config.seq_length" }
}

/// The error for a recording of `windows` windows that does not fit, with a remedy.
pub(crate) fn misfit(error: &Error, windows: usize) -> Error {
    Error::too_large(error, format!("{}, or make the model smaller", smaller_batch(windows)))
}

/// The error for a model that is only loaded: its sizes are given, and no training step divides it, so only `remedy`
/// helps.
pub(crate) fn misfit_of_loaded(error: Error, remedy: &str) -> Error {
    match error {
        Error::Plan(what) | Error::TooLarge { what, .. } => Error::too_large(what, remedy),
        Error::OutOfMemory { what, .. } => Error::OutOfMemory { what, remedy: remedy.to_string() },
        other => other,
    }
}

/// Refuses a tensor that takes `bytes` and so fits no binding of the adapter; `what` ends with the verb, `remedy` is
/// the advice.
pub(crate) fn check_binding(
    bytes: u64,
    capabilities: &Capabilities,
    what: impl Display,
    remedy: &str,
) -> Result<()> {
    let limit = capabilities.limits.binding_bytes;
    if bytes <= limit {
        return Ok(());
    }
    let sizes =
        format!("{} MiB, over the adapter's largest binding of {} MiB", bytes.div_ceil(1 << 20), limit >> 20);
    Err(Error::too_large(format!("{what} {sizes}"), remedy))
}

/// Tokens that an adapter computes at once: attention takes at most five turns of its loops for four tokens
/// (`ops::attention::plan::Walk`), the gradient of a weight one for each.
pub(crate) fn most_tokens(capabilities: &Capabilities) -> usize {
    usize::try_from(capabilities.most_turns() / 5 * 4 - 16).unwrap_or(usize::MAX)
}

/// Refuses `tokens` tokens at once for which the driver of the adapter would end loops.
pub(crate) fn check_turns(tokens: usize, capabilities: &Capabilities, remedy: &str) -> Result<()> {
    let most = most_tokens(capabilities);
    if tokens <= most {
        return Ok(());
    }
    let what = format!("a software adapter computes {most} tokens at once, not {tokens}");
    Err(Error::too_large(what, remedy))
}

/// Refuses activations of a rank of `layout` that are too wide for one binding, in micro-batches of `batch_size`
/// windows. Recording would find them too, but could not name the key to change, and sizes that pass here fit the 32
/// bits of ops.
pub(crate) fn check_activations(
    model: &ModelConfig,
    batch_size: usize,
    layout: &RankLayout,
    capabilities: &Capabilities,
) -> Result<()> {
    let (tokens, widest) = (batch_size.saturating_mul(model.seq_length), widest_row(model));
    let what = format!("an activation of {batch_size} x {} tokens x {widest} takes", model.seq_length);
    let bytes = |rows: u64, columns: u64| rows.saturating_mul(columns).saturating_mul(model.compute.bytes());
    let smaller = smaller_batch(batch_size);
    check_binding(bytes(tokens as u64, widest as u64), capabilities, what, smaller)?;
    if let Some([rows, columns]) = widest_expert_tensor(model, tokens as u32, false) {
        check_launches(model, 1, [rows, columns], capabilities, smaller)?;
        let what = format!("an activation of the experts, {rows} rows x {columns}, takes");
        check_binding(bytes(rows, columns), capabilities, what, smaller)?;
    }
    if layout.expert > 1 {
        check_spread(model, tokens as u32, layout, capabilities, smaller)?;
    }
    check_logits(model, tokens as u32, capabilities, smaller)
}

/// Refuses experts that are spread over ranks and may receive more rows from them than fit a binding, or than fit the
/// staging buffer together with their counts.
fn check_spread(
    model: &ModelConfig,
    tokens: u32,
    layout: &RankLayout,
    capabilities: &Capabilities,
    smaller: &str,
) -> Result<()> {
    let ranks = ExpertRanks { group: layout.expert_group(), place: layout.expert_part() };
    let tensor = widest_spread_tensor(model, tokens, &ranks);
    let Some((mixture, [rows, columns])) = model.mixture.as_ref().zip(tensor) else { return Ok(()) };
    let remedy = format!(
        "{smaller}, or lower model.model_config.seq_length or parallel_config.expert_parallel, or bound the rows by \
         moe_config.capacity_factor"
    );
    let what = format!(
        "the rows that {} ranks may send to the experts of one, {rows} x {columns}, take",
        layout.expert
    );
    check_launches(model, layout.expert, [rows, columns], capabilities, smaller)?;
    let bytes = |columns: u64| rows.saturating_mul(columns).saturating_mul(model.compute.bytes());
    check_binding(bytes(columns), capabilities, &what, &remedy)?;
    let counts = layout.expert as u64 * u64::from(stride_of(mixture.experts() as u32 + 1)) * 4;
    let (staged, limit) = (bytes(model.hidden_size as u64) + counts, capabilities.limits.buffer_bytes);
    if staged > limit {
        let what = format!(
            "{what} {} MiB with their counts, over the adapter's largest buffer of {} MiB",
            staged.div_ceil(1 << 20),
            limit >> 20
        );
        return Err(Error::too_large(what, remedy));
    }
    Ok(())
}

/// Refuses a vocabulary for which no chunk of logits fits a binding, or which needs so many chunks that their recording
/// alone is too large.
fn check_logits(model: &ModelConfig, tokens: u32, capabilities: &Capabilities, smaller: &str) -> Result<()> {
    let vocab = model.vocab_size as u32;
    let bytes = linear_cross_entropy::smallest_chunk_bytes(tokens, vocab);
    let what = format!("a chunk of logits over {vocab} tokens takes");
    let remedy = "lower model.model_config.vocab_size or choose another adapter with context.device_name";
    check_binding(bytes, capabilities, what, remedy)?;
    let chunks = linear_cross_entropy::chunk_count(tokens, vocab, capabilities);
    if chunks > MAX_CHUNKS {
        let what = format!(
            "the logits of {tokens} tokens over a vocabulary of {vocab} make {chunks} chunks, of which a micro-batch has \
             {MAX_CHUNKS} at most"
        );
        return Err(Error::too_large(what, smaller));
    }
    Ok(())
}

/// Columns of the widest activation with one row for each token: of a dense layer, of a shared expert, of the router's
/// scores, of the choices of a token, or of what all layers make their own embeddings of.
fn widest_row(model: &ModelConfig) -> usize {
    let of_layer = |layer: &LayerConfig| {
        let inner = match model.activation {
            Activation::Gated(_) => 2 * layer.intermediate_size.next_multiple_of(4),
            Activation::Gelu(_) | Activation::Xielu => layer.intermediate_size,
        };
        let layout = model.head_layout(layer);
        inner.max(layout.cols().max(layout.out_cols()) as usize).max(model.projected_cols(layer))
    };
    let of_layers = model.layer_kinds().map(|(layer, _)| of_layer(layer)).max().unwrap_or(0);
    let of_experts = model.mixture.as_ref().map_or(0, |mixture| {
        let shared = mixture.shared.map_or(0, |shared| 2 * shared.intermediate_size.next_multiple_of(4));
        shared.max(mixture.experts()).max(mixture.chosen())
    });
    // At most three adapters are stacked.
    let of_adapters =
        model.low_rank.as_ref().map_or(0, |low_rank| 3 * low_rank.largest_rank().next_multiple_of(4));
    let of_inputs = model.per_layer_width.map_or(0, |width| width * model.num_layers);
    let of_embedding = model.embedding_width.unwrap_or(0);
    model.hidden_size.max(of_embedding).max(of_layers).max(of_experts).max(of_adapters).max(of_inputs)
}

/// Refuses experts, spread over `ranks` ranks, whose grouped products need a larger grid than a launch can have.
fn check_launches(
    model: &ModelConfig,
    ranks: usize,
    [rows, columns]: [u64; 2],
    capabilities: &Capabilities,
    smaller: &str,
) -> Result<()> {
    let rank =
        model.low_rank.as_ref().filter(|of| !of.parameters.is_empty()).map_or(0, LowRank::largest_rank);
    if rank > MAX_COLUMNS as usize {
        let what =
            format!("adapters of experts have a rank of {rank}, and the kernels take {MAX_COLUMNS} at most");
        return Err(Error::too_large(what, "lower lora_rank of pet_config"));
    }
    if columns > u64::from(MAX_COLUMNS) {
        let what = format!(
            "experts have {columns} columns in gate and up projection, the kernels take {MAX_COLUMNS} at most"
        );
        return Err(Error::too_large(what, "lower moe_config.moe_intermediate_size"));
    }
    let experts = model.mixture.as_ref().map_or(1, |mixture| mixture.route.experts / ranks as u32);
    if !WorkList::fits(rows as u32, experts, *capabilities) {
        let what = format!("{rows} rows of {experts} experts are more than a launch can have");
        return Err(Error::too_large(what, smaller));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_takes_the_place_of_another_and_of_nothing_else() {
        let of = |error| misfit_of_loaded(error, "do this").to_string();
        let plain = Error::Plan("a tensor of 3 x 4; of the head".to_string());
        assert_eq!(of(misfit(&plain, 2)), "a tensor of 3 x 4; of the head; do this");
        assert_eq!(of(plain), "a tensor of 3 x 4; of the head; do this");
        assert_eq!(of(Error::config("--a", "is b")), "--a: is b");
        let said = |windows| misfit(&Error::Plan("it".into()), windows).to_string();
        assert!(said(2).contains("lower runner_config.batch_size"), "{}", said(2));
        let turns =
            |tokens, capabilities| check_turns(tokens, &capabilities, "do this").map_err(|e| e.to_string());
        let refused = "a software adapter computes 52412 tokens at once, not 52413; do this".to_string();
        assert_eq!(turns(52_413, Capabilities::software()), Err(refused));
        assert_eq!(turns(52_412, Capabilities::software()), Ok(()));
        assert_eq!(turns(1 << 20, Capabilities::portable()), Ok(()));
        assert_eq!(said(1), "it; lower model.model_config.seq_length, or make the model smaller");
    }
}
