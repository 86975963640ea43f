//! Refuses what does not fit the adapter or the memory cap, and names the key to change.

use super::forecast::Forecast;
use super::recordings::Recordings;
use crate::error::{Error, Result};
use crate::kernels::Capabilities;
use crate::model::config::{Activation, ModelConfig};
use crate::model::widest_expert_tensor;
use crate::ops::linear_cross_entropy;
use crate::ops::work_list::{MAX_COLUMNS, WorkList};
use std::fmt::Display;

const SMALLER_BATCH: &str =
    "lower runner_config.batch_size and raise runner_config.gradient_accumulation_steps instead";

/// Refuses what takes `bytes` and so fits no binding of the adapter; `what` ends with the verb, `remedy` says what to do.
pub(super) fn check_binding(
    bytes: u64,
    capabilities: &Capabilities,
    what: impl Display,
    remedy: &str,
) -> Result<()> {
    let limit = capabilities.limits.binding_bytes;
    if bytes <= limit {
        return Ok(());
    }
    Err(Error::Plan(format!(
        "{what} {} MiB, over the adapter's largest binding of {} MiB; {remedy}",
        bytes.div_ceil(1 << 20),
        limit >> 20
    )))
}

/// Refuses activations that are too wide for one binding, in micro-batches of `batch_size` windows. Recording would
/// find them too, but could not name the key to change.
pub(super) fn check_activations(
    model: &ModelConfig,
    batch_size: usize,
    capabilities: &Capabilities,
) -> Result<()> {
    let (tokens, widest) = (batch_size * model.seq_length, widest_row(model));
    let what = format!("an activation of {batch_size} x {} tokens x {widest} takes", model.seq_length);
    check_binding(4 * (tokens * widest) as u64, capabilities, what, SMALLER_BATCH)?;
    if let Some([rows, columns]) = widest_expert_tensor(model, tokens as u32, false) {
        check_launches(model, [rows, columns], capabilities)?;
        let what = format!("an activation of the experts, {rows} rows x {columns}, takes");
        check_binding(4 * rows * columns, capabilities, what, SMALLER_BATCH)?;
    }
    let bytes = linear_cross_entropy::smallest_chunk_bytes(tokens as u32, model.vocab_size as u32);
    let what = format!("a chunk of logits over {} tokens takes", model.vocab_size);
    let remedy = "lower model.model_config.vocab_size or choose another adapter with context.device_name";
    check_binding(bytes, capabilities, what, remedy)
}

/// Refuses a run that takes more than `cap` bytes of device memory.
pub(super) fn check_memory(recordings: &Recordings, cap: Option<u64>) -> Result<()> {
    let forecast = Forecast::new(recordings);
    let bytes = forecast.bytes();
    let Some(cap) = cap.filter(|&cap| bytes > cap) else { return Ok(()) };
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / 1048576.0);
    let listed: Vec<String> =
        forecast.largest.iter().map(|c| format!("{} {}", c.label, mib(c.bytes))).collect();
    Err(Error::Plan(format!(
        "the run takes {}, over context.max_device_memory of {}; the largest consumers: {}; lower \
         runner_config.batch_size or raise the cap",
        mib(bytes),
        mib(cap),
        listed.join(", ")
    )))
}

/// Columns of the widest activation of a dense layer.
fn widest_row(model: &ModelConfig) -> usize {
    let heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim;
    let inner = match model.activation {
        Activation::SwiGlu => 2 * model.intermediate_size.next_multiple_of(4),
        Activation::Gelu(_) => model.intermediate_size,
    };
    model.hidden_size.max(heads).max(inner)
}

/// Refuses experts whose grouped products need a larger grid than a launch can have.
fn check_launches(model: &ModelConfig, [rows, columns]: [u64; 2], capabilities: &Capabilities) -> Result<()> {
    if columns > u64::from(MAX_COLUMNS) {
        return Err(Error::Plan(format!(
            "experts have {columns} columns in gate and up projection, the kernels take {MAX_COLUMNS} at most; lower \
             moe_config.moe_intermediate_size"
        )));
    }
    let experts = model.mixture.as_ref().map_or(1, |mixture| mixture.route.experts);
    if !WorkList::fits(rows as u32, experts, *capabilities) {
        return Err(Error::Plan(format!(
            "{rows} rows of {experts} experts are more than a launch can have; {SMALLER_BATCH}"
        )));
    }
    Ok(())
}
