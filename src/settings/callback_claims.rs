//! What callbacks show of the experts, and what they repeat of the model.

use super::engine::{Node, Source};
use super::values::Settings;

/// Holds what callbacks say of the model against the model.
pub(super) fn check_claims(settings: &Settings, source: &Source) {
    for (path, claims) in &settings.callbacks.claimants {
        for (key, claimed) in claims {
            let Some(actual) = actual(settings, key).filter(|actual| actual != claimed) else { continue };
            let message = format!("`{key}` is {claimed}, but the model's is {actual}; make them equal");
            source.fault(&format!("{path}.{key}"), message);
        }
    }
}

/// Leaves one form of each setting: what callbacks repeat of the model was checked and goes, `MoEDropRateCallback` asks for
/// what `callback_moe_droprate` does, and there is a summary exactly where distributions are written. Folders are decided.
pub(super) fn settle(settings: &mut Settings) {
    let folder = settings.run.folder();
    let Settings { callbacks, moe, tensorboard, .. } = settings;
    let logs_drop_rate = callbacks.drop_rate.take().is_some();
    callbacks.topk_bias = None;
    callbacks.claimants.clear();
    if let Some(moe) = moe {
        moe.callback_moe_droprate |= logs_drop_rate;
    }
    let shows_distribution = moe.as_ref().is_some_and(|moe| moe.save_token_distribution);
    callbacks.summary = shows_distribution.then(|| callbacks.summary.take().unwrap_or_default());
    let summary = callbacks.summary.as_mut().map(|summary| (&mut summary.summary_dir, "summary"));
    let tensorboard = tensorboard.as_mut().map(|board| (&mut board.tensorboard_dir, "tensorboard"));
    for (place, name) in [summary, tensorboard].into_iter().flatten() {
        if place.as_os_str().is_empty() {
            *place = folder.join(name);
        }
    }
    if moe.as_ref().is_none_or(|moe| !moe.enable_cold_hot_expert) {
        callbacks.cold_hot = None;
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
