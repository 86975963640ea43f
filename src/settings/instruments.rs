//! What a run shows of its experts, and what callbacks repeat of the model.

use super::engine::{Node, Source};
use super::sections::callbacks::{COLLECT_FREQ, SummaryMonitor};
use super::values::Settings;
use std::path::PathBuf;

/// What a run shows of its experts, beside the numbers that `metrics.jsonl` has of every mixture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instruments {
    /// A log line a step with the drop rate of each layer of experts; 0 where no token is dropped.
    pub logs_drop_rate: bool,
    /// Where and when each layer's choices per expert are written.
    pub token_distribution: Option<SummaryConfig>,
}

/// Where and when token distributions are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryConfig {
    /// The folder, created when the first file is written.
    pub folder: PathBuf,
    /// Steps between files.
    pub every_steps: u64,
}

/// Decides what is shown.
pub(super) fn instruments(settings: &Settings) -> Instruments {
    let Some(moe) = &settings.moe else { return Instruments::default() };
    let callbacks = &settings.callbacks;
    let summary = callbacks.summary.as_ref();
    let own_folder =
        summary.map(|summary| summary.summary_dir.clone()).filter(|folder| !folder.as_os_str().is_empty());
    let token_distribution = moe.save_token_distribution.then(|| SummaryConfig {
        folder: own_folder.unwrap_or_else(|| settings.run.folder().join("summary")),
        every_steps: summary.map_or(COLLECT_FREQ, |summary| summary.collect_freq),
    });
    Instruments { logs_drop_rate: moe.callback_moe_droprate, token_distribution }
}

/// Holds what callbacks say of the model against the model.
pub(super) fn check_claims(settings: &Settings, source: &Source<'_>) {
    for (path, claims) in &settings.callbacks.claimants {
        for (key, claimed) in claims {
            let Some(actual) = actual(settings, key).filter(|actual| actual != claimed) else { continue };
            let message = format!("`{key}` is {claimed}, but the model's is {actual}; make them equal");
            source.fault(&format!("{path}.{key}"), message);
        }
    }
}

/// Leaves one form of each setting: what callbacks repeat of the model was checked and goes, `MoEDropRateCallback` asks for
/// what `callback_moe_droprate` does, and the summary's folder is decided.
pub(super) fn settle(settings: &mut Settings) {
    let callbacks = &mut settings.callbacks;
    let logs_drop_rate = callbacks.drop_rate.take().is_some();
    callbacks.topk_bias = None;
    callbacks.claimants.clear();
    if let Some(moe) = &mut settings.moe {
        moe.callback_moe_droprate |= logs_drop_rate;
    }
    let summary = instruments(settings).token_distribution;
    settings.callbacks.summary = summary.map(|SummaryConfig { folder, every_steps }| SummaryMonitor {
        summary_dir: folder,
        collect_freq: every_steps,
    });
    if settings.moe.as_ref().is_none_or(|moe| !moe.enable_cold_hot_expert) {
        settings.callbacks.cold_hot = None;
    }
}

/// What the settings say of `key`, if anything follows from it.
fn actual(settings: &Settings, key: &str) -> Option<Node> {
    let (model, moe) = (&settings.model, settings.moe.as_ref());
    match key {
        "expert_num" => Some(moe.map_or(1, |moe| moe.expert_num).into()),
        "num_layers" => Some(model.num_layers.into()),
        "mtp_depth" => Some(model.mtp_depth.unwrap_or(0).into()),
        // A factor that no slot follows from may be anything.
        "capacity_factor" => moe?.capacity_factor.map(Node::from),
        "balance_via_topk_bias" => Some(moe.is_some_and(|moe| moe.balance_via_topk_bias).into()),
        "topk_bias_update_rate" => Some(moe.and_then(|moe| moe.topk_bias_update_rate).unwrap_or(0.0).into()),
        "gradient_accumulation_steps" => Some(settings.runner.gradient_accumulation_steps.into()),
        _ => None,
    }
}
